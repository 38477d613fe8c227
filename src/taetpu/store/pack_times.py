"""The structure of a study's `times/<pack>.json`: the wall time of a pack, and the parts of it.

`train.pack_clock` measures the parts, `report.time_spent` reads them. Results do not contain them, because they differ
between executions.
"""

from typing import Literal, NotRequired, TypeAlias, get_args

from typing_extensions import TypedDict

Part: TypeAlias = Literal["trained", "compiled", "evaluated", "written", "waited", "other"]
"""What time is spent on. `waited` is the time before training, for a process, another pack or a claim."""
PARTS: tuple[Part, ...] = get_args(Part)
Parts: TypeAlias = dict[Part, float]
"""Seconds by what they are spent on."""


class PackTime(TypedDict, closed=True):
    """The wall time of a pack in all processes that trained it, or the time that a process waited between packs."""

    seconds: NotRequired[float]  # of a pack: the sum of its parts
    runs: NotRequired[int]  # of a pack: the number of runs
    arms: NotRequired[dict[str, int]]  # of a pack: the number of runs of each arm
    parts: NotRequired[Parts]  # packs of earlier versions have none

"""The structure of a study's `costs/<key>.json`: what a machine or a compiler gave, apart from the runs.

`study.costs` writes these files, `report.costs` reads them. A machine and a compiler each have a file, so that none
replaces the costs of another. `results.json` does not contain them, because they differ between machines.
"""

from typing import NotRequired

from typing_extensions import TypedDict


class Round(TypedDict, closed=True):
    """Windows of an arm and its baseline, timed one after the other."""

    order: list[str]  # the arms in the order in which they were timed
    seconds: dict[str, float]  # the seconds per training step, or per generated token, of each
    others: float | None  # the share of the cores that other processes used meanwhile; None if it is not known


class Timing(TypedDict, closed=True):
    """The times of an arm, each next to a time of its baseline."""

    run: str  # the ID of the run whose config was timed
    against: str  # the baseline
    date: str  # in UTC, as in ISO 8601
    before: float | None  # the share of the cores that other processes used before the first round
    same_program: bool  # whether arm and baseline have one program, so that nothing was timed
    step: list[Round]
    decode: list[Round]
    missing: dict[str, str]  # why `step` or `decode` has no rounds


class Machine(TypedDict, closed=True):
    """Where programs ran or were compiled."""

    cpu: str  # the name of the processor
    cores: int  # that this process may use
    device: str  # the kind of device, as JAX names it
    devices: int
    platform: str


class Protocol(TypedDict, closed=True):
    """How times were measured."""

    seconds: float  # the least duration of a window
    layout: dict[str, int]  # of a run: the devices over which it is divided
    prompt: int  # the tokens of the prompt
    tokens: int  # the tokens that follow it


class Compiled(TypedDict, closed=True):
    """A compiled train step of one run."""

    run: str  # the ID of the run whose config was compiled
    bytes: int | None  # the memory that the program needs on a device; None if it does not fit
    cycles: NotRequired[float | None]  # the compiler's estimate; of compilers for TPUs only, None if it gives none


class StoredCosts(TypedDict, closed=True):
    """The costs that a machine gave, or the compiler for a TPU."""

    date: str  # of the last change, in UTC
    versions: dict[str, str]
    compiled: dict[str, Compiled]  # by arm
    machine: NotRequired[Machine]
    timings: NotRequired[dict[str, Timing]]  # by arm; baselines have none
    protocol: NotRequired[dict[str, Protocol]]  # by arm
    tpu: NotRequired[str]  # the slice for which a compiler without a TPU compiled

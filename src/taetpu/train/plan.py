"""Which runs share a program, and how wide its packs are: decided before the first step, then kept."""

import hashlib
import json
import os
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import jax

from taetpu.core.runtime import cores
from taetpu.core.traced import active, split
from taetpu.data.batches import Source
from taetpu.spec.design import RunSpec
from taetpu.spec.schema import ResolvedConfig
from taetpu.train.count import activation_bytes, num_params
from taetpu.train.pack import structure_key

WIDEST = 32  # beyond this a pack gains nothing on any machine seen so far
SHARE_OF_MEMORY = 0.5


@dataclass(frozen=True)
class PackPlan:
    """What is decided before a pack's first step and never changed after it, for the same bits on every resume.

    Attributes:
        id: names the pack's folder.
        width: runs in the program; beyond `runs` it is filled up with repeats of the first.
        devices: how many devices the run axis is spread over.
        precision: of activations and products; decided once, so that a study moved to another device keeps it.
        live: fields traced though neutral in some runs (see `core.traced.split`).
        runs: `(arm, seed, id)` of each run.
    """

    id: str
    width: int
    devices: int
    precision: str
    live: tuple[str, ...]
    runs: tuple[tuple[str, int, str], ...]

    @classmethod
    def from_data(cls, data: Mapping[str, Any]) -> "PackPlan":
        """A plan as the study's `plan.json` holds it."""
        runs = tuple((arm, seed, run_id) for arm, seed, run_id in data["runs"])
        return cls(data["id"], data["width"], data["devices"], data["precision"], tuple(data["live"]), runs)


@dataclass(frozen=True)
class Group:
    """Runs of one structure; `live` as in `PackPlan`."""

    live: frozenset[str]
    runs: tuple[RunSpec, ...]


def group(runs: Sequence[RunSpec]) -> list[Group]:
    """Runs by structure, in order of first appearance.

    A mask that only some runs use is traced in all that could share their program, and in no others.
    """
    everywhere = frozenset[str]().union(*(active(run.config) for run in runs))
    groups: dict[str, list[RunSpec]] = defaultdict(list)
    for run in runs:
        groups[structure_key(split(run.config, everywhere)[0])].append(run)
    return [
        Group(frozenset[str]().union(*(active(run.config) for run in members)), tuple(members))
        for members in groups.values()
    ]


def plan_packs(runs: Sequence[RunSpec], sources: Iterable[Source], earlier: Sequence[PackPlan] = ()) -> list[PackPlan]:
    """Packs for runs that have none yet.

    Args:
        sources: each run's prepared task.
        earlier: the study's packs so far; what `precision: auto` meant for them it means for these.
    """
    source_of = dict(zip((run.id for run in runs), sources, strict=True))
    plans = []
    for members in group(runs):
        first = members.runs[0]
        widest = max(1, min(WIDEST, memory_bytes() // run_bytes(first.config, source_of[first.id])))
        packs = -(-len(members.runs) // widest)
        size = -(-len(members.runs) // packs)
        devices, width = spread(size)
        for start in range(0, len(members.runs), size):
            names = tuple((r.arm, r.seed, r.id) for r in members.runs[start : start + size])
            precision = first.config.train.precision
            if precision == "auto":
                precision = earlier[0].precision if earlier else auto_precision()
            plans.append(PackPlan(pack_id(names), width, devices, precision, tuple(sorted(members.live)), names))
    return plans


def spread(size: int) -> tuple[int, int]:
    """`(devices, width)` for a pack of `size` runs: over all devices unless filling up the pack would waste a sixth.

    On a CPU each core is a device, and spreading runs over cores beats working on one run with all of them.
    """
    available = min(jax.local_device_count(), cores()) if jax.default_backend() == "cpu" else jax.local_device_count()
    for devices in range(min(available, size), 1, -1):
        width = -(-size // devices) * devices
        if size / width >= 5 / 6:
            return devices, width
    return 1, size


def auto_precision() -> str:
    """What `precision: auto` means on this device: bfloat16 on accelerators, float32 on a CPU."""
    return "float32" if jax.default_backend() == "cpu" else "bfloat16"


def pack_id(names: Sequence[tuple[str, int, str]]) -> str:
    return hashlib.sha256(json.dumps(names).encode()).hexdigest()[:12]


def memory_bytes() -> int:
    """What packs may use of the device's memory, in bytes."""
    stats = jax.local_devices()[0].memory_stats() or {}
    total = stats.get("bytes_limit") or os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    return int(total * SHARE_OF_MEMORY)


def run_bytes(config: ResolvedConfig, source: Source) -> int:
    """An upper estimate of what training one run of a pack holds at once, in bytes.

    Parameters, gradients and two moments in float32, and everything that the forward pass of a microbatch computes, as
    if the backward pass kept it all.
    """
    sizes = (config.model, source.vocab_size, source.seq_len)
    sequences = config.train.batch_size // config.train.accumulate
    return 4 * 4 * num_params(*sizes) + sequences * activation_bytes(*sizes)

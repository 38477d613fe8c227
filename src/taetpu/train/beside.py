"""Layouts of packs that train at once, each on separate cores or accelerators.

Packs of different structures cannot share a program. Trained one after another, each occupies all devices, pads its
runs to their number, and compiles alone. On two cores, two packs of four runs with one core each took 0.63 times as
long as one after the other (docs/log.md). On accelerators, nothing was measured: the rule is that of cores, which
compute the runs of a pack one after another. Nor is it known whether packs gain from sharing an accelerator, so they do
so only if `TAETPU_PACKS_PER_GPU` is set.
"""

import heapq
import os
from collections.abc import Callable, Sequence
from functools import partial

import jax

from taetpu.core.errors import UserError
from taetpu.train.layout import WIDEST, Layout, Packing, Workload, choose_layout, even_width, possible_device_counts
from taetpu.train.training_flops import training_flops_per_token

SHARED_PACK = 1.15
"""How much longer a run takes per core in a pack on several cores, which wait for each other (docs/log.md)."""
LEAST_SECONDS = 20.0
"""Estimated core-seconds of training from which on the start of worker processes pays off."""
CORE_FLOPS, STEP_SECONDS = 2e10, 1e-3
"""A core's FLOPs per second on small models, and the shortest step. Both are on the low side (docs/log.md)."""
PACKS_PER_GPU = "TAETPU_PACKS_PER_GPU"


def packs_per_device() -> int:
    """Return how many packs may train at once on one accelerator: `TAETPU_PACKS_PER_GPU`, 1 by default and on CPUs.

    Only packs on one accelerator share it.

    Raises:
        UserError: if the value is not a positive integer.
    """
    text = os.environ.get(PACKS_PER_GPU, "1")
    if not text.isdecimal() or int(text) < 1:
        problem = f"{PACKS_PER_GPU} is {text!r}, expected a positive integer"
        raise UserError(problem, remedy=f"Set {PACKS_PER_GPU}=2, or unset it.")
    return 1 if jax.default_backend() == "cpu" else int(text)


def core_seconds(work: Workload) -> float:
    """Return an estimate of the seconds that one core takes to train one run of a workload."""
    train = work.config.train
    tokens = train.batch_size * work.source.seq_len
    step = tokens * training_flops_per_token(work.config, work.source) / CORE_FLOPS
    return train.total_steps(work.source.num_windows) * max(step, STEP_SECONDS)


def finish_time(seconds: Sequence[float], at_once: int) -> float:
    """Return when the last of several jobs ends if `at_once` run at a time and the longest are started first."""
    free = [0.0] * at_once
    for job in sorted(seconds, reverse=True):
        heapq.heapreplace(free, free[0] + job)
    return max(free)


def packs_at_once(devices: Sequence[int]) -> int:
    """Return how many packs train side by side on this machine, from the number of devices of each pack."""
    if len(devices) < 2 or jax.process_count() > 1:
        return 1
    shared = packs_per_device() if max(devices) == 1 else 1
    return max(1, min(len(devices), jax.device_count() * shared // max(devices)))


def pack_seconds(work: Workload, layout: Layout) -> list[float]:
    """Return an estimate of the seconds that each pack of a group of runs takes with a layout."""
    slots = layout.width / layout.devices * (SHARED_PACK if layout.devices > 1 else 1)
    return [core_seconds(work) * slots] * -(-work.size // layout.width)


def layouts_beside(works: Sequence[Workload], packing: Packing) -> Callable[[Workload], tuple[Layout, str]]:
    """Return the function that chooses each workload's layout so that all packs together end soonest.

    Packs get fewer devices than there are if this is estimated to end sooner than one pack after another. Packs that
    share an accelerator have one device each.
    """
    devices, shared = jax.device_count(), packs_per_device()
    in_turn = partial(choose_layout, packing=packing)
    if not may_share(works):
        return in_turn

    def narrow(most: int, work: Workload) -> Layout:
        return narrow_layout(work, packing, most, devices // most if jax.default_backend() == "cpu" else shared)

    chosen = "rule of thumb" if packing.widest is None else "asked for"
    if shared > 1:
        return lambda work: (narrow(1, work), chosen)

    def finish(most: int) -> float:
        return finish_time([s for work in works for s in pack_seconds(work, narrow(most, work))], devices // most)

    most = min((n for n in range(1, devices) if devices // n > devices // (n + 1)), key=finish)
    if finish(most) >= sum(sum(pack_seconds(work, in_turn(work)[0])) for work in works):
        return in_turn
    return lambda work: (narrow(most, work), chosen)


def may_share(works: Sequence[Workload]) -> bool:
    """Return whether packs may train at once: in one process, undivided, and on a CPU if they take long enough."""
    divided = any(work.config.train.compute.mesh != "auto" for work in works)
    if divided or jax.process_count() > 1 or jax.device_count() * packs_per_device() == 1:
        return False
    return jax.default_backend() != "cpu" or sum(core_seconds(work) * work.size for work in works) >= LEAST_SECONDS


def narrow_layout(work: Workload, packing: Packing, most: int, sharing: int) -> Layout:
    """Return the layout of a pack on at most `most` devices, of which none trains only padding.

    Args:
        work: the group of runs.
        packing: the value of the option `--pack`.
        most: the maximum number of devices.
        sharing: the number of packs that share the memory of the CPU or of an accelerator.
    """
    for devices in reversed(possible_device_counts(most, work.size)):
        widest = min(packing.widest or WIDEST * devices, work.widest(devices, sharing))
        if devices <= min(most, work.size, widest):
            return Layout(even_width(work.size, widest, devices), devices)
    return Layout(1)

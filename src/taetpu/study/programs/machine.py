"""The parts of this machine that runs get: GPUs by CUDA_VISIBLE_DEVICES, and cores by affinity."""

import os
from pathlib import Path

from taetpu.core.accelerators import DEV, find_accelerators
from taetpu.core.errors import UserError
from taetpu.core.jax_setup import cpu_cores
from taetpu.spec.programs.program_config import EachConfig
from taetpu.study.programs.attempt import Slot

NVIDIA, VISIBLE = "NVIDIA GPU", "CUDA_VISIBLE_DEVICES"


def machine_slots(each: EachConfig | None, runs: int) -> list[Slot]:
    """Return a slot for each run that this machine can run at once; at most `runs`.

    Args:
        each: what each run needs; None if runs are started one after another and share the machine with nothing.
        runs: the number of runs.

    Raises:
        UserError: If the machine has not what a run needs.
    """
    if each is None or each == EachConfig():
        return [Slot()]
    gpus, cores, memory = visible_gpus(), _cores(), _memory()
    fits = []
    for name, needed, available, unit in (
        ("gpus", each.gpus, len(gpus), "GPU"),
        ("cpus", each.cpus, len(cores), "core"),
        ("memory", each.memory, memory, "bytes of memory"),
    ):
        if needed is None:
            continue
        if needed > available:
            units = unit if needed == 1 or name == "memory" else f"{unit}s"
            problem = f"each run needs {needed:,} {units}, and this machine has {available:,}"
            limit = (
                " that CUDA_VISIBLE_DEVICES shows" if name == "gpus" and "CUDA_VISIBLE_DEVICES" in os.environ else ""
            )
            path = ("program", "each", name)
            fewer = f"Use at most {available}, or" if available else "Use"
            raise UserError(problem + limit, path=path, remedy=f"{fewer} another machine.")
        fits.append(available // needed)
    if each.gpus is None and each.cpus is None:
        fits.append(len(cores))
    return [
        Slot(
            gpus=None if each.gpus is None else tuple(gpus[number * each.gpus : (number + 1) * each.gpus]),
            cpus=None if each.cpus is None else tuple(cores[number * each.cpus : (number + 1) * each.cpus]),
            memory=each.memory,
        )
        for number in range(max(1, min(*fits, runs)))
    ]


def visible_gpus(dev: Path = DEV) -> list[str]:
    """Return the GPUs that this process may use, as in CUDA_VISIBLE_DEVICES."""
    limited = os.environ.get(VISIBLE)
    if limited is not None:
        return [name.strip() for name in limited.split(",") if name.strip() not in ("", "-1")]
    installed = next((kind for kind in find_accelerators(dev) if kind.kind == NVIDIA), None)
    return [str(number) for number in range(len(installed.files))] if installed else []


def _cores() -> list[int]:
    return sorted(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else list(range(cpu_cores()))


def _memory() -> int:
    """Return the bytes of memory of this machine."""
    return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")

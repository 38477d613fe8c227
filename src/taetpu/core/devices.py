"""The accelerators of this machine by their device files, and which one of them a process is to use.

A choice is made through the environment, before jax is imported, and holds for child processes, too. Imports no jax.
"""

import os
import re
import sys
from collections.abc import MutableMapping
from dataclasses import dataclass
from pathlib import Path

from taetpu.core.errors import UserError

DEV = Path("/dev")

# Kind: its device files under /dev, and the variable that says which of them a process sees.
KINDS = {
    "TPU": (r"accel\d+|vfio/\d+", "TPU_VISIBLE_CHIPS"),
    "NVIDIA GPU": (r"nvidia\d+", "CUDA_VISIBLE_DEVICES"),
    "AMD GPU": (r"kfd", None),  # one file for all of them
}
WSL_DEVICE = "dxg"
"""The device file of all GPUs together under Windows; which kind they are it does not tell."""
SINGLE_CHIP_ENVIRONMENT = {
    "TPU_CHIPS_PER_PROCESS_BOUNDS": "1,1,1",
    "TPU_PROCESS_BOUNDS": "1,1,1",
    "CLOUD_TPU_TASK_ID": "0",
}
"""What libtpu must know besides, to start on one chip of several without waiting for the others, or for other hosts."""


@dataclass(frozen=True)
class Accelerators:
    """Accelerators of one kind, and the files that a process opens to use them, in the order of their numbers."""

    kind: str
    files: tuple[Path, ...]

    @property
    def variable(self) -> str | None:
        return KINDS[self.kind][1]


def find_accelerators(dev: Path = DEV) -> list[Accelerators]:
    """What this machine has, a kind an entry; empty on a machine with CPUs alone."""
    names = [path.relative_to(dev).as_posix() for path in (*dev.glob("*"), *dev.glob("vfio/*"))]
    found = []
    for kind, (pattern, _) in KINDS.items():
        files = sorted((name for name in names if re.fullmatch(pattern, name)), key=_number)
        if files:
            found.append(Accelerators(kind, tuple(dev / name for name in files)))
    return found


def _number(name: str) -> tuple[str, int]:
    stem = name.rstrip("0123456789")
    return stem, int(name[len(stem) :] or 0)


def default_to_cpu(dev: Path = DEV, environ: MutableMapping[str, str] = os.environ) -> None:
    """Have jax start on the CPU where this machine has no accelerator; libtpu would search for one, and log errors.

    Does nothing where the user has chosen a platform, or jax is imported already.
    """
    chosen = any(name in environ for name in ("JAX_PLATFORMS", "JAX_PLATFORM_NAME"))
    if not (chosen or "jax" in sys.modules or find_accelerators(dev) or (dev / WSL_DEVICE).exists()):
        environ["JAX_PLATFORMS"] = "cpu"


def select_device(device: str, dev: Path = DEV, environ: MutableMapping[str, str] = os.environ) -> None:
    """Let this process and its children see one accelerator, or none. To be called before jax is imported.

    Args:
        device: a number from 0, among those that the environment lets the process see already; or `cpu`.

    Raises:
        UserError: there is no such device, or no way to choose it.
    """
    if device == "cpu":
        environ["JAX_PLATFORMS"] = "cpu"
        return
    if not (device.isascii() and device.isdecimal()):
        raise _refused(f"--device {device} is neither a number nor cpu", remedy="--device 0 is the first accelerator")
    if not (found := find_accelerators(dev)):
        raise _refused(
            f"there is no device {device}: this machine has no accelerator", remedy="leave --device out, or say cpu"
        )
    there = found[0]
    if there.variable is None:
        problem = f"an {there.kind} cannot be chosen by --device"
        raise _refused(problem, remedy=f"HIP_VISIBLE_DEVICES={device} in the environment does it")
    limited = environ.get(there.variable)
    seen = limited.split(",") if limited else [str(number) for number in range(len(there.files))]
    if int(device) >= len(seen):
        many = f"{len(seen)} {there.kind}s" if len(seen) > 1 else f"one {there.kind}"
        limit = f" (limited by {there.variable}={limited})" if limited else ""
        known = f"--device 0 to {len(seen) - 1}" if len(seen) > 1 else "--device 0"
        raise _refused(f"there is no device {device}: this machine has {many}{limit}", remedy=f"{known}, or cpu")
    environ[there.variable] = seen[int(device)]
    if there.kind == "TPU":
        environ.update(SINGLE_CHIP_ENVIRONMENT)


def _refused(problem: str, remedy: str) -> UserError:
    return UserError(problem, path=("--device",), remedy=remedy)

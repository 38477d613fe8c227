"""Detection of this machine's accelerators by their device files, and selection of one accelerator for a process.

The accelerator is selected with environment variables. They must be set before jax is imported, and child processes
inherit them. This module does not import jax.
"""

import os
import re
import sys
from collections.abc import MutableMapping
from dataclasses import dataclass
from pathlib import Path

from taetpu.core.errors import UserError

DEV = Path("/dev")

# For each kind, a pattern for device files under /dev, and the variable that restricts which devices a process sees.
KINDS = {
    "TPU": (r"accel\d+|vfio/\d+", "TPU_VISIBLE_CHIPS"),
    "NVIDIA GPU": (r"nvidia\d+", "CUDA_VISIBLE_DEVICES"),
    "AMD GPU": (r"kfd", None),  # one file for all GPUs
}
WSL_DEVICE = "dxg"
"""The device file that all GPUs share under WSL, whatever their kind."""
SINGLE_CHIP_ENVIRONMENT = {
    "TPU_CHIPS_PER_PROCESS_BOUNDS": "1,1,1",
    "TPU_PROCESS_BOUNDS": "1,1,1",
    "CLOUD_TPU_TASK_ID": "0",
}
"""Variables that make libtpu start on one of several chips without waiting for other chips or hosts."""


@dataclass(frozen=True)
class Accelerators:
    """Accelerators of one kind, with the device files that a process opens, ordered by number."""

    kind: str
    files: tuple[Path, ...]

    @property
    def variable(self) -> str | None:
        """The environment variable that selects among the accelerators, or None if this kind has no such variable."""
        return KINDS[self.kind][1]


def find_accelerators(dev: Path = DEV) -> list[Accelerators]:
    """Return this machine's accelerators by kind, or an empty list if it has only CPUs."""
    names = [path.relative_to(dev).as_posix() for path in (*dev.glob("*"), *dev.glob("vfio/*"))]
    installed = []
    for kind, (pattern, _) in KINDS.items():
        files = sorted((name for name in names if re.fullmatch(pattern, name)), key=_number)
        if files:
            installed.append(Accelerators(kind, tuple(dev / name for name in files)))
    return installed


def _number(name: str) -> tuple[str, int]:
    stem = name.rstrip("0123456789")
    return stem, int(name[len(stem) :] or 0)


CHOSEN: set[str] = set()
"""The variables that `default_to_cpu` has set in this process. The programs of users do not inherit them."""


def default_to_cpu(dev: Path = DEV, environ: MutableMapping[str, str] = os.environ) -> None:
    """Make jax start on the CPU if this machine has no accelerator.

    Without this setting, libtpu would search for a TPU and log errors. The environment is unchanged if the user has
    chosen a platform or if jax is already imported.
    """
    chosen = any(name in environ for name in ("JAX_PLATFORMS", "JAX_PLATFORM_NAME"))
    if not (chosen or "jax" in sys.modules or find_accelerators(dev) or (dev / WSL_DEVICE).exists()):
        environ["JAX_PLATFORMS"] = "cpu"
        if environ is os.environ:
            CHOSEN.add("JAX_PLATFORMS")


def select_device(device: str, dev: Path = DEV, environ: MutableMapping[str, str] = os.environ) -> None:
    """Restrict this process and its children to one accelerator, or to the CPU. Call this before importing jax.

    Args:
        device: `cpu`, or the index (from 0) of an accelerator among those that the environment makes visible.
        dev: The folder with the device files.
        environ: The environment to change.

    Raises:
        UserError: if the device does not exist, or if it cannot be selected.
    """
    if device == "cpu":
        environ["JAX_PLATFORMS"] = "cpu"
        return
    if not (device.isascii() and device.isdecimal()):
        raise _error(f"`--device` must be a number or cpu, got {device}", "Use --device 0 for the first accelerator.")
    if not (installed := find_accelerators(dev)):
        raise _error(f"there is no device {device}: this machine has no accelerator", "Omit --device, or use cpu.")
    first = installed[0]
    if first.variable is None:
        problem = f"`--device` cannot select an {first.kind}"
        raise _error(problem, f"Set HIP_VISIBLE_DEVICES={device} in the environment.")
    limited = environ.get(first.variable)
    visible = limited.split(",") if limited else [str(number) for number in range(len(first.files))]
    if int(device) >= len(visible):
        count = f"{len(visible)} {first.kind}s" if len(visible) > 1 else f"one {first.kind}"
        limit = f" (limited by {first.variable}={limited})" if limited else ""
        known = f"--device 0 to {len(visible) - 1}" if len(visible) > 1 else "--device 0"
        raise _error(f"there is no device {device}: this machine has {count}{limit}", f"Use {known}, or cpu.")
    environ[first.variable] = visible[int(device)]
    if first.kind == "TPU":
        environ.update(SINGLE_CHIP_ENVIRONMENT)


def _error(problem: str, remedy: str) -> UserError:
    return UserError(problem, path=("--device",), remedy=remedy)

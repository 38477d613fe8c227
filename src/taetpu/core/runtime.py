"""How jax is to start: set in the environment before jax is first imported. Imports no jax itself."""

import os
import sys
from importlib import import_module
from importlib.metadata import version
from pathlib import Path
from typing import Any

from taetpu.core.devices import default_to_cpu


def cpu_cores() -> int:
    """CPU cores this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def cache_folder() -> Path:
    """Where compiled programs and measurements are kept: `TAETPU_CACHE`, else under the user's cache folder."""
    base = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(os.environ.get("TAETPU_CACHE") or Path(base) / "taetpu")


def prepare_jax(*, cpu: bool = False) -> None:
    """Set what jax reads at import, unless the user has set it already.

    Args:
        cpu: use no accelerator, whatever is set: to look at programs for other machines.

    Without an accelerator's device file jax is told to use the CPU (it would search, and complain, otherwise), and
    each core becomes one XLA device, so that a pack's runs can be spread over cores. Compiled programs are kept on
    disk between processes.
    """
    if "jax" in sys.modules:
        return
    if cpu:
        os.environ["JAX_PLATFORMS"] = "cpu"
    default_to_cpu()
    flags = os.environ.get("XLA_FLAGS", "")
    if "xla_force_host_platform_device_count" not in flags:
        os.environ["XLA_FLAGS"] = f"{flags} --xla_force_host_platform_device_count={cpu_cores()}".strip()
    programs = cache_folder() / "programs" / f"jaxlib-{version('jaxlib')}"
    os.environ.setdefault("JAX_COMPILATION_CACHE_DIR", str(programs))
    os.environ.setdefault("JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS", "0")
    os.environ.setdefault("JAX_PERSISTENT_CACHE_MIN_ENTRY_SIZE_BYTES", "-1")


def call_prepared(cpu: bool, module: str, name: str, *arguments: Any) -> Any:
    """Return what a function of a module returns that imports jax, which is prepared before, in a process of Ray."""
    prepare_jax(cpu=cpu)
    return getattr(import_module(module), name)(*arguments)

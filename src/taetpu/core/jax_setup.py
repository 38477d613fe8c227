"""Preparation of the environment for jax, before it is first imported. This module does not import jax."""

import atexit
import gc
import os
import sys
from importlib import import_module
from importlib.metadata import version
from pathlib import Path
from typing import Any

from taetpu.core.accelerators import default_to_cpu


def cpu_cores() -> int:
    """Return the number of CPU cores that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def cache_folder() -> Path:
    """Return the folder for compiled programs and measurements: `TAETPU_CACHE`, or `taetpu` in the user's cache."""
    base = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(os.environ.get("TAETPU_CACHE") or Path(base) / "taetpu")


def prepare_jax(*, cpu: bool = False) -> None:
    """Set the variables that jax reads at import, unless the user has set them.

    On a machine without accelerators, jax uses the CPU. Each core is one XLA device, so that the runs of a pack are
    distributed over the cores. Compiled programs are cached on disk.

    Args:
        cpu: Whether to use the CPU even if the machine has accelerators, for example to inspect programs for other
            machines.
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


def collect_garbage_less_often() -> None:
    """Collect garbage in a process of taetpu less often than Python does by default, and not at its end.

    Importing jax and tracing programs create many objects, and looking for unreachable ones took an eighth of the time.
    The end took a quarter of the time of a short command, mostly for modules that are never used again. Frozen objects
    are not visited, and the first function that is registered runs last.
    """
    gc.set_threshold(100_000, 20, 20)
    atexit.register(gc.freeze)


def call_prepared(cpu: bool, module: str, name: str, *arguments: Any) -> Any:
    """Prepare jax, import a module and return the result of calling one of its functions. Used in Ray processes."""
    prepare_jax(cpu=cpu)
    return getattr(import_module(module), name)(*arguments)

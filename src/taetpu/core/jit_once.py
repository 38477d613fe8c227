"""Fast compilation for programs that run once, or seldom."""

from collections.abc import Callable
from typing import Any

import jax

# Options of the CPU's compiler alone. Its newer emitter of fused loops takes longer than everything else in a small
# program. Programs compiled with these options may differ from others in the last bits of their results.
QUICK = {"xla_cpu_use_fusion_emitters": False, "xla_backend_optimization_level": 1}
"""Compile time is more than halved, and a sampled text takes as long."""
UNOPTIMIZED = QUICK | {"xla_backend_optimization_level": 0, "xla_llvm_disable_expensive_passes": True}
"""A fifth to a half of the compile time. The program may take several times as long."""


def jit_once(fn: Callable[..., Any], platform: str | None = None, *, seldom: bool = False, **options: Any) -> Any:
    """Return `jax.jit(fn, **options)`, compiled with few optimizations on a CPU.

    Args:
        fn: The function to compile.
        platform: The platform of the devices. By default, it is jax's default backend.
        seldom: Whether the function is called several times, which needs some of the optimizations.
        options: Further arguments to `jax.jit`.
    """
    compiler_options = None
    if (platform or jax.default_backend()) == "cpu":
        compiler_options = QUICK if seldom else UNOPTIMIZED
    return jax.jit(fn, compiler_options=compiler_options, **options)

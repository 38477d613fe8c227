"""Fast compilation of programs that run once."""

from collections.abc import Callable
from typing import Any

import jax

# Halves compile time. Only the CPU's compiler has these options.
UNOPTIMIZED = {"xla_backend_optimization_level": 0, "xla_llvm_disable_expensive_passes": True}


def jit_once(fn: Callable[..., Any], platform: str | None = None, **options: Any) -> Any:
    """Return `jax.jit(fn, **options)`, compiled without optimization on a CPU.

    Args:
        fn: The function to compile; use it for a first or only call.
        platform: The platform of its devices; by default jax's default backend.
        options: Further arguments of `jax.jit`.
    """
    compiler_options = UNOPTIMIZED if (platform or jax.default_backend()) == "cpu" else None
    return jax.jit(fn, compiler_options=compiler_options, **options)

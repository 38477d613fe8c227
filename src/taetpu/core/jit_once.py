"""Fast compilation for programs that run once."""

from collections.abc import Callable
from typing import Any

import jax

# Halves compile time. Only the CPU's compiler has these options.
UNOPTIMIZED = {"xla_backend_optimization_level": 0, "xla_llvm_disable_expensive_passes": True}


def jit_once(fn: Callable[..., Any], platform: str | None = None, **options: Any) -> Any:
    """Return `jax.jit(fn, **options)`, compiled without optimization on a CPU.

    Use it for functions that are called once.

    Args:
        fn: The function to compile.
        platform: The platform of the devices. By default, it is jax's default backend.
        options: Further arguments to `jax.jit`.
    """
    compiler_options = UNOPTIMIZED if (platform or jax.default_backend()) == "cpu" else None
    return jax.jit(fn, compiler_options=compiler_options, **options)

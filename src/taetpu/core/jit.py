"""Compiling what runs once: in half the time, since how fast it runs hardly matters."""

from collections.abc import Callable
from typing import Any

import jax

# Only the CPU's compiler can be told so.
UNOPTIMIZED = {"xla_backend_optimization_level": 0, "xla_llvm_disable_expensive_passes": True}


def jit_once(fn: Callable[..., Any], platform: str | None = None, **form: Any) -> Any:
    """`jax.jit(fn, **form)` for a first or only call; `platform` is that of its devices, the default's unless given."""
    options = UNOPTIMIZED if (platform or jax.default_backend()) == "cpu" else None
    return jax.jit(fn, compiler_options=options, **form)

"""Compilation by XLA. On a CPU, its optimizations are limited to what pays off.

Functions with compiler options cannot be called inside other functions that JAX compiles or differentiates.
"""

import os
from collections.abc import Callable
from typing import Any

import jax

# Halves compile time. Only the CPU's compiler has these options.
UNOPTIMIZED = {"xla_backend_optimization_level": 0, "xla_llvm_disable_expensive_passes": True}
# An eighth less compile time than at LLVM's highest level, which is the default. Programs are as fast (docs/log.md).
LEVEL_1 = {"xla_backend_optimization_level": 1}


def jit_once(fn: Callable[..., Any], platform: str | None = None, **options: Any) -> Any:
    """Return `jax.jit(fn, **options)`, compiled without optimization on a CPU.

    Use it for functions that are called once.

    Args:
        fn: The function to compile.
        platform: The platform of the devices. By default, it is jax's default backend.
        options: Further arguments to `jax.jit`.
    """
    return _jit(fn, UNOPTIMIZED, platform, options)


def jit_often(fn: Callable[..., Any], platform: str | None = None, **options: Any) -> Any:
    """Return `jax.jit(fn, **options)`, compiled with LLVM's level 1 on a CPU. See `jit_once` for the arguments."""
    return _jit(fn, LEVEL_1, platform, options)


def _jit(fn: Callable[..., Any], on_cpu: dict[str, Any], platform: str | None, options: dict[str, Any]) -> Any:
    by_flag = "xla_backend_optimization_level" in os.environ.get("XLA_FLAGS", "")
    decided = by_flag or jax.config.read("jax_disable_most_optimizations")  # by the user
    compiler_options = None if decided or (platform or jax.default_backend()) != "cpu" else on_cpu
    return jax.jit(fn, compiler_options=compiler_options, **options)

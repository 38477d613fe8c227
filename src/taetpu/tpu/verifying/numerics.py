"""Products of matrices against numpy in float64, at each precision that jax can be asked for."""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from taetpu.tpu.verifying.checks import Finding

SIZE = 512
BOUNDS = {"default": 2e-2, "high": 1e-3, "highest": 1e-5, "bfloat16": 1e-4}
"""The largest relative error, in the Frobenius norm, that each may have. `default` is one pass in bfloat16 on a TPU
(about 3e-3) and TF32 on newer NVIDIA GPUs; `high` is three passes, or TF32; `highest` is float32 throughout. `bfloat16`
is the product of bfloat16 matrices, against numpy's of the same rounded numbers: summed in float32 it is nearly exact.
"""


def products(a: np.ndarray, b: np.ndarray) -> dict[str, np.ndarray]:
    """`a @ b`, float32 `(SIZE, SIZE)`, as the default device computes it."""
    found: dict[str, Any] = {name: jnp.matmul(a, b, precision=name) for name in ("default", "high", "highest")}
    halves = (jnp.asarray(m, jnp.bfloat16) for m in (a, b))
    found["bfloat16"] = jnp.matmul(*halves, preferred_element_type=jnp.float32)
    return {name: np.asarray(product, np.float64) for name, product in found.items()}


def rounded(a: np.ndarray) -> np.ndarray:
    """The nearest bfloat16 numbers, in float64."""
    return a.astype(jnp.bfloat16).astype(np.float64)


def matmul(reference: Callable[[np.ndarray, np.ndarray], np.ndarray] = np.matmul) -> Finding:
    """Errors of the product of two random matrices at each precision, against `reference`."""
    random = np.random.default_rng(0)
    a, b = (random.standard_normal((SIZE, SIZE)).astype(np.float32) for _ in range(2))
    exact = reference(a.astype(np.float64), b.astype(np.float64))
    halved = reference(rounded(a), rounded(b))
    errors = {}
    for name, product in products(a, b).items():
        right = halved if name == "bfloat16" else exact
        errors[name] = float(np.linalg.norm(product - right) / np.linalg.norm(right))
    wrong = [name for name, error in errors.items() if not error <= BOUNDS[name]]
    values = {"size": SIZE, "errors": errors, "bounds": BOUNDS, "default_precision": default_precision()}
    if wrong:
        worst = wrong[0]
        figure = f"{worst} precision is off by {errors[worst]:.1e}; at most {BOUNDS[worst]:.0e} is right"
        return Finding("FAILED", figure, values)
    told = f"relative error {errors['default']:.0e} at default precision, {errors['highest']:.0e} at highest"
    if errors["default"] > 100 * errors["highest"]:
        told += ": float32 products are rounded unless JAX_DEFAULT_MATMUL_PRECISION=highest"
    return Finding("ok", told, values)


def default_precision() -> str:
    """What jax is set to."""
    return str(getattr(jax.config, "jax_default_matmul_precision", None) or "default")

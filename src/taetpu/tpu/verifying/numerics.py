"""Compare matmul at each of jax's precisions with numpy in float64."""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from taetpu.tpu.verifying.checks import Finding

SIZE = 512
BOUNDS = {"default": 2e-2, "high": 1e-3, "highest": 1e-5, "bfloat16": 1e-4}
"""Maximum relative error in the Frobenius norm, by precision. `default` is one bfloat16 pass on a TPU (error: 3e-3)
and TF32 on recent NVIDIA GPUs; `high` is three bfloat16 passes, or TF32; `highest` is float32. `bfloat16` is the
product of bfloat16 matrices, compared with the product of the same rounded values in numpy. The error of `bfloat16` is
small because the sums are accumulated in float32.
"""


def _multiply(a: np.ndarray, b: np.ndarray) -> dict[str, np.ndarray]:
    """Return the product `a @ b`, `(SIZE, SIZE)`, as the default device computes it, by precision."""
    products: dict[str, Any] = {name: jnp.matmul(a, b, precision=name) for name in ("default", "high", "highest")}
    halves = (jnp.asarray(m, jnp.bfloat16) for m in (a, b))
    products["bfloat16"] = jnp.matmul(*halves, preferred_element_type=jnp.float32)
    return {name: np.asarray(product, np.float64) for name, product in products.items()}


def _round_to_bfloat16(a: np.ndarray) -> np.ndarray:
    """Return the nearest bfloat16 values, as float64."""
    return a.astype(jnp.bfloat16).astype(np.float64)


def matmul(reference: Callable[[np.ndarray, np.ndarray], np.ndarray] = np.matmul) -> Finding:
    """Compare the product of two random matrices with `reference`, at each precision."""
    random = np.random.default_rng(0)
    a, b = (random.standard_normal((SIZE, SIZE)).astype(np.float32) for _ in range(2))
    exact = reference(a.astype(np.float64), b.astype(np.float64))
    exact_rounded = reference(_round_to_bfloat16(a), _round_to_bfloat16(b))
    errors = {}
    for name, product in _multiply(a, b).items():
        expected = exact_rounded if name == "bfloat16" else exact
        errors[name] = float(np.linalg.norm(product - expected) / np.linalg.norm(expected))
    wrong = [name for name, error in errors.items() if not error <= BOUNDS[name]]
    default_precision = str(getattr(jax.config, "jax_default_matmul_precision", None) or "default")
    values = {"size": SIZE, "errors": errors, "bounds": BOUNDS, "default_precision": default_precision}
    if wrong:
        worst = wrong[0]
        figure = f"relative error {errors[worst]:.1e} at {worst} precision, above the limit of {BOUNDS[worst]:.0e}"
        return Finding("FAILED", figure, values)
    figure = f"relative error {errors['default']:.0e} at default precision, {errors['highest']:.0e} at highest"
    if errors["default"] > 100 * errors["highest"]:
        figure += ": float32 inputs are rounded unless JAX_DEFAULT_MATMUL_PRECISION=highest"
    return Finding("ok", figure, values)

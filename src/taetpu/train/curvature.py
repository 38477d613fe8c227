"""The curvature of the loss of a batch, estimated from targets that the model draws itself."""

import jax
import jax.numpy as jnp
from jaxtyping import Array, DTypeLike, Float, Int

from taetpu.core.keys import Key, named
from taetpu.data.base import Batch
from taetpu.nn.common import combine_trainable
from taetpu.nn.lm import LM
from taetpu.optim.loss import LEAST_WEIGHT, position_losses, predict
from taetpu.train.sharding import Division


def estimate_curvature(
    params: LM, rest: LM, batch: Batch, key: Key, *, accumulate: int, dtype: DTypeLike, division: Division
) -> LM:
    """Return the Gauss-Newton-Bartlett estimate n g^2 of the diagonal of the Gauss-Newton matrix, for each parameter.

    g is the gradient of the mean cross entropy over n weighted positions, with targets drawn from the predictions of
    the model. Other objectives, auxiliary losses, heads, hooks and dropout have no part in it. The logits of a whole
    microbatch are in memory.

    Args:
        params: the trainable part of the model.
        rest: the remaining part of the model.
        batch: the batch, whose targets are not used.
        key: the key of the drawn targets.
        accumulate: the number of passes in which the gradient is computed.
        dtype: dtype of activations and matrix products.
        division: the strategy that divides the batch over devices.

    Source: Liu et al. 2023, "Sophia: A Scalable Stochastic Second-order Optimizer for Language Model Pre-training",
        arXiv 2305.14342, algorithm 2.
    """
    weight = jnp.maximum(batch.weights.sum(), LEAST_WEIGHT)
    # One number for each position of the whole batch, so that the targets do not depend on how the batch is divided.
    uniform = jax.random.uniform(named(key, "curvature"), batch.weights.shape)
    local, uniform = division.local_batch(batch), division.local_batch(batch._replace(weights=uniform)).weights
    forward = division.wrap(predict)

    def loss(params: LM, part: Batch, uniform: Float[Array, "batch seq"]) -> Float[Array, ""]:
        logits, _ = forward(combine_trainable(params, rest), part, dtype=dtype, whole=True)
        targets = draw_targets(jax.lax.stop_gradient(logits), uniform)
        return position_losses(logits, targets, part.weights)["nll"].sum() / weight

    def add(total: LM, inputs: tuple[Batch, Array]) -> tuple[LM, None]:
        return jax.tree.map(jnp.add, total, jax.grad(loss)(params, *inputs)), None

    parts = jax.tree.map(lambda a: a.reshape(accumulate, -1, *a.shape[1:]), (local, uniform))
    zero = jax.tree.map(jnp.zeros_like, params)
    gradient = division.sum(jax.lax.scan(add, zero, parts)[0])
    return jax.tree.map(lambda g: weight * g**2, gradient)


def draw_targets(
    logits: Float[Array, "batch seq vocab"], uniform: Float[Array, "batch seq"]
) -> Int[Array, "batch seq"]:
    """Return the token at which the cumulative probability exceeds a number from 0 to 1."""
    cumulative = jnp.cumsum(jax.nn.softmax(logits.astype(jnp.float32), -1), -1)
    below = (cumulative <= uniform[..., None]).sum(-1, dtype=jnp.int32)
    return jnp.minimum(below, logits.shape[-1] - 1)  # the sum of all probabilities may be slightly below 1

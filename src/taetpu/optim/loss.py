"""Cross entropy over weighted positions in float32, and losses by position for objectives and heads."""

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int

from taetpu.core.errors import UserError
from taetpu.core.keys import Key, named
from taetpu.core.sites import Read, is_requested
from taetpu.data.base import Batch
from taetpu.nn.embedding import FLOAT32
from taetpu.nn.head import HeadInputs
from taetpu.nn.lm import LM

Logits = Float[Array, "batch seq outputs"]
Targets = Int[Array, "batch seq"] | Float[Array, "batch seq"]
Weights = Float[Array, "batch seq"]
PositionLosses = Callable[[Logits, Targets, Weights], dict[str, Weights]]
MEASURED = ("nll", "correct", "weight")  # the values from which loss and accuracy follow
TRAINED = "objective"  # the value that is minimised in place of `nll`
LEAST_WEIGHT = 1e-12
"""The least weight by which sums are divided, so that the mean of nothing is 0: small batches may mask no token."""


def sum_losses(logits: Logits, targets: Targets, weights: Weights) -> dict[str, Float[Array, ""]]:
    """Return weighted sums over a batch: `nll` in nats, `correct` predictions, and the `weight` to divide them by."""
    return {name: value.sum() for name, value in position_losses(logits, targets, weights).items()}


def position_losses(logits: Logits, targets: Targets, weights: Weights) -> dict[str, Weights]:
    """Return, for each position, the weighted values that `sum_losses` sums.

    A prediction is correct if no logit exceeds the target's. If n logits are tied for the maximum, each scores 1 / n,
    so that equal logits score 1 / vocab. This needs no argmax, which is expensive on a CPU.
    """
    top = jax.lax.stop_gradient(logits.max(-1))
    nll, picked = _cross_entropy(logits, targets, top)
    # At least 1, because no logit is equal to a maximum of NaN.
    sharing = jnp.maximum((logits >= top[..., None]).sum(-1), 1)
    hit = (picked >= top) / sharing
    return {"nll": nll * weights, "correct": hit * weights, "weight": weights}


@jax.custom_vjp
def _cross_entropy(logits: Logits, targets: Targets, top: Weights) -> tuple[Weights, Weights]:
    """Return the cross entropy and the target's logit, which has no gradient, given the largest logits.

    The gradient of the pick alone would be a scatter into an array of the logits' size, for which XLA stores two such
    arrays in float32. Here it is a comparison, and XLA computes the gradient with respect to all logits in one pass.
    """
    return _cross_entropy_forward(logits, targets, top)[0]


def _cross_entropy_forward(logits: Logits, targets: Targets, top: Weights) -> tuple[Any, Any]:
    picked = jnp.take_along_axis(logits, targets[..., None], axis=-1)[..., 0]
    total = jnp.exp(logits - top[..., None]).sum(-1)
    return (jnp.log(total) + (top - picked), picked), (logits, targets, top, total)


def _cross_entropy_backward(saved: Any, gradients: Any) -> tuple[Any, None, None]:
    logits, targets, top, total = saved
    g = gradients[0]
    pulled = jnp.exp(logits - top[..., None]) * (g / total)[..., None]
    is_target = jnp.arange(logits.shape[-1]) == targets[..., None]
    return jnp.where(is_target, pulled - g[..., None], pulled), None, None


_cross_entropy.defvjp(_cross_entropy_forward, _cross_entropy_backward)


def trained_sum(sums: Mapping[str, Any]) -> Any:
    """Return the sum whose mean over the weights of a batch is minimised, given the sums of an objective's values."""
    return sums[TRAINED] if TRAINED in sums else sums["nll"]


def predict(
    model: LM,
    batch: Batch,
    *,
    key: Key | None = None,
    dtype: Any = jnp.float32,
    whole: bool = False,
    losses: PositionLosses = position_losses,
) -> tuple[Logits | None, dict[str, Weights]]:
    """Return a model's logits and their losses at each position, by default `position_losses`.

    If losses are chunked (`LM.loss_chunk`), the logits of the whole batch are never in memory, and the first result is
    None. In training steps, which have a key, logits have the form `LM.logit_form`, and the first result is None unless
    that is the default. `whole`, and captures that read or edit the site `logits`, disable both.
    """
    observed, chunk = is_requested("logits"), chunk_size(model, batch)
    decode = model.decode if key is None else model.decode_in_training
    if whole or observed or (chunk is None and (key is None or model.logit_form == FLOAT32)):
        logits = model(batch.tokens, key=key, dtype=dtype, **batch.context)
        return logits, losses(logits, batch.targets, batch.weights)
    x = model.final(batch.tokens, key=key, dtype=dtype, **batch.context)
    if chunk is None:
        return None, losses(decode(x), batch.targets, batch.weights)
    return None, chunked_losses(decode, x, batch.targets, batch.weights, chunk, losses)


def chunk_size(model: LM, batch: Batch) -> int | None:
    """Return the number of tokens whose logits are computed at once; None for the whole batch."""
    return None if model.loss_chunk is None or model.loss_chunk >= batch.targets.size else model.loss_chunk


def head_losses(
    model: LM, heads: Mapping[str, Any], sites: Mapping[str, Read], batch: Batch, key: Key | None = None
) -> dict[str, Weights]:
    """Return the weighted losses of the model's heads at each position, by name (see `nn.head`).

    Args:
        model: The model.
        heads: The configs of the heads.
        sites: The activations at the sites that the heads read.
        batch: The batch.
        key: The key of random numbers in the heads; None outside of training steps.

    Raises:
        UserError: if a head returns a wrong shape.
    """
    chunk = chunk_size(model, batch)

    def cross_entropy(x: Array, targets: Targets, weights: Weights, decode: Callable[[Array], Logits]) -> Weights:
        if chunk is None:
            return position_losses(decode(x), targets, weights)["nll"]
        return chunked_losses(decode, x, targets, weights, chunk)["nll"]

    inputs = HeadInputs(sites, batch.tokens, batch.targets, batch.weights, model, cross_entropy, batch.segments)
    losses = {}
    for name, head in sorted(model.heads.items()):
        head_sites = {site: sites[site] for site in heads[name].sites()}
        losses[name] = head(replace(inputs, sites=head_sites, key=None if key is None else named(key, "heads", name)))
        if jnp.shape(losses[name]) != batch.targets.shape:
            problem = f"head {name!r} returns {jnp.shape(losses[name])}, expected losses {batch.targets.shape}"
            raise UserError(problem, path=("model", "heads", name), remedy="Return one loss for each position.")
    return losses


def chunked_losses(
    decode: Callable[[Array], Logits],
    x: Float[Array, "batch seq dim"],
    targets: Targets,
    weights: Weights,
    tokens: int,
    losses: PositionLosses = position_losses,
) -> dict[str, Weights]:
    """Return the losses of `decode(x)` at each position, computed for at most `tokens` tokens at once.

    A chunk contains the same positions, at least one, of all sequences, so that a batch can be sharded over devices.
    The backward pass recomputes the logits of each chunk.
    """
    batch, seq = targets.shape
    count = -(-seq // max(1, tokens // batch))
    size = -(-seq // count)

    def cut(a: Array) -> Array:
        """Reshape `(batch, seq, ...)` to `(count, batch, size, ...)`, padded with positions of weight 0."""
        padded = jnp.pad(a, [(0, 0), (0, count * size - seq), *[(0, 0)] * (a.ndim - 2)])
        return jnp.moveaxis(padded.reshape(batch, count, size, *a.shape[2:]), 1, 0)

    def step(_: None, chunk: tuple[Array, Targets, Weights]) -> tuple[None, dict[str, Weights]]:
        def chunk_losses(x: Array, targets: Targets, weights: Weights) -> dict[str, Weights]:
            return losses(decode(x), targets, weights)

        return None, jax.checkpoint(chunk_losses, prevent_cse=False)(*chunk)

    _, parts = jax.lax.scan(step, None, (cut(x), cut(targets), cut(weights)))
    return {name: jnp.moveaxis(part, 0, 1).reshape(batch, -1)[:, :seq] for name, part in parts.items()}

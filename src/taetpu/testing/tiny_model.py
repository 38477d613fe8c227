"""A tiny model and its results, computed in several ways that have to agree."""

import zlib
from collections.abc import Callable
from functools import cached_property, partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Int

from taetpu.core.batch_statistics import Averages, collect
from taetpu.core.jit import jit_once
from taetpu.core.keys import Key, root_key
from taetpu.core.sites import Edit, Read, capture, find_sites
from taetpu.data.base import Batch
from taetpu.nn.cache import empty_cache, extend
from taetpu.nn.common import combine_trainable, partition_trainable
from taetpu.nn.compute_options import ComputeOptions
from taetpu.nn.lm import LM, LMConfig
from taetpu.nn.named_arrays import named_parameters, with_parameters
from taetpu.optim.loss import head_losses, sum_losses
from taetpu.testing.tiny import BATCH, SEQ, build_tiny, tokens

PADDED = 2
"""Number of tokens of padding on the left of the last sequence, in the checks of padding."""
PIECES = ((0, 3), (3, 4), (4, SEQ))
"""The pieces by which a sequence is extended with a cache."""
LOOP = ComputeOptions(remat="full")
"""Options with which the layers of a stack are computed in a loop, which compiles faster."""

Outputs = dict[str, Any]


def compute_outputs(
    model: LM, batch: Int[Array, "batch seq"], key: Key, weights: Any = None, extra: Any = 1.0,
    *, heads: Any = None, dtype: Any = jnp.float32,
) -> Outputs:  # fmt: skip
    """Return the logits and the gradients of one training step.

    Args:
        model: The tiny model.
        batch: Token ids `(batch, seq)`.
        key: The key of the training step.
        weights: The weights of the targets; ones by default.
        extra: The weight of auxiliary losses and of the losses of heads.
        heads: The configs of the heads of the model, by name.
        dtype: The precision of activations.

    Returns:
        The logits as `training`, the `gradients` of the parameters, and the gradient of the embeddings as `embed`.
    """
    params, rest = partition_trainable(model)
    weights = jnp.ones(batch.shape) if weights is None else weights
    task = Batch(batch, jnp.roll(batch, 3, 1), weights)
    nudge = Edit("embed", lambda x, value: x if value is None else x + value, value="nudge")
    reads = {site for head in (heads or {}).values() for site in head.sites()}

    def loss(params: LM, added: Array) -> tuple[Array, Array]:
        model = combine_trainable(params, rest)
        forward = collect(capture(model, reads, [nudge]), Averages())
        (logits, sites), recorded = forward(batch, key=key, dtype=dtype, values={"nudge": added})
        further = recorded.total
        for name, each in head_losses(model, heads or {}, sites, task).items():
            further = further + heads[name].weight * each.sum()
        return sum_losses(logits, task.targets, weights)["nll"] + extra * further, logits

    added = jnp.zeros((*batch.shape, jax.eval_shape(model.embedding.encode, batch).shape[-1]), dtype)
    (gradients, embed), trained = jax.grad(loss, (0, 1), has_aux=True)(params, added)
    return {"training": trained, "gradients": gradients, "embed": embed}


def compute_edited(model: LM, batch: Int[Array, "batch seq"]) -> tuple[Array, dict[str, Read]]:
    """Return the logits of a forward pass in which every site is read and replaced by itself, and the sites."""
    sites = find_sites(lambda: model(batch))
    return capture(model, sites, [Edit(name, lambda x, _: x) for name in sites])(batch)


def compute_decoded(model: LM, batch: Int[Array, "batch seq"], padding: Bool[Array, "batch seq"]) -> Array:
    """Return the logits of sequences that are extended by `PIECES` with a cache. The first piece has padding."""
    cache, steps = empty_cache(model, len(batch), SEQ), []
    for start, end in PIECES:
        logits, cache = extend(model, batch[:, start:end], cache, padding=padding[:, start:end] if start == 0 else None)
        steps.append(logits)
    return jnp.concatenate(steps, 1)


def perturb(model: LM, seed: int, scale: float = 1.0) -> LM:
    """Return the model with noise, multiplied by `scale`, added to every parameter.

    The noise depends on the name of the parameter. Without noise, a parameter that is initialised to zero would hide
    errors in the values that are multiplied by it.
    """

    def moved(name: str, array: Any) -> np.ndarray:
        array = np.asarray(array)
        noise = np.random.default_rng([zlib.crc32(name.encode()), seed]).standard_normal(array.shape)
        return array + noise.astype(array.dtype) * np.float32(scale * (0.1 * np.abs(array).mean() + 0.02))

    return with_parameters(model, {name: moved(name, array) for name, array in named_parameters(model).items()})


class TinyModel:
    """A tiny model with the parameters of two seeds, and its results.

    Results are computed when they are first used, because compilation takes most of the time.

    Attributes:
        config: The config of the model.
        initial: The newly initialised models.
        models: The same models after `perturb`.
        batch: Token ids `(batch, seq)`.
        key: The key of a training step.

    Raises:
        UserError: If the model cannot be built.
    """

    def __init__(self, config: LMConfig):
        self.config = config
        build = build_tiny(config)
        built = [build(seed) for seed in range(2)]
        self.models = [perturb(model, seed) for seed, model in enumerate(built)]
        # Replaced by equal arrays without weak types, so that programs are compiled once for all models.
        self.initial = [perturb(model, seed, 0.0) for seed, model in enumerate(built)]
        self.batch, self.key = jnp.asarray(tokens()), root_key(5)

    @cached_property
    def forward(self) -> Callable[[LM, Any], Array]:
        """The compiled forward pass in evaluation, `(model, batch) -> logits`."""
        return jit_once(lambda model, batch: model(batch))

    @cached_property
    def step(self) -> Callable[..., Outputs]:
        """The compiled `compute_outputs`."""
        return jit_once(partial(compute_outputs, heads=self.config.heads))

    @cached_property
    def half_step(self) -> Callable[..., Outputs]:
        """The compiled `compute_outputs` in bfloat16, with layers in a loop."""
        step = partial(compute_outputs, heads=self.config.heads, dtype=jnp.bfloat16)
        return jit_once(lambda model, *given: step(LOOP.apply(model), *given))

    @cached_property
    def logits(self) -> np.ndarray:
        """The logits of the first model in evaluation."""
        return np.asarray(self.forward(self.models[0], self.batch))

    @cached_property
    def outputs(self) -> Outputs:
        """The outputs of a training step of the first model."""
        return self.take(self.step)

    def take(self, step: Callable[..., Outputs], model: LM | None = None, batch: Any = None, **loss: Any) -> Outputs:
        """Return the outputs of a training step.

        Args:
            step: `step` or `half_step`.
            model: The model, by default the first.
            batch: The batch, by default that of this object.
            loss: `weights` and `extra` of `compute_outputs`.
        """
        weights = loss.get("weights", np.ones(self.batch.shape, np.float32))
        given = (self.models[0] if model is None else model, self.batch if batch is None else jnp.asarray(batch))
        return step(*given, self.key, weights, loss.get("extra", 1.0))

    def in_loop(self, fn: Callable[..., Any], *given: Any) -> Any:
        """Return `fn(model, *given)`, compiled, for the first model with layers in a loop."""
        return jit_once(lambda model, *given: fn(LOOP.apply(model), *given))(self.models[0], *given)

    @cached_property
    def scanned(self) -> np.ndarray:
        """The same logits, with layers in a loop."""
        return np.asarray(self.in_loop(lambda model, batch: model(batch), self.batch))

    @cached_property
    def edited(self) -> tuple[np.ndarray, dict[str, Read]]:
        """The same logits, computed by `compute_edited` with layers in a loop, and the sites."""
        logits, sites = self.in_loop(compute_edited, self.batch)
        return np.asarray(logits), sites

    @cached_property
    def shifted(self) -> tuple[np.ndarray, np.ndarray]:
        """The batch whose last sequence starts with padding and has its first tokens after it, and the padding."""
        batch, padding = tokens(), np.zeros((BATCH, SEQ), bool)
        batch[-1, PADDED:], batch[-1, :PADDED], padding[-1, :PADDED] = batch[-1, :-PADDED], 1, True
        return batch, padding

    @cached_property
    def padded(self) -> np.ndarray:
        """The logits of `shifted`, with layers in a loop."""
        return np.asarray(self.in_loop(lambda model, batch, padding: model(batch, padding=padding), *self.shifted))

    @cached_property
    def decoded(self) -> np.ndarray:
        """The logits of `shifted`, computed by `compute_decoded` with layers in a loop."""
        return np.asarray(self.in_loop(compute_decoded, *self.shifted))

    def expected(self) -> list[np.ndarray]:
        """Return the logits without padding for each sequence of `shifted`.

        If the model is causal, later tokens do not change the logits of the first tokens.
        """
        return [*self.logits[:-1], self.logits[-1, : SEQ - PADDED]]

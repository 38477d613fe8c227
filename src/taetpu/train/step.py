"""One run: its state, its train step, its evaluation. Pure functions of arrays; a pack maps them over runs."""

from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import optax
from jaxtyping import Array, Float, Int

from taetpu.core.keys import Key, named, root_key
from taetpu.data.batches import Batch, Source
from taetpu.nn.lm import LM, matrices
from taetpu.nn.parts import join, trainable
from taetpu.optim.loss import totals
from taetpu.spec.schema import ResolvedConfig
from taetpu.spec.train_config import TrainConfig

Scalar = Float[Array, ""]


class TrainState(eqx.Module):
    """All that a run carries from step to step.

    Attributes:
        diverged_at: the first step whose loss was not a number or above the bound; -1 so far.
    """

    model: LM
    opt: Any
    step: Int[Array, ""]
    diverged_at: Int[Array, ""]


def optimizer(train: TrainConfig, params: LM, step: Array, steps: int) -> tuple[optax.GradientTransformation, Scalar]:
    """The update rule of this step and its learning rate; the state of the rule never depends on either."""
    lr = train.schedule.lr(step, steps, train.optimizer.lr)
    rule = train.optimizer.transform(lr, matrices(params))
    return (rule if train.clip is None else optax.chain(optax.clip_by_global_norm(train.clip), rule)), lr


def init_state(config: ResolvedConfig, source: Source, seed: Array) -> TrainState:
    """A run before its first step."""
    key = named(root_key(seed), "init")
    model = config.model.build(source.vocab_size, source.seq_len, key=key)
    params, _ = trainable(model)
    start = jnp.zeros((), jnp.int32)
    rule, _ = optimizer(config.train, params, start, 1)
    return TrainState(model, rule.init(params), start, start - 1)


def train_step(
    state: TrainState, config: ResolvedConfig, source: Source, arrays: Any, rows: Int[Array, " batch"], seed: Array,
    *, steps: int, dtype: Any,
) -> tuple[TrainState, dict[str, Scalar]]:  # fmt: skip
    """One update. The batch is a function of (seed, step) alone, and so is every random number."""
    key = root_key(seed)
    batch = source.batch(arrays, rows, named(key, "data", state.step))
    params, rest = trainable(state.model)
    noise = None if _quiet(config) else named(key, "noise", state.step)
    grads, sums = gradients(params, rest, batch, noise, accumulate=config.train.accumulate, dtype=dtype)
    rule, lr = optimizer(config.train, params, state.step, steps)
    updates, opt = rule.update(grads, state.opt, params)
    params = eqx.apply_updates(params, updates)
    loss = sums["nll"] / sums["weight"]
    bad = ~(loss <= config.train.loss_bound) & (state.diverged_at < 0)
    metrics = {"train/loss": loss, "train/accuracy": sums["correct"] / sums["weight"], "lr": lr}
    return (
        TrainState(
            model=join(params, rest),
            opt=opt,
            step=state.step + 1,
            diverged_at=jnp.where(bad, state.step, state.diverged_at),
        ),
        metrics,
    )


def _quiet(config: ResolvedConfig) -> bool:
    """Is there no dropout in the program? A rate of plain zero is part of the structure; any other is traced."""
    return isinstance(config.model.dropout, float | int) and config.model.dropout == 0


def gradients(
    params: LM, rest: LM, batch: Batch, key: Key | None, *, accumulate: int, dtype: Any
) -> tuple[Any, dict[str, Scalar]]:
    """Gradients of the batch's mean loss over its weighted positions, in `accumulate` passes, and the batch's sums."""
    weight = jnp.maximum(batch.weights.sum(), 1.0)

    def loss(params: LM, part: Batch, key: Key | None) -> tuple[Scalar, dict[str, Scalar]]:
        logits = join(params, rest)(part.tokens, key=key, dtype=dtype)
        sums = totals(logits, part.targets, part.weights)
        return sums["nll"] / weight, sums

    if accumulate == 1:
        return jax.grad(loss, has_aux=True)(params, batch, key)

    def add(total: Any, inputs: tuple[Array, Batch]) -> tuple[Any, None]:
        number, part = inputs
        new = jax.grad(loss, has_aux=True)(params, part, None if key is None else named(key, number))
        return jax.tree.map(jnp.add, total, new), None

    parts = jax.tree.map(lambda a: a.reshape(accumulate, -1, *a.shape[1:]), batch)
    zero = jax.tree.map(lambda a: jnp.zeros(a.shape, a.dtype), jax.eval_shape(
        lambda: jax.grad(loss, has_aux=True)(params, jax.tree.map(lambda a: a[0], parts), key)))  # fmt: skip
    return jax.lax.scan(add, zero, (jnp.arange(accumulate), parts))[0]


def evaluate(model: LM, windows: Batch, *, dtype: Any) -> dict[str, Scalar]:
    """Sums over an evaluation set, `windows` being `(batches, batch, seq)`: see `optim.loss.totals`."""

    def add(sums: dict[str, Scalar], batch: Batch) -> tuple[dict[str, Scalar], None]:
        new = totals(model(batch.tokens, dtype=dtype), batch.targets, batch.weights)
        return jax.tree.map(jnp.add, sums, new), None

    zero = {name: jnp.zeros(()) for name in ("nll", "correct", "weight")}
    return jax.lax.scan(add, zero, windows)[0]

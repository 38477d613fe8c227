"""One run: its state, its train step, its evaluation. Pure functions of arrays; a pack maps them over runs."""

from collections.abc import Mapping
from dataclasses import replace
from functools import partial
from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import optax
from jaxtyping import Array, Float, Int

from taetpu.core.errors import UserError
from taetpu.core.keys import Key, named, root_key
from taetpu.core.sites import capture, find_sites
from taetpu.data.batches import Batch, Source
from taetpu.nn.common import combine_trainable, partition_trainable
from taetpu.nn.lm import LM
from taetpu.optim.form import build_update_rule, compute_learning_rate, compute_update
from taetpu.optim.hooks import Moment, hooks_reading_logits, run_hooks
from taetpu.optim.loss import predict
from taetpu.optim.metrics import Metric, Seen
from taetpu.spec.schema import ResolvedConfig
from taetpu.spec.train_config import TrainConfig
from taetpu.train.sharding import WHOLE, Division

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


class Update(NamedTuple):
    """One update and what it was computed from."""

    batch: Batch
    sums: dict[str, Scalar]
    gradients: Any
    clipped: Any
    updates: Any
    opt: Any
    lr: Scalar
    key: Key  # what dropout and the like draw from


def init_state(config: ResolvedConfig, source: Source, seed: Array) -> TrainState:
    """A run before its first step."""
    return first_state(config, new_model(config, source, seed))


def new_model(config: ResolvedConfig, source: Source, seed: Array, *, apart: bool = False) -> LM:
    """The model of a seed, freshly drawn; `apart` leaves its layers unstacked (see `nn.stack.build_stacks`)."""
    return config.model.build(source.vocab_size, source.seq_len, key=named(root_key(seed), "init"), apart=apart)


def first_state(config: ResolvedConfig, model: LM) -> TrainState:
    """A run that starts from this model."""
    params, _ = partition_trainable(model)
    start = jnp.zeros((), jnp.int32)
    rule = build_update_rule(config.train.optimizer, start, params)  # its state depends on no number
    return TrainState(model, rule.init(params), start, start - 1)


def update(
    state: TrainState, config: ResolvedConfig, source: Source, arrays: Any, rows: Int[Array, " batch"], seed: Array,
    *, steps: int, dtype: Any, division: Division = WHOLE,
) -> Update:  # fmt: skip
    """The next update. The batch is a function of (seed, step) alone, and so is every random number.

    Args:
        division: how the work on the batch is divided over devices.
    """
    key, train = root_key(seed), config.train
    now = Moment(state.step, steps, named(key, "hooks", state.step))
    noise = named(key, "noise", state.step)
    batch = source.batch(arrays, rows, named(key, "data", state.step))
    batch = run_hooks(train.hooks, "batch", batch, now=now)
    params, rest = partition_trainable(state.model)
    grads, sums = gradients(params, rest, batch, noise, train=train, now=now, dtype=dtype, division=division)
    grads = run_hooks(train.hooks, "gradients", grads, params, now=now)
    clipped = clip(grads, train.clip)
    lr = compute_learning_rate(train.schedule, state.step, steps, train.optimizer.lr)
    updates, opt = compute_update(train.optimizer, lr, clipped, state.opt, params)
    updates = run_hooks(train.hooks, "updates", updates, params, now=now)
    return Update(batch, sums, grads, clipped, updates, opt, lr, noise)


def clip(grads: Any, bound: Any) -> Any:
    """The gradients scaled down to a global norm of at most `bound`; None leaves them."""
    if bound is None:
        return grads
    return optax.clip_by_global_norm(bound).update(grads, optax.EmptyState())[0]


def train_step(
    state: TrainState, config: ResolvedConfig, source: Source, arrays: Any, rows: Int[Array, " batch"], seed: Array,
    *, steps: int, dtype: Any, division: Division = WHOLE,
) -> tuple[TrainState, dict[str, Scalar]]:  # fmt: skip
    """One update taken, and the metrics of every step. `division` as in `update`."""
    new = update(state, config, source, arrays, rows, seed, steps=steps, dtype=dtype, division=division)
    params, rest = partition_trainable(state.model)
    loss = new.sums["nll"] / new.sums["weight"]
    bad = ~(loss <= config.train.loss_bound) & (state.diverged_at < 0)
    metrics = {"train/loss": loss, "train/accuracy": new.sums["correct"] / new.sums["weight"], "lr": new.lr}
    return (
        TrainState(
            model=combine_trainable(eqx.apply_updates(params, new.updates), rest),
            opt=new.opt,
            step=state.step + 1,
            diverged_at=jnp.where(bad, state.step, state.diverged_at),
        ),
        metrics,
    )


def observe(
    state: TrainState, config: ResolvedConfig, source: Source, arrays: Any, rows: Int[Array, " batch"], seed: Array,
    *, steps: int, dtype: Any, metrics: Mapping[str, Metric], division: Division = WHOLE,
) -> dict[str, Scalar]:  # fmt: skip
    """What `metrics` measure of the next update, without taking it: `{"name/part": value}`.

    A metric of sites that this model lacks is left out: an arm without attention has no attention to look at.
    """
    new = update(state, config, source, arrays, rows, seed, steps=steps, dtype=dtype, division=division)
    params, _ = partition_trainable(state.model)
    part = jax.tree.map(lambda a: a[: len(a) // config.train.accumulate], new.batch)

    def forward() -> Array:
        return state.model(part.tokens, key=part_key(new.key, 0), dtype=dtype)

    layers = find_sites(forward)
    metrics = {entry: metric for entry, metric in metrics.items() if set(metric.sites()) <= set(layers)}
    _, reads = capture(forward, {site for metric in metrics.values() for site in metric.sites()})()
    seen = Seen(
        step=state.step, lr=new.lr, loss=new.sums["nll"] / new.sums["weight"], batch=new.batch, params=params,
        gradients=new.gradients, clipped=new.clipped, updates=new.updates, sites=reads, layers=layers,
    )  # fmt: skip
    return {
        name: value for entry, metric in metrics.items() for name, value in metric_values(entry, metric, seen).items()
    }


def metric_values(entry: str, metric: Metric, seen: Seen) -> dict[str, Scalar]:
    """The values of one metric by the names they are stored under.

    Raises:
        UserError: a value is not a single number.
    """
    found = metric.measure(seen)
    found = found if isinstance(found, dict) else {"": found}
    for name, value in found.items():
        what = f"metric {entry!r} gives {name or 'a value'}"
        path, remedy = ("train", "metrics", entry), "reduce it, or return {name: number}"
        try:
            shape = jnp.shape(jnp.asarray(value, jnp.float32))
        except (TypeError, ValueError):
            raise UserError(f"{what} that is {value!r}, not a single number", path=path, remedy=remedy) from None
        if shape != ():
            raise UserError(f"{what} of shape {shape}, not a single number", path=path, remedy=remedy)
    return {f"{entry}/{name}".rstrip("/"): jnp.asarray(value, jnp.float32) for name, value in found.items()}


def gradients(
    params: LM,
    rest: LM,
    batch: Batch,
    key: Key,
    *,
    train: TrainConfig,
    now: Moment,
    dtype: Any,
    division: Division,
) -> tuple[Any, dict[str, Scalar]]:
    """Gradients of the batch's mean loss over its weighted positions, in `accumulate` passes, and the batch's sums."""
    weight = jnp.maximum(batch.weights.sum(), 1.0)
    batch = division.local_batch(batch)
    computed = division.wrap(partial(predict, whole=bool(hooks_reading_logits(train.hooks))))

    def loss(params: LM, part: Batch, number: Any) -> tuple[Scalar, dict[str, Scalar]]:
        model = combine_trainable(params, rest)
        logits, found = computed(model, part, key=part_key(key, number), dtype=dtype)
        sums = {name: values.sum() for name, values in found.items()}
        own = jnp.maximum(sums["weight"], 1.0)
        there = replace(now, key=named(now.key, "part", number))
        mean = run_hooks(train.hooks, "loss", sums["nll"] / own, logits, part, model, now=there)
        return mean * (own / weight), sums

    if train.accumulate == 1:
        return division.sum(jax.grad(loss, has_aux=True)(params, batch, 0))

    def add(total: Any, inputs: tuple[Array, Batch]) -> tuple[Any, None]:
        number, part = inputs
        return jax.tree.map(jnp.add, total, jax.grad(loss, has_aux=True)(params, part, number)), None

    parts = jax.tree.map(lambda a: a.reshape(train.accumulate, -1, *a.shape[1:]), batch)
    zero = jax.tree.map(lambda a: jnp.zeros(a.shape, a.dtype), jax.eval_shape(
        lambda: jax.grad(loss, has_aux=True)(params, jax.tree.map(lambda a: a[0], parts), 0)))  # fmt: skip
    return division.sum(jax.lax.scan(add, zero, (jnp.arange(train.accumulate), parts))[0])


def part_key(key: Key, number: Any) -> Key:
    """What microbatch `number` of a step draws from."""
    return named(key, number)


def evaluate(
    model: LM, windows: Batch, count: Any = None, *, dtype: Any, division: Division = WHOLE
) -> dict[str, Float[Array, "batches batch"]]:
    """Sums of each sequence of an evaluation set (see `optim.loss.position_losses`).

    Args:
        windows: `(batches, batch, seq)`; under `shard_map`, this device's shard.
        count: how many batches are evaluated, all by default; the sums of the others are 0.
    """

    def one(i: Any) -> dict[str, Array]:
        _, found = division.wrap(predict)(model, jax.tree.map(lambda a: a[i], windows), dtype=dtype)
        return {name: values.sum(-1) for name, values in found.items()}

    shapes = jax.eval_shape(lambda: one(0))
    sums = {name: jnp.zeros((len(windows.tokens), *shape.shape), shape.dtype) for name, shape in shapes.items()}
    body: Any = lambda i, sums: {name: sums[name].at[i].set(values) for name, values in one(i).items()}  # noqa: E731
    return division.gather(jax.lax.fori_loop(0, len(windows.tokens) if count is None else count, body, sums))

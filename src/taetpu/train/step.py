"""The state, train step and evaluation of one run, as pure functions that `train.program` maps over runs."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import partial
from typing import NamedTuple, TypeAlias

import equinox as eqx
import jax
import jax.numpy as jnp
import optax
from jaxtyping import Array, DTypeLike, Float, Int, PyTree

from taetpu.core.batch_statistics import collect
from taetpu.core.errors import UserError
from taetpu.core.keys import Key, named, root_key
from taetpu.core.sites import capture, find_sites
from taetpu.data.base import Batch, Source
from taetpu.nn.cast import cast_weights
from taetpu.nn.common import combine_trainable, partition_trainable
from taetpu.nn.lm import LM
from taetpu.nn.named_arrays import replace_parameters
from taetpu.nn.parameters import Parameters
from taetpu.nn.state import Means, update_state
from taetpu.optim.eval_metrics import NO_METRICS, EvalMetric, Evaluated, sequence_sums
from taetpu.optim.hooks import Moment, hooks_reading_logits, run_hooks
from taetpu.optim.loss import LEAST_WEIGHT, MEASURED, head_losses, trained_sum
from taetpu.optim.metrics import Metric, Seen
from taetpu.optim.objectives import Objective, compute_objective
from taetpu.optim.selection import observers
from taetpu.optim.structure_checks import (
    build_update_rule,
    compute_evaluated,
    compute_learning_rate,
    compute_update,
)
from taetpu.spec.study_config import ResolvedConfig
from taetpu.train.curvature import estimate_curvature
from taetpu.train.sharding import WHOLE, Division

Scalar: TypeAlias = Float[Array, ""]
Arrays: TypeAlias = Mapping[str, Array]
"""The arrays of a task (`data.base.Source.arrays`), or tables of some of their windows."""
Recorded: TypeAlias = tuple[dict[str, Scalar], dict[str, Scalar], Means]
"""The `sums`, `losses` and `means` of an `Update`."""


@dataclass(frozen=True)
class StepContext:
    """The inputs that all training steps of a run have in common.

    Attributes:
        config: the config of the run.
        source: the prepared task.
        arrays: the arrays of the task.
        seed: the seed of the run.
        steps: the number of steps of the whole run.
        dtype: dtype of activations and matrix products.
        division: the strategy that divides the batch over devices.
    """

    config: ResolvedConfig
    source: Source
    arrays: Arrays
    seed: Array
    steps: int
    dtype: DTypeLike
    division: Division = WHOLE


class TrainState(eqx.Module):
    """The state of a run between steps.

    Attributes:
        model: the model.
        opt: the state of the optimizer.
        step: the number of steps taken.
        diverged_at: the first step whose loss was NaN or above `train.loss_bound`; -1 if the run has not diverged.
        mean: the exponential mean of the parameters to evaluate; None without `train.optimizer.ema`.
        selection: the states of the components that observe the run (`optim.selection`), by slot; empty without any.
        stopped_at: the number of steps after which the run stopped, or -1; None with `train.stop: never`.
    """

    model: LM
    opt: PyTree
    step: Int[Array, ""]
    diverged_at: Int[Array, ""]
    mean: LM | None = None
    selection: dict[str, PyTree] = eqx.field(default_factory=dict)
    stopped_at: Int[Array, ""] | None = None


class Update(NamedTuple):
    """One update and its inputs. Gradients and updates have the structure of the trainable part of the model.

    Attributes:
        batch: the batch.
        sums: the sums of the objective over the batch, among them those of loss and accuracy.
        losses: the auxiliary losses and the losses of heads, by name, without their weights.
        means: the means that update the state of the model (see `nn.state`).
        gradients: the gradients before clipping.
        clipped: the gradients after clipping.
        updates: the updates to be added to the parameters.
        opt: the new state of the optimizer.
        lr: the learning rate.
        key: the random key for noise in the step, such as dropout.
    """

    batch: Batch
    sums: dict[str, Scalar]
    losses: dict[str, Scalar]
    means: Means
    gradients: LM
    clipped: LM
    updates: LM
    opt: PyTree
    lr: Scalar
    key: Key


def init_state(
    config: ResolvedConfig, source: Source, seed: Array, start: Mapping[str, Array] | None = None
) -> TrainState:
    """Return the state of a run before its first step.

    Args:
        config: the config of the run.
        source: the prepared task.
        seed: the seed of the run.
        start: the values of parameters that are loaded instead of drawn, by logical name.
    """
    model = new_model(config, source, seed)
    return first_state(config, source, replace_parameters(model, start) if start else model)


def new_model(config: ResolvedConfig, source: Source, seed: Array, *, apart: bool = False) -> LM:
    """Return the initial model for a seed; `apart` leaves its layers unstacked (see `nn.stack.build_stacks`)."""
    return config.model.build(source.interface, source.seq_len, key=named(root_key(seed), "init"), apart=apart)


def first_state(config: ResolvedConfig, source: Source, model: LM) -> TrainState:
    """Return the state of a run that starts from a model."""
    params, _ = partition_trainable(model)
    start, described = jnp.zeros((), jnp.int32), Parameters(params, config.model, source.interface, source.seq_len)
    rule = build_update_rule(config.train.optimizer, start, described)  # its state does not depend on the learning rate
    averaged = getattr(config.train.optimizer, "ema", None) is not None
    selection = {slot: component.begin(model) for slot, component in observers(config.train).items()}
    stopped_at = start - 1 if "stop" in selection else None
    return TrainState(model, rule.init(params), start, start - 1, params if averaged else None, selection, stopped_at)


def evaluated_model(state: TrainState, config: ResolvedConfig) -> LM:
    """Return the model to evaluate, sample and store (see `current_model`, and slot `evaluate`)."""
    model = current_model(state, config)
    return (
        config.train.evaluate.evaluated(state.selection["evaluate"], model) if "evaluate" in state.selection else model
    )


def current_model(state: TrainState, config: ResolvedConfig) -> LM:
    """Return the trained model, or the one that the optimizer evaluates in its place."""
    params, rest = partition_trainable(state.model)
    if state.mean is None:
        params = compute_evaluated(config.train.optimizer, state.opt, params)
    return combine_trainable(params if state.mean is None else state.mean, rest)


def update_mean(state: TrainState, config: ResolvedConfig) -> TrainState:
    """Return a state with the parameters after a step added to the exponential mean, if the run has one."""
    if state.mean is None:
        return state
    decay, optimizer = config.train.optimizer.ema, config.train.optimizer
    latest = compute_evaluated(optimizer, state.opt, partition_trainable(state.model)[0])
    return replace(state, mean=jax.tree.map(lambda mean, new: decay * mean + (1 - decay) * new, state.mean, latest))


def update(state: TrainState, rows: Int[Array, " batch"], context: StepContext) -> Update:
    """Return the next update, for the windows numbered `rows`. Random numbers depend only on the seed and the step."""
    key, train, source = root_key(context.seed), context.config.train, context.source
    now = Moment(state.step, context.steps, named(key, "hooks", state.step))
    noise = named(key, "noise", state.step)
    batch = source.batch(context.arrays, rows, named(key, "data", state.step))
    batch = run_hooks(train.hooks, "batch", batch, now=now)
    params, rest = partition_trainable(state.model)
    grads, recorded = gradients(state.model, batch, noise, now, context)
    grads = run_hooks(train.hooks, "gradients", grads, params, now=now)
    clipped = clip(grads, train.clip)
    lr = compute_learning_rate(train.schedule, state.step, context.steps, train.optimizer.lr)
    lr = train.schedule.lowered(lr, state.selection["schedule"]) if "schedule" in state.selection else lr
    described = Parameters(params, context.config.model, source.interface, source.seq_len)
    curvature = partial(
        estimate_curvature, params, rest, batch, noise,
        accumulate=train.accumulate, dtype=context.dtype, division=context.division,
    )  # fmt: skip
    updates, opt = compute_update(train.optimizer, lr, clipped, state.opt, described, recorded[0], curvature)
    updates = run_hooks(train.hooks, "updates", updates, params, now=now)
    return Update(batch, *recorded, grads, clipped, updates, opt, lr, noise)


def clip(grads: PyTree, bound: float | Scalar | None) -> PyTree:
    """Return the gradients, scaled down to a global norm of at most `bound`; unchanged if `bound` is None."""
    if bound is None:
        return grads
    return optax.clip_by_global_norm(bound).update(grads, optax.EmptyState())[0]


def train_step(
    state: TrainState, rows: Int[Array, " batch"], context: StepContext
) -> tuple[TrainState, dict[str, Scalar]]:
    """Return the state after one update, and the metrics that every step records. See `update`."""
    new, config = update(state, rows, context), context.config
    params, rest = partition_trainable(state.model)
    weight = jnp.maximum(new.sums["weight"], LEAST_WEIGHT)
    loss = new.sums["nll"] / weight
    bad = ~(loss <= config.train.loss_bound) & (state.diverged_at < 0)
    metrics = {"train/loss": loss, "lr": new.lr}
    if "correct" in new.sums:
        metrics["train/accuracy"] = new.sums["correct"] / weight
    metrics |= {f"train/{name}": value for name, value in new.losses.items()}
    further = {name: value for name, value in new.sums.items() if name not in MEASURED}
    metrics |= {f"train/{name}": value / weight for name, value in further.items()}
    after = TrainState(
        model=update_state(combine_trainable(eqx.apply_updates(params, new.updates), rest), new.means),
        opt=new.opt,
        step=state.step + 1,
        diverged_at=jnp.where(bad, state.step, state.diverged_at),
        mean=state.mean,
        selection=state.selection,
        stopped_at=state.stopped_at,
    )
    return update_mean(after, config), metrics


def observe(
    state: TrainState, rows: Int[Array, " batch"], metrics: Mapping[str, Metric], context: StepContext
) -> dict[str, Scalar]:
    """Return the values of `metrics` for the next update as `{"name/part": value}`, without taking the update.

    A metric is omitted if the model lacks one of its sites, e.g. an attention metric in an arm without attention.
    """
    new = update(state, rows, context)
    params, _ = partition_trainable(state.model)
    part = jax.tree.map(lambda a: a[: len(a) // context.config.train.accumulate], new.batch)

    def forward() -> Array:
        return state.model(part.tokens, key=part_key(new.key, 0), dtype=context.dtype, **part.context)

    layers = find_sites(forward)
    metrics = {entry: metric for entry, metric in metrics.items() if set(metric.sites()) <= set(layers)}
    _, reads = capture(forward, {site for metric in metrics.values() for site in metric.sites()})()
    seen = Seen(
        step=state.step, lr=new.lr, loss=new.sums["nll"] / jnp.maximum(new.sums["weight"], LEAST_WEIGHT),
        batch=new.batch, params=params, gradients=new.gradients, clipped=new.clipped, updates=new.updates, sites=reads,
        layers=layers,
    )  # fmt: skip
    return {
        name: value for entry, metric in metrics.items() for name, value in metric_values(entry, metric, seen).items()
    }


def metric_values(entry: str, metric: Metric, seen: Seen) -> dict[str, Scalar]:
    """Return the values of one metric, keyed by the names under which they are stored.

    Raises:
        UserError: if a value is not a scalar.
    """
    values = metric.measure(seen)
    values = values if isinstance(values, dict) else {"": values}
    for name, value in values.items():
        what = f"metric {entry!r} gives {name or 'a value'}"
        path, remedy = ("train", "metrics", entry), "Reduce the value to a scalar, or return {name: scalar}."
        try:
            shape = jnp.shape(jnp.asarray(value, jnp.float32))
        except (TypeError, ValueError):
            raise UserError(f"{what} that is {value!r}, not a single number", path=path, remedy=remedy) from None
        if shape != ():
            raise UserError(f"{what} of shape {shape}, not a single number", path=path, remedy=remedy)
    return {f"{entry}/{name}".rstrip("/"): jnp.asarray(value, jnp.float32) for name, value in values.items()}


def gradients(model: LM, batch: Batch, noise: Key, now: Moment, context: StepContext) -> tuple[LM, Recorded]:
    """Return the gradients of the training loss, computed in `accumulate` passes, and the sums over the batch.

    The training loss is the weighted mean of the objective, changed by hooks, plus auxiliary losses and the losses of
    heads.
    """
    train, heads, division = context.config.train, context.config.model.heads, context.division
    weight = jnp.maximum(batch.weights.sum(), LEAST_WEIGHT)
    averages, read = division.averages(train.accumulate), sites_read(context.config)
    objective, whole = train.objective.for_task(context.config.task), bool(hooks_reading_logits(train.hooks))
    losses_of = partial(compute_objective, objective, whole=whole, gather=division.gather_sequences)
    predict_and_read = capture(losses_of, read, paths=read)
    forward, of_heads = division.wrap(collect(predict_and_read, averages)), collect(head_losses, averages)
    params, rest = partition_trainable(model)

    def loss(params: LM, number: int | Int[Array, ""], part: Batch) -> tuple[Scalar, Recorded]:
        model = combine_trainable(params, rest)
        (prediction, sites), statistics = forward(model, part, key=part_key(noise, number), dtype=context.dtype)
        logits, values = prediction
        sums = {name: value.sum() for name, value in values.items()}
        local_weight = jnp.maximum(sums["weight"], LEAST_WEIGHT)
        moment = replace(now, key=named(now.key, "part", number), sites=sites)
        mean = run_hooks(train.hooks, "loss", trained_sum(sums) / local_weight, logits, part, model, now=moment)
        total, losses = mean * (local_weight / weight), dict(statistics.losses)
        if losses:
            total = total + statistics.total
        if heads:
            by_head, head_statistics = of_heads(model, heads, sites, part, part_key(noise, number))
            for name, by_position in by_head.items():
                losses[name] = by_position.sum() / weight
                total = total + heads[name].weight * losses[name]
            if head_statistics.losses:
                total = total + head_statistics.total
            losses |= {f"heads/{name}": value for name, value in head_statistics.losses.items()}
        if taken := sorted(set(sums) & set(losses)):
            problem = f"objective {objective.kind!r} returns a value with the name of a loss of the model, {taken[0]!r}"
            raise UserError(problem, path=("train", "objective"), remedy="Use another name.")
        return total, (sums, losses, statistics.means)

    used = cast_weights(params, context.dtype) if model.cast == "step" and not whole else params

    def compute(number: int | Int[Array, ""], part: Batch) -> tuple[LM, Recorded]:
        grads, recorded = jax.grad(loss, has_aux=True)(used, number, part)
        return jax.tree.map(lambda grad, param: grad.astype(param.dtype), grads, params), recorded

    return division.sum(sum_over_parts(compute, division.local_batch(batch), train.accumulate))


def sum_over_parts(compute: Callable[[int | Int[Array, ""], Batch], PyTree], batch: Batch, count: int) -> PyTree:
    """Return the sum of `compute(number, part)` over the `count` microbatches of a batch, numbered from 0."""
    if count == 1:
        return compute(0, batch)

    def add(total: PyTree, inputs: tuple[Array, Batch]) -> tuple[PyTree, None]:
        return jax.tree.map(jnp.add, total, compute(*inputs)), None

    parts = jax.tree.map(lambda a: a.reshape(count, -1, *a.shape[1:]), batch)
    shapes = jax.eval_shape(lambda: compute(0, jax.tree.map(lambda a: a[0], parts)))
    zero = jax.tree.map(lambda a: jnp.zeros(a.shape, a.dtype), shapes)
    return jax.lax.scan(add, zero, (jnp.arange(count), parts))[0]


def sites_read(config: ResolvedConfig) -> dict[str, tuple[str, ...]]:
    """Return the sites that hooks and heads read in a train step, with the path of the setting that reads each."""
    places = {("train", "hooks", name): hook for name, hook in config.train.hooks.items()}
    places |= {("model", "heads", name): head for name, head in config.model.heads.items()}
    return {site: path for path, reader in places.items() for site in reader.sites()}


def part_key(key: Key, number: int | Int[Array, ""]) -> Key:
    """Return the noise key for microbatch `number` in a step."""
    return named(key, number)


def evaluate(
    model: LM, windows: Batch, count: Int[Array, ""] | None = None, *, dtype: DTypeLike, division: Division = WHOLE,
    objective: Objective, metrics: Mapping[str, EvalMetric] = NO_METRICS,
) -> dict[str, Float[Array, "batches batch ..."]]:  # fmt: skip
    """Return the sums over each sequence in an evaluation set.

    These are those of `nll`, `correct` and `weight` that the objective returns, and those of `metrics` (see
    `optim.eval_metrics.sequence_sums`).

    Args:
        model: the model.
        windows: the evaluation set, `(batches, batch, seq)`; under `shard_map`, this device's shard.
        count: the number of batches to evaluate; all by default. The sums of the remaining batches are 0.
        dtype: dtype of activations and matrix products.
        division: the strategy that divides the batch over devices.
        objective: the objective of the task.
        metrics: the metrics other than loss and accuracy, by name.
    """
    whole = any(metric.reads_logits for metric in metrics.values())
    wanted = {site for metric in metrics.values() for site in metric.sites()}

    def of_sequence(i: int | Int[Array, ""]) -> dict[str, Array]:
        batch = jax.tree.map(lambda a: a[i], windows)
        compute = partial(compute_objective, objective, whole=whole, gather=division.gather_sequences)
        layers = find_sites(partial(compute, dtype=dtype), model, batch) if wanted else {}
        forward = division.wrap(capture(compute, wanted & {*layers}))
        (logits, values), reads = forward(model, batch, dtype=dtype)
        sums_by_name = {name: value for name, value in values.items() if name in MEASURED}
        seen = Evaluated(batch, logits, **{"correct": None, **sums_by_name}, sites=reads, layers=layers)
        sums = {name: values.sum(-1) for name, values in sums_by_name.items()}
        for entry, metric in metrics.items():
            if not metric.sites() or metric.parts(layers):
                sums |= sequence_sums(entry, metric, seen)
        return sums

    shapes = jax.eval_shape(lambda: of_sequence(0))
    sums = {name: jnp.zeros((len(windows.tokens), *shape.shape), shape.dtype) for name, shape in shapes.items()}

    def body(i: Int[Array, ""], sums: dict[str, Array]) -> dict[str, Array]:
        return {name: sums[name].at[i].set(values) for name, values in of_sequence(i).items()}

    return division.gather(jax.lax.fori_loop(0, len(windows.tokens) if count is None else count, body, sums))

"""Checks for metrics of training steps and of evaluation sets."""

from functools import cache, partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from taetpu.core.config_parsing import load_config
from taetpu.core.jit import jit_once
from taetpu.core.keys import root_key
from taetpu.core.sites import capture, find_sites
from taetpu.optim.eval_metrics import Evaluated, metric_values, sequence_sums
from taetpu.optim.loss import predict
from taetpu.spec.study_config import ResolvedConfig, RunConfig
from taetpu.testing.in_model import check_agreement
from taetpu.testing.optimizer_schedule import STEPS
from taetpu.testing.report import CheckFailed, Checks, failing_at
from taetpu.testing.tiny import BATCH, HOST, SEQ, identical, plain_model, stack_trees, tokens
from taetpu.train.step import StepContext, TrainState, init_state, observe


class TinyRun:
    """A tiny run in which metrics are measured."""

    def __init__(self, ffn: str):
        task = {"kind": "copy", "seq_len": SEQ, "symbols": 5, "min_length": 2, "max_length": 3, "eval_size": 2}
        data = {"task": task, "model": {**HOST, "ffn": ffn}, "train": {"steps": STEPS, "batch_size": BATCH}}
        self.config: ResolvedConfig = load_config(RunConfig, data).resolve()
        self.source = self.config.task.prepare(None)
        self.rows = jnp.asarray(self.source.rows(0, 0, 1, BATCH)[0])
        self.init = jit_once(partial(init_state, self.config, self.source))
        self.shapes = jax.eval_shape(self.init, jnp.int32(0))
        self.sites = frozenset(find_sites(lambda model: model(jnp.asarray(tokens())), self.shapes.model))

    def observe(self, component: Any, state: TrainState, seed: Any) -> dict[str, jax.Array]:
        """Return the values of a metric for the next step.

        Raises:
            UserError: If the model lacks one of the metric's sites.
        """
        capture(lambda: state.model(jnp.asarray(tokens())), component.sites())()
        context = StepContext(self.config, self.source, self.source.arrays, seed, STEPS, jnp.float32)
        return observe(state, self.rows, {component.kind: component}, context)


tiny_run = cache(TinyRun)
FFNS = ("gelu-tanh", "moe")
"""The ffns of the models in which metrics are measured, because only a mixture of experts has the sites of a router."""


def choose_run(component: Any) -> TinyRun:
    """Return the first tiny run whose model has all sites that a metric reads; the first run if none has."""
    runs = (tiny_run(ffn) for ffn in FFNS)
    return next((run for run in runs if set(component.sites()) <= run.sites), tiny_run(FFNS[0]))


def check_metric(checks: Checks) -> None:
    """Run all checks for a metric."""
    run = choose_run(checks.component)
    observe_run = partial(run.observe, checks.component)
    checks.run("values", check_values, checks.component, run, observe_run)
    checks.run("packs", check_packs, checks.component, run, observe_run, after="values")


def check_eval_metric(checks: Checks) -> None:
    """Run all checks for a metric on evaluation sets."""
    checks.run("sums", check_sums, checks.component)


def check_sums(component: Any) -> str:
    """Check that the sums of a sequence do not depend on the other sequences, and that the value is a finite number."""
    run, model = tiny_run(FFNS[0]), plain_model()
    batch = run.source.batch(run.source.arrays, run.rows, root_key(0))
    layers = find_sites(lambda: predict(model, batch))
    with failing_at(component, "sites"):
        (logits, losses), reads = capture(partial(predict, model, batch), component.sites())()

    def sums(order: Any) -> dict[str, jax.Array]:
        seen = jax.tree.map(lambda a: a[order], (batch, logits, losses))
        in_layers = {name: read for name, read in reads.items() if layers[name]}
        sites = {name: read[order] for name, read in reads.items() if not layers[name]}
        sites |= jax.tree.map(lambda a: a[:, order], in_layers)
        evaluated = Evaluated(seen[0], seen[1], **seen[2], sites=sites, layers=layers)
        return sequence_sums(component.kind, component, evaluated)

    order = jnp.arange(BATCH)
    with failing_at(component, "sums"):
        first, turned = sums(order), sums(order[::-1])
    if not identical(jax.tree.map(lambda a: a[::-1], turned), first):
        problem = "the sums of a sequence depend on the other sequences of its batch"
        raise CheckFailed(problem, at=(component, "sums"), remedy="Reduce over the axes after the first only.")
    kept = component.keeps_sequences
    totals = {name: np.asarray(a) if kept else np.asarray(a).sum(0) for name, a in first.items()}
    values = metric_values(component.kind, component, totals)
    low, high = component.spec.bounds
    for value in values.values():
        if not np.isfinite(value):
            raise CheckFailed(f"value returns {value} for a newly initialised model", at=(component, "value"))
        if not low <= value <= high:
            remedy = "Declare the smallest and the largest possible value."
            raise CheckFailed(
                f"value returns {value:.3g}, outside bounds {low:g} to {high:g}", at=(component, "sums"), remedy=remedy
            )
    shown = "".join(f", value {value:.3g}" for value in [*values.values()][:1])
    return f"{len(first)} sums of each sequence{shown}"


def check_values(component: Any, run: TinyRun, observe_run: Any) -> str:
    """Check that a metric returns at least one value, and that all values are scalars."""
    with failing_at(component, "measure"):  # an unknown site, or a value that is not a scalar
        values = jax.eval_shape(observe_run, run.shapes, jnp.int32(0))
    if not values:
        raise CheckFailed("measure returns no values", at=(component, "measure"))
    names = sorted(values)
    return f"{len(names)} values: {', '.join(names[:3])}{' ...' if len(names) > 3 else ''}"


def check_packs(component: Any, run: TinyRun, observe_run: Any) -> str:
    """Check that a metric has the same values in two packed runs as in the same runs alone."""
    seeds = jnp.arange(2)
    states, compiled = [run.init(seed) for seed in seeds], jit_once(observe_run)
    alone = [compiled(*arguments) for arguments in zip(states, seeds, strict=True)]
    if wrong := [name for name, value in alone[0].items() if np.isnan(np.asarray(value))]:
        raise CheckFailed(f"{wrong[0]} is NaN for a newly initialised model", at=(component, "measure"))
    return check_agreement(
        component, jit_once(jax.vmap(observe_run))(stack_trees(*states), seeds), stack_trees(*alone), "measure"
    )

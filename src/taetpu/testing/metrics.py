"""Checks of metrics."""

from functools import cache, partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from taetpu.core.errors import UserError
from taetpu.core.jit import jit_once
from taetpu.core.loading import load_config
from taetpu.core.sites import capture
from taetpu.spec.schema import ResolvedConfig, RunConfig
from taetpu.testing.models import agreed
from taetpu.testing.report import Checks, Unmet
from taetpu.testing.tiny import BATCH, HOST, SEQ, stacked, tokens
from taetpu.testing.training import STEPS
from taetpu.train.step import TrainState, init_state, observe, train_step


class TinyRun:
    """A run to look into, its program told before any metric was measured."""

    def __init__(self):
        task = {"kind": "copy", "seq_len": SEQ, "symbols": 5, "min_length": 2, "max_length": 3, "eval_size": 2}
        data = {"task": task, "model": HOST, "train": {"steps": STEPS, "batch_size": BATCH}}
        self.config: ResolvedConfig = load_config(RunConfig, data).resolve()
        self.source = self.config.task.prepare(None)
        self.rows = jnp.asarray(self.source.rows(0, 0, 1, BATCH)[0])
        self.begin = jit_once(partial(init_state, self.config, self.source))
        self.shapes = jax.eval_shape(self.begin, jnp.int32(0))
        self.text = self.program()

    def program(self) -> str:
        """A run's start and its first step, traced anew: equal programs compute equal bits."""

        def step(seed: jax.Array) -> TrainState:
            state = init_state(self.config, self.source, seed)
            return train_step(
                state, self.config, self.source, self.source.arrays, self.rows, seed, steps=STEPS, dtype=jnp.float32
            )[0]

        return jit_once(step).lower(jnp.int32(0)).as_text()

    def look(self, component: Any, state: TrainState, seed: Any) -> dict[str, jax.Array]:
        """What a metric measures of a run's next step; a `UserError` where the model lacks one of its sites."""
        capture(lambda: state.model(jnp.asarray(tokens())), component.sites())()
        return observe(
            state, self.config, self.source, self.source.arrays, self.rows, seed,
            steps=STEPS, dtype=jnp.float32, metrics={component.kind: component},
        )  # fmt: skip


tiny_run = cache(TinyRun)


def check_metric(checks: Checks) -> None:
    """A metric gives single numbers, by names that are always the same, packed or not, and moves nothing."""
    run = tiny_run()
    look = partial(run.look, checks.component)
    if not checks.make("values", values, checks.component, run, look):
        checks.leave("packs", "training")
        return
    checks.make("packs", packs, checks.component, run, look)
    checks.make("training", training, checks.component, run)


def values(component: Any, run: TinyRun, look: Any) -> str:
    """Single numbers by name."""
    try:
        found = jax.eval_shape(look, run.shapes, jnp.int32(0))
    except UserError as error:  # a site that is not there, a value that is no single number
        raise Unmet(error.problem, at=(component, "measure"), remedy=error.remedy or "") from None
    if not found:
        raise Unmet("it measures nothing", at=(component, "measure"))
    names = sorted(found)
    return f"{len(names)} values: {', '.join(names[:3])}{' ...' if len(names) > 3 else ''}"


def packs(component: Any, run: TinyRun, look: Any) -> str:
    """Runs in one program are measured as each is by itself."""
    seeds = jnp.arange(2)
    states, compiled = [run.begin(seed) for seed in seeds], jit_once(look)
    alone = [compiled(*one) for one in zip(states, seeds, strict=True)]
    if wrong := [name for name, value in alone[0].items() if np.isnan(np.asarray(value))]:
        raise Unmet(f"{wrong[0]} is not a number on a fresh model", at=(component, "measure"))
    return agreed(component, jit_once(jax.vmap(look))(stacked(*states), seeds), stacked(*alone), "measure")


def training(component: Any, run: TinyRun) -> str:
    """Training computes the same bits with the metric as without."""
    if run.program() != run.text:
        raise Unmet(
            "a step of training is another program once the metric was measured",
            at=(component, "measure"),
            remedy="measure reads what it is given: it sets no global and replaces no function",
        )
    return "the program of a step of training is the same with it and without"

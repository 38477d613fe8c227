"""Every kind trains: the loss of 20 steps is finite and falls."""

from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from tests.testing.test_every_kind import EVERY, ROOT, SETTINGS

from taetpu.core.config_parsing import load_config
from taetpu.core.jit import jit_once
from taetpu.core.registry import kinds
from taetpu.core.static_dynamic import bind, split
from taetpu.spec.kind_examples import example_arm, slot_path
from taetpu.spec.overrides import apply_overrides, merge_overrides
from taetpu.spec.study_config import ResolvedConfig, RunConfig
from taetpu.train.step import StepContext, init_state, train_step

STEPS, BATCH = 20, 8
BASE = {
    "task": {"kind": "copy", "seq_len": 16, "symbols": 5, "min_length": 2, "max_length": 6, "eval_size": 8},
    "model": {"dim": 16, "num_layers": 2, "mixer": {"kind": "attention", "num_heads": 2}},
    "train": {
        "steps": STEPS, "batch_size": BATCH, "sample": None,
        "optimizer": {"kind": "adamw", "lr": 0.01}, "schedule": "constant",
    },
}  # fmt: skip
OTHER = {
    ("mask", "full"): {"task.form": "encoder"},
    ("norm", "none"): {"train.optimizer.lr": 0.003},  # without norms, a larger one diverges
    ("hook", "freeze"): {"train.hooks.freeze.trained": ["*.ffn.*"]},
    **{("schedule", kind): {"train.schedule.warmup": 2} for kind in ("cosine", "linear", "wsd", "inverse-sqrt")},
}
"""Settings with which a kind trains in 20 steps, by dotted path."""
TRAINED = [one for one in EVERY if one[0] not in ("metric", "eval_metric", "tokenizer", "tracker")]


def config_of(slot: str, kind: str) -> ResolvedConfig:
    """Return the config of a short run with a kind, as in the example of the catalog."""
    cls, path = kinds(slot)[kind], slot_path(slot)
    own = {name: value for name, value in SETTINGS.get(kind, {}).items() if name in cls.model_fields}
    if slot == "task":
        return load_config(RunConfig, {**BASE, "task": {"kind": kind, **own}}).resolve()
    overrides = dict(example_arm(cls) or {})
    place = f"{path}.{kind}" if slot in ("head", "hook") else path
    values = {f"{place}.{name}": value for name, value in own.items()} | OTHER.get((slot, kind), {})
    overrides = merge_overrides(overrides, values)
    return load_config(RunConfig, apply_overrides(BASE, overrides)).resolve()


def compute_losses(config: ResolvedConfig) -> np.ndarray:
    """Return the loss of each step of a run."""
    source = config.task.prepare(Path())
    structure, numbers = split(config)
    rows = source.rows(0, 0, STEPS, BATCH)

    def run(numbers, arrays, rows):
        bound, seed = bind(structure, numbers), jnp.int32(0)

        def step(state, now):
            state, found = train_step(state, now, StepContext(bound, source, arrays, seed, STEPS, jnp.float32))
            return state, found["train/loss"]

        return jax.lax.scan(step, init_state(bound, source, seed), rows)[1]

    arrays = {name: jnp.asarray(array) for name, array in source.arrays.items()}
    given = {path: jnp.asarray(value, jnp.float32) for path, value in numbers.items()}
    return np.asarray(jit_once(run)(given, arrays, rows))


def cases():
    return [pytest.param(*one, marks=pytest.mark.slow, id="/".join(one)) for one in TRAINED]


@pytest.mark.parametrize(("slot", "kind"), cases())
def test_the_loss_of_every_kind_falls(slot, kind, monkeypatch):
    monkeypatch.chdir(ROOT)
    losses = compute_losses(config_of(slot, kind))
    assert np.isfinite(losses).all()
    assert losses[-5:].mean() < losses[:5].mean(), losses

"""Maximal update parametrisation: activations keep their size as the model gets wider (Yang et al. 2022)."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from taetpu.core.config_parsing import build_component
from taetpu.core.keys import root_key
from taetpu.core.sites import capture
from taetpu.core.static_dynamic import bind, promoted_fields, split
from taetpu.nn.common import partition_trainable
from taetpu.nn.named_arrays import named_parameters
from taetpu.nn.parameters import Parameters
from taetpu.optim.structure_checks import build_update_rule
from taetpu.train.step import StepContext, init_state, train_step

BASE = 32
TASK = {"kind": "copy", "seq_len": 16, "symbols": 6, "min_length": 2, "max_length": 6, "eval_size": 4}


def at_width(make, dim, mup, kind="adamw", ffn="relu"):
    """Return the config of a run at a width, with muP relative to `BASE` or with standard parametrisation."""
    changed = {"init": {"kind": "mup", "base_dim": BASE}, "logits": {"kind": "mup", "base_dim": BASE}}
    own = changed if mup else {"init": "gpt2-scaled"}
    mixer = {"kind": "attention", "num_heads": 2, **({"scale": "1/head_dim"} if mup else {})}
    optimizer = {"kind": kind, "lr": 0.02, **({"base_dim": BASE} if mup else {})}
    return make(
        TASK, {"dim": dim, "mixer": mixer, "ffn": ffn, "embedding": "untied", **own},
        optimizer=optimizer, schedule="constant", batch_size=8,
    )  # fmt: skip


def sizes(config, steps=3):
    """Return the mean absolute value of activations after a few steps, by site."""
    source = config.task.prepare(None)
    structure, numbers = split(config, promoted_fields(config))
    bound = bind(structure, {path: jnp.asarray(value, jnp.float32) for path, value in numbers.items()})
    routed = {"ffn.router"} if hasattr(config.model.layers[0].ffn, "experts") else set()

    @jax.jit
    def run(rows):
        def step(state, rows):
            return train_step(state, rows, StepContext(bound, source, {}, jnp.int32(0), steps, jnp.float32))[0], None

        state, _ = jax.lax.scan(step, init_state(bound, source, jnp.int32(0)), rows)
        tokens = source.batch({}, rows[0], root_key(0)).tokens
        first = init_state(bound, source, jnp.int32(0)).model
        before = capture(lambda: first(tokens), routed)()[1]
        _, found = capture(lambda: state.model(tokens), {"ffn.hidden", "logits", *routed})()
        changes = {f"change of {name}": found[name] - before[name] for name in routed}
        return {name: jnp.abs(array).mean() for name, array in {**found, **changes}.items()}

    return {name: float(size) for name, size in run(source.rows(0, 0, steps, 8)).items()}


@pytest.mark.slow
@pytest.mark.parametrize("mup", [True, False])
@pytest.mark.parametrize(
    ("kind", "ffn", "sites"),
    [
        ("adamw", "relu", ("ffn.hidden", "logits")),
        ("adam", "relu", ("ffn.hidden", "logits")),
        ("adam", "moe", ("change of ffn.router",)),
    ],
)
def test_activations_grow_with_the_width_only_without_mup(make, kind, ffn, sites, mup):
    """The coordinate check: activations after three steps at a high learning rate."""
    found = [sizes(at_width(make, dim, mup, kind, ffn)) for dim in (BASE, 2 * BASE, 4 * BASE)]
    for site in sites:
        narrow, middle, wide = (size[site] for size in found)
        if mup:
            assert max(narrow, middle, wide) < 1.3 * min(narrow, middle, wide)
        else:
            assert middle > 1.4 * narrow
            assert wide > 1.4 * middle


def parameters(config):
    """Return the initial parameters and gradients of a run, with a description."""
    source = config.task.prepare(None)
    model = config.model.build(source.vocab_size, source.seq_len, key=root_key(0))
    params, _ = partition_trainable(model)
    return Parameters(params, config.model, source.vocab_size, source.seq_len), model


@pytest.mark.slow
def test_init_and_scales_at_a_width(make):
    """At the base width, only the scale of attention differs from standard parametrisation."""
    for dim, factor in ((BASE, 1.0), (4 * BASE, 0.5)):
        (described, mup), (_, plain) = (parameters(at_width(make, dim, mup)) for mup in (True, False))
        standard = named_parameters(plain)
        hidden = {name for one in jax.tree.leaves(described.described) if one.hidden for name in one.names}
        assert hidden == {
            f"layers.0.{name}" for name in ("mixer.wq", "mixer.wk", "mixer.wv", "mixer.wo", "ffn.up", "ffn.down")
        }
        for name, array in named_parameters(mup).items():
            np.testing.assert_allclose(array, (factor if name in hidden else 1) * standard[name], rtol=1e-6)
        head_dim = dim // 2
        assert float(mup.stacks[0].block.mixer.scale.value[0]) == pytest.approx(1 / head_dim)
        x = jnp.ones((1, 1, dim))
        np.testing.assert_allclose(mup.decode(x), BASE / dim * plain.decode(x), rtol=1e-5)


@pytest.mark.slow
def test_the_std_of_routers_falls_with_the_width_and_that_of_experts_with_its_root(make):
    (_, mup), (_, plain) = (parameters(at_width(make, 4 * BASE, mup, ffn="moe")) for mup in (True, False))
    found, standard = named_parameters(mup), named_parameters(plain)
    for name, factor in (("router", 0.25), ("experts.up", 0.5), ("experts.down", 0.5)):
        np.testing.assert_allclose(found[f"layers.0.ffn.{name}"], factor * standard[f"layers.0.ffn.{name}"], rtol=1e-6)


@pytest.mark.slow
@pytest.mark.parametrize("groups", [{}, {"vector": {"lr": 3.0}}])
def test_adam_scales_the_updates_of_hidden_matrices_and_not_their_penalty(make, groups):
    """The updates with a penalty are those of any width times the factor, because the gradients contain the penalty."""
    described, _ = parameters(at_width(make, 4 * BASE, True, ffn="moe"))
    params = described.params
    gradients = jax.tree.map(lambda array: jnp.cos(7 * array), params)

    def updates(**settings):
        optimizer = build_component("optimizer", {"kind": "adam", "weight_decay": 0.1, "groups": groups, **settings})
        rule = build_update_rule(optimizer, 0.5, described)
        state, steps = rule.init(params), []
        for scale in (1.0, 0.1):
            update, state = rule.update(jax.tree.map(lambda array, s=scale: s * array, gradients), state, params)
            steps.append(named_parameters(update))
        return steps[-1]

    found = updates(base_dim=BASE)
    assert not np.allclose(
        found["layers.0.ffn.router"], updates(base_dim=BASE, weight_decay=0.0)["layers.0.ffn.router"]
    )
    for name, update in updates().items():
        hidden = name.startswith("layers") and update.ndim > 1
        np.testing.assert_allclose(found[name], (0.25 if hidden else 1) * update, rtol=1e-5)


@pytest.mark.slow
def test_learning_rates_of_hidden_matrices_fall_with_the_width_and_their_decay_does_not(make):
    described, _ = parameters(at_width(make, 4 * BASE, True))
    params = described.params

    def updates(**settings):
        optimizer = build_component("optimizer", {"kind": "adamw", **settings})
        rule = build_update_rule(optimizer, 0.5, described)
        return named_parameters(rule.update(params, rule.init(params), params)[0])

    plain, without_decay = updates(weight_decay=0.1), updates(weight_decay=0)
    found = updates(weight_decay=0.1, base_dim=BASE)
    for name, update in updates(weight_decay=0, base_dim=BASE).items():
        hidden = name.startswith("layers") and update.ndim == 2
        np.testing.assert_allclose(update, without_decay[name] * (0.25 if hidden else 1), rtol=1e-5)
        decay = plain[name] - without_decay[name]
        np.testing.assert_allclose(found[name] - update, decay, rtol=1e-3, atol=1e-6)

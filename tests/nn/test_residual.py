"""Residual connections equal their formulas."""

from dataclasses import replace

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from tests.nn.test_cache import decoded
from tests.suites import by_default

from taetpu.core.config_parsing import load_config
from taetpu.core.errors import UserError
from taetpu.core.jit import jit_once
from taetpu.core.keys import root_key
from taetpu.core.sites import Edit, capture
from taetpu.core.static_dynamic import split
from taetpu.nn.common import Context
from taetpu.nn.lm import ModelConfig, build_model
from taetpu.nn.named_arrays import named_parameters, with_parameters
from taetpu.nn.residual.hyper_connections import sinkhorn

SEQ = 5
TOKENS = jnp.asarray(np.random.default_rng(0).integers(0, 7, (2, SEQ)), jnp.int32)
BASE = {"dim": 8, "num_layers": 1, "mixer": {"kind": "attention", "num_heads": 2}}


# --- residual none for one branch ------------------------------------------------------------------------------------


@pytest.mark.parametrize("branch", by_default(["both", "mixer", "ffn"], "mixer"))
def test_only_the_chosen_branch_loses_its_skip_connection(draw, branch):
    model = draw(BASE | {"residual": {"kind": "none", "branch": branch}})

    @jit_once
    def layer(model):
        ctx, x = model.start(TOKENS)
        block, ctx = model.stacks[0].layer(0), Context(ctx.tokens, ctx.positions, layer=0)
        expected = x
        for name in ("mixer", "ffn"):
            y = block.branch(name, getattr(block, f"{name}_norm")(expected), ctx)
            expected = y if branch in ("both", name) else expected + y
        return block(x, ctx), expected

    found, expected = layer(model)
    np.testing.assert_allclose(found, expected, atol=1e-6)


def check_layer(**settings):
    layer = {"residual": {"kind": "none", "branch": "ffn"}, **settings}
    load_config(ModelConfig, BASE | {"layers": {0: layer}}).resolve().check(7, SEQ)


@pytest.mark.parametrize("settings", [{"order": "parallel"}, {"drop": ["ffn"]}])
def test_a_branch_that_needs_its_skip_connection_is_refused_without_it(settings, wording):
    with pytest.raises(UserError) as caught:
        check_layer(**settings)
    wording(str(caught.value))


def test_the_branch_with_a_skip_connection_can_be_dropped():
    check_layer(drop=["mixer"])


# --- several streams --------------------------------------------------------------------------------------------------

SEVERAL = ("dynamic-hyper-connections", "mhc")


def settings(kind, **fields):
    return BASE | {"num_layers": 3, "residual": {"kind": kind, "streams": 3, **fields}}


def new_model(settings):
    return jit_once(lambda: build_model(load_config(ModelConfig, settings).resolve(), 7, SEQ, key=root_key(0)))()


@pytest.mark.slow
@pytest.mark.parametrize("kind", by_default(SEVERAL, "mhc"))
@pytest.mark.parametrize("placement", by_default(["pre", "output"], "pre"))
def test_models_start_as_those_with_the_standard_residual(kind, placement):
    """The final norm divides by the number of streams. Its eps is smaller relative to their sum."""
    norm = {"norm": {"kind": "rms", "placement": placement}}
    run = jit_once(lambda m: capture(m, ["residual"])(TOKENS))
    logits, reads = run(new_model(settings(kind) | norm))
    expected, plain = run(new_model(BASE | norm | {"num_layers": 3}))
    np.testing.assert_allclose(logits, expected, atol=1e-3)
    for number in range(3):
        np.testing.assert_allclose(reads["residual"][:, :, :, number], plain["residual"], atol=1e-4)


@pytest.mark.slow
def test_dynamic_hyper_connections_start_as_static_ones():
    static, dynamic = (new_model(settings(f"{name}hyper-connections")) for name in ("", "dynamic-"))
    known = named_parameters(static)
    assert all(np.array_equal(known[name], array) for name, array in named_parameters(dynamic).items() if name in known)
    added = {name.rpartition(".")[2] for name in set(named_parameters(dynamic)) - set(known)}
    assert added == {"weight", "scales"}
    run = jit_once(lambda m: m(TOKENS))
    np.testing.assert_allclose(run(dynamic), run(static), atol=1e-6)


@pytest.mark.slow
def test_without_its_additions_a_dynamic_connection_is_static(draw):
    """The static weights are random."""
    static = draw(settings("hyper-connections"))
    dynamic = draw(settings("dynamic-hyper-connections"))
    zero = {name: 0 * array for name, array in named_parameters(dynamic).items() if name.endswith("_residual.weight")}
    assert len(zero) == 6
    run = jit_once(lambda m: m(TOKENS))
    same = with_parameters(dynamic, named_parameters(dynamic) | zero)
    np.testing.assert_allclose(run(same), run(static), atol=1e-5)
    assert np.abs(run(dynamic) - run(static)).max() > 1e-4


@pytest.mark.slow
@pytest.mark.parametrize("kind", by_default(SEVERAL, "mhc"))
def test_decoding_padding_and_rolled_layers_change_nothing(draw, kind):
    model = draw(settings(kind), seq=SEQ + 4)
    rolled = replace(model, stacks=tuple(replace(stack, remat="full") for stack in model.stacks))
    padded = jnp.pad(TOKENS, ((0, 0), (2, 0)))
    padding = jnp.broadcast_to(jnp.arange(SEQ + 2) < 2, padded.shape)

    def compute(model, rolled):
        return model(TOKENS), rolled(TOKENS), decoded(model, TOKENS, (3, 1, 1)), model(padded, padding=padding)[:, 2:]

    whole, *others = jit_once(compute)(model, rolled)
    for found in others:
        np.testing.assert_allclose(found, whole, atol=2e-5)


@pytest.mark.slow
@pytest.mark.parametrize("kind", SEVERAL)
def test_bfloat16_streams_stay_bfloat16(draw, kind):
    run = jit_once(lambda m: capture(lambda t: m(t, dtype=jnp.bfloat16), ["residual"])(TOKENS))
    model = draw(settings(kind))
    logits, reads = run(model)
    assert reads["residual"].dtype == jnp.bfloat16
    np.testing.assert_allclose(logits, jit_once(lambda m: m(TOKENS))(model), atol=0.2)


@pytest.mark.slow
def test_mixing_streams_keeps_their_sum(draw):
    """Columns of a doubly stochastic matrix sum to 1. Branches write nothing."""
    silent = [Edit(f"{name}.out", lambda x, _: jnp.zeros_like(x)) for name in ("mixer", "ffn")]
    run = jit_once(lambda m: capture(m, ["embed", "residual"], silent)(TOKENS)[1])
    reads = run(draw(settings("mhc")))
    for after in reads["residual"]:
        np.testing.assert_allclose(after.sum(2), 3 * reads["embed"], rtol=1e-4, atol=1e-5)


def test_sinkhorn_makes_rows_and_columns_sum_to_1():
    logits = np.random.default_rng(0).standard_normal((4, 4, 2, 5)).astype(np.float32)
    found = sinkhorn(jnp.asarray(logits), 20)
    np.testing.assert_allclose(found.sum(1), 1, atol=1e-5)
    np.testing.assert_allclose(found.sum(0), 1, atol=1e-3)
    expected = np.exp(logits.astype(np.float64))
    for _ in range(20):
        expected /= expected.sum(0)
        expected /= expected.sum(1, keepdims=True)
    np.testing.assert_allclose(found, expected, atol=1e-5)


@pytest.mark.slow
def test_sinkhorn_keeps_doubly_stochastic_matrices_and_stays_finite():
    steady = np.full((3, 3, 1), 0.1, np.float32) + 0.7 * np.eye(3, dtype=np.float32)[..., None]
    np.testing.assert_allclose(sinkhorn(jnp.log(steady), 20), steady, atol=1e-5)
    far = jnp.asarray([[[500.0], [-500.0]], [[400.0], [300.0]]])
    found, gradient = jax.value_and_grad(lambda x: (sinkhorn(x, 20) ** 2).sum())(far)
    assert np.isfinite(found)
    assert np.isfinite(gradient).all()


@pytest.mark.slow
def test_the_iterations_are_a_loop():
    """The program does not grow with their number."""

    def lines(iterations):
        model = build_model(load_config(ModelConfig, settings("mhc", iterations=iterations)).resolve(), 7, SEQ,
                            key=root_key(0))  # fmt: skip
        return str(jax.make_jaxpr(jax.grad(lambda m: m(TOKENS).sum(), allow_int=True))(model)).count("\n")

    assert lines(20) == lines(40)


@pytest.mark.slow
def test_the_start_is_traced():
    structures = set()
    for start in (0.5, 0.9):
        structure, numbers = split(load_config(ModelConfig, settings("mhc", start=start)).resolve())
        structures.add(str(structure))
        assert numbers["layers.1.residual.start"] == start
    assert len(structures) == 1


@pytest.mark.parametrize("fields", [{"streams": 1}, {"iterations": 0}, {"start": 1.0}])
def test_invalid_settings_of_mhc_are_refused(fields, wording):
    with pytest.raises(UserError) as caught:
        load_config(ModelConfig, settings("mhc") | {"residual": {"kind": "mhc", **fields}})
    wording(str(caught.value))

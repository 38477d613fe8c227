"""Mixtures of experts: the balance loss and the bias update of their papers, and FLOPs."""

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from taetpu.core.batch_statistics import Averages, collect
from taetpu.core.config_parsing import build_component, load_config
from taetpu.core.errors import UserError
from taetpu.core.keys import root_key
from taetpu.nn.common import Context, Dims
from taetpu.nn.lm import ModelConfig
from taetpu.nn.state import update_state
from taetpu.train.model_cost import flops_per_token

DIM, EXPERTS, TOP, HIDDEN, BATCH, SEQ = 16, 6, 2, 24, 2, 9
CTX = Context(jnp.zeros((BATCH, SEQ), int), jnp.arange(SEQ))


def build(kind, **fields):
    dims = Dims(DIM, 1, SEQ, 7, bias=False, init=build_component("init", "fan-in"))
    config = build_component("ffn", {"kind": kind, "experts": EXPERTS, "top": TOP, "hidden": HIDDEN, **fields})
    return config.init(dims, key=root_key(3))


@pytest.fixture(scope="module")
def x():
    return jnp.asarray(np.random.default_rng(0).standard_normal((BATCH, SEQ, DIM)), jnp.float32)


def statistics(module, x):
    return collect(lambda: module(x, CTX), Averages())()[1]


@pytest.mark.slow
def test_balance_loss_is_one_for_a_uniform_router_and_follows_the_formula(x):
    ours = build("moe", balance=0.25)
    scores = np.asarray(x).reshape(-1, DIM) @ np.asarray(ours.router)
    probability = np.exp(scores) / np.exp(scores).sum(-1, keepdims=True)
    chosen = np.zeros_like(scores)
    np.put_along_axis(chosen, np.argsort(-scores, -1)[:, :TOP], 1.0, -1)
    expected = EXPERTS * ((chosen / TOP).mean(0) * probability.mean(0)).sum()
    found = statistics(ours, x)
    np.testing.assert_allclose(found.losses["balance"], expected, rtol=1e-5)
    np.testing.assert_allclose(found.total, 0.25 * expected, rtol=1e-5)
    uniform = type(ours)(**{**vars(ours), "router": jnp.zeros_like(ours.router)})
    np.testing.assert_allclose(statistics(uniform, x).losses["balance"], 1.0, rtol=1e-5)


@pytest.mark.slow
def test_deepseek_balance_loss_is_computed_within_each_sequence(x):
    ours = build("deepseek-moe")
    each = [statistics(ours, x[i : i + 1]).losses["balance"] for i in range(BATCH)]
    np.testing.assert_allclose(statistics(ours, x).losses["balance"], np.mean(each), rtol=1e-5)


@pytest.mark.slow
def test_the_bias_moves_against_the_load_of_each_layer():
    """Layers share a stack, and each is updated from its own load."""
    settings = {"dim": DIM, "num_layers": 3, "ffn": {"kind": "deepseek-moe", "experts": 4, "hidden": 8},
                "mixer": {"kind": "attention", "num_heads": 2}}  # fmt: skip
    config = load_config(ModelConfig, settings).resolve()
    model = config.build(7, SEQ, key=root_key(0))
    tokens = jnp.asarray(np.random.default_rng(1).integers(0, 7, (BATCH, SEQ)))
    _, found = collect(model, Averages())(tokens)
    loads = found.means["load"]
    assert sorted(loads) == [0, 1, 2]
    np.testing.assert_allclose([load.sum() for load in loads.values()], 2.0, rtol=1e-5)
    after = update_state(model, found.means)
    (stack,) = after.stacks
    expected = [1e-3 * np.sign(load.mean() - load) for load in loads.values()]
    np.testing.assert_allclose(stack.block.ffn.bias.value, expected, rtol=1e-6)
    assert len({tuple(row) for row in np.sign(expected)}) > 1


def test_flops_count_the_chosen_experts_and_executed_flops_all():
    def flops(ffn, executed=False):
        settings = {"dim": 16, "num_layers": 2, "mixer": "none", "ffn": ffn}
        return flops_per_token(load_config(ModelConfig, settings).resolve(), 7, 8, executed=executed)

    one = flops({"kind": "swiglu", "hidden": 24}) - flops("none")
    router = 2 * 6 * 16 * 8  # layers, FLOPs per parameter
    moe = {"kind": "moe", "experts": 8, "top": 2, "hidden": 24}
    assert flops(moe) - flops("none") == 2 * one + router
    assert flops(moe, executed=True) - flops("none") == 8 * one + router


def test_more_chosen_experts_than_experts_are_refused():
    with pytest.raises(UserError, match=r"`top` .* at most `experts`: 3 exceeds 2") as caught:
        load_config(ModelConfig, {"dim": 8, "num_layers": 1, "mixer": {"kind": "attention", "num_heads": 2},
                                  "ffn": {"kind": "moe", "experts": 2, "top": 3}}).resolve().check(7, 8)  # fmt: skip
    assert caught.value.path == ("layers", 0, "ffn", "top")


@pytest.mark.slow
def test_a_single_chosen_expert_has_its_probability_as_weight_and_the_router_a_gradient(x):
    ours = build("moe", top=1, balance=0.0)

    def total(router):
        return (eqx.tree_at(lambda m: m.router, ours, router)(x, CTX) ** 2).sum()

    assert float(jnp.abs(jax.grad(total)(ours.router)).max()) > 1e-4
    probability = jax.nn.softmax(x @ ours.router)
    places = probability.argmax(-1, keepdims=True)
    whole = ours.experts(x, jax.nn.one_hot(places[..., 0], EXPERTS), 1)
    expected = whole * jnp.take_along_axis(probability, places, -1)
    np.testing.assert_allclose(ours(x, CTX), expected, rtol=2e-4, atol=1e-5)


def test_a_single_chosen_expert_without_a_gradient_of_the_router_is_refused():
    settings = {"dim": 8, "num_layers": 1, "mixer": {"kind": "attention", "num_heads": 2}}
    ffn = {"kind": "clamped-moe", "experts": 2, "top": 1}
    with pytest.raises(UserError, match="router no gradient") as caught:
        load_config(ModelConfig, {**settings, "ffn": ffn}).resolve().check(7, 8)
    assert caught.value.path[-2:] == ("ffn", "top")
    load_config(ModelConfig, {**settings, "ffn": {**ffn, "experts": 1}}).resolve().check(7, 8)

"""Residual connections, several streams, shared parameters, and arrays that layers hand to later layers."""

from dataclasses import replace

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from tests.suites import by_default

from taetpu.core.config_parsing import load_config
from taetpu.core.errors import UserError
from taetpu.core.jit import jit_once
from taetpu.core.keys import root_key
from taetpu.core.sites import capture
from taetpu.nn.common import Context
from taetpu.nn.lm import ModelConfig, build_model
from taetpu.nn.named_arrays import named_parameters, with_parameters
from taetpu.nn.post_block import X0Config
from taetpu.spec.loading import load_study

VOCAB, SEQ, DIM = 7, 6, 8
TOKENS = jnp.asarray(np.random.default_rng(0).integers(0, VOCAB, (2, SEQ)), jnp.int32)
BASE = {"dim": DIM, "num_layers": 4, "mixer": {"kind": "attention", "num_heads": 2}, "init": "fan-in"}
forward = jit_once(lambda model, tokens: model(tokens))


def build(seed=0, **settings):
    config = load_config(ModelConfig, BASE | settings).resolve()
    model = build_model(config, VOCAB, SEQ, key=root_key(seed))
    rng = np.random.default_rng(1)
    moved = {n: np.asarray(a) + 0.1 * rng.standard_normal(a.shape) for n, a in sorted(named_parameters(model).items())}
    return with_parameters(model, {name: value.astype(np.float32) for name, value in moved.items()})


def by_hand(model, run_layer, start=lambda x: x, end=lambda x: x):
    """Return the logits of a model whose layers are computed by `run_layer(x, number, branches, state)`."""
    state = {}
    x = start(np.asarray(model.embedding.encode(TOKENS)))
    blocks = [stack.layer(i, model.stacks[stack.source].block if stack.source is not None else None)
              for stack in model.stacks for i in range(stack.size)]  # fmt: skip
    for number, block in enumerate(blocks):
        ctx = Context(TOKENS, jnp.arange(SEQ), layer=number)
        branches = {
            name: lambda h, name=name, block=block, ctx=ctx: np.asarray(
                block.branch(name, getattr(block, f"{name}_norm")(jnp.asarray(h, jnp.float32)), ctx)
            )
            for name in ("mixer", "ffn")
        }
        x = run_layer(x, number, block, branches, state)
    return np.asarray(model.embedding.decode(model.norm(jnp.asarray(end(x), jnp.float32))))


def agree(model, expected):
    return np.abs(np.asarray(forward(model, TOKENS)) - expected).max() < 1e-4 * np.abs(expected).max()


# --- residual connections --------------------------------------------------------------------------------------------


@pytest.mark.slow
def test_rezero_starts_as_the_identity_and_adds_each_branch_times_its_number():
    config = load_config(ModelConfig, BASE | {"residual": "rezero"}).resolve()
    fresh = build_model(config, VOCAB, SEQ, key=root_key(0))
    expected = fresh.embedding.decode(fresh.norm(fresh.embedding.encode(TOKENS)))
    assert np.allclose(forward(fresh, TOKENS), expected, atol=1e-6)
    model = build(residual="rezero")

    def layer(x, number, block, branches, state):
        for name in ("mixer", "ffn"):
            x = x + float(getattr(block, f"{name}_residual").factor) * branches[name](x)
        return x

    assert agree(model, by_hand(model, layer))
    assert {"layers.0.mixer_residual.factor", "layers.0.ffn_residual.factor"} <= set(named_parameters(model))


@pytest.mark.slow
def test_hyper_connections_mix_four_streams():
    model = build(residual="hyper-connections")

    def layer(x, number, block, branches, state):
        for name in ("mixer", "ffn"):
            own = getattr(block, f"{name}_residual")
            y = branches[name](np.einsum("bsnd,n->bsd", x, own.reads))
            x = np.einsum("bsnd,mn->bsmd", x, own.mixes) + np.einsum("bsd,n->bsnd", y, own.writes)
        return x

    expected = by_hand(model, layer, lambda x: np.repeat(x[:, :, None], 4, 2), lambda x: x.sum(2))
    assert agree(model, expected)


@pytest.mark.slow
def test_hyper_connections_start_as_the_ordinary_residual_stream():
    """Each of the n equal streams holds the ordinary stream, so the sum is n times it, which the norm undoes."""
    ordinary, hyper = (load_config(ModelConfig, BASE | {"residual": kind}).resolve()
                       for kind in ("standard", "hyper-connections"))  # fmt: skip
    one, other = (forward(build_model(c, VOCAB, SEQ, key=root_key(0)), TOKENS) for c in (ordinary, hyper))
    assert np.allclose(one, other, atol=1e-4)


@pytest.mark.slow
def test_deepnorm_scales_the_stream_and_the_weights_of_values_and_ffn():
    config = load_config(ModelConfig, BASE | {
        "dim": 64, "num_layers": 8, "residual": "deepnorm", "init": "deepnorm",
        "norm": {"kind": "layer", "placement": "post"}}).resolve()  # fmt: skip
    model = build_model(config, VOCAB, SEQ, key=root_key(0))
    have = named_parameters(model)
    ratio = float(np.std(have["layers.0.mixer.wv"]) / np.std(have["layers.0.mixer.wq"]))
    assert ratio == pytest.approx((8 * 8) ** -0.25, rel=0.05)
    block = model.stacks[0].layer(0)
    x = jnp.asarray(np.random.default_rng(0).standard_normal((1, 2, 64)), jnp.float32)
    assert np.allclose(block.mixer_residual(x, x), x * ((2 * 8) ** 0.25 + 1), rtol=1e-6)


def test_layers_with_different_numbers_of_streams_are_refused():
    with pytest.raises(UserError, match="layer 2 has 4 residual streams") as raised:
        build(layers={2: {"residual": "hyper-connections"}})
    assert raised.value.path == ("layers", 2, "residual")


# --- shared parameters -----------------------------------------------------------------------------------------------

SHARING = {
    "albert": ({"layers": {"1:": {"same_as": 0}}}, (0, 0, 0, 0)),
    "loop of two": ({"layers": {"2:": {"same_as": [0, 1]}}}, (0, 1, 0, 1)),
    "unequal layers": ({"layers": {1: {"ffn": "none"}, "2:": {"same_as": [0, 1]}}}, (0, 1, 0, 1)),
    "in the middle": ({"layers": {2: {"same_as": 1}}}, (0, 1, 1, 3)),
    "with remat": ({"layers": {"1:": {"same_as": 0}}}, (0, 0, 0, 0)),
}


def copied(shared, owners):
    """Return a model with separate parameters, equal to those of a model that shares them."""
    layers = {1: {"ffn": "none"}, 3: {"ffn": "none"}} if "layers.1.ffn.up" not in named_parameters(shared) and (
        owners[1] == 1) else {}  # fmt: skip
    apart = build(layers=layers)
    values = {}
    for name in named_parameters(apart):
        head, number, *rest = name.split(".")
        source = ".".join([head, str(owners[int(number)]), *rest]) if head == "layers" else name
        values[name] = named_parameters(shared)[source]
    return with_parameters(apart, values)


@pytest.mark.slow
@pytest.mark.parametrize("case", by_default(SHARING, "albert"))
def test_shared_layers_compute_what_copies_do_and_sum_their_gradients(case):
    settings, owners = SHARING[case]
    shared = build(**settings)
    if case == "with remat":
        shared = eqx.tree_at(lambda m: m.stacks, shared, tuple(replace(s, remat="full") for s in shared.stacks))
    apart = copied(shared, owners)
    assert {n for n in named_parameters(shared) if n.startswith("layers.")} == {
        n for n in named_parameters(apart) if n.startswith("layers.") and int(n.split(".")[1]) in owners
    }

    @jit_once
    def run(model, tokens):
        def loss(model):
            logits, reads = capture(model, ["residual"])(tokens)
            return jax.nn.logsumexp(logits, -1).sum(), (logits, reads["residual"])

        return eqx.filter_grad(loss, has_aux=True)(model)

    (gradient, found), (parts, expected) = run(shared, TOKENS), run(apart, TOKENS)
    assert all(np.array_equal(a, b) for a, b in zip(found, expected, strict=True))
    totals: dict = {}
    for name, array in named_parameters(parts).items():
        head, number, *rest = name.split(".")
        key = ".".join([head, str(owners[int(number)]), *rest]) if head == "layers" else name
        totals[key] = totals.get(key, 0.0) + np.asarray(array, np.float64)
    for name, array in named_parameters(gradient).items():
        assert np.abs(np.asarray(array) - totals[name]).max() <= 1e-6 * max(1.0, np.abs(totals[name]).max()), name


@pytest.mark.parametrize(
    ("layers", "where", "text"),
    [
        ({2: {"same_as": 3}}, (2, "same_as"), "cannot share .* layer 3"),
        ({0: {"same_as": 0}}, (0, "same_as"), "cannot share .* layer 0"),
        ({1: {"same_as": 0}, 2: {"same_as": 1}}, (2, "same_as"), "layer 1 already shares .* layer 0"),
        ({1: {"same_as": 0, "ffn": "none"}}, (1, "ffn"), "ffn cannot .*changed"),
    ],
)
def test_impossible_sharing_is_refused(layers, where, text):
    with pytest.raises(UserError, match=text) as raised:
        build(layers=layers)
    assert raised.value.path == ("layers", *where)


def test_cycle_of_layers_in_an_arm_is_one_value(tmp_path):
    file = tmp_path / "s.yaml"
    file.write_text(
        "study: s\nbase:\n  task: {kind: copy, seq_len: 8}\n"
        "  model: {dim: 8, num_layers: 7, mixer: {kind: attention, num_heads: 2}}\n  train: {steps: 2, batch_size: 2}\n"
        'arms:\n  loop: {"model.layers.3:.same_as": [1, 2]}\n'
    )
    _, arm = load_study(file).arms
    assert [layer.same_as for layer in arm.config.model.layers] == [None, None, None, 1, 2, 1, 2]


# --- what layers hand to later layers --------------------------------------------------------------------------------


@pytest.mark.slow
def test_value_residual_mixes_the_values_of_the_first_layer():
    """With weights 1 and 0 it changes nothing; with 0 and 1 every layer reads the values of layer 0."""
    mixer = {"kind": "attention", "num_heads": 2, "values": "residual"}
    model, plain = build(mixer=mixer), build()
    own = {n: a for n, a in named_parameters(model).items() if ".values." not in n}

    def with_mix(first, second):
        mix = {
            n: jnp.asarray(first if n.endswith("own") else second) for n in named_parameters(model) if ".values." in n
        }
        return with_parameters(model, own | mix)

    assert np.array_equal(forward(with_mix(1.0, 0.0), TOKENS), forward(with_parameters(plain, own), TOKENS))
    first = own["layers.0.mixer.wv"]
    only = with_mix(0.0, 1.0)
    changed = with_parameters(only, named_parameters(only) | {"layers.2.mixer.wv": first * 5})
    assert np.array_equal(forward(only, TOKENS), forward(changed, TOKENS))


@pytest.mark.slow
def test_u_net_adds_the_outputs_of_the_first_half_to_the_inputs_of_the_second():
    model = build(num_layers=6, after="u-net")

    def layer(x, number, block, branches, state):
        for name in ("mixer", "ffn"):
            x = x + branches[name](x)
        state[number] = x
        opposite = {2: 2, 3: 1, 4: 0}.get(number)
        return x if opposite is None else x + float(block.after.weight) * state[opposite]

    assert agree(model, by_hand(model, layer))


@pytest.mark.slow
def test_x0_adds_the_embeddings_after_each_layer():
    model = build(after="x0")

    def layer(x, number, block, branches, state):
        first = state.setdefault("x0", x)
        for name in ("mixer", "ffn"):
            x = x + branches[name](x)
        return float(block.after.own) * x + float(block.after.first) * first

    assert agree(model, by_hand(model, layer))


@pytest.mark.slow
@pytest.mark.parametrize("settings", by_default([
    {"after": "u-net"}, {"residual": "hyper-connections"}, {"layers": {"1:": {"same_as": 0}}},
    {"mixer": {"kind": "attention", "num_heads": 2, "values": "residual"}}, {"position": "t5"}, {"order": "macaron"},
], {"after": "u-net"}))  # fmt: skip
def test_rolled_layers_equal_unrolled_ones_and_packed_runs_equal_single_ones(settings):
    model, other = build(0, **settings), build(1, **settings)
    rolled = eqx.tree_at(lambda m: m.stacks, model, tuple(replace(s, remat="full") for s in model.stacks))
    whole = np.asarray(forward(model, TOKENS))
    assert np.abs(forward(rolled, TOKENS) - whole).max() < 1e-5 * np.abs(whole).max()
    pack = jax.tree.map(lambda *a: jnp.stack(a), model, other)
    packed = jit_once(jax.vmap(lambda model: model(TOKENS)))(pack)
    assert np.abs(packed[0] - whole).max() < 1e-5 * np.abs(whole).max()


def test_u_net_skips_are_refused_with_several_streams():
    settings = {"dim": 16, "num_layers": 2, "mixer": {"kind": "attention", "num_heads": 2}, "after": "u-net"}
    with pytest.raises(UserError, match=r"after 'u-net' .* one residual stream, .* 4") as caught:
        load_config(ModelConfig, {**settings, "residual": "hyper-connections"}).resolve().check(7, 8)
    assert caught.value.path == ("layers", 0, "after")


def test_layers_with_u_net_skips_are_not_shared():
    """The skip of a layer depends on its number, which is static in the shared module."""
    settings = {"dim": 16, "num_layers": 4, "mixer": {"kind": "attention", "num_heads": 2}, "after": "u-net"}
    with pytest.raises(UserError, match=r"layer 2 cannot share .* layer 1, because after 'u-net'") as caught:
        load_config(ModelConfig, {**settings, "layers": {2: {"same_as": 1}}}).resolve().check(7, 8)
    assert caught.value.path == ("layers", 2, "same_as")


@pytest.mark.parametrize("returned", [("mine", 16), {"mine": 16}, {"mine": (16.0,)}], ids=str)
def test_carries_of_a_wrong_form_is_refused(monkeypatch, returned):
    monkeypatch.setattr(X0Config, "carries", lambda self, dims: returned)
    settings = {"dim": 16, "num_layers": 2, "mixer": {"kind": "attention", "num_heads": 2}, "after": "x0"}
    with pytest.raises(UserError, match=r"carries of after 'x0' returns .*, expected \{name: shape\}"):
        load_config(ModelConfig, settings).resolve().check(7, 8)

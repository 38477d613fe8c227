"""Forward passes that start at a later layer, and edits of traced layers and heads."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from tests.suites import by_default

from taetpu.core.errors import UserError
from taetpu.core.jit import jit_once
from taetpu.core.sites import Edit, capture
from taetpu.nn import stack
from taetpu.nn.named_arrays import named_parameters, with_parameters

LAYERS, HEADS, SEQ, DIM = 12, 4, 8, 16
TOKENS = jnp.asarray(np.random.default_rng(0).integers(0, 7, (2, SEQ)))
DEEP = {"dim": DIM, "num_layers": LAYERS, "mixer": {"kind": "attention", "num_heads": HEADS}}


def streams(model, tokens):
    """Return the residual stream before each layer, `(layers, ...)`, and the logits."""
    (_, first), (logits, reads) = model.start(tokens), capture(model, ["residual"])(tokens)
    return jnp.concatenate([first[None], reads["residual"][:-1]]), logits


def without_head(z, head):
    """Return the outputs of all heads `(batch, head, seq, head_dim)`, zero for one head."""
    return jnp.where(jnp.arange(z.shape[1])[:, None, None] == head, 0, z)


ZERO = Edit("mixer.z", without_head, layer="layer", value="head")


@pytest.mark.slow
@pytest.mark.parametrize(
    "layers",
    [
        pytest.param({}, id="one stack"),
        pytest.param({5: {"ffn": "relu"}}, id="three stacks", marks=pytest.mark.nightly),
    ],
)
def test_all_single_head_ablations_in_one_program(draw, layers):
    """The layer is a scalar of an outer loop, which starts at the cached stream; the heads are mapped in chunks of two.

    One program equals a static edit of each layer and head, and rows of zeros in the output projection.
    """
    model, compiled = draw({**DEEP, "layers": layers}), []

    def sweep(model, tokens):
        compiled.append(1)
        before, _ = streams(model, tokens)

        def one(layer, head):
            def forward():
                return model.resume(before[layer], tokens, layer)

            logits, _ = capture(forward, (), [ZERO])(values={"layer": layer, "head": head})
            return logits[:, -1]

        def each(layer):
            heads = jnp.arange(HEADS).reshape(-1, 2)
            return jax.lax.map(jax.vmap(lambda head: one(layer, head)), heads)

        return jax.lax.map(each, jnp.arange(LAYERS)).reshape(LAYERS, HEADS, 2, -1)

    program = jax.jit(sweep)
    found = program(model, TOKENS)
    assert len(compiled) == program._cache_size() == 1

    def static(model, layer, head):
        edit = Edit("mixer.z", lambda z, _: without_head(z, head), layer=layer)
        return capture(model, (), [edit])(TOKENS)[0][:, -1]

    places = [(layer, head) for layer in range(LAYERS) for head in range(HEADS)]
    one_by_one = jit_once(lambda model: jnp.stack([static(model, *place) for place in places]))(model)
    np.testing.assert_allclose(found.reshape(one_by_one.shape), one_by_one, atol=1e-6, rtol=1e-5)
    values, width = named_parameters(model), DIM // HEADS
    rows = jax.jit(lambda values: with_parameters(model, values)(TOKENS)[:, -1])
    for layer, head in places:
        name = f"layers.{layer}.mixer.wo"
        zeroed = values[name].at[head * width : (head + 1) * width].set(0)
        np.testing.assert_allclose(found[layer, head], rows({**values, name: zeroed}), atol=1e-6, rtol=1e-5)
    assert float(jnp.abs(found - found[0, 0]).max()) > 1e-3


@pytest.mark.parametrize(
    "settings",
    by_default([{}, {"residual": {"kind": "hyper-connections", "streams": 2}}, {"after": "x0"}], {}),
    ids=str,
)
def test_resuming_at_a_layer_gives_the_logits_of_the_whole_pass(draw, settings):
    """The number of the layer is an input of one program."""
    model = draw({**DEEP, "num_layers": 3, **settings})
    before, logits = jit_once(streams)(model, TOKENS)
    resume = jax.jit(lambda model, x, layer: model.resume(x, TOKENS, layer))
    for layer in range(3):
        np.testing.assert_allclose(resume(model, before[layer], layer), logits, atol=1e-5)
    assert resume._cache_size() == 1


@pytest.mark.slow
@pytest.mark.parametrize("layers", [{}, {1: {"ffn": "relu"}}], ids=["one stack", "three stacks"])
@pytest.mark.parametrize("unroll", [0, 8], ids=["scanned", "unrolled"])
def test_layers_i_to_j_give_the_residual_stream_of_the_whole_pass(draw, monkeypatch, layers, unroll):
    """Both numbers are inputs of one program; with equal numbers, the stream is unchanged."""
    monkeypatch.setattr(stack, "UNROLL_UP_TO", unroll)
    model = draw({**DEEP, "num_layers": 3, "layers": layers})
    before, _ = jit_once(streams)(model, TOKENS)
    between = jax.jit(lambda model, x, first, end: model.run(x, model.start(TOKENS)[0], only=(first, end))[0])
    for first in range(3):
        for end in range(first, 3):
            np.testing.assert_allclose(between(model, before[first], first, end), before[end], atol=1e-6)
    assert between._cache_size() == 1


@pytest.mark.slow
def test_resuming_knows_padding_and_documents(draw):
    model = draw({**DEEP, "num_layers": 2, "position": "sinusoidal"})
    padding = jnp.arange(SEQ) < jnp.array([[0], [3]])
    segments = jnp.repeat(jnp.arange(2), SEQ // 2)[None].repeat(2, 0)
    for options in ({"padding": padding}, {"segments": segments}):
        logits, reads = capture(lambda: model(TOKENS, **options), ["residual"])()  # noqa: B023
        np.testing.assert_allclose(model.resume(reads["residual"][0], TOKENS, 1, **options), logits, atol=1e-6)


def test_a_model_whose_layers_hand_on_arrays_cannot_start_at_a_later_layer(draw):
    mixer = {"kind": "attention", "num_heads": HEADS, "values": "residual"}
    model = draw({**DEEP, "num_layers": 2, "mixer": mixer})
    before, _ = streams(model, TOKENS)
    with pytest.raises(UserError, match=r"to later layers, .* cannot start"):
        model.resume(before[1], TOKENS, 1)


def test_queries_keys_and_values_are_read_as_scores_use_them(draw):
    """Scores are the products of `mixer.q` and `mixer.k`, and `mixer.z` the pattern times `mixer.v`."""
    model = draw({"dim": DIM, "num_layers": 2, "mixer": {"kind": "attention", "num_heads": 4, "num_kv_heads": 2}})
    sites = ["mixer.q", "mixer.k", "mixer.v", "mixer.scores", "mixer.pattern", "mixer.z"]
    _, reads = capture(model, sites)(TOKENS)
    q, k, v = (reads[name] for name in sites[:3])
    assert (q.shape, k.shape, v.shape) == ((2, 2, 4, SEQ, 4), (2, 2, 2, SEQ, 4), (2, 2, 2, SEQ, 4))
    k, v = (jnp.repeat(a, 2, 2) for a in (k, v))
    scores = jnp.where(np.tri(SEQ, dtype=bool), q @ k.mT / 2, -1e30)
    np.testing.assert_allclose(reads["mixer.scores"], scores, rtol=1e-5, atol=1e-6)
    np.testing.assert_allclose(reads["mixer.z"], reads["mixer.pattern"] @ v, atol=1e-5)

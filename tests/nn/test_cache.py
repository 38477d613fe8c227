"""Decoding with a cache and padding on the left equal the plain forward pass, for all positions and masks."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from tests.page import write_plugin
from tests.suites import by_default

from taetpu.core.errors import UserError
from taetpu.core.jit import jit_once
from taetpu.core.plugins import load_plugins
from taetpu.nn import stack
from taetpu.nn.cache import empty_cache, extend

SEQ = 8
TOKENS = jnp.asarray(np.random.default_rng(0).integers(0, 7, (2, SEQ)))
GQA = {"kind": "attention", "num_heads": 4, "num_kv_heads": 2}
BASE = {"dim": 16, "num_layers": 2, "mixer": GQA}
MODELS = {
    **{position: {"position": position} for position in ("none", "learned", "sinusoidal", "rope", "alibi", "t5")},
    "window": {"mixer": {**GQA, "mask": {"kind": "window", "width": 3}}, "layers": {1: {"mixer": GQA}}},
    "document": {"mixer": {**GQA, "mask": {"kind": "document", "separator": 3}}},
    "blocks": {"mixer": {**GQA, "mask": {"kind": "block-sparse", "block": 2, "local": 1, "stride": 2}}},
    "parts": {"mixer": {**GQA, "qk_norm": "rms", "gate": "sigmoid", "normalizer": "sink", "values": "residual"}},
    "shared": {"num_layers": 4, "layers": {"2:": {"same_as": [0, 1]}, 1: {"ffn": "relu"}}},
    "streams": {"residual": {"kind": "hyper-connections", "streams": 2}, "after": "x0"},
    "differential": {"mixer": {**GQA, "kind": "differential"}},
    "talking-heads": {"mixer": {**GQA, "normalizer": "talking-heads", "mask": {"kind": "window", "width": 3}}},
    "mla": {"mixer": {"kind": "mla", "q_latent": 5, "kv_latent": 3}},
    "mla-t5": {"mixer": "mla", "position": "t5"},
    "no-mixer": {"layers": {0: {"mixer": "none"}}},
}


def decoded(model, tokens, sizes, padding=None):
    """Return the logits of a sequence that is extended by pieces of the given sizes."""
    cache, found, start = empty_cache(model, len(tokens), SEQ + 1), [], 0
    for size in sizes:
        part = None if padding is None else padding[:, start : start + size]
        logits, cache = extend(model, tokens[:, start : start + size], cache, padding=part)
        found.append(logits)
        start += size
    return jnp.concatenate(found, 1)


@pytest.mark.parametrize("name", by_default(MODELS, "parts"))
def test_cached_decoding_gives_the_logits_of_the_whole_sequence(draw, name):
    """A prompt of three tokens, then one token at a time. The cache has an unused place."""
    model = draw({**BASE, **MODELS[name]}, seq=SEQ + 1)
    whole, steps = jit_once(lambda m: (m(TOKENS), decoded(m, TOKENS, (3, 1, 1, 1, 2))))(model)
    np.testing.assert_allclose(steps, whole, atol=1e-5)


@pytest.mark.slow
def test_rolled_layers_decode_like_unrolled_layers(draw, monkeypatch):
    model = draw({**BASE, "num_layers": 3})
    unrolled = decoded(model, TOKENS, (4, 1))
    monkeypatch.setattr(stack, "UNROLL_UP_TO", 1)
    np.testing.assert_allclose(decoded(model, TOKENS, (4, 1)), unrolled, atol=1e-5)


@pytest.mark.slow
@pytest.mark.parametrize(
    "name",
    by_default(
        [
            "none",
            "learned",
            "sinusoidal",
            "rope",
            "alibi",
            "t5",
            "window",
            "document",
            "differential",
            "mla",
            "talking-heads",
        ],
        "window",
    ),
)
def test_padding_on_the_left_changes_nothing(draw, name):
    """The second sequence has three tokens less. Both are decoded with and without a cache."""
    model = draw({**BASE, **MODELS[name]}, seq=SEQ + 1)
    padding = jnp.arange(SEQ) < jnp.array([[0], [3]])
    short = TOKENS[1:, 3:]

    def compute(model):
        padded = model(TOKENS, padding=padding)
        return padded, model(TOKENS[:1]), model(short), decoded(model, TOKENS, (5, 1, 1, 1), padding)

    padded, first, second, cached = jit_once(compute)(model)
    for found in (padded, cached):
        np.testing.assert_allclose(found[:1], first, atol=1e-5)
        np.testing.assert_allclose(found[1:, 3:], second, atol=1e-5)


@pytest.mark.parametrize("mask", ["prefix", "document"])
def test_padding_is_not_read_as_a_separator(draw, mask):
    """The number of padding is that of the separator."""
    model = draw({**BASE, "mixer": {**GQA, "mask": {"kind": mask, "separator": 0}}, "num_layers": 1}, seq=SEQ)
    tokens = jnp.array([[3, 4, 5, 0, 2, 1]])
    padded = jnp.pad(tokens, ((0, 0), (2, 0)))
    plain, found = jit_once(lambda m: (m(tokens), m(padded, padding=jnp.arange(SEQ)[None] < 2)))(model)
    np.testing.assert_allclose(found[:, 2:], plain, atol=1e-5)


@pytest.mark.slow
def test_a_recurrent_mixer_of_a_plug_in_keeps_its_state(draw, tmp_path):
    """The mixer is the example of docs/plugins.md."""
    load_plugins([write_plugin("leaky.py", tmp_path)])
    model = draw({**BASE, "mixer": "leaky", "layers": {1: {"mixer": GQA}}}, seq=SEQ + 1)
    np.testing.assert_allclose(decoded(model, TOKENS, (3, 1, 4)), model(TOKENS), atol=1e-5)
    load_plugins([])


def test_models_without_a_cache_are_refused(draw):
    full = draw({**BASE, "mixer": {**GQA, "causal": False}})
    with pytest.raises(UserError, match="is not causal"):
        empty_cache(full, 1, SEQ)

    class Opaque:
        pass

    model = draw(BASE)
    broken = jax.tree_util.tree_map(lambda a: a, model)
    object.__setattr__(broken.stacks[0].block, "mixer", Opaque())
    with pytest.raises(UserError, match=r"mixer Opaque .*layer 0 .*no cache"):
        empty_cache(broken, 1, SEQ)

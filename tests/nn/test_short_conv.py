"""Short convolutions of the inputs of branches: their formula, documents, padding and caches."""

from dataclasses import replace
from itertools import pairwise

import jax.numpy as jnp
import numpy as np
import pytest
from tests.nn.test_cache import decoded
from tests.suites import by_default

from taetpu.core.config_parsing import load_config
from taetpu.core.errors import UserError
from taetpu.core.jit import jit_once
from taetpu.core.keys import root_key
from taetpu.core.sites import capture
from taetpu.nn.cache import empty_cache
from taetpu.nn.common import Context, Identity
from taetpu.nn.lm import ModelConfig, build_model
from taetpu.nn.named_arrays import named_parameters

SEQ, DIM = 8, 8
TOKENS = jnp.asarray(np.random.default_rng(0).integers(0, 7, (2, SEQ)), jnp.int32)
MIXERS = {
    "attention": {"mixer": {"kind": "attention", "num_heads": 2}},
    "gated-delta": {"mixer": {"kind": "gated-delta", "num_heads": 2, "chunk": 4}},
    "none": {"mixer": "none"},
}
BASE = {"dim": DIM, "num_layers": 2, **MIXERS["attention"]}


def canon(**settings):
    return {"short_conv": {"kind": "canon", **settings}}


@pytest.mark.slow
@pytest.mark.parametrize("order", by_default(["sequential", "parallel", "macaron"], "sequential"))
@pytest.mark.parametrize("branch", by_default(["both", "mixer", "ffn"], "both"))
def test_each_branch_reads_its_convolved_input(draw, branch, order):
    model = draw(BASE | {"order": order} | canon(branch=branch, width=3))
    block = model.stacks[0].layer(0)
    ctx = Context(TOKENS, jnp.arange(SEQ), layer=0)
    h = np.random.default_rng(1).standard_normal((2, SEQ, DIM)).astype(np.float32)
    for name in ("mixer", "ffn"):
        whole = np.array(h)
        if branch in ("both", name):
            taps = np.asarray(block.short_conv[name].taps)
            for t in range(SEQ):
                for back in range(min(3, t + 1)):
                    whole[:, t] += taps[2 - back] * h[:, t - back]
        expected = block.apply(name, getattr(block, name), jnp.asarray(whole), ctx)
        np.testing.assert_allclose(block.branch(name, jnp.asarray(h), ctx), expected, atol=1e-6)


@pytest.mark.slow
def test_parameters_belong_to_the_branches_that_exist():
    layers = {1: {"ffn": "none"}, 2: canon(branch="ffn"), 3: {"short_conv": "none"}}
    config = load_config(ModelConfig, BASE | canon() | {"num_layers": 4, "layers": layers}).resolve()
    model = build_model(config, 7, SEQ, key=root_key(0))
    found = {name.removeprefix("layers.") for name in named_parameters(model) if "short_conv" in name}
    expected = ("0.short_conv.mixer", "0.short_conv.ffn", "1.short_conv.mixer", "2.short_conv.ffn")
    assert found == {f"{name}.taps" for name in expected}
    taps = np.asarray(named_parameters(model)["layers.0.short_conv.mixer.taps"])
    assert np.abs(taps).max() <= 0.5  # 1 / sqrt(width), as in torch.nn.Conv1d
    assert isinstance(model.stacks[-1].layer(0).short_conv["mixer"], Identity)


@pytest.mark.slow
@pytest.mark.parametrize("mixer", by_default(MIXERS, "attention"))
@pytest.mark.parametrize("sizes", by_default([(3, 1, 1, 1, 2), (1,) * SEQ, (7, 1)], (3, 1, 1, 1, 2)))
def test_cached_decoding_gives_the_logits_of_the_whole_sequence(draw, mixer, sizes):
    model = draw(BASE | MIXERS[mixer] | canon(), seq=SEQ + 1)
    whole, steps = jit_once(lambda m: (m(TOKENS), decoded(m, TOKENS, sizes)))(model)
    np.testing.assert_allclose(steps, whole, atol=2e-5)


def test_the_cache_holds_the_last_tokens_of_each_branch(draw):
    cache = empty_cache(draw(BASE | canon(branch="both", width=3)), 2, SEQ)
    shapes = {name: array.shape for name, array in cache.stacks[0].items() if name.startswith("short_conv")}
    assert shapes == {"short_conv.mixer": (2, 2, 2, DIM), "short_conv.ffn": (2, 2, 2, DIM)}


@pytest.mark.slow
@pytest.mark.parametrize("mixer", by_default(MIXERS, "attention"))
def test_padding_on_the_left_changes_nothing(draw, mixer):
    """The second sequence has three tokens less. Both are decoded with and without a cache."""
    model = draw(BASE | MIXERS[mixer] | canon(), seq=SEQ + 1)
    padding = jnp.arange(SEQ) < jnp.array([[0], [3]])

    def compute(model):
        padded = model(TOKENS, padding=padding)
        return padded, model(TOKENS[:1]), model(TOKENS[1:, 3:]), decoded(model, TOKENS, (5, 1, 1, 1), padding)

    padded, first, second, cached = jit_once(compute)(model)
    for found in (padded, cached):
        np.testing.assert_allclose(found[:1], first, atol=2e-5)
        np.testing.assert_allclose(found[1:, 3:], second, atol=2e-5)


@pytest.mark.slow
@pytest.mark.parametrize("mixer", by_default(MIXERS, "gated-delta"))
def test_a_document_is_computed_as_if_it_were_alone(draw, mixer):
    settings = MIXERS[mixer] if mixer != "attention" else {
        "mixer": {**MIXERS[mixer]["mixer"], "mask": {"kind": "document", "separator": None}}}  # fmt: skip
    model, ends = draw(BASE | settings | {"position": "none"} | canon()), (0, 3, SEQ)
    segments = jnp.asarray(np.repeat([[0, 1]], np.diff(ends), axis=1).repeat(2, 0))
    packed = jit_once(lambda m: m(TOKENS, segments=segments))(model)
    for start, end in pairwise(ends):
        np.testing.assert_allclose(packed[:, start:end], model(TOKENS[:, start:end]), atol=2e-5)


@pytest.mark.slow
def test_rolled_layers_equal_unrolled_ones(draw):
    model = draw(BASE | {"num_layers": 3} | canon())
    rolled = replace(model, stacks=tuple(replace(stack, remat="full") for stack in model.stacks))
    run = jit_once(lambda m: capture(m, ["residual"])(TOKENS))
    np.testing.assert_allclose(run(rolled)[0], run(model)[0], atol=2e-5)


@pytest.mark.parametrize("width", [1, 65])
def test_invalid_widths_are_refused(width):
    with pytest.raises(UserError) as caught:
        load_config(ModelConfig, BASE | canon(width=width)).resolve()
    assert str(caught.value).startswith(f"{width} is not allowed")
    assert caught.value.path == ("short_conv", "width")

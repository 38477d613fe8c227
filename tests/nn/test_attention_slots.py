"""Masks, normalizers, norms and gates of attention equal their formulas."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy.optimize import brentq

from taetpu.core.config_parsing import build_component, load_config
from taetpu.core.errors import UserError
from taetpu.core.jit import jit_once
from taetpu.core.keys import root_key
from taetpu.core.static_dynamic import bind, promoted_fields, split
from taetpu.nn.common import AttentionDims, Context, Dims
from taetpu.nn.lm import ModelConfig, build_model
from taetpu.nn.normalizer import entmax15

SEQ, HEADS = 9, AttentionDims(2, 2, 4)
DIMS = Dims(8, 2, SEQ, 7, bias=False, init=build_component("init", "fan-in"))  # pyright: ignore
TOKENS = np.array([[1, 2, 0, 3, 4, 0, 5, 6, 1], [0, 1, 2, 3, 4, 5, 6, 0, 1]], np.int32)
CTX = Context(jnp.asarray(TOKENS), jnp.arange(SEQ))
forward = jit_once(lambda model, tokens: model(tokens))
FIRST_END, DOCUMENT = (2, 0), ((0, 0, 0, 1, 1, 1, 2, 2, 2), (0, 1, 1, 1, 1, 1, 1, 1, 2))
MASKS = {
    "causal": lambda b, i, j: j <= i,
    "window": lambda b, i, j: i - 3 < j <= i,
    "local": lambda b, i, j: abs(i - j) <= 2,
    "prefix": lambda b, i, j: j <= i or max(i, j) <= FIRST_END[b],
    "document": lambda b, i, j: j <= i and DOCUMENT[b][i] == DOCUMENT[b][j],
    "block-sparse": lambda b, i, j: j <= i and (i // 2 - j // 2 in (0, 3) or j // 2 < 1),
}
SETTINGS = {
    "window": {"width": 3}, "local": {"width": 5}, "prefix": {"separator": 0}, "document": {"separator": 0},
    "block-sparse": {"block": 2, "local": 1, "stride": 3, "first": 1},
}  # fmt: skip


def model_of(**mixer):
    settings = {"dim": 8, "num_layers": 2, "mixer": {"kind": "attention", "num_heads": 2, **mixer}}
    return load_config(ModelConfig, settings).resolve()


def module_of(slot, kind, **fields):
    component = build_component(slot, {"kind": kind, **fields})
    return bind(*split(component, promoted_fields(component))).init(DIMS, HEADS, key=root_key(0))  # pyright: ignore


# --- masks -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", MASKS)
def test_mask_allows_the_pairs_of_its_definition(kind):
    component = build_component("mask", {"kind": kind, **SETTINGS.get(kind, {})})
    module = bind(*split(component)).init(DIMS, key=root_key(0))  # pyright: ignore
    found = np.broadcast_to(np.asarray(module(CTX)), (2, 1, SEQ, SEQ))[:, 0]
    expected = [[[MASKS[kind](b, i, j) for j in range(SEQ)] for i in range(SEQ)] for b in range(2)]
    assert np.array_equal(found, expected)


@pytest.mark.slow
@pytest.mark.parametrize(("kind", "without"), [("window", "causal"), ("local", "full")])
def test_models_with_windows_of_different_widths_are_one_program_and_a_wide_one_hides_nothing_more(kind, without):
    narrow, wide, other = (model_of(mask=mask) for mask in (
        {"kind": kind, "width": 2}, {"kind": kind, "width": "none"}, without))  # fmt: skip
    assert split(narrow)[0] == split(wide)[0]
    logits = [np.asarray(forward(build_model(m, 7, SEQ, key=root_key(0)), TOKENS)) for m in (wide, other)]
    assert np.array_equal(*logits)


def test_full_mask_is_the_earlier_setting_causal_false():
    assert model_of(mask="full") == model_of(causal=False)
    with pytest.raises(UserError, match="mask is 'window'"):
        model_of(causal=False, mask="window")


# --- weights ---------------------------------------------------------------------------------------------------------


def reference_entmax(scores):
    """Find the threshold numerically."""
    half = scores / 2
    threshold = brentq(lambda t: (np.maximum(half - t, 0) ** 2).sum() - 1, half.max() - 1, half.max(), xtol=1e-14)
    return np.maximum(half - threshold, 0) ** 2


WEIGHTS = {
    "softmax": lambda s: np.exp(s) / np.exp(s).sum(),
    "softmax1": lambda s: np.exp(s) / (1 + np.exp(s).sum()),
    "sink": lambda s: np.exp(s) / (1 + np.exp(s).sum()),  # a sink starts at 0
    "sigmoid": lambda s: 1 / (1 + np.exp(-(s - np.log(SEQ)))),
    "entmax": reference_entmax,
}


@pytest.mark.parametrize("kind", WEIGHTS)
def test_weights_equal_their_formula_also_for_large_and_masked_scores(kind):
    scores = np.random.default_rng(0).standard_normal((2, 2, SEQ, SEQ)) * np.array([1.0, 20.0])[:, None, None, None]
    masked = np.where(np.tril(np.ones((SEQ, SEQ), bool)), scores, -1e30)
    weights, total = module_of("normalizer", kind)(jnp.asarray(masked, jnp.float32), CTX)
    found = np.asarray(weights / total, np.float64)
    expected = np.zeros_like(found)
    for at in np.ndindex(2, 2, SEQ):
        own = masked[at][: at[-1] + 1].astype(np.float32).astype(np.float64)
        expected[at][: at[-1] + 1] = WEIGHTS[kind](own)
    assert np.abs(found - expected).max() < 1e-5


def test_gradient_of_entmax_equals_finite_differences():
    scores, direction, cotangent = np.random.default_rng(1).standard_normal((3, 12))
    step = 1e-4
    numeric = (reference_entmax(scores + step * direction) - reference_entmax(scores - step * direction)) / (2 * step)
    _, pull = jax.vjp(entmax15, jnp.asarray(scores, jnp.float32))
    assert np.vdot(pull(jnp.asarray(cotangent, jnp.float32))[0], direction) == pytest.approx(
        np.vdot(cotangent, numeric), rel=1e-3
    )


def test_norm_of_queries_and_keys_acts_on_each_head_or_on_all_heads_together():
    q, k = jnp.asarray(np.random.default_rng(2).standard_normal((2, 2, 2, SEQ, 4)), jnp.float32)
    for over, axes in (("head", (3,)), ("all", (1, 3))):
        for found, x in zip(module_of("qk_norm", "rms", over=over, eps=1e-6)(q, k), (q, k), strict=True):
            assert np.allclose(found, x / jnp.sqrt((x**2).mean(axes, keepdims=True) + 1e-6), atol=1e-6)


def test_gate_multiplies_each_head_by_a_sigmoid_of_the_input():
    rng = np.random.default_rng(3)
    z, x = rng.standard_normal((2, 2, SEQ, 4)).astype(np.float32), rng.standard_normal((2, SEQ, 8)).astype(np.float32)
    for over in ("head", "element"):
        gate = module_of("gate", "sigmoid", over=over)
        factor = 1 / (1 + np.exp(-(x @ np.asarray(gate.weight))))
        expected = z * factor.reshape(2, SEQ, 2, -1).transpose(0, 2, 1, 3)
        assert np.allclose(gate(jnp.asarray(z), jnp.asarray(x), CTX), expected, atol=1e-5)


# --- refusals --------------------------------------------------------------------------------------------------------


def test_prefix_whose_targets_are_visible_is_refused():
    mask = build_component("mask", {"kind": "prefix", "separator": 0})
    weights = np.ones(TOKENS.shape, np.float32)
    with pytest.raises(UserError, match="first token 0") as raised:
        mask.check_windows(TOKENS, weights)  # pyright: ignore[reportAttributeAccessIssue]
    assert raised.value.path == ("separator",)
    mask.check_windows(TOKENS, np.where(np.arange(SEQ) < 2, 0.0, weights))  # pyright: ignore

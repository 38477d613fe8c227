"""Each component equals its formula or torch's implementation."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import torch
from tests.suites import first_by_default

from taetpu.core.config_parsing import build_component, load_config
from taetpu.core.jit import jit_once
from taetpu.core.keys import root_key
from taetpu.core.sites import Edit, capture
from taetpu.core.tree import count_elements
from taetpu.nn.common import Context, Dims, Dropout, Fixed, partition_trainable
from taetpu.nn.lm import ModelConfig, build_model
from taetpu.nn.named_arrays import named_parameters

RNG = np.random.default_rng(0)
X = RNG.standard_normal((2, 5, 16)).astype(np.float32)
TOKENS = jnp.zeros((2, 5), jnp.int32)
CTX = Context(TOKENS, jnp.arange(5))


def dims(dim=16, **other):
    fields = {"num_layers": 2, "seq_len": 8, "vocab_size": 7, "bias": True, "init": build_component("init", "fan-in")}
    return Dims(dim, **(fields | other))


def random_like(tree, seed=0):
    rng = np.random.default_rng(seed)
    return jax.tree.map(lambda a: jnp.asarray(rng.standard_normal(a.shape), jnp.float32), tree)


@jit_once
def run_on_x(component):
    return component(jnp.asarray(X), CTX)


# --- norms and activations -------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("kind", "theirs"), [("layer", torch.nn.LayerNorm), ("rms", torch.nn.RMSNorm)])
def test_norms_equal_torchs(kind, theirs):
    ours = random_like(build_component("norm", {"kind": kind, "eps": 0.1}).init(dims(), key=root_key(0)))
    reference = theirs(16, eps=0.1)
    with torch.no_grad():
        for name, parameter in reference.named_parameters():
            parameter.copy_(torch.tensor(getattr(ours, name)))
        expected = reference(torch.tensor(3 * X + 1)).numpy()
    np.testing.assert_allclose(ours(jnp.asarray(3 * X + 1)), expected, atol=1e-5)


@pytest.mark.parametrize("kind", ["layer", "rms"])
def test_norms_of_bfloat16_are_computed_in_float32(kind):
    norm = build_component("norm", kind).init(dims(), key=root_key(0))
    half = jnp.asarray(300 * X + 200, jnp.bfloat16)
    assert norm(half).dtype == jnp.bfloat16
    np.testing.assert_array_equal(norm(half), norm(half.astype(jnp.float32)).astype(jnp.bfloat16))


@pytest.mark.parametrize(
    ("kind", "act"),
    [
        ("relu", torch.nn.functional.relu),
        ("gelu-tanh", lambda h: torch.nn.functional.gelu(h, approximate="tanh")),
        ("gelu-erf", torch.nn.functional.gelu),
    ],
)
def test_feed_forwards_equal_their_formula(kind, act):
    ffn = random_like(build_component("ffn", {"kind": kind, "mult": 1.5}).init(dims(), key=root_key(0)))
    assert ffn.up.shape == (16, 24)
    ffn, run = jax.tree.map(np.asarray, ffn), run_on_x(ffn)
    h = act(torch.tensor(X @ ffn.up + ffn.up_bias)).numpy()
    np.testing.assert_allclose(run, h @ ffn.down + ffn.down_bias, rtol=1e-4, atol=1e-4)


def test_swiglu_equals_its_formula():
    ffn = random_like(build_component("ffn", "swiglu").init(dims(), key=root_key(0)))
    ffn, run = jax.tree.map(np.asarray, ffn), run_on_x(ffn)
    gate = torch.nn.functional.silu(torch.tensor(X @ ffn.gate + ffn.gate_bias)).numpy()
    expected = (gate * (X @ ffn.up + ffn.up_bias)) @ ffn.down + ffn.down_bias
    np.testing.assert_allclose(run, expected, rtol=1e-4, atol=1e-4)


def test_clamped_swiglu_is_constant_beyond_its_limits_and_residual_within():
    """Gates are bounded from above only. With a factor of 0, the network is its gate alone."""
    ffn = build_component("ffn", {"kind": "clamped-swiglu", "limit": 2.0}).init(dims(), key=root_key(0))
    gate = jnp.asarray([[[-5.0, 1.0, 2.0, 9.0]]])
    silu = lambda x: x / (1 + np.exp(-1.702 * x))  # noqa: E731
    expected = silu(np.minimum(np.asarray(gate), 2.0))
    for factor, largest in ((0.0, 0.0), (1.5, 1.5), (30.0, 2.0), (-30.0, -2.0)):
        np.testing.assert_allclose(ffn.combine(gate, factor + 0 * gate), expected * (largest + 1), rtol=1e-5)


@pytest.mark.parametrize(("dim", "hidden"), [(96, 256), (16, 40), (128, 344), (2, 8)])
def test_swiglus_default_size_matches_a_four_times_mlp(dim, hidden):
    ffn = build_component("ffn", "swiglu").init(dims(dim, bias=False), key=root_key(0))
    assert ffn.up.shape == (dim, hidden)
    assert dim < 8 or abs(count_elements(ffn) / (8 * dim * dim) - 1) < 0.07


# --- positions -------------------------------------------------------------------------------------------------------


def rope(base=10000.0):
    return build_component("position", {"kind": "rope", "base": base}).in_attention(6)


def at(offset):
    return Context(TOKENS, jnp.arange(5) + offset)


def test_rope_is_a_rotation_of_the_pairs_of_both_halves():
    q = jnp.asarray(RNG.standard_normal((1, 1, 5, 6)), jnp.float32)
    turned = np.asarray(rope(100.0)(q, q, at(0))[0])[0, 0]
    flat = np.asarray(q)[0, 0]
    pairs = (flat[:, :3] + 1j * flat[:, 3:]) * np.exp(1j * np.arange(5)[:, None] * 100.0 ** (-np.arange(3) / 3))
    np.testing.assert_allclose(turned, np.concatenate([pairs.real, pairs.imag], -1), atol=1e-5)


def test_rope_scores_depend_on_distance_alone():
    q, k = jnp.asarray(RNG.standard_normal((2, 1, 4, 5, 6)), jnp.float32)
    near, far = (jnp.einsum("bhqd,bhkd->bhqk", *rope()(q, k, at(offset))) for offset in (0, 50))
    np.testing.assert_allclose(near, far, atol=1e-4)
    assert np.abs(near - jnp.einsum("bhqd,bhkd->bhqk", q, k)).max() > 0.1


def test_sinusoidal_is_the_papers_formula():
    """The embeddings are multiplied by sqrt(dim) = 4."""
    position = build_component("position", "sinusoidal").at_input(dims(), key=root_key(0))
    expected = np.zeros((5, 16))
    for t in range(5):
        for i in range(8):
            expected[t, 2 * i] = np.sin(t / 10000 ** (2 * i / 16))
            expected[t, 2 * i + 1] = np.cos(t / 10000 ** (2 * i / 16))
    np.testing.assert_allclose(position(jnp.asarray(X), CTX), 4 * X + expected, atol=1e-5)


def test_learned_positions_are_rows_of_a_table():
    position = build_component("position", "learned").at_input(dims(), key=root_key(0))
    np.testing.assert_array_equal(position(jnp.zeros((1, 5, 16)), at(2))[0], position.weight[2:7])


# --- attention -------------------------------------------------------------------------------------------------------


def attention(**settings):
    config = build_component("mixer", {"kind": "attention", **settings})
    params, rest = partition_trainable(config.init(dims(), build_component("position", "none"), key=root_key(0)))
    return jax.tree.map(lambda p, r: r if p is None else p, random_like(params), rest, is_leaf=lambda n: n is None)


def explicit_attention(x, m, scale):
    """Compute attention with numpy, one query at a time."""
    heads = m.num_heads
    q, k, v = (x @ w + b for w, b in ((m.wq, m.bq), (m.wk, m.bk), (m.wv, m.bv)))
    size = q.shape[-1] // heads
    out = np.zeros_like(q)
    for b, h, t in np.ndindex(x.shape[0], heads, x.shape[1]):
        mine, kv = slice(h * size, (h + 1) * size), h * m.num_kv_heads // heads
        theirs = slice(kv * size, (kv + 1) * size)
        scores = k[b, : t + 1, theirs] @ q[b, t, mine] * scale
        weights = np.exp(scores - scores.max())
        out[b, t, mine] = weights / weights.sum() @ v[b, : t + 1, theirs]
    return out @ m.wo + m.bo


@pytest.mark.parametrize(
    ("settings", "scale"),
    [
        ({"num_heads": 4}, 0.5),
        ({"num_heads": 4, "num_kv_heads": 2, "head_dim": 6}, 6**-0.5),
        ({"num_heads": 3, "num_kv_heads": 1, "head_dim": 2, "scale": 0.3}, 0.3),
    ],
)
def test_attention_equals_its_formula(settings, scale):
    mixer = attention(**settings)
    expected = explicit_attention(X, jax.tree.map(np.asarray, mixer), scale)
    np.testing.assert_allclose(run_on_x(mixer), expected, rtol=1e-3, atol=1e-3)


# --- dropout ---------------------------------------------------------------------------------------------------------


def test_dropout_keeps_the_mean_and_drops_the_share():
    x = jnp.ones((100, 100))
    y = Dropout(Fixed(0.3))(x, root_key(0))
    assert abs(float((y == 0).mean()) - 0.3) < 0.02
    assert set(np.unique(np.round(y, 4)).tolist()) == {0.0, np.float32(np.round(1 / 0.7, 4)).item()}
    assert Dropout(Fixed(0.3))(x, None) is x


@pytest.mark.parametrize("rate", [0.001, 0.1, 0.3])
def test_dropout_in_bfloat16_drops_at_the_exact_rate(rate):
    """The share within 5 standard errors, the mean within one rounding of a bfloat16."""
    y = Dropout(Fixed(rate))(jnp.ones((1000, 1000), jnp.bfloat16), root_key(0))
    assert y.dtype == jnp.bfloat16
    y = np.asarray(y, np.float32)
    assert abs((y == 0).mean() - rate) < 5e-3 * (rate * (1 - rate)) ** 0.5
    assert abs(y.mean() - 1) < 2**-8


def test_dropout_acts_only_with_a_key_and_by_it(draw):
    run = jit_once(lambda m, key: m(TOKENS, key=key))
    small = {"dim": 16, "num_layers": 1, "mixer": "none", "ffn": "relu"}
    wet, dry = (draw(small | {"dropout": rate}) for rate in (0.5, 0.0))
    np.testing.assert_array_equal(run(wet, None), run(dry, None))
    first, second = run(wet, root_key(0)), run(wet, root_key(1))
    assert not np.array_equal(first, second)
    assert not np.array_equal(first, run(wet, None))
    np.testing.assert_array_equal(first, run(wet, root_key(0)))


# --- the whole model -------------------------------------------------------------------------------------------------


def shapes(**settings):
    config = load_config(ModelConfig, {"dim": 16, "num_layers": 2, **settings}).resolve()
    return jax.eval_shape(lambda: named_parameters(build_model(config, 7, 8, key=root_key(0))))


def test_no_bias_means_none_anywhere():
    settings = {"norm": "layer", "ffn": "gelu-erf", "position": "learned"}
    biases = {name.rpartition(".")[2] for name in shapes(**settings, bias=True)} - {
        name.rpartition(".")[2] for name in shapes(**settings)
    }
    assert biases == {"bq", "bk", "bv", "bo", "up_bias", "down_bias", "bias"}
    assert all(len(a.shape) == 2 or "norm" in name for name, a in shapes(**settings).items())


def test_one_component_may_differ_from_the_models_bias():
    names = shapes(ffn={"kind": "relu", "bias": True})
    assert {name.rpartition(".")[2] for name in names if "bias" in name} == {"up_bias", "down_bias"}


def test_absent_components_have_no_parameters():
    assert set(shapes(mixer="none", layers={1: {"ffn": "none"}}, norm="none")) == {
        "embedding.weight", "layers.0.ffn.gate", "layers.0.ffn.up", "layers.0.ffn.down"}  # fmt: skip
    assert "norm.weight" not in shapes(norm={"kind": "rms", "placement": "post"})


@pytest.mark.parametrize(
    ("init", "expected"),
    first_by_default(
        [
            ({"kind": "gpt2-scaled", "std": 0.5}, {"wo": 0.25, "down": 0.25, "other": 0.5}),
            ({"kind": "fan-in", "gain": 4.0}, {"down": 0.125, "other": 0.25}),
            ({"kind": "scaled-fan-in", "gain": 4.0}, {"wo": 0.125, "down": 0.0625, "other": 0.25}),
        ]
    ),
)
def test_standard_deviations_at_birth(init, expected):
    """Dim 64, 2 layers: the out-projections of scaled inits are divided by sqrt(2 * 2) = 2."""
    settings = {"dim": 64, "num_layers": 2, "ffn": "relu", "embedding": "untied", "position": "learned", "bias": True}
    config = load_config(ModelConfig, settings | {"init": init}).resolve()
    for name, a in jit_once(lambda: named_parameters(build_model(config, 64, 64, key=root_key(0))))().items():
        std = expected.get(name.rpartition(".")[2], expected["other"])
        if name.endswith("norm.weight"):
            assert (a == 1).all(), name
        elif a.ndim == 1:
            assert not a.any(), name
        else:
            np.testing.assert_allclose(a.std(), std, rtol=0.06, err_msg=name)
            assert abs(a.mean()) < 0.06 * std, name


@pytest.mark.slow
def test_bfloat16_keeps_the_softmax_and_the_logits_precise(draw):
    model = draw({"dim": 16, "num_layers": 1, "norm": "layer", "bias": True, "ffn": "relu"})
    run = jit_once(lambda m, dtype: m(TOKENS, dtype=dtype), static_argnums=1)
    half, whole = run(model, jnp.bfloat16), run(model, jnp.float32)
    assert half.dtype == jnp.float32
    assert np.isfinite(half).all()
    np.testing.assert_allclose(half, whole, atol=0.15)
    text = str(jax.make_jaxpr(lambda m: m(TOKENS, dtype=jnp.bfloat16))(model))
    kinds = {line.split(":")[1].split("[")[0] for line in text.splitlines() if " = exp " in line or " = rsqrt " in line}
    assert kinds == {"f32"}
    stream = jax.eval_shape(lambda m: capture(lambda t: m(t, dtype=jnp.bfloat16), ["residual"])(TOKENS), model)[1]
    assert stream["residual"].dtype == jnp.bfloat16


def test_layers_have_different_dropout_masks(draw):
    """All branches write ones, so the differences of the stream are the masks."""
    model = draw({"dim": 16, "num_layers": 3, "mixer": "none", "dropout": 0.5})
    ones = Edit("ffn.out", lambda x, _: jnp.ones_like(x))
    run = jit_once(lambda m: capture(lambda t: m(t, key=root_key(0)), ["residual"], [ones])(TOKENS))
    gains = np.diff(run(model)[1]["residual"], axis=0)
    np.testing.assert_allclose(gains, 2.0 * (gains > 1), atol=1e-5)
    assert not np.array_equal(gains[0] > 1, gains[1] > 1)


def test_without_residual_and_norm_logits_depend_on_the_last_branch_alone(draw):
    model = draw({"dim": 16, "num_layers": 1, "residual": "none", "norm": "none"})
    edit = Edit("ffn.out", lambda x, _: jnp.ones_like(x))
    logits, _ = jit_once(lambda m: capture(m, (), [edit])(TOKENS))(model)
    np.testing.assert_allclose(logits[0, 0], model.embedding.weight.sum(1), rtol=1e-5)

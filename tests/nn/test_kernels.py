"""Every path of attention computes what the plain one does, or leaves the call to it."""

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from taetpu.core.jit import jit_once
from taetpu.core.keys import root_key
from taetpu.core.sites import Edit, capture, find_sites
from taetpu.nn import kernels
from taetpu.nn.compute_options import DEFAULT_OPTIONS, ComputeOptions
from taetpu.nn.kernels import PATHS, CuDNN, Plain, Splash, describe_call

SEQ = 256  # two blocks of 128 each way: one that is masked whole, and ones that are masked in part
TOKENS = jax.random.randint(root_key(1), (2, SEQ), 0, 7)
SPLASH = Splash(block=128, interpret=True)
GQA = {"kind": "attention", "num_heads": 4, "num_kv_heads": 2}


@pytest.fixture
def interpreted(monkeypatch):
    """Splash attention, on a CPU."""
    monkeypatch.setitem(PATHS, "splash", SPLASH)


def both(draw, **settings):
    """A model as it is built, and with splash attention."""
    plain = draw({"dim": 32, "num_layers": 1, "mixer": GQA, **settings}, seq=SEQ)
    return plain, ComputeOptions(attention="splash").apply(plain)


def calls(fn, *args) -> bool:
    """Does a function call a kernel of Pallas?"""
    return "pallas_call" in str(jax.make_jaxpr(fn)(*args))


def loss_and_gradients(model, key=None):
    arrays, rest = eqx.partition(model, eqx.is_inexact_array)

    def loss(arrays):
        logits = eqx.combine(arrays, rest)(TOKENS, key=key)
        return (jax.nn.log_softmax(logits)[..., 0] * jnp.cos(jnp.arange(SEQ))).sum(), logits

    assert calls(loss, arrays) == (model.stacks[0].block.mixer.path == SPLASH)
    (_, logits), gradients = jit_once(jax.value_and_grad(loss, has_aux=True))(arrays)
    return [logits, *jax.tree.leaves(gradients)]


@pytest.mark.parametrize("causal", [True, pytest.param(False, marks=pytest.mark.slow)])
def test_splash_attention_is_softmax_of_queries_and_keys_times_values(causal):
    """Each pair of query heads reads a key-value head of its own; with gradients."""
    q, k, v, weight = (jax.random.normal(root_key(i), (1, heads, SEQ, 8)) for i, heads in enumerate((4, 2, 2, 4)))

    def plain(q, k, v):
        scores = q @ jnp.repeat(k, 2, axis=1).mT
        scores = jnp.where(np.tri(SEQ, dtype=bool), scores, -jnp.inf) if causal else scores
        return jax.nn.softmax(scores) @ jnp.repeat(v, 2, axis=1)

    def splash(q, k, v):
        return SPLASH.attend(q, k, v, causal=causal)

    found = [
        jit_once(jax.value_and_grad(lambda q, k, v, f=f: (f(q, k, v) * weight).sum(), argnums=(0, 1, 2)))(q, k, v)
        for f in (plain, splash)
    ]
    for expected, value in zip(*map(jax.tree.leaves, found), strict=True):
        np.testing.assert_allclose(value, expected, atol=2e-5, rtol=1e-5)


@pytest.mark.slow
@pytest.mark.usefixtures("interpreted")
@pytest.mark.parametrize(
    "settings",
    [
        {"position": "rope"},
        {"position": "learned", "mixer": {**GQA, "num_kv_heads": 4, "scale": 0.3, "drop_heads": [1]}},
        {"position": "none", "mixer": {**GQA, "num_kv_heads": 1, "causal": False}},
        {"position": "sinusoidal", "mixer": {**GQA, "head_dim": 24}},
    ],
    ids=lambda settings: settings["position"],
)
def test_splash_attention_is_the_plain_one(draw, settings):
    """Logits and gradients of a model, so that positions, shared heads, masks, the scale and its tracing are in it."""
    for plain, splash in zip(*map(loss_and_gradients, both(draw, **settings)), strict=True):
        scale = max(1.0, float(np.abs(plain).max()))
        # Rounding depends on the processor: 2e-6 on one kind, 4e-6 on another.
        np.testing.assert_allclose(splash / scale, plain / scale, atol=5e-6)


def text(fn, model) -> str:
    """The program of a call."""
    return jax.jit(fn).lower(model).as_text()


@pytest.mark.usefixtures("interpreted")
def test_what_a_kernel_does_not_compute_is_left_to_the_plain_path(draw):
    """Bit for bit: it is the same program."""

    def training(model):
        return model(TOKENS, key=root_key(0))

    for settings in ({"mixer": {**GQA, "scores": "softcap"}}, {"dropout": 0.1}):
        plain, splash = both(draw, **settings)
        assert text(training, splash) == text(training, plain)
    assert calls(lambda m: m(TOKENS), splash)  # nothing is drawn in evaluation
    assert not calls(lambda m: m(TOKENS[:, :200]), splash)


@pytest.mark.usefixtures("interpreted")
def test_whoever_looks_at_scores_or_patterns_finds_them(draw):
    plain, splash = both(draw)

    def forward(model):
        return model(TOKENS)

    for name in kernels.SITES:
        for looking in ({"sites": [name]}, {"edits": [Edit(name, lambda x, _: x * 0.5)]}):
            looked_at = capture(forward, **looking)
            assert text(looked_at, splash) == text(looked_at, plain)
    assert find_sites(forward, splash) == find_sites(forward, plain)
    assert calls(capture(forward, ["mixer.z", "residual"]), splash)


@pytest.mark.usefixtures("interpreted")
@pytest.mark.slow
def test_splash_attention_works_for_each_run_of_a_pack(draw):
    models = [both(draw, dropout=0.0)[1], both(draw, mixer={**GQA, "scale": 0.2})[1]]
    models = [
        eqx.tree_at(lambda m: m.stacks[0].block.mixer.scale.value, m, jnp.full(1, 0.1 + i))
        for i, m in enumerate(models)
    ]
    packed = jax.tree.map(lambda *a: jnp.stack(a), *models)
    together = jax.jit(jax.vmap(lambda m: m(TOKENS)))(packed)
    for i, model in enumerate(models):
        np.testing.assert_allclose(together[i], jax.jit(lambda m: m(TOKENS))(model), atol=1e-5)


def test_cudnn_takes_what_its_documentation_says(draw):
    """It cannot be run here: its routing alone is proved."""
    attention = draw({"dim": 32, "num_layers": 1, "mixer": GQA}).stacks[0].block.mixer

    def refusal(dtype, head_dim=8):
        sized = eqx.tree_at(lambda a: a.wq, attention, jnp.zeros((1, 32, 4 * head_dim)))
        return CuDNN().refusal(describe_call(sized, SEQ, dtype, training=True))

    assert refusal("bfloat16") is None
    assert "bfloat16, not float32" in str(refusal("float32"))
    assert "not 12" in str(refusal("bfloat16", 12))
    assert "not 136" in str(refusal("bfloat16", 136))
    assert refusal("bfloat16", 128) is None


def test_a_model_as_it_is_built_is_left_alone(draw):
    model = draw({"dim": 32, "num_layers": 1})
    assert jax.tree.structure(DEFAULT_OPTIONS.apply(model)) == jax.tree.structure(model)


class Sink(Plain):
    """Softmax with a sink: attention of a weight may go nowhere. A plug-in's path."""

    def read(self, attention, scores, v, ctx):
        top = jnp.maximum(jax.lax.stop_gradient(scores.max(-1, keepdims=True)), 0.0)
        pattern = jnp.exp(scores - top)
        return (pattern / (pattern.sum(-1, keepdims=True) + jnp.exp(-top))).astype(v.dtype) @ v


@pytest.mark.parametrize("attention", ["plain", "splash"])
def test_a_path_that_a_component_brings_is_kept(draw, interpreted, attention):
    plain = draw({"dim": 32, "num_layers": 1, "mixer": GQA}, seq=SEQ)
    model = eqx.tree_at(lambda m: m.stacks[0].block.mixer.path, plain, Sink())
    kept = ComputeOptions(attention=attention).apply(model)
    assert kept.stacks[0].block.mixer.path == Sink()
    assert not calls(lambda m: m(TOKENS), kept)
    assert ComputeOptions(attention=attention).apply(plain).stacks[0].block.mixer.path == PATHS[attention]

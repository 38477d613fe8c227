"""Every attention path computes the same as the plain path, or leaves the call to it."""

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from taetpu.core.config import to_data
from taetpu.core.config_parsing import load_config
from taetpu.core.jit import jit_once
from taetpu.core.keys import root_key
from taetpu.core.sites import Edit, capture, find_sites
from taetpu.core.static_dynamic import split
from taetpu.nn import attention_kernels
from taetpu.nn.attention_kernels import PATHS, CuDNN, KernelMask, Plain, Splash, describe_call
from taetpu.nn.compute_options import DEFAULT_OPTIONS, ComputeOptions
from taetpu.spec.run_ids import run_ids
from taetpu.spec.study_config import ResolvedConfig, RunConfig
from taetpu.train.model_cost import flops_per_token

SEQ = 256  # two blocks of 128 each way: one that is masked whole, and ones that are masked in part
TOKENS = jax.random.randint(root_key(1), (2, SEQ), 0, 7)
SPLASH = Splash(block=128, interpret=True)
GQA = {"kind": "attention", "num_heads": 4, "num_kv_heads": 2}


@pytest.fixture
def interpreted(monkeypatch):
    """Splash attention, on a CPU."""
    monkeypatch.setitem(PATHS, "splash", SPLASH)


def both(draw, **settings):
    """Return a model with plain attention, and the same model with splash attention."""
    plain = draw({"dim": 32, "num_layers": 1, "mixer": GQA, **settings}, seq=SEQ)
    return plain, ComputeOptions(attention="splash").apply(plain)


def calls(fn, *args) -> bool:
    """Return whether a function calls a Pallas kernel."""
    return "pallas_call" in str(jax.make_jaxpr(fn)(*args))


def loss_and_gradients(model, key=None):
    arrays, rest = eqx.partition(model, eqx.is_inexact_array)

    def loss(arrays):
        logits = eqx.combine(arrays, rest)(TOKENS, key=key)
        return (jax.nn.log_softmax(logits)[..., 0] * jnp.cos(jnp.arange(SEQ))).sum(), logits

    assert calls(loss, arrays) == (model.stacks[0].block.mixer.path == SPLASH)
    (_, logits), gradients = jit_once(jax.value_and_grad(loss, has_aux=True))(arrays)
    return [logits, *jax.tree.leaves(gradients)]


def test_splash_attention_and_its_gradients_follow_the_formula():
    """Each pair of query heads reads one key-value head."""
    q, k, v, weight = (jax.random.normal(root_key(i), (1, heads, SEQ, 8)) for i, heads in enumerate((4, 2, 2, 4)))

    def plain(q, k, v):
        scores = q @ jnp.repeat(k, 2, axis=1).mT
        scores = jnp.where(np.tri(SEQ, dtype=bool), scores, -jnp.inf)
        return jax.nn.softmax(scores) @ jnp.repeat(v, 2, axis=1)

    def splash(q, k, v):
        return SPLASH.attend(q, k, v, KernelMask(causal=True))

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
        {"position": "rope", "mixer": {**GQA, "head_dim": 24, "scale": 0.3, "drop_heads": [1]}},
        {"position": "none", "mixer": {**GQA, "num_kv_heads": 1, "causal": False}},
    ],
    ids=lambda settings: settings["position"],
)
def test_splash_attention_gives_the_logits_and_gradients_of_the_plain_path(draw, settings):
    for plain, splash in zip(*map(loss_and_gradients, both(draw, **settings)), strict=True):
        scale = max(1.0, float(np.abs(plain).max()))
        # Rounding depends on the processor: 2e-6 on one kind, 4e-6 on another.
        np.testing.assert_allclose(splash / scale, plain / scale, atol=5e-6)


def text(fn, model) -> str:
    """Return the program of a call."""
    return jax.jit(fn).lower(model).as_text()


@pytest.mark.slow
@pytest.mark.usefixtures("interpreted")
def test_calls_that_a_kernel_does_not_support_run_the_plain_program(draw):

    def training(model):
        return model(TOKENS, key=root_key(0))

    for settings in ({"mixer": {**GQA, "scores": "softcap"}}, {"dropout": 0.1}):
        plain, splash = both(draw, **settings)
        assert text(training, splash) == text(training, plain)
    assert calls(lambda m: m(TOKENS), splash)  # nothing is drawn in evaluation
    assert not calls(lambda m: m(TOKENS[:, :200]), splash)


@pytest.mark.slow
@pytest.mark.usefixtures("interpreted")
def test_captures_of_scores_and_patterns_run_the_plain_program(draw):
    plain, splash = both(draw)

    def forward(model):
        return model(TOKENS)

    for name in attention_kernels.SITES:
        for looking in ({"sites": [name]}, {"edits": [Edit(name, lambda x, _: x * 0.5)]}):
            looked_at = capture(forward, **looking)
            assert text(looked_at, splash) == text(looked_at, plain)
    assert find_sites(forward, splash) == find_sites(forward, plain)
    assert calls(capture(forward, ["mixer.z", "residual"]), splash)


@pytest.mark.usefixtures("interpreted")
@pytest.mark.slow
def test_splash_attention_works_for_each_run_of_a_pack(draw):
    model = both(draw, position="none")[1]
    models = [eqx.tree_at(lambda m: m.stacks[0].block.mixer.scale.value, model, jnp.full(1, 0.1 + i)) for i in range(2)]
    run = jit_once(lambda m: m(TOKENS))
    packed = jax.tree.map(lambda *a: jnp.stack(a), *models)
    together = jit_once(jax.vmap(lambda m: m(TOKENS)))(packed)
    for i, model in enumerate(models):
        np.testing.assert_allclose(together[i], run(model), atol=1e-5)


def test_cudnn_supports_what_its_documentation_says(draw):
    """Only the choice of the path is tested, because there is no GPU."""
    attention = draw({"dim": 32, "num_layers": 1, "mixer": GQA}).stacks[0].block.mixer

    def refusal(dtype, head_dim=8):
        sized = eqx.tree_at(lambda a: a.wq, attention, jnp.zeros((1, 32, 4 * head_dim)))
        return CuDNN().refusal(describe_call(sized, SEQ, dtype, training=True))

    assert refusal("bfloat16") is None
    assert "bfloat16, not float32" in str(refusal("float32"))
    assert "not 12" in str(refusal("bfloat16", 12))
    assert "not 136" in str(refusal("bfloat16", 136))
    assert refusal("bfloat16", 128) is None


def test_default_options_change_nothing(draw):
    model = draw({"dim": 32, "num_layers": 1})
    assert jax.tree.structure(DEFAULT_OPTIONS.apply(model)) == jax.tree.structure(model)


class Sink(Plain):
    """A plug-in's attention path: softmax with a sink, whose weights may sum to less than 1."""

    def read(self, attention, scores, v, ctx):
        top = jnp.maximum(jax.lax.stop_gradient(scores.max(-1, keepdims=True)), 0.0)
        pattern = jnp.exp(scores - top)
        return (pattern / (pattern.sum(-1, keepdims=True) + jnp.exp(-top))).astype(v.dtype) @ v


def test_a_plugins_attention_path_is_kept(draw, interpreted):
    plain = draw({"dim": 32, "num_layers": 1, "mixer": GQA}, seq=SEQ)
    model = eqx.tree_at(lambda m: m.stacks[0].block.mixer.path, plain, Sink())
    kept = ComputeOptions(attention="splash").apply(model)
    assert kept.stacks[0].block.mixer.path == Sink()
    assert not calls(lambda m: m(TOKENS), kept)
    assert ComputeOptions(attention="splash").apply(plain).stacks[0].block.mixer.path == PATHS["splash"]


# --- static windows --------------------------------------------------------------------------------------------------


def resolved(**train):
    """Return the config of a run with a local and a global layer and a window in both."""
    mixer = {"kind": "attention", "num_heads": 2, "mask": {"kind": "window", "width": 100}}
    layers = {1: {"mixer": {**mixer, "mask": {"kind": "window", "width": None}}}}
    data = {
        "task": {"kind": "copy", "seq_len": SEQ, "symbols": 5, "min_length": 2, "max_length": 9},
        "model": {"dim": 32, "num_layers": 2, "mixer": mixer, "layers": layers},
        "train": {"steps": 4, "batch_size": 2, **train},
    }
    return load_config(RunConfig, data).resolve()


@pytest.mark.slow
@pytest.mark.usefixtures("interpreted")
def test_static_windows_are_computed_by_kernels_and_equal_traced_windows():
    """Layers with different static widths form a stack each, with the same parameters and the same identity."""
    traced, static = (resolved(compute={"windows": windows}) for windows in ("traced", "static"))
    assert run_ids(traced, {0: ""}, "") == run_ids(static, {0: ""}, "")
    models = [config.model.build(7, SEQ, key=root_key(0)) for config in (traced, static)]
    assert [len(model.stacks) for model in models] == [1, 2]
    kernels = [ComputeOptions(attention="splash").apply(model) for model in models]
    assert [calls(model.__call__, TOKENS) for model in kernels] == [False, True]
    plain, local = (jit_once(lambda m: m(TOKENS))(model) for model in (models[0], kernels[1]))
    np.testing.assert_allclose(local, plain, atol=2e-5)


def test_static_windows_split_packs_and_need_fewer_flops():
    """The kernel skips blocks that the window hides. A stored config keeps its choice."""
    traced, static = (resolved(compute={"windows": windows}) for windows in ("traced", "static"))
    numbers = [split(config)[1] for config in (traced, static)]
    widths = [[name for name in found if "mask.width" in name] for found in numbers]
    assert [len(names) for names in widths] == [2, 0]
    flops = [flops_per_token(config.model, 7, 2048, "splash") for config in (traced, static)]
    assert flops[1] < flops[0]
    again = load_config(ResolvedConfig, to_data(static))
    assert again == static
    assert again.with_windows("traced") == traced


@pytest.mark.slow
def test_cudnn_has_the_window_of_the_mask(monkeypatch):
    """cuDNN does not run here. The call is computed by XLA's implementation, which has the same arguments."""
    q, k, v = (jax.random.normal(root_key(i), (1, 2, 16, 8)) for i in range(3))
    real = jax.nn.dot_product_attention
    monkeypatch.setattr(jax.nn, "dot_product_attention", lambda *a, **b: real(*a, **{**b, "implementation": "xla"}))
    apart = np.arange(16)[:, None] - np.arange(16)
    scores = jnp.where((apart >= 0) & (apart < 5), q @ k.mT, -jnp.inf)
    np.testing.assert_allclose(
        CuDNN().attend(q, k, v, KernelMask(causal=True, width=5)), jax.nn.softmax(scores) @ v, atol=1e-5
    )

"""Layer dropout skips branches or layers with the probabilities of the papers, and only in training."""

from dataclasses import replace

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from tests.suites import by_default

from taetpu.core.config_parsing import build_component, load_config
from taetpu.core.errors import UserError
from taetpu.core.jit import jit_once
from taetpu.core.keys import root_key
from taetpu.core.sites import Edit, capture
from taetpu.core.static_dynamic import split
from taetpu.nn.common import Context, Dims
from taetpu.nn.lm import ModelConfig
from taetpu.spec.loading import load_study
from taetpu.train.layout import exact_shard_counts

LAYERS, BATCH, SEQ = 4, 16, 3
TOKENS = jnp.asarray(np.random.default_rng(0).integers(0, 7, (BATCH, SEQ)), jnp.int32)
CTX = Context(TOKENS, jnp.arange(SEQ), key=root_key(1))
DIMS = Dims(8, LAYERS, SEQ, 7, bias=True, init=build_component("init", "fan-in"))  # pyright: ignore
BASE = {"dim": 8, "num_layers": LAYERS, "mixer": {"kind": "attention", "num_heads": 2}, "norm": "layer", "bias": True}
RATES = {
    "stochastic-depth": [0.6 * (i + 1) / LAYERS for i in range(LAYERS)],
    "layerskip": [0.6 * (np.exp(i * np.log(2) / (LAYERS - 1)) - 1) for i in range(LAYERS)],
}
KINDS = {kind: {"kind": kind, "rate": 0.6} for kind in RATES}


@jit_once
def trained(model, key):
    """Return the streams before the first layer and after each layer in training, `(layer, batch, seq, ...)`."""
    _, reads = capture(lambda tokens: model(tokens, key=key), ["embed", "residual"])(TOKENS)
    after = reads["residual"]
    first = reads["embed"] if after.ndim == 4 else reads["embed"][:, :, None]  # for each stream
    return jnp.concatenate([jnp.broadcast_to(first, after.shape[1:])[None], after])


def skipped(streams):
    """Return for each layer and sequence whether the stream is unchanged: `(layer, batch)`."""
    same = np.asarray(streams[1:] == streams[:-1])
    return same.reshape(*same.shape[:2], -1).all(-1)


@pytest.mark.parametrize("kind", RATES)
@pytest.mark.parametrize("number", by_default(range(LAYERS), 0, LAYERS - 1))
def test_the_probability_rises_with_depth_as_in_the_paper(kind, number):
    """The share of skipped sequences is within 5 standard errors, and they are skipped as a whole."""
    module = build_component("layer_dropout", KINDS[kind]).init(DIMS, key=root_key(0))
    ctx, x = replace(CTX, layer=jnp.asarray(number)), jnp.ones((20000, 2, 1))
    y = module.branch(x, ctx) if kind == "stochastic-depth" else module.layer(0 * x, x, ctx)
    rate = RATES[kind][number]
    expected = 1 / (1 - rate) if kind == "stochastic-depth" else 1.0
    zero = np.asarray(y[:, 0, 0] == 0)
    np.testing.assert_array_equal(y[:, 0], y[:, 1])
    assert abs(zero.mean() - rate) <= 5 * np.sqrt(rate * (1 - rate) / len(x))
    np.testing.assert_allclose(y[~zero], expected, rtol=1e-6)


@pytest.mark.slow
@pytest.mark.parametrize("kind", by_default(RATES, "stochastic-depth"))
def test_evaluation_is_unchanged(draw, kind):
    run = jit_once(lambda m, key: m(TOKENS, key=key))
    dropped, plain = draw(BASE | {"layer_dropout": KINDS[kind]}), draw(BASE)
    np.testing.assert_array_equal(run(dropped, None), run(plain, None))
    assert not np.array_equal(run(dropped, root_key(0)), run(plain, root_key(0)))


@pytest.mark.slow
@pytest.mark.parametrize("kind", RATES)
def test_bfloat16_stays_bfloat16(kind):
    module = build_component("layer_dropout", KINDS[kind]).init(DIMS, key=root_key(0))
    ctx, x = replace(CTX, layer=jnp.asarray(3)), jnp.ones((BATCH, 2, 8), jnp.bfloat16)
    assert module.branch(x, ctx).dtype == module.layer(x, x, ctx).dtype == jnp.bfloat16


PARTS = {
    "sandwich": {"norm": {"kind": "layer", "placement": "sandwich"}},
    "post": {"norm": {"kind": "layer", "placement": "post"}},
    "no residual": {"residual": "none"},
    "streams": {"residual": {"kind": "hyper-connections", "streams": 2}},
    "macaron": {"order": "macaron"},
}


@pytest.mark.slow
@pytest.mark.parametrize("case", by_default(PARTS, "post"))
def test_layerskip_returns_the_input_of_a_skipped_layer(draw, case):
    """Layers that are not skipped compute what they do in evaluation, from the same input."""
    model = draw(BASE | PARTS[case] | {"layer_dropout": KINDS["layerskip"]})
    streams = trained(model, root_key(2))
    found = skipped(streams)
    assert not found[0].any()
    assert 0 < found[1:].sum() < found[1:].size
    assert len({tuple(row) for row in found.T}) > 2  # sequences are skipped independently

    @jit_once
    def layers(model, streams):
        ctx, _ = model.start(TOKENS)
        return jnp.stack([model.run(streams[i], ctx, only=(i, i + 1))[0] for i in range(LAYERS)])

    whole = np.asarray(layers(model, streams))
    shown = found.reshape(*found.shape, *[1] * (streams.ndim - 2))
    np.testing.assert_allclose(np.where(shown, streams[:-1], whole), streams[1:], atol=2e-5)


@pytest.mark.slow
@pytest.mark.parametrize("order", by_default(["sequential", "parallel-two-norms", "macaron"], "sequential"))
def test_stochastic_depth_skips_branches_independently(draw, order):
    """All branches write ones, so the differences of the stream count the branches that are not skipped."""
    model = draw(BASE | {"order": order, "layer_dropout": {"kind": "stochastic-depth", "rate": 0.5}})
    ones = [Edit(f"{name}.out", lambda x, _: jnp.ones_like(x)) for name in ("mixer", "ffn", "first_ffn")]
    edits = ones[: 3 if order == "macaron" else 2]
    run = jit_once(lambda m: capture(lambda t: m(t, key=root_key(3)), ["embed", "residual"], edits)(TOKENS)[1])
    reads = run(model)
    gains = np.diff(np.concatenate([np.asarray(reads["embed"])[None], reads["residual"]]), axis=0)[..., 0, 0]
    sizes = (1.0, 0.5, 0.5) if order == "macaron" else (1.0, 1.0)
    sums = {round(float(np.dot(sizes, np.unravel_index(i, (2,) * len(sizes)))), 3) for i in range(2 ** len(sizes))}
    for number, gain in enumerate(gains):
        scaled = np.round(gain * (1 - 0.5 * (number + 1) / LAYERS), 3)
        assert set(scaled.tolist()) <= sums
    assert len(set(np.round(gains[-1], 3).tolist())) > 2


@pytest.mark.slow
def test_a_branch_is_skipped_after_its_norm(draw):
    """The bias of a norm on the branch's output is skipped too, and the factor 1 / (1 - p) is not normalised away."""
    settings = {"mixer": "none", "norm": {"kind": "layer", "placement": "sandwich"}}
    config = {"layer_dropout": {"kind": "stochastic-depth", "rate": 0.5}}
    streams = trained(draw(BASE | settings | config), root_key(3))
    found = skipped(streams)
    assert found.any()
    plain = draw(BASE | settings)
    ctx, _ = plain.start(TOKENS)
    after, _ = plain.run(streams[3], ctx, only=(3, 4))
    for before, now, expected, gone in zip(streams[3], streams[4], after, found[3], strict=True):
        np.testing.assert_allclose(now - before, 0 if gone else (expected - before) / 0.5, atol=1e-5)


@pytest.mark.slow
def test_layers_that_share_parameters_have_the_rates_of_their_own_depth(draw):
    settings = {"layers": {"1:": {"same_as": 0}}, "layer_dropout": {"kind": "layerskip", "rate": 0.99}}
    model = draw(BASE | settings)
    found = skipped(trained(model, root_key(4)))
    assert found[0].sum() == 0
    assert found[3].mean() > 0.8


@pytest.mark.slow
def test_the_rate_is_traced():
    structures = set()
    for rate in (0.0, 0.3):
        config = load_config(ModelConfig, BASE | {"layer_dropout": {"kind": "layerskip", "rate": rate}}).resolve()
        structure, numbers = split(config)
        structures.add(str(structure))
        assert numbers["layers.2.layer_dropout.rate"] == rate
    assert len(structures) == 1


@pytest.mark.parametrize(
    "settings",
    [
        {"layer_dropout": "stochastic-depth", "residual": "none"},
        {"layer_dropout": "stochastic-depth", "layers": {2: {"residual": {"kind": "none", "branch": "ffn"}}}},
        {"layer_dropout": "layerskip", "num_layers": 1},
        {"layer_dropout": {"kind": "layerskip", "rate": 1.0}},
    ],
)
def test_invalid_settings_are_refused(settings, wording):
    with pytest.raises(UserError) as caught:
        load_config(ModelConfig, BASE | settings).resolve().check(7, SEQ)
    wording(str(caught.value))


def test_batches_of_runs_with_layer_dropout_are_not_divided(tmp_path):
    """Each device would draw the same random numbers for its part of the batch."""
    file = tmp_path / "s.yaml"
    file.write_text(
        "study: s\nbase:\n  task: {kind: copy, seq_len: 8}\n"
        "  model: {dim: 8, num_layers: 2, mixer: {kind: attention, num_heads: 2}}\n  train: {steps: 2, batch_size: 2}\n"
        "arms:\n  skip: {model.layer_dropout: layerskip}\n"
    )
    plain, skip = (arm.config for arm in load_study(file).arms)
    assert jax.device_count() == 1 or len(exact_shard_counts(plain)) > 1
    assert exact_shard_counts(skip) == [1]

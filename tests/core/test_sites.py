"""Sites: reads return the activations of the forward pass, edits replace them, and unused sites cost nothing."""

from functools import partial

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from taetpu.core import sites
from taetpu.core.errors import UserError
from taetpu.core.jit import jit_once
from taetpu.core.keys import root_key
from taetpu.core.sites import Edit, capture, find_sites, site
from taetpu.nn import stack

VOCAB, SEQ, LAYERS = 7, 8, 3
TOKENS = jax.random.randint(root_key(1), (2, SEQ), 0, VOCAB)


SETTINGS = {"dim": 16, "num_layers": LAYERS, "mixer": {"kind": "attention", "num_heads": 2}}


NAMES = ("embed", "mixer.pattern", "mixer.z", "mixer.out", "ffn.hidden", "ffn.out", "residual", "final", "logits")


@pytest.fixture(scope="module", autouse=True)
def rolled():
    """Layers are not unrolled, which compiles faster."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(stack, "UNROLL_UP_TO", 0)
        yield


@pytest.fixture(scope="module")
def model(draw):
    return draw(SETTINGS)


@pytest.fixture(scope="module")
def seen(model):
    """The logits and all sites of the model."""
    return read(model, NAMES)


@pytest.fixture(scope="module")
def stream(model):
    """The logits and the residual stream of the model."""
    return read(model, ["residual"])


@pytest.fixture(scope="module")
def split_model(draw):
    """The last layer stands in a stack of its own."""
    return draw(SETTINGS | {"layers": {-1: {"ffn": "relu"}}})


def read(model, names, edits=()):
    return jit_once(lambda model: capture(model, names, edits)(TOKENS))(model)


def test_shapes_and_values(model, seen):
    logits, reads = seen
    shapes = {name: value.shape for name, value in reads.items()}
    assert shapes == {
        "embed": (2, SEQ, 16),
        "mixer.pattern": (LAYERS, 2, 2, SEQ, SEQ),
        "mixer.z": (LAYERS, 2, 2, SEQ, 8),
        "mixer.out": (LAYERS, 2, SEQ, 16),
        "ffn.hidden": (LAYERS, 2, SEQ, 40),
        "ffn.out": (LAYERS, 2, SEQ, 16),
        "residual": (LAYERS, 2, SEQ, 16),
        "final": (2, SEQ, 16),
        "logits": (2, SEQ, VOCAB),
    }
    np.testing.assert_array_equal(logits, reads["logits"])
    np.testing.assert_array_equal(reads["embed"], model.embedding.weight[TOKENS])
    np.testing.assert_allclose(reads["mixer.pattern"].sum(-1), 1.0, rtol=1e-6)
    assert not np.triu(reads["mixer.pattern"], 1).any()


def test_the_residual_stream_is_the_sum_of_the_branches_outputs(seen):
    _, reads = seen
    written = reads["embed"] + (reads["mixer.out"] + reads["ffn.out"]).sum(0)
    np.testing.assert_allclose(reads["residual"][-1], written, atol=1e-6)


@pytest.mark.slow
def test_norms_mark_their_scale_and_output(model):
    """The scale is 1 / RMS of the stream before the norm, and the output the scaled stream times the weight."""
    names = ["embed", "mixer.out", "residual", "final", "final_norm.scale"]
    norms = [f"{branch}_norm.{part}" for branch in ("mixer", "ffn") for part in ("scale", "out")]
    _, reads = read(model, names + norms)
    before = jnp.concatenate([reads["embed"][None], reads["residual"][:-1]])
    streams = {"mixer": before, "ffn": before + reads["mixer.out"]}
    for branch, x in streams.items():
        scale, weight = reads[f"{branch}_norm.scale"], getattr(model.stacks[0].block, f"{branch}_norm").weight
        np.testing.assert_allclose(scale, 1 / jnp.sqrt((x * x).mean(-1, keepdims=True) + 1e-6), rtol=1e-5)
        np.testing.assert_allclose(reads[f"{branch}_norm.out"], x * scale * weight[:, None, None], atol=1e-5)
    last = reads["residual"][-1] * reads["final_norm.scale"] * model.norm.weight
    np.testing.assert_allclose(reads["final"], last, atol=1e-5)


@pytest.mark.slow
def test_a_stored_scale_makes_norms_linear(model):
    """With the scales of another pass, the output of a norm of twice the stream is twice the output."""
    names = ["mixer_norm.scale", "mixer_norm.out"]
    _, plain = read(model, names)
    double = Edit("embed", lambda x, _: 2 * x)
    stored = Edit("mixer_norm.scale", lambda _, scale: scale, layer=0, value="scale")

    def fixed(model, scale):
        return capture(model, names, [double, stored])(TOKENS, values={"scale": scale})[1]

    found = jit_once(fixed)(model, plain["mixer_norm.scale"][0])
    np.testing.assert_allclose(found["mixer_norm.out"][0], 2 * plain["mixer_norm.out"][0], rtol=1e-5)


@pytest.mark.parametrize(
    ("settings", "norms"),
    [
        ({"norm": {"kind": "layer", "placement": "post"}}, {"mixer_norm", "ffn_norm"}),
        ({"norm": {"kind": "rms", "placement": "sandwich"}},
         {f"{branch}_norm.{place}" for branch in ("mixer", "ffn") for place in ("before", "after")} | {"final_norm"}),
        ({"order": "parallel"}, {"mixer_norm", "final_norm"}),
        ({"order": "parallel-two-norms"}, {"mixer_norm", "ffn_norm", "final_norm"}),
        ({"order": "macaron", "stem": "norm"}, {"first_ffn_norm", "mixer_norm", "ffn_norm", "final_norm", "stem_norm"}),
        ({"mixer": {**SETTINGS["mixer"], "qk_norm": "rms"}},
         {"mixer.q_norm", "mixer.k_norm", "mixer_norm", "ffn_norm", "final_norm"}),
    ],
    ids=["post", "sandwich", "parallel", "two norms", "macaron", "qk_norm"],
)  # fmt: skip
def test_each_norm_of_a_layer_has_its_own_site(draw, settings, norms):
    model = draw(SETTINGS | settings)
    assert {name.removesuffix(".scale") for name in find_sites(model, TOKENS) if name.endswith(".scale")} == norms
    jax.eval_shape(capture(model, [f"{name}.scale" for name in norms]), TOKENS)  # none is marked twice


def test_reading_changes_no_logit(model, stream):
    np.testing.assert_array_equal(stream[0], jit_once(lambda model: model(TOKENS))(model))


def test_reads_of_several_stacks_are_concatenated_in_layer_order(split_model):
    _, reads = read(split_model, ["residual", "final"])
    assert reads["residual"].shape == (LAYERS, 2, SEQ, 16)
    np.testing.assert_allclose(split_model.norm(reads["residual"][-1]), reads["final"], atol=1e-6)


def test_unrolled_layers_read_the_same(model, stream, monkeypatch):
    monkeypatch.setattr(stack, "UNROLL_UP_TO", LAYERS)
    np.testing.assert_allclose(read(model, ["residual"])[1]["residual"], stream[1]["residual"], atol=1e-6)


@pytest.mark.slow
def test_inside_vmap_and_grad(model, stream):
    both = jit_once(jax.vmap(capture(model, ["residual"])))(jnp.stack([TOKENS, TOKENS[::-1]]))[1]["residual"]
    assert both.shape == (2, LAYERS, 2, SEQ, 16)
    np.testing.assert_allclose(both[0], stream[1]["residual"], atol=1e-6)

    def loss(nudge):
        edit = Edit("ffn.out", lambda x, value: x + value, layer=1, value="nudge")
        return capture(model, (), [edit])(TOKENS, values={"nudge": nudge})[0].sum()

    grad = jit_once(jax.grad(loss))(jnp.zeros((2, SEQ, 16)))
    assert jnp.abs(grad).min() > 0


def test_capturing_other_sites_does_not_reuse_a_trace(model):
    for names in (["ffn.out"], ["mixer.z"], ["residual", "embed"], []):
        assert set(jax.eval_shape(capture(model, names), TOKENS)[1]) == set(names)


# --- edits -----------------------------------------------------------------------------------------------------------


def without_rows(model, layer):
    """The model with the output projection of one layer's mixer zeroed."""
    return eqx.tree_at(lambda m: m.stacks[0].block.mixer.wo, model, replace_fn=lambda wo: wo.at[layer].set(0.0))


def test_zeroing_a_site_equals_zeroing_its_weights(model, stream):
    layer = LAYERS - 1
    edited, _ = read(model, [], [Edit("mixer.out", lambda x, _: jnp.zeros_like(x), layer=layer)])
    operated = jit_once(lambda model: model(TOKENS))(without_rows(model, layer))
    np.testing.assert_array_equal(edited, operated)
    assert not np.array_equal(edited, stream[0])


@pytest.mark.slow
def test_an_edit_without_a_layer_applies_to_all_layers(model):
    everywhere, _ = read(model, [], [Edit("mixer.out", lambda x, _: 0 * x)])
    one_by_one, _ = read(model, [], [Edit("mixer.out", lambda x, _: 0 * x, layer=i) for i in range(LAYERS)])
    np.testing.assert_array_equal(everywhere, one_by_one)


def test_reads_come_after_edits_and_edits_in_order(model):
    edits = [Edit("embed", lambda x, _: x + 1), Edit("embed", lambda x, _: 2 * x)]
    _, reads = read(model, ["embed"], edits)
    np.testing.assert_allclose(reads["embed"], 2 * (model.embedding.weight[TOKENS] + 1))


def test_a_new_value_does_not_recompile(model):
    fn = jit_once(capture(model, ["embed"], [Edit("embed", lambda x, v: 0 * x + v, value="v")]))
    for v in (1.0, 2.0):
        assert jnp.all(fn(TOKENS, values={"v": jnp.float32(v)})[1]["embed"] == v)
    assert fn._cache_size() == 1


def test_an_edit_keeps_the_dtype_of_the_activation(model):
    edit = Edit("residual", lambda x, _: x.astype(jnp.float32))
    run = capture(partial(model, dtype=jnp.bfloat16), ["residual"], [edit])
    assert jax.eval_shape(run, TOKENS)[1]["residual"].dtype == jnp.bfloat16


# --- nothing asked, nothing paid; nothing there, an error ------------------------------------------------------------


def test_without_capture_sites_do_not_change_the_jaxpr(model, monkeypatch):
    with_sites = str(jax.make_jaxpr(model.__call__)(TOKENS))
    asked = str(jax.make_jaxpr(capture(model, []))(TOKENS))
    for module in ("attention", "block", "ffn.dense", "lm", "norm"):
        monkeypatch.setattr(f"taetpu.nn.{module}.site", lambda name, x: x)
    assert str(jax.make_jaxpr(model.__call__)(TOKENS)) == with_sites == asked


@pytest.mark.parametrize(
    ("names", "edits", "text"),
    [
        (
            ["ffn.hiden"],
            [],
            r"no site 'ffn.hiden' in .*model\n  remedy: Did you mean 'ffn.hidden'\? Use one of: embed, ",
        ),
        ([], [Edit("mixer.zz", lambda x, _: x)], "no site 'mixer.zz' in .*model"),
        (
            [],
            [Edit("ffn.out", lambda x, _: x, layer=3)],
            r"'ffn.out' in layer 3\n  remedy: Use .* layers 0, 1, 2",
        ),
        ([], [Edit("embed", lambda x, _: x, layer=0)], r"no site 'embed' in layer 0\n  remedy: Omit `layer`"),
    ],
)
def test_missing_sites_and_layers_are_rejected(model, names, edits, text):
    with pytest.raises(UserError, match=text):
        read(model, names, edits)


def test_an_edit_of_a_layer_without_the_site_is_rejected(draw):
    model = draw(SETTINGS | {"layers": {1: {"ffn": "none"}}})
    with pytest.raises(UserError, match=r"no site 'ffn.out' in layer 1\n  remedy: Use .* layers 0, 2"):
        read(model, [], [Edit("ffn.out", lambda x, _: x, layer=1)])


def test_a_jitted_function_inside_capture_is_rejected():
    """Its trace belongs to nobody: reading from it would leak a tracer, and from its cache read nothing."""
    fn = jit_once(lambda x: site("here", x) + 1)
    with pytest.raises(RuntimeError, match=r"site 'here' is marked inside .*JAX transform"):
        capture(fn, ["here"])(jnp.ones(2))
    fn(jnp.ones(2))
    with pytest.raises(UserError, match="no site 'here' in this model"):
        capture(fn, ["here"])(jnp.ones(2))


def test_a_failed_capture_leaves_nothing_behind(model):
    def broken(x):
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        capture(broken, ["embed"])(TOKENS)
    assert not sites.is_requested("embed")


# --- two of one name, one inside another, and layers that differ -----------------------------------------------------


def twice(x, name="here"):
    first = site(name, x + 1)
    return first + site(name, x + 2)


def test_two_sites_with_one_name_are_an_error_with_both_places():
    first = twice.__code__.co_firstlineno + 1
    with pytest.raises(UserError, match="site 'here' is marked twice") as raised:
        capture(twice, ["here"])(jnp.ones(2))
    assert f"test_sites.py:{first} " in raised.value.problem
    assert f"test_sites.py:{first + 1}" in raised.value.problem
    assert capture(twice)(jnp.ones(2))[0].tolist() == [5, 5]  # nobody asks


@pytest.mark.parametrize(
    "asked",
    [{"sites": ["there"]}, {"edits": [Edit("there", lambda x, _: x)]}, {"sites": ["mixer.out"]}],
    ids=["read", "edited", "built-in"],
)
def test_two_sites_with_one_name_in_a_layer_are_rejected(model, asked):
    class Doubled(eqx.Module):
        def __call__(self, x, ctx):
            return twice(twice(x, "there"), "mixer.out") if "there" in str(asked) else site("mixer.out", x)

    doubled = eqx.tree_at(lambda m: m.stacks[0].block.mixer, model, Doubled())
    with pytest.raises(UserError, match=r"twice in layers 0, 1, 2: at .*:\d+ and at .*:\d+"):
        jax.eval_shape(capture(lambda: doubled(TOKENS), **asked))


def test_a_model_called_twice_in_one_capture_is_rejected(model):
    with pytest.raises(UserError, match="'residual' of layer 0 is read twice"):
        jax.eval_shape(capture(lambda: model(TOKENS) + model(TOKENS), ["residual"]))
    with pytest.raises(UserError, match="'embed' is marked twice"):
        jax.eval_shape(capture(lambda: model(TOKENS) + model(TOKENS), ["embed"]))


@pytest.mark.slow
def test_nested_captures_read_the_fully_edited_activation(model):
    """The inner one's edits come first; a read of either is what is left after both."""
    inner_edit = Edit("residual", lambda x, _: x + 1, layer=0)
    outer_edit = Edit("residual", lambda x, _: 2 * x, layer=0)

    @jit_once
    def nested(model):
        inner = capture(model, ["residual", "mixer.z"], [inner_edit])
        return capture(inner, ["residual", "embed"], [outer_edit])(TOKENS)

    (logits, inner), outer = nested(model)
    both, reads = read(model, ["residual", "mixer.z", "embed"], [inner_edit, outer_edit])
    np.testing.assert_array_equal(logits, both)
    assert inner.keys() == {"residual", "mixer.z"}
    assert outer.keys() == {"residual", "embed"}
    for name, value in [*inner.items(), *outer.items()]:
        np.testing.assert_array_equal(value, reads[name])


@pytest.mark.slow
def test_layers_of_different_shapes_are_read_part_by_part(draw):
    model = draw(SETTINGS | {"layers": {0: {"mixer": {"kind": "attention", "num_heads": 1}}}})
    found = read(model, ["mixer.pattern", "residual"])[1]
    assert [part.shape[:3] for part in found["mixer.pattern"].parts] == [(1, 2, 1), (2, 2, 2)]
    np.testing.assert_allclose(found["mixer.pattern"].over_layers(lambda p: p.sum(-1).mean((1, 2, 3))), 1, rtol=1e-6)
    assert found["residual"].shape[0] == LAYERS
    for used in (lambda p: p.mean(), lambda p: p[0], jnp.mean):
        with pytest.raises(UserError, match="different shapes"):
            used(found["mixer.pattern"])

"""Direct logit attribution: contributions sum to the logit, heads to their mixer, and each is what its part adds."""

import json
from dataclasses import replace

import jax.numpy as jnp
import numpy as np
import pytest
from tests.suites import by_default

from taetpu.core.config_parsing import load_config
from taetpu.core.errors import UserError
from taetpu.core.sites import Edit
from taetpu.lens.attribution import attribution
from taetpu.nn.lm import ModelConfig

TEXT = "the fox and the quick fox"
MODELS = {
    "pre-norm": {},
    "layer norm, biases": {"norm": {"kind": "layer"}, "bias": True, "position": {"kind": "learned"}},
    "soft cap, untied": {"logits": {"kind": "softcap", "cap": 2.0}, "embedding": "untied"},
    "post-norm": {"norm": {"kind": "layer", "placement": "post"}, "bias": True},
    "post-norm, deepnorm": {"norm": {"kind": "rms", "placement": "post"}, "residual": "deepnorm"},
    "sandwich": {"norm": {"kind": "rms", "placement": "sandwich", "weight": "unit-offset"}},
    "output norm": {"norm": {"kind": "rms", "placement": "output"}},
    "parallel": {"order": "parallel", "norm": {"kind": "layer"}},
    "parallel, two norms": {"order": "parallel-two-norms"},
    "macaron": {"order": "macaron"},
    "streams": {"residual": {"kind": "hyper-connections", "streams": 2}},
    "rezero, x0": {"residual": "layer-scale", "after": "x0", "stem": "scale"},
    "u-net": {"after": "u-net"},
    "grouped queries": {"mixer": {"kind": "attention", "num_heads": 4, "num_kv_heads": 2, "gate": "sigmoid"}},
    "value residual": {"mixer": {"kind": "attention", "num_heads": 2, "values": "residual"}},
    "adapter": {"adapter": {"kind": "lora", "rank": 2, "targets": ["mixer.wo", "mixer.wq"]}},
    "dropped": {"layers": {1: {"drop": ["mixer"]}}},
    "recurrent": {"layers": {0: {"mixer": {"kind": "lstm"}}, 1: {"mixer": {"kind": "linear", "num_heads": 2}}}},
    "no norm": {"norm": "none", "ffn": "relu"},
    "no ffn": {"ffn": "none"},
    "shared layers": {"layers": {2: {"same_as": 0}, 3: {"same_as": 1}}},
    "experts": {"ffn": {"kind": "moe", "experts": 3, "top": 2, "hidden": 16}},
}


@pytest.fixture
def model(opened, draw):
    """Return a function that returns a model with random weights and these settings, and the tokenizer of `opened`."""

    def build(settings):
        settings = {"dim": 16, "num_layers": 4, "mixer": {"kind": "attention", "num_heads": 2}, **settings}
        config = load_config(ModelConfig, settings).resolve()
        return replace(opened, model=draw(settings, vocab=29, seq=32), config=config, run=None, step=None, _programs={})

    return build


def raw_logits(opened, text):
    """Return the logits before the soft cap."""
    tokens = opened.encode(text)
    final = opened.model.final(jnp.asarray(tokens.ids), padding=jnp.asarray(tokens.padding))
    found = opened.model.embedding.decode(final)
    return tokens.strip(0, np.asarray(found[0]))


MANY_PARTS = ["layer norm, biases", "post-norm", "sandwich", "grouped queries", "adapter"]


@pytest.mark.parametrize("name", by_default(MODELS, "pre-norm"))
def test_contributions_sum_to_the_logit_before_the_soft_cap(model, name):
    opened = model(MODELS[name])
    for text, options in ((TEXT, {}), (TEXT, {"target": "q", "minus": "z"})):
        (found,) = attribution(opened, text, **options)
        logits = raw_logits(opened, text)
        places = np.arange(len(text))
        expected = logits[places, found.targets]
        if options:
            expected = expected - logits[:, found.minus]
        np.testing.assert_allclose(found.logits, expected, atol=1e-4)
        scale = max(1, np.abs(found.values).max())
        np.testing.assert_allclose(found.values.sum(0), expected, atol=2e-5 * scale)


@pytest.mark.slow
@pytest.mark.parametrize("name", by_default(MANY_PARTS, "grouped queries"))
def test_heads_and_the_bias_sum_to_their_mixer(model, name):
    opened = model(MODELS[name])
    (found,) = attribution(opened, TEXT)
    assert [*found.heads] == [0, 1, 2, 3]
    for layer, heads in found.heads.items():
        whole = found.values[found.components.index(f"{layer}.mixer")]
        bias = found.biases.get(layer, 0)
        np.testing.assert_allclose(heads.sum(0) + bias, whole, atol=1e-4)
    assert bool(found.biases) == bool(MODELS[name].get("bias"))
    assert ("norm biases" in found.components) == ("layer" in str(MODELS[name].get("norm")))
    assert len(found.heads[0]) == (4 if name == "grouped queries" else 2)


@pytest.mark.slow
def test_names_of_parts(model):
    names = attribution(model(MODELS["macaron"]), TEXT)[0].components
    assert names[:4] == ["embed", "0.first_ffn", "0.mixer", "0.ffn"]
    names = attribution(model(MODELS["no ffn"]), TEXT)[0].components
    assert names == ["embed", "0.mixer", "1.mixer", "2.mixer", "3.mixer"]
    found = attribution(model(MODELS["recurrent"]), TEXT)[0]
    assert [*found.heads] == [1, 2, 3]


@pytest.mark.slow
def test_a_contribution_is_the_product_of_the_output_and_the_direction_of_the_token(model):
    """For pre-norm with an RMS norm: y * scale * weight . W_U, written out."""
    opened = model({})
    (found,) = attribution(opened, TEXT, target="q")
    out = opened(TEXT, ["embed", "mixer.out", "ffn.out", "final_norm.scale"])
    direction = np.asarray(opened.model.norm.weight) * np.asarray(opened.model.embedding.weight)[found.targets[0]]
    real = ~out.tokens.padding[0]
    scale = np.asarray(out.sites["final_norm.scale"])[0][real][:, 0]
    for name, read in (("embed", out.sites["embed"]), ("1.mixer", out.sites["mixer.out"][1]),
                       ("3.ffn", out.sites["ffn.out"][3])):  # fmt: skip
        expected = np.asarray(read)[0][real] @ direction * scale
        np.testing.assert_allclose(found.values[found.components.index(name)], expected, atol=1e-4)


@pytest.mark.slow
def test_the_last_branch_is_what_the_logit_loses_without_it_and_with_a_frozen_norm(model):
    opened = model({})
    (found,) = attribution(opened, TEXT, target="q")
    out = opened(TEXT, ["final_norm.scale"])
    edits = [
        Edit("ffn.out", lambda x, _: 0 * x, layer=3),
        Edit("final_norm.scale", lambda x, value: x if value is None else value, value="scale"),
    ]
    without = opened(TEXT, [], edits, {"scale": out.sites["final_norm.scale"]})
    change = np.asarray(out.logits - without.logits)[0][~out.tokens.padding[0]][:, found.targets[0]]
    np.testing.assert_allclose(found.values[found.components.index("3.ffn")], change, atol=1e-4)


@pytest.mark.slow
def test_padding_and_other_texts_change_nothing(opened):
    texts = [TEXT, "the lazy dog", "x"]
    for text, found in zip(texts, attribution(opened, texts), strict=True):
        (alone,) = attribution(opened, text)
        np.testing.assert_allclose(found.values, alone.values, atol=1e-4)
        assert found.targets.tolist() == alone.targets.tolist()
        assert found.values.shape == (5, len(text))


@pytest.mark.slow
def test_the_default_target_is_the_next_token_and_finally_the_most_likely_one(opened):
    (found,) = attribution(opened, TEXT)
    assert "".join(found.target_texts[:-1]) == TEXT[1:]
    assert found.targets[-1] == raw_logits(opened, TEXT)[-1].argmax()


@pytest.mark.parametrize(
    ("settings", "reason"),
    [
        ({"norm": "dyt"}, "final norm 'dyt' has no scale"),
        ({"norm": {"kind": "derf", "placement": "output"}}, "norm 'derf' of layer 0 has no scale"),
        ({"residual": {"kind": "mhc", "streams": 2}}, "residual 'mhc' of layer 0 has weights"),
        ({"residual": {"kind": "dynamic-hyper-connections", "streams": 2}}, "'dynamic-hyper-connections' of layer 0"),
    ],
)
def test_models_whose_logits_are_not_sums_are_refused_with_the_reason(model, settings, reason):
    with pytest.raises(UserError, match=reason) as caught:
        attribution(model(settings), TEXT)
    assert "logit lens" in str(caught.value.remedy)


@pytest.mark.slow
def test_a_stream_that_is_not_a_sum_is_found_by_its_numbers(model):
    """A part of a plug-in may be non-linear without the knowledge of `check_linear`."""
    import equinox as eqx

    class Bounded(eqx.Module):
        def __call__(self, x, ctx):
            return 3 * jnp.tanh(x)

    opened = model({})
    stacks = tuple(
        eqx.tree_at(lambda s: s.block.after, stack, Bounded(), is_leaf=lambda n: n is None)
        for stack in opened.model.stacks
    )
    other = replace(opened, model=eqx.tree_at(lambda m: m.stacks, opened.model, stacks), _programs={})
    with pytest.raises(UserError, match="not a sum"):
        attribution(other, TEXT)


@pytest.mark.slow
def test_rows_and_the_picture_show_one_position(opened):
    (found,) = attribution(opened, TEXT)
    rows = found.rows(4)
    parts = ["embed", "0.mixer", "  head 0", "  head 1", "0.ffn"]
    assert [row["part"] for row in rows[:5]] == parts
    assert [row["part"] for row in rows[-2:]] == ["1.ffn", "logit"]
    assert rows[-1]["contribution"] == pytest.approx(found.logits[4])
    own = [row["contribution"] for row in found.rows(4, heads=False)]
    assert sum(own[:-1]) == pytest.approx(own[-1], abs=1e-4)
    bars, heads = found.chart(4).to_dict()["hconcat"]
    values = bars["data"]["values"]
    assert [one["name"] for one in values] == found.components
    np.testing.assert_allclose([one["value"] for one in values], found.values[:, 4], atol=1e-6)
    cells = {(one["layer"], one["head"]): one["value"] for one in heads["data"]["values"]}
    assert cells[1, 0] == pytest.approx(found.heads[1][0, 4])
    with pytest.raises(UserError, match="position 25 does not exist"):
        found.rows(25)


@pytest.mark.slow
def test_the_command(lens, opened, tmp_path):
    arguments = ("attribution", "small/baseline/0", "--text", TEXT, "--target", "q", "--minus", "z")
    text = lens(*arguments, "-o", str(tmp_path / "a.png"))
    assert (tmp_path / "a.png").read_bytes().startswith(b"\x89PNG")
    (found,) = attribution(opened, TEXT, target="q", minus="z")
    assert f"{found.logits[-1]:+.4f}" in text
    assert "logit of 'q' minus that of 'z'" in text
    data = json.loads(lens(*arguments, "--json"))
    np.testing.assert_allclose([*data["parts"].values()], found.values, atol=1e-5)
    assert "head" not in lens(*arguments, "--no-heads")
    with pytest.raises(UserError, match="'qu' consists of 2 tokens"):
        lens("attribution", "small/baseline/0", "--text", TEXT, "--target", "qu")


@pytest.mark.slow
def test_the_forward_pass_is_unchanged(opened):
    """The edits replace values by themselves."""
    out = opened(TEXT)
    (found,) = attribution(opened, TEXT)
    picked = np.asarray(out.logits)[0][~out.tokens.padding[0]][np.arange(len(TEXT)), found.targets]
    np.testing.assert_allclose(found.logits, picked, atol=1e-4)

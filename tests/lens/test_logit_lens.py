"""The logit lens, which equals the model after the last layer, and norms of the stream."""

import json
from dataclasses import replace

import jax
import numpy as np
import pytest
from tests.suites import by_default

from taetpu.core.config_parsing import load_config
from taetpu.core.errors import UserError
from taetpu.lens.logit_lens import logit_lens
from taetpu.lens.norms import residual_norms
from taetpu.lens.token_texts import read_token
from taetpu.nn.lm import ModelConfig

TEXT = "the fox and the quick fox"
MODELS = {
    "soft cap": {"logits": {"kind": "softcap", "cap": 2.0}, "norm": {"kind": "layer"}},
    "post-norm": {"norm": {"kind": "layer", "placement": "post"}},
    "streams": {"residual": {"kind": "hyper-connections", "streams": 2}},
    "x0, parallel": {"after": "x0", "order": "parallel", "embedding": "untied"},
    "recurrent": {"mixer": {"kind": "lstm"}},
}


@pytest.fixture
def model(opened, draw):
    """Return a function that returns a model with random weights and these settings, and the tokenizer of `opened`."""

    def build(settings):
        settings = {"dim": 16, "num_layers": 3, "mixer": {"kind": "attention", "num_heads": 2}, **settings}
        config = load_config(ModelConfig, settings).resolve()
        return replace(opened, model=draw(settings, vocab=29, seq=32), config=config, run=None, step=None, _programs={})

    return build


@pytest.mark.slow
@pytest.mark.parametrize("name", by_default(MODELS, "soft cap"))
def test_the_last_layer_has_the_predictions_of_the_model(model, name):
    opened = model(MODELS[name])
    texts = [TEXT, "dog"]
    found = logit_lens(opened, texts, top=4)
    out = opened(texts)
    for number, lens in enumerate(found):
        logits = out.tokens.strip(number, np.asarray(out.logits[number]))
        shares = np.asarray(jax.nn.softmax(logits, -1))
        assert lens.layers == ["embed", "0", "1", "2"]
        np.testing.assert_allclose(lens.probabilities[-1], -np.sort(-shares, -1)[:, :4], atol=1e-5)
        np.testing.assert_array_equal(lens.top[-1][:, 0], logits.argmax(-1))
        ids = lens.tokens
        np.testing.assert_allclose(
            lens.target_probabilities[-1][:-1], shares[np.arange(len(ids) - 1), ids[1:]], atol=1e-5
        )
        ranks = 1 + (logits[:-1] > logits[np.arange(len(ids) - 1), ids[1:]][:, None]).sum(-1)
        assert lens.ranks[-1].tolist() == [*ranks.tolist(), 0]
        assert np.isnan(lens.target_probabilities[-1][-1])


@pytest.mark.slow
def test_earlier_layers_are_decoded_with_the_final_norm_and_the_soft_cap(model):
    opened = model(MODELS["soft cap"])
    (lens,) = logit_lens(opened, TEXT)
    out = opened(TEXT, ["embed", "residual"])
    for number, stream in ((0, out.sites["embed"]), (2, out.sites["residual"][1])):
        x = np.asarray(stream, np.float64)[0][~out.tokens.padding[0]]
        norm = opened.model.norm
        x = x - x.mean(-1, keepdims=True)
        x = x / np.sqrt((x**2).mean(-1, keepdims=True) + 1e-5) * np.asarray(norm.weight)
        x = x if norm.bias is None else x + np.asarray(norm.bias)
        logits = 2.0 * np.tanh(x @ np.asarray(opened.model.embedding.weight, np.float64).T / 2.0)
        shares = np.exp(logits) / np.exp(logits).sum(-1, keepdims=True)
        np.testing.assert_allclose(lens.probabilities[number][:, 0], shares.max(-1), atol=1e-5)


@pytest.mark.slow
def test_padding_changes_nothing(opened):
    together = logit_lens(opened, [TEXT, "the lazy dog"])
    (alone,) = logit_lens(opened, "the lazy dog")
    np.testing.assert_allclose(together[1].probabilities, alone.probabilities, atol=1e-5)
    np.testing.assert_allclose(together[1].target_probabilities, alone.target_probabilities, atol=1e-5)


def test_a_target_is_named_by_its_text_or_its_number(opened):
    number = int(opened.tokenizer.encode("q")[0])
    for target in ("q", number):
        (lens,) = logit_lens(opened, TEXT, target=target)
        assert set(lens.targets) == {number}
        assert lens.rows(-1)[-1]["rank"] == lens.ranks[-1][-1] > 0
    rows = logit_lens(opened, TEXT)[0].rows(3)
    assert [row["layer"] for row in rows] == ["embed", "0", "1"]
    assert rows[-1].keys() == {"layer", "top 1", "top 2", "top 3", "rank", "p(target)"}


def test_the_space_that_a_tokenizer_adds_is_no_part_of_a_target(spaced):
    for text in ("fox", " fox", ",", "#"):
        (shown,) = spaced.token_texts([read_token(spaced, text)])
        assert shown.strip() == text.strip()
    with pytest.raises(UserError, match="'  fox' consists of 2 tokens"):
        read_token(spaced, "  fox")


def test_a_number_names_a_token(spaced, opened):
    three = read_token(spaced, "3")
    assert spaced.decode([three]) == "3"  # one token, so not token 3
    assert [read_token(spaced, text) for text in ("#3", "14", "#14")] == [3, 14, 14]
    assert read_token(opened, "7") == read_token(opened, "#7") == 7  # "7" is not in the vocabulary
    assert read_token(replace(opened, tokenizer=None), "7") == 7
    with pytest.raises(UserError, match=r"99 is not .*token"):
        read_token(spaced, "#99")


@pytest.mark.parametrize("option", ["--target", "--minus"])
def test_unknown_targets_are_refused(lens, option):
    with pytest.raises(UserError, match=r"'Ä' .*: 'Ä' .*vocabulary") as caught:
        lens("attribution", "small/baseline/0", "--text", "the dog", option, "Ä")
    assert caught.value.path == (option,)
    assert "#N for token N" in str(caught.value.remedy)


@pytest.mark.parametrize(
    ("options", "problem", "remedy"),
    [
        ({"target": "qu"}, "'qu' .* 2 tokens: 'q', 'u'", "one of these"),
        ({"target": 400}, "400 is not .*token", "from 0 to 28"),
        ({"target": ""}, "contains no token", "of one token"),
        ({"top": 0}, "^0 of .*likely tokens", "Use 1 to 29."),
        ({"top": 30}, "30 of .*likely tokens", "Use 1 to 29."),
    ],
)
def test_invalid_requests_are_refused(opened, options, problem, remedy):
    with pytest.raises(UserError, match=problem) as caught:
        logit_lens(opened, TEXT, **options)
    assert remedy in str(caught.value.remedy)


def test_unknown_positions_are_refused(opened):
    (lens,) = logit_lens(opened, TEXT)
    with pytest.raises(UserError, match=r"position 25 .* 25 tokens") as caught:
        lens.rows(25)
    assert "Use 0 to 24, or -1 to -25 from the end." in str(caught.value.remedy)


def test_the_picture_has_the_most_likely_token_of_each_cell(opened):
    (lens,) = logit_lens(opened, TEXT)
    spec = lens.chart().to_dict()
    assert [layer["mark"]["type"] for layer in spec["layer"]] == ["rect", "text"]
    (rows,) = (layer["data"]["values"] for layer in spec["layer"] if layer.get("data")) if "data" not in spec else (
        spec["data"]["values"],
    )  # fmt: skip
    assert len(rows) == 3 * len(TEXT)
    cell = next(row for row in rows if (row["layer"], row["position"]) == ("1", 4))
    assert cell["word"] == lens.top_texts[2][4][0].replace(" ", "·")
    assert cell["value"] == pytest.approx(lens.probabilities[2, 4, 0])


@pytest.mark.slow
def test_the_command(lens, opened, tmp_path):
    arguments = ("logit-lens", "small/baseline/0", "--text", TEXT, "--target", "x")
    text = lens(*arguments, "--position", "21", "-o", str(tmp_path / "a.svg"))
    assert (tmp_path / "a.svg").read_bytes().startswith(b"<svg")
    (found,) = logit_lens(opened, TEXT, target="x")
    assert text.splitlines()[-1].split()[-2] == str(found.ranks[-1][21]) or "wrote" in text
    assert max(len(line) for line in text.splitlines() if "wrote" not in line) <= 80
    data = json.loads(lens(*arguments, "--json"))
    np.testing.assert_allclose(data["layers"][2]["probabilities"], found.probabilities[2], atol=1e-6)
    with pytest.raises(UserError, match="position 99 does not exist"):
        lens(*arguments, "--position", "99")


# --- norms ------------------------------------------------------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.parametrize("name", ["soft cap", "streams"])
def test_norms_are_those_of_the_stream(model, name):
    opened = model(MODELS[name])
    texts = [TEXT, "dog"]
    found = residual_norms(opened, texts)
    for text, norms in zip(texts, found, strict=True):
        out = opened(text, ["embed", "residual"])
        stream = np.asarray(out.sites["residual"])[:, 0]
        stream = stream.sum(2) if stream.ndim == 4 else stream
        expected = np.linalg.norm(stream, axis=-1)[:, ~out.tokens.padding[0]]
        np.testing.assert_allclose(norms.norms[1:], expected, rtol=1e-4)
        assert norms.norms.shape == (4, len(text))
    assert found[0].rows()[1]["max"] == pytest.approx(found[0].norms[1].max())


@pytest.mark.slow
def test_the_command_for_norms(lens, opened, tmp_path):
    arguments = ("norms", "small/baseline/0", "--text", TEXT)
    text = lens(*arguments, "-o", str(tmp_path / "a.json"))
    (found,) = residual_norms(opened, TEXT)
    assert f"{found.norms[0].mean():.3f}" in text
    rows = json.loads((tmp_path / "a.json").read_text())["data"]["values"]
    np.testing.assert_allclose([row["value"] for row in rows], found.norms.ravel(), rtol=1e-5)
    data = json.loads(lens(*arguments, "--json"))
    np.testing.assert_allclose([one["norms"] for one in data["layers"]], found.norms, rtol=1e-5)

"""Activations at a site: of any site and shape, pooled, without padding, and written to files."""

import csv
import json
from dataclasses import replace

import numpy as np
import pytest

from taetpu.core.config_parsing import load_config
from taetpu.core.errors import UserError
from taetpu.lens.activations import site_shapes
from taetpu.lens.embed import embed
from taetpu.nn.lm import ModelConfig

TEXTS = ["the fox and the quick fox", "dog"]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("site", "shape"),
    [
        ("embed", (16,)),
        ("residual", (16,)),
        ("mixer.q", (2, 8)),
        ("mixer.z", (2, 8)),
        ("ffn.out", (16,)),
        ("mixer_norm.scale", (1,)),
        ("final", (16,)),
        ("logits", (29,)),
    ],
)
def test_rows_are_the_activations_of_tokens(opened, site, shape):
    found = embed(opened, TEXTS, site)
    assert found.vectors.shape == (28, *shape)
    assert found.layer == (1 if opened.site_layers[site] else None)
    assert [*zip(found.texts.tolist(), found.positions.tolist(), strict=True)] == [
        *((0, i) for i in range(25)), *((1, i) for i in range(3))
    ]  # fmt: skip
    assert "".join(found.token_texts) == "".join(TEXTS)
    for number, text in enumerate(TEXTS):
        out = opened(text, [site])
        read = np.asarray(out.sites[site][1] if opened.site_layers[site] else out.sites[site])[0]
        read = read.swapaxes(0, 1) if len(shape) == 2 else read
        own = found.vectors[found.texts == number]
        np.testing.assert_allclose(own, read[~out.tokens.padding[0]], atol=1e-5)


def test_texts_are_pooled(opened):
    every = embed(opened, TEXTS, layer=0)
    mean, last = (embed(opened, TEXTS, layer=0, pool=pool) for pool in ("mean", "last"))
    for number in (0, 1):
        own = every.vectors[every.texts == number]
        np.testing.assert_allclose(mean.vectors[number], own.mean(0), atol=1e-6)
        np.testing.assert_array_equal(last.vectors[number], own[-1])
    assert (mean.positions.tolist(), mean.tokens.tolist()) == ([-1, -1], [-1, -1])
    assert (last.positions.tolist(), last.token_texts) == ([24, 2], ["x", "g"])


@pytest.mark.slow
def test_positions_are_found_where_another_axis_has_the_same_size(opened, draw):
    """The number of heads, 16, is the length of padded sequences."""
    settings = {"dim": 32, "num_layers": 1, "mixer": {"kind": "attention", "num_heads": 16}}
    settings["residual"] = {"kind": "hyper-connections", "streams": 2}
    config = load_config(ModelConfig, settings).resolve()
    other = replace(opened, model=draw(settings, vocab=29, seq=32), config=config, _programs={})
    assert site_shapes(other, "mixer.z")[0].shape == (None, 16, None, 2)
    assert embed(other, "dog", "mixer.z").vectors.shape == (3, 16, 2)
    assert embed(other, "dog", "residual").vectors.shape == (3, 2, 32)
    assert embed(other, "dog", "residual").matrix().shape == (3, 64)


@pytest.mark.parametrize(
    ("site", "options", "problem", "remedy"),
    [
        ("residul", {}, "no site 'residul'", "Did you mean 'residual'?"),
        ("residual", {"layer": 2}, "layer 2 .* 2 layers", "Use 0 to 1"),
        ("embed", {"layer": 0}, "site 'embed' .*layer", "Remove the layer."),
        ("mixer.pattern", {}, "axes of positions", "taetpu lens attention."),
        ("residual", {"pool": "max"}, "unknown pooling 'max'", "last, mean, none"),
    ],
)
def test_invalid_requests_are_refused(opened, site, options, problem, remedy):
    with pytest.raises(UserError, match=problem) as caught:
        embed(opened, TEXTS, site, **options)
    assert remedy in str(caught.value.remedy)


@pytest.mark.slow
def test_files(opened, tmp_path):
    found = embed(opened, TEXTS, "mixer.z", layer=0)
    found.save(tmp_path / "a.npz")
    with np.load(tmp_path / "a.npz", allow_pickle=False) as arrays:
        np.testing.assert_array_equal(arrays["vectors"], found.vectors)
        assert arrays["token_texts"].tolist() == found.token_texts
        assert arrays["positions"].tolist() == found.positions.tolist()
    found.save(tmp_path / "a.csv")
    with (tmp_path / "a.csv").open(newline="") as stream:
        rows = [*csv.DictReader(stream)]
    assert len(rows) == 28
    assert (rows[26]["text"], rows[26]["position"], rows[26]["token"]) == ("1", "1", "o")
    np.testing.assert_allclose([float(rows[3][str(i)]) for i in range(16)], found.matrix()[3], rtol=1e-6)
    with pytest.raises(UserError, match="unknown file format") as caught:
        found.save(tmp_path / "a.txt")
    assert "Use .npz or .csv." in str(caught.value.remedy)
    with pytest.raises(UserError, match="cannot write"):
        found.save(tmp_path / "none" / "a.npz")


@pytest.mark.slow
def test_the_command(lens, opened, tmp_path):
    file = tmp_path / "texts.txt"
    file.write_text("\n".join(TEXTS) + "\n")
    arguments = ("embed", "small/baseline/0", str(file), "--lines", "--layer", "0", "--pool", "mean")
    text = lens(*arguments, "-o", str(tmp_path / "a.npz"))
    assert "residual of layer 0" in text
    with np.load(tmp_path / "a.npz", allow_pickle=False) as arrays:
        np.testing.assert_allclose(arrays["vectors"], embed(opened, TEXTS, layer=0, pool="mean").vectors, atol=1e-6)
    data = json.loads(lens(*arguments, "--json"))
    assert np.shape(data["vectors"]) == (2, 16)
    assert "add -o FILE" in lens(*arguments)
    with pytest.raises(UserError, match="input is empty"):
        lens("embed", "small/baseline/0", "--text", " ", "--lines")

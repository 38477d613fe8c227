"""Models that compute NaN or infinite numbers: every view says so, and `norms` shows where."""

import json
import shutil
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import load_file, save_file
from tests.lens.test_knockout import with_weights
from tests.lens.test_without import VIEWS
from tests.suites import by_default
from typer.testing import CliRunner

from taetpu.cli.main import app
from taetpu.lens.finite import NotFinite
from taetpu.lens.norms import residual_norms

REFUSING = [view for view in VIEWS if view not in ("norms", "attention over training")]
"""All views but the one that shows such numbers, and the one that reads stored models."""
READING_LOGITS = [view for view in REFUSING if view not in ("harness",)]
WORDS = ("quick", "brown", "fox", "lazy", "dog", "over")
COMMANDS = {
    "sample": ["--prompt", "the ", "--tokens", "4"], "perplexity": ["--text", "the fox"],
    "attention": ["--text", "the fox"], "scores": ["--length", "8"], "logit-lens": ["--text", "the fox"],
    "attribution": ["--text", "the fox"], "knockout": ["--text", "the fox"], "patch": ["pairs.jsonl"],
    "embed": ["--text", "the fox"], "probe": ["labels.csv", "--folds", "2"],
}  # fmt: skip
"""The arguments of each command that computes."""


def broken(opened, value: float, name: str = "layers.1.mixer.wq"):
    """Return the model with one weight replaced."""
    return with_weights(opened, lambda weights: weights[name].__setitem__((0, 0), value))


@pytest.mark.parametrize("view", by_default(REFUSING, "samples", "logit lens", "probe"))
def test_each_view_names_the_parameters_that_are_not_finite(opened, view):
    with pytest.raises(NotFinite, match=r"1 of \d+ arrays .* layers\.1\.mixer\.wq"):
        VIEWS[view](broken(opened, np.nan))


@pytest.mark.parametrize("view", by_default(READING_LOGITS, "beams", "knock-outs"))
def test_activations_beyond_float32_are_not_finite(opened, view):
    with pytest.raises(NotFinite, match=r"parameters are finite, .*activations .*float32"):
        VIEWS[view](with_weights(opened, lambda weights: weights["norm.weight"].fill(3e38)))


def test_the_table_of_norms_shows_the_first_layer_that_is_not_finite(opened):
    found, _ = residual_norms(broken(opened, np.inf), ["the fox", "a dog"])
    assert (found.not_finite, found.not_finite_positions) == ("1", [*range(len(found.tokens))])
    assert np.isfinite(found.norms[:2]).all()
    assert not np.isfinite(found.norms[2]).any()
    assert json.loads(found.chart().to_json())
    intact = residual_norms(opened, "the fox")[0]
    assert (intact.not_finite, intact.not_finite_positions) == (None, [])


def test_norms_name_the_tokens_whose_embeddings_are_not_finite(opened):
    (intact,) = residual_norms(opened, "the fox")
    token = int(intact.tokens[-1])
    wrong = with_weights(opened, lambda weights: weights["embedding.weight"][token].fill(np.nan))
    (found,) = residual_norms(wrong, "the fox")
    assert found.not_finite == "embed"
    assert found.to_dict()["not_finite_positions"] == np.flatnonzero(intact.tokens == token).tolist()


@pytest.mark.parametrize("command", by_default(COMMANDS, "attention"))
def test_each_command_names_the_model_and_ends_with_status_3(trained, tmp_path, monkeypatch, command):
    monkeypatch.chdir(tmp_path)
    shutil.copytree(next((trained / "runs").glob("small/runs/*/*/model")), tmp_path / "broken")
    weights = load_file("broken/model.safetensors")
    weights["embedding.weight"][0] = np.nan
    save_file(weights, "broken/model.safetensors")
    Path("labels.csv").write_text("text,label\n" + "".join(f"the {word},{i % 2}\n" for i, word in enumerate(WORDS)))
    Path("pairs.jsonl").write_text('{"clean": "the fox", "corrupted": "the dog", "answer": "j"}\n')
    result = CliRunner().invoke(app, ["lens", command, "broken", *COMMANDS[command]])
    assert isinstance(result.exception, NotFinite), result.output
    assert str(result.exception).startswith("broken ")
    assert "not finite" in str(result.exception)
    assert "taetpu lens norms" in str(result.exception.remedy)


def test_the_command_norms_warns(trained, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    shutil.copytree(next((trained / "runs").glob("small/runs/*/*/model")), tmp_path / "broken")
    weights = load_file("broken/model.safetensors")
    weights["embedding.weight"][:] = np.inf
    save_file(weights, "broken/model.safetensors")
    result = CliRunner().invoke(app, ["lens", "norms", "broken", "--text", "the fox", "-o", "norms.json"])
    assert result.exit_code == 0
    assert "the row embed" in result.stderr
    assert Path("norms.json").is_file()

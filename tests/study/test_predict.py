"""Predictions for typed texts: those with which evaluation sets are scored, and the tokens in place of masks."""

from dataclasses import replace

import numpy as np
import pytest
from scipy.special import softmax
from tests.labelled_files import labelled_rows, write_json_lines
from typer.testing import CliRunner

import taetpu
from taetpu.cli.main import app
from taetpu.core.errors import UserError

STUDY = """\
study: KIND
base:
  task: {kind: KIND, source: rows.jsonl, seq_len: 64, val: 0.3, MORE}
  model: {dim: 8, num_layers: 1, mixer: {kind: attention, num_heads: 2, mask: full}, EMBEDDING}
  train: {steps: 20, batch_size: 8, eval_every: 20, optimizer: {kind: adamw, lr: 0.01}}
seeds: 1
arms: {low-lr: {train.optimizer.lr: 1e-5}}
"""
LABELLED = {
    "classification": "second_text: second_text, pooling: first",
    "regression": "label: score, pooling: mean",
    "token-classification": "scored: last",
}


@pytest.fixture(scope="module")
def opened(tmp_path_factory):
    """Return the trained model of each kind of task."""
    folder = tmp_path_factory.mktemp("predict")
    rows = labelled_rows(24)
    write_json_lines(folder / "rows.jsonl", rows)
    (folder / "text.txt").write_text("\n".join(row["text"] for row in rows) * 3)

    def train(kind: str, more: str, embedding: str = "embedding: untied"):
        text = STUDY.replace("KIND", kind).replace("MORE", more).replace("EMBEDDING", embedding)
        text = text.replace("rows.jsonl", "text.txt") if kind == "text" else text
        (folder / f"{kind}.yaml").write_text(text)
        taetpu.run(folder / f"{kind}.yaml", root=str(folder / "runs"))
        return replace(taetpu.open_run(f"{kind}/baseline/0", root=folder / "runs"), data_folder=folder)

    return train


@pytest.mark.slow
@pytest.mark.parametrize("kind", LABELLED)
def test_predictions_of_the_validation_rows_have_the_loss_of_the_run(opened, kind):
    model = opened(kind, LABELLED[kind])
    rows, losses = model.run_config.task._read(model.data_folder)[0]["val"], []
    for row in rows:
        texts = (row.shared,) if kind == "token-classification" else row.texts
        made = taetpu.predict(model, *texts)
        if kind == "regression":
            losses.append((made.rows()[0]["number"] - row.label) ** 2)
        else:
            labels = row.label if kind == "token-classification" else [row.label]
            losses += [-np.log(p[made.names.index(label)]) for p, label in zip(made.outputs, labels, strict=True)]
    assert np.mean(losses) == pytest.approx(model.result["metrics"]["val/loss"], rel=1e-4)
    if kind == "classification":
        with pytest.raises(UserError) as caught:
            taetpu.predict(model, "one text")
        assert caught.value.path == ("second",)
        assert "--second" in caught.value.remedy


@pytest.mark.slow
def test_masked_tokens_are_filled_in(opened):
    model = opened("text", "objective: masked-lm, tokenizer: {kind: char}", "embedding: tied")
    letter = model.decode([0, 1])
    text = f"{letter}[MASK]{letter[::-1]}[MASK]"
    made = taetpu.predict(model, text)
    logits = np.asarray(
        model([[0, 1, model.tokenizer.number("[MASK]"), 1, 0, model.tokenizer.number("[MASK]")]]).logits
    )
    np.testing.assert_allclose(made.outputs, softmax(logits[0, [2, 5]], -1), rtol=1e-4)
    assert [row["mask"] for row in made.rows(2)] == ["1", "1", "2", "2"]
    place = str(model.run.where)
    shown = CliRunner().invoke(app, ["lens", "predict", place, "--text", text, "--top", "1"])
    assert shown.exit_code == 0
    assert made.rows(1)[0]["token"].strip() in shown.output
    with pytest.raises(UserError) as caught:
        taetpu.predict(model, letter)
    assert "[MASK]" in caught.value.remedy

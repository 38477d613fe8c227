"""Evaluation sets of other lengths and evaluation metrics: results against an evaluation of the saved models."""

import json
import math

import jax.numpy as jnp
import numpy as np
import pytest

import taetpu
from taetpu.core.config_parsing import build_component
from taetpu.core.errors import UserError
from taetpu.optim.loss import position_losses, sum_losses
from taetpu.spec.loading import load_study
from taetpu.stats.verify import verify
from taetpu.store.backend import open_store
from taetpu.store.study import StudyFolder

STUDY = """\
study: lengths
base:
  task: {kind: copy, seq_len: 8, symbols: 4, min_length: 1, eval_size: 10, eval_lengths: [16]}
  model: {dim: 8, num_layers: 1, mixer: {kind: attention, num_heads: 2}}
  train: {steps: 6, batch_size: 4, eval_every: 6, log_every: 6, sample: none,
          eval_metrics: [exact_match, macro_f1, loss_by_position]}
seeds: 2
arms: {alibi: {model.position: alibi}}
measure: {primary: val@16/loss}
"""


@pytest.fixture
def checked(tmp_path):
    """Return `checked(("old", "new"), ...)`, which checks the study with changed text and returns the error."""

    def error(*changes):
        text = STUDY
        for old, new in changes:
            assert old in text
            text = text.replace(old, new)
        (tmp_path / "study.yaml").write_text(text)
        with pytest.raises(UserError) as caught:
            taetpu.run(tmp_path / "study.yaml", root=str(tmp_path / "root"))
        assert not (tmp_path / "root").exists()
        return caught.value

    return error


@pytest.mark.slow
def test_longer_sets_agree_with_an_evaluation_of_the_saved_models(tmp_path):
    (tmp_path / "study.yaml").write_text(STUDY)
    outcome = taetpu.run(tmp_path / "study.yaml", root=str(tmp_path / "root"))
    task = {"kind": "copy", "seq_len": 16, "symbols": 4, "eval_size": 10}
    longer = build_component("task", task).prepare(tmp_path).evaluation("val")
    assert longer.tokens.shape == (10, 16)
    folder = StudyFolder(open_store(tmp_path / "root"), "lengths")
    for arm in outcome.results["arms"]:
        for run in arm["runs"]:
            where = tmp_path / "root" / "lengths" / "runs" / arm["name"] / f"{run['seed']}-{run['id']}"
            model = taetpu.open_run(where).model
            tokens, targets, weights = map(jnp.asarray, (longer.tokens, longer.targets, longer.weights))
            sums = sum_losses(model(tokens), targets, weights)
            assert run["value"] == pytest.approx(float(sums["nll"] / sums["weight"]), rel=1e-6)
            assert math.isfinite(run["value"])
            result = json.loads((where / "result.json").read_text())
            assert {"val@16/loss", "val@16/accuracy", "val/loss", "test/loss"} <= set(result["metrics"])
            assert result["metrics"]["val@16/accuracy"] == pytest.approx(float(sums["correct"] / sums["weight"]))
            assert {"val/exact_match", "val_sample/macro_f1", "test/macro_f1"} <= set(result["metrics"])
            right = position_losses(model(tokens), targets, weights)["correct"] >= weights
            assert result["metrics"]["val@16/exact_match"] == pytest.approx(float(right.all(-1).mean()))
            stored = folder.run(arm["name"], run["seed"], run["id"]).evaluation()
            assert stored["val@16/loss_by_position.nll"].sum() == pytest.approx(float(sums["nll"]), rel=1e-6)
            assert len(stored["val@16/loss_by_position.weight"]) == 16
    assert verify(folder) == []
    report = (tmp_path / "root" / "lengths" / "report" / "report.md").read_text()
    assert "Loss by position" in report
    assert "val@16/loss by position" in report


def test_eval_lengths_change_neither_the_data_nor_the_other_evaluation_sets(tmp_path):
    config = {"kind": "copy", "seq_len": 8, "symbols": 4, "eval_size": 10}
    with_lengths, without = (
        build_component("task", {**config, "eval_lengths": lengths}).prepare(tmp_path) for lengths in ((16,), ())
    )
    assert with_lengths.fingerprint == without.fingerprint
    for split in ("val", "test"):
        assert np.array_equal(with_lengths.evaluation(split).tokens, without.evaluation(split).tokens)
    assert without.evaluation("val@16") is None


def test_learned_positions_are_refused_before_anything_is_stored(checked):
    error = checked(("model.position: alibi", "model.position: learned"))
    assert "8 tokens of task.seq_len only, but task.eval_lengths contains 16" in str(error)
    assert "alibi" in error.remedy
    assert "learned" not in error.remedy


PLUGIN = """\
from taetpu.nn.position.absolute import Learned, LearnedConfig
from taetpu.plugin import register


class Clipped(Learned):
    def __call__(self, x, ctx):
        return x + self.weight[ctx.positions].astype(x.dtype)


@register("position", "clipped")
class ClippedConfig(LearnedConfig):
    extrapolates = True

    def at_input(self, dims, *, key):
        return Clipped(super().at_input(dims, key=key).weight)
"""


def test_a_table_of_positions_is_refused_even_if_it_claims_to_extrapolate(checked, tmp_path):
    (tmp_path / "clipped.py").write_text(PLUGIN)
    error = checked(("study: lengths", "study: lengths\nplugins: [clipped.py]"), ("alibi}", "clipped}"))
    assert "position.weight has shape (8, 8), and needs (16, 8) for 16 tokens" in str(error)


def test_tasks_that_cannot_produce_the_length_are_refused(checked):
    assert "at most 2 symbols" in str(checked(("min_length: 1", "min_length: 1, max_length: 2")))
    assert "vocabulary differs" in str(checked(("kind: copy", "kind: histogram")))
    assert "listed twice" in str(checked(("[16]", "[16, 16]")))
    assert "val@16/los" in str(checked(("val@16/loss", "val@16/los")))


def test_metrics_that_the_task_cannot_have_are_refused(checked, tmp_path):
    error = checked(("[exact_match,", "[in_context_score,"))
    assert error.path[-1] == "in_context_score"
    assert "sequence of 8 tokens" in str(error)
    assert "reserved" in str(checked(("[exact_match, macro_f1, loss_by_position]", "{loss: {kind: exact_match}}")))
    error = checked(("[exact_match, ", "["), ("val@16/loss}", "val@16/exact_match}"))
    assert error.remedy == "Add exact_match to train.eval_metrics."


def test_the_direction_is_that_of_the_metric_even_under_another_name(tmp_path, checked):
    named = ("[exact_match, macro_f1, loss_by_position]", "{right: {kind: exact_match}}")
    (tmp_path / "s.yaml").write_text(STUDY.replace(*named).replace("val@16/loss", "val/right"))
    assert load_study(tmp_path / "s.yaml").measure.direction == "max"
    error = checked(named, ("val@16/loss}", "val/right, direction: min}"))
    assert (error.path, error.remedy) == (("measure", "direction"), "Set direction: max, or remove it.")


def test_text_shorter_than_the_length_is_refused(checked, tmp_path):
    (tmp_path / "text.txt").write_text("hello world. " * 40)
    text = "kind: text, source: text.txt, seq_len: 8, split: order"
    changes = ("kind: copy, seq_len: 8, symbols: 4, min_length: 1, eval_size: 10", text), ("@16/", "@256/"), (
        "[16]", "[256]"
    )  # fmt: skip
    assert "'exact_match' compares answers, but task 'text' scores all" in str(checked(*changes))
    error = checked(*changes, ("exact_match, macro_f1, ", ""))
    assert error.path[-2:] == ("eval_lengths", 0)
    assert "52 tokens" in str(error)

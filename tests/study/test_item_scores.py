"""Scores on items in a study: as primary metric, during training, and compared on the same items."""

import json
import math
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from tests.lens.item_files import ITEMS, TEXT, write_items
from tests.small import TINY
from tests.study.test_run import stored
from typer.testing import CliRunner

import taetpu
from taetpu.cli.main import app
from taetpu.core.errors import UserError
from taetpu.core.model_interface import Interface
from taetpu.report.design_charts import draw_panels
from taetpu.report.item_scores import chart_name, item_score_sections
from taetpu.spec.loading import load_study
from taetpu.stats.analyse import compute_results
from taetpu.stats.results import read_results
from taetpu.store.backend import open_store
from taetpu.store.study import StudyFolder
from taetpu.study.data_travel import data_files

METRICS = {name: {"kind": kind, "file": f"{name}.jsonl"} for name, (kind, _) in ITEMS.items()}
METRICS["hellaswag"] |= {"every": 3}
METRICS["prompts"] |= {"max_tokens": 3, "stop": [" "]}
STUDY = """\
study: scored
base:
  task: {kind: text, source: words.txt, seq_len: 56, tokenizer: {kind: byte}}
  model: {dim: 8, num_layers: 1, mixer: {kind: attention, num_heads: 2}}
  train: {steps: 4, batch_size: 4, eval_every: 2, checkpoint: 2, log_every: 2, sample: none, eval_metrics: METRICS}
seeds: 2
arms: {slow: {train.optimizer.lr: 1e-4}}
measure: {primary: hellaswag/acc_norm}
"""


def write(folder: Path, metrics=METRICS) -> str:
    """Write the data of the study, and return its text."""
    (folder / "words.txt").write_text(TEXT * 12)
    write_items(folder)
    return STUDY.replace("METRICS", json.dumps(metrics))


@pytest.fixture(scope="module")
def scored(tmp_path_factory) -> Path:
    """The folder of a trained study; the root is its folder `runs`."""
    folder = tmp_path_factory.mktemp("scored")
    (folder / "study.yaml").write_text(write(folder))
    taetpu.run(folder / "study.yaml", root=str(folder / "runs"))
    return folder


def folder_of(scored: Path) -> StudyFolder:
    return StudyFolder(open_store(scored / "runs"), "scored")


@pytest.mark.slow
def test_scores_of_a_run_are_those_of_its_stored_model(scored) -> None:
    opened = taetpu.open_run("scored/slow/1", root=scored / "runs", data_folder=scored)
    evaluation, about = opened.run.evaluation(), opened.result["items"]
    for name, (kind, rows) in ITEMS.items():
        scores = taetpu.score(opened, scored / f"{name}.jsonl", **{
            key: value for key, value in METRICS[name].items() if key in ("max_tokens", "stop")
        })  # fmt: skip
        assert (scores.kind, len(scores.items), about[name]["chance"]) == (kind, len(rows), scores.chance)
        assert about[name]["sha256"] == scores.items.file.sha256
        for what, total in scores.totals.items():
            assert opened.result["metrics"][f"{name}/{what}"] == pytest.approx(total, rel=1e-5, abs=1e-5), (name, what)
        rounding = 2 * np.spacing(np.float32(max((abs(logp) for row in scores.logp for logp in row), default=0)))
        for what, values in scores.values.items():  # a margin is a difference of log-probabilities in float32
            close = pytest.approx(values, rel=1e-5, abs=max(1e-5, rounding) if what == "margin" else 1e-5)
            assert evaluation[f"{name}/{what}"] == close, (name, what)
        assert evaluation[f"{name}/weight"].tolist() == [1] * len(rows)
    assert about["blimp"]["groups"] == ["order", "agreement"]
    assert evaluation["blimp/group"].tolist() == [0, 1, 0]
    assert any(len(row) > 1 and not math.isclose(*row[:2]) for row in taetpu.score(opened, scored / "arc.jsonl").logp)


@pytest.mark.slow
def test_scores_are_measured_every_n_steps_and_at_the_end(scored) -> None:
    for run in folder_of(scored).runs():
        series = run.metrics()
        assert series["hellaswag/acc_norm"].step.tolist() == [3]
        assert not any(name.startswith("blimp/") for name in series)
        assert series["train/loss"].step.tolist() == [2, 4]  # measuring ends no window of `log_every`
        assert {"blimp/acc", "hellaswag/acc_norm", "lambada/perplexity"} <= (run.result() or {})["metrics"].keys()


@pytest.mark.slow
def test_arms_are_judged_by_the_score_and_compared_on_the_same_items(scored) -> None:
    results = read_results(folder_of(scored))
    assert results is not None
    assert (results["direction"], results["arms"][1]["verdict"] is not None) == ("max", True)
    assert results["arms"][0]["runs"][0]["value"] == pytest.approx(
        folder_of(scored)
        .run("baseline", 0, results["arms"][0]["runs"][0]["id"] or "")
        .evaluation()["hellaswag/acc_norm"]
        .mean()
    )
    by_name = {score["name"]: score for score in results["scores"]}
    assert {name: score["items"] for name, score in by_name.items() if name.endswith("/nll")} == {
        "hellaswag/nll": 4, "arc/nll": 2, "lambada/nll": 3,
    }  # fmt: skip
    slow = by_name["arc/nll"]["arms"][1]
    difference = slow["mean"] - by_name["arc/nll"]["arms"][0]["mean"]
    assert slow["comparison"] is not None
    assert slow["comparison"]["effect"] == pytest.approx(difference)
    assert [group["items"] for group in by_name["blimp/acc"]["arms"][0]["groups"]] == [2, 1]
    sections = item_score_sections(results)
    assert [len(table.rows) for table in sections[0].tables] == [2 * n for n in (5, 2, 5, 2, 1, 2)]
    assert [row[:2] for row in sections[1].tables[0].rows] == [
        ["order", "baseline"], ["order", "slow"], ["agreement", "baseline"], ["agreement", "slow"],
    ]  # fmt: skip
    assert compute_results(folder_of(scored)) == results


@pytest.mark.slow
def test_each_file_has_a_chart_of_its_first_score(scored) -> None:
    results = read_results(folder_of(scored))
    assert results is not None
    drawn = draw_panels(results, {})
    names = [name for _, name in item_score_sections(results)[0].charts]
    assert names
    assert {name.split()[1].partition("/")[0] for name in names} == {*METRICS}
    assert set(names) <= drawn.keys()
    score = next(score for score in results["scores"] if score["name"] == "blimp/acc")
    points = drawn[chart_name(score)]["layer"][-1]["data"]["values"]
    assert [(p["group"], p["arm"]) for p in points] == [
        (group, arm) for arm in ("baseline", "slow") for group in ("all items", "order", "agreement")
    ]
    assert [p["mean"] for p in points[1:3]] == [group["mean"] for group in score["arms"][0]["groups"]]
    many = {**results, "scores": [{**score, "arms": score["arms"] * 11}]}
    assert not item_score_sections(many)[0].charts  # too many colours


@pytest.mark.slow
def test_a_changed_file_is_named_when_the_study_goes_on(scored, tmp_path) -> None:
    text = write(tmp_path)
    (tmp_path / "study.yaml").write_text(text)
    with (tmp_path / "arc.jsonl").open("a") as file:
        file.write(json.dumps(ITEMS["arc"][1][0]) + "\n")
    before = (scored / "arc.jsonl").read_bytes()
    with pytest.raises(UserError) as caught:
        taetpu.run(tmp_path / "study.yaml", root=str(scored / "runs"))
    error = caught.value
    assert "arc.jsonl" in error.problem
    assert error.path == ("base", "train", "eval_metrics", "arc")
    assert "name" in (error.remedy or "")
    (tmp_path / "arc.jsonl").write_bytes(before)
    assert taetpu.run(tmp_path / "study.yaml", root=str(scored / "runs")).whole


def test_the_files_travel_with_the_study(tmp_path) -> None:
    (tmp_path / "study.yaml").write_text(write(tmp_path))
    names = {path.name for path in data_files(load_study(tmp_path / "study.yaml"))}
    assert names == {"words.txt", *(f"{name}.jsonl" for name in ITEMS)}
    (tmp_path / "blimp.jsonl").unlink()
    with pytest.raises(UserError) as caught:
        data_files(load_study(tmp_path / "study.yaml"))
    assert "blimp.jsonl" in caught.value.problem
    assert caught.value.line is not None


def refused(folder: Path, text: str) -> UserError:
    """Return the error with which a study is refused before it trains."""
    (folder / "study.yaml").write_text(text)
    with pytest.raises(UserError) as caught:
        taetpu.run(folder / "study.yaml", root=str(folder / "none"))
    assert not list((folder / "none").glob("*/*/*"))
    return caught.value


def test_models_that_are_no_language_models_of_text_are_refused(tmp_path) -> None:
    write(tmp_path)
    blimp = "eval_metrics: {blimp: {kind: minimal-pairs, file: blimp.jsonl}}"
    error = refused(tmp_path, TINY.replace("sample: none", f"sample: none, {blimp}"))
    assert ("tokenizer" in error.problem, error.path[-4:]) == (True, ("base", "train", "eval_metrics", "blimp"))
    masked = write(tmp_path).replace("tokenizer: {kind: byte}", "tokenizer: {kind: byte}, objective: masked-lm")
    error = refused(tmp_path, masked.replace("num_heads: 2", "num_heads: 2, mask: full"))
    assert error.path[:3] == ("base", "train", "eval_metrics")
    assert "'text'" in error.problem


@pytest.mark.parametrize(
    ("change", "parts"),
    [
        ("seq_len: 20", ("row 1", "arc.jsonl", "task.seq_len")),
        ("val: {kind: cloze, file: winogrande.jsonl}", ("val",)),
        ("arc: {kind: cloze, file: arc.jsonl}", ("arc.jsonl", "kind: multiple-choice")),
        ("arc: {kind: multiple-choice, file: other.jsonl}", ("other.jsonl", "study file")),
        ("arc: {kind: multiple-choice, file: arc.jsonl, by: subject}", ("row 1", "'subject'")),
    ],
)  # fmt: skip
def test_items_that_do_not_fit_are_refused_with_file_and_row(tmp_path, change, parts) -> None:
    text = write(tmp_path, {"arc": METRICS["arc"]})
    text = text.replace("hellaswag/acc_norm", "val/loss")
    if change.startswith("seq_len"):
        text = text.replace("seq_len: 56", change)
    else:
        text = text.replace(json.dumps({"arc": METRICS["arc"]}), f"{{{change}}}")
    error = refused(tmp_path, text)
    assert [part for part in parts if part not in f"{error.problem} {error.remedy}"] == []


@pytest.mark.slow
def test_the_command_prints_scores_groups_and_items(scored, monkeypatch) -> None:
    monkeypatch.chdir(scored)

    def call(*arguments: str) -> str:
        result = CliRunner().invoke(app, ["lens", "score", "scored/baseline/0", *arguments, "--root", "runs"])
        assert result.exit_code == 0, result.output
        return result.stdout

    shown = call("blimp.jsonl", "--per-item")
    assert all(word in shown for word in ("acc", "margin", "order", "agreement", "0.5"))
    about = json.loads(call("blimp.jsonl", "--json"))
    assert [item["row"] for item in about["items"]] == [1, 2, 3]
    assert about["scores"][0]["value"] == np.mean([item["acc"] for item in about["items"]])
    assert [group["items"] for group in json.loads(call("blimp.jsonl", "--by", "UID", "--json"))["groups"]] == [1, 1, 1]
    texts = json.loads(call("prompts.jsonl", "--max-tokens", "2", "--json"))["items"]
    assert all(len(item["text"].encode()) <= 6 for item in texts)
    result = CliRunner().invoke(app, ["lens", "score", "scored/baseline/0", "words.txt", "--root", "runs"])
    assert "row 1 of words.txt" in str(result.exception)


@pytest.mark.slow
def test_packed_and_resumed_runs_have_the_scores_of_runs_alone(study, interrupting, tmp_path) -> None:
    text = write(tmp_path, {name: METRICS[name] for name in ("hellaswag", "prompts", "blimp")})
    _, whole = study(text, root="whole")
    _, alone = study(text, root="alone", pack=1)
    for packed, single in zip(whole.runs(), alone.runs(), strict=True):
        theirs = single.evaluation()
        assert any(name.startswith("hellaswag/") for name in theirs)
        for name, values in packed.evaluation().items():
            assert values == pytest.approx(theirs[name], rel=1e-6), name
    with pytest.raises(KeyboardInterrupt):
        study(text, callback=interrupting("on_steps", 3))
    _, resumed = study(text)
    assert stored(resumed) == stored(whole)


@pytest.mark.slow
def test_a_score_that_is_added_later_is_compared_on_the_runs_that_have_it(study, tmp_path) -> None:
    text = write(tmp_path, {"blimp": METRICS["blimp"]}).replace("hellaswag/acc_norm", "blimp/acc")
    study(text)
    both = text.replace('{"blimp"', f'{{"lambada": {json.dumps(METRICS["lambada"])}, "blimp"')
    outcome, folder = study(both.replace("seeds: 2", "seeds: 3"))
    counts = {score["name"]: [arm["seeds"] for arm in score["arms"]] for score in outcome.results["scores"]}
    assert counts == {"blimp/acc": [3, 3], "blimp/margin": [3, 3], "lambada/acc": [1, 1], "lambada/nll": [1, 1]}
    assert folder.read_study()["items"].keys() == {"blimp", "lambada"}


@pytest.mark.slow
def test_a_classifier_is_not_scored(scored) -> None:
    opened = taetpu.open_run("scored/baseline/0", root=scored / "runs", data_folder=scored)
    classifier = replace(opened, interface=Interface(opened.vocab_size, outputs=2))
    with pytest.raises(UserError) as caught:
        taetpu.score(classifier, scored / "blimp.jsonl")
    assert "2 outputs" in caught.value.problem

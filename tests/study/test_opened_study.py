"""`taetpu.open_study`: tables and a picture of a stored study; short representations of what a user holds."""

import csv
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.small import STUDY

import taetpu
from taetpu.core.errors import UserError
from taetpu.nn.named_arrays import named_parameters


@pytest.fixture
def root(trained) -> tuple[Path, Any]:
    """The root of the trained study, and its outcome."""
    outcome, place = trained
    return place, outcome


def test_tables_agree_with_the_results_and_the_files_of_the_report(root):
    place, outcome = root
    study = taetpu.open_study("small", place)
    assert list(study.arms["name"]) == ["baseline", "low-lr"]
    for name, effect in zip(study.arms["name"], study.arms["effect"], strict=True):
        (arm,) = [arm for arm in outcome.results["arms"] if arm["name"] == name]
        assert arm["effect"] == (None if np.isnan(effect) else effect)
    for table, file in ((study.arms, "arms.csv"), (study.runs, "runs.csv")):
        rows = list(csv.DictReader((place / "small/report" / file).read_text().splitlines()))
        assert (list(table.columns), len(table)) == (list(rows[0]), len(rows))
    assert set(study.runs["seed"]) == {0, 1}
    assert study.metrics.equals(taetpu.read_metrics("small", place))
    assert study.results["plan"]["sha256"] == outcome.results["plan"]["sha256"]


def test_the_address_of_an_arm_or_run_shows_its_rows_and_numbers(root):
    place, _ = root
    whole, arm, run = (taetpu.open_study(address, place) for address in ("small", "small/low-lr", "small/low-lr/1"))
    assert [list(study.arms["name"]) for study in (arm, run)] == [["low-lr"]] * 2
    assert list(zip(arm.runs["arm"], arm.runs["seed"], strict=True)) == [("low-lr", 0), ("low-lr", 1)]
    assert list(zip(run.runs["arm"], run.runs["seed"], strict=True)) == [("low-lr", 1)]
    assert list(taetpu.open_study(str(run.runs["id"][0]), place).runs["id"]) == list(run.runs["id"])
    assert run.metrics.equals(taetpu.read_metrics("small/low-lr/1", place))
    assert (len(whole.arms), whole.results) == (2, arm.results)
    assert repr(arm).startswith("OpenedStudy(small/low-lr: ")


def test_report_is_a_picture_that_can_be_saved(root, tmp_path: Path):
    taetpu.open_study("small/low-lr/0", root[0]).report().save(tmp_path / "forest.json")
    assert "low-lr" in json.dumps(json.loads((tmp_path / "forest.json").read_text()))
    assert "low-lr" in taetpu.open_study("latest", root[0])._repr_html_()


def test_a_study_without_arms_has_no_picture(root):
    study = taetpu.open_study("small", root[0])
    study.results["arms"] = study.results["arms"][:1]
    with pytest.raises(UserError, match="no arm") as error:
        study.report()
    assert error.value.remedy


def test_weights_are_numpy_arrays_by_logical_name(root):
    model = taetpu.open_run("small/baseline/0", root=root[0])
    weights = model.weights()
    assert weights.keys() == named_parameters(model.model).keys()
    assert weights["layers.0.mixer.wq"].shape == (16, 16)
    assert all(type(array) is np.ndarray for array in weights.values())
    weights["layers.0.mixer.wq"][:] = 0  # a copy
    assert model.weights()["layers.0.mixer.wq"].any()


def test_representations_are_short_and_name_what_they_show(root, tmp_path: Path):
    (tmp_path / "s.yaml").write_text(STUDY)
    place, outcome = root
    model = taetpu.open_run("small/baseline/0", root=place)
    study = taetpu.load_study(tmp_path / "s.yaml")
    shown = {
        "Outcome(small: ": outcome,
        "OpenedStudy(small: ": taetpu.open_study("small", place),
        "OpenedModel('small/baseline/0', 1 layers": model,
        "Study('small', arms=['baseline', 'low-lr'], seeds=2": study,
        "HeadScores(": taetpu.head_scores(model),
        "Output(logits=float32[1, 3, ": model([1, 2, 3]),
        "RunFolder(study='small'": model.run,
        "RunConfig(task=Copy(": study.baseline,
    }
    for start, value in shown.items():
        assert repr(value).startswith(start), repr(value)
        assert len(repr(value)) < 600, repr(value)
    assert "lr=0.0001" in repr(study.arms[1].config)
    assert "lr=" not in repr(study.arms[0].config)

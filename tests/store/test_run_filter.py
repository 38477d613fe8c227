"""Runs are found by the values of their settings and by dates."""

import os
from datetime import UTC, datetime

import pytest

from taetpu.core.errors import UserError
from taetpu.store.backend import open_store
from taetpu.store.run_filter import find_runs, parse_condition, parse_date
from taetpu.store.study import StudyFolder


def config(dim: int, lr: float, mixers: list[str]) -> dict:
    layers = [{"mixer": {"kind": kind}, "drop": []} for kind in mixers]
    return {"config": {"model": {"dim": dim, "layers": layers}, "train": {"optimizer": {"kind": "adamw", "lr": lr}}}}


RUNS = {
    "wide": config(128, 1e-3, ["attention", "attention"]),
    "narrow": config(64, 3e-4, ["attention", "attention"]),
    "hybrid": config(64, 1e-3, ["gated-delta", "attention"]),
}


@pytest.fixture
def root(tmp_path):
    """A root with a study of three runs, written on the first three days of May."""
    study = StudyFolder(open_store(tmp_path), "mine")
    study.write_study({"study": "mine", "arms": {}, "seeds": [0]})
    for day, (arm, content) in enumerate(RUNS.items(), 1):
        run = study.run(arm, 0, f"{day:08x}")
        run.start(content)
        when = datetime(2026, 5, day, 12, tzinfo=UTC).timestamp()
        os.utime(tmp_path / run.key / "config.json", (when, when))
    return tmp_path


@pytest.mark.parametrize(
    ("conditions", "arms"),
    [
        ([], {"wide", "narrow", "hybrid"}),
        (["model.dim=64"], {"narrow", "hybrid"}),
        (["model.dim>64"], {"wide"}),
        (["model.dim<=64", "train.optimizer.lr>=0.001"], {"hybrid"}),
        (["train.optimizer.lr=1e-3"], {"wide", "hybrid"}),
        (["model.mixer=gated-delta"], {"hybrid"}),
        (["model.mixer.kind=attention"], {"wide", "narrow", "hybrid"}),
        (["train.optimizer!=adamw"], set()),
    ],
)
def test_runs_by_settings(root, conditions, arms):
    assert {run.folder.arm for run in find_runs(root, map(parse_condition, conditions))} == arms


def test_runs_by_dates_are_sorted_from_the_latest(root):
    assert [run.folder.arm for run in find_runs(root)] == ["hybrid", "narrow", "wide"]
    assert [run.folder.arm for run in find_runs(root, since=parse_date("2026-05-02"))] == ["hybrid", "narrow"]
    assert [run.folder.arm for run in find_runs(root, until=parse_date("2026-05-02T13:00"))] == ["narrow", "wide"]


@pytest.mark.parametrize(
    ("make", "problem", "remedy"),
    [
        (
            lambda root: find_runs(root, [parse_condition("model.dimm=3")]),
            "no .*setting 'model.dimm'",
            "model.dim",
        ),
        (lambda root: parse_condition("model.dim"), "'model.dim' .*condition", "model.dim=64"),
        (lambda root: parse_condition("model.mixer>attention"), "'attention' .*number", "Use = or !="),
        (lambda root: parse_date("yesterday"), "'yesterday' .*date", "2026-11-25"),
    ],
)
def test_invalid_filters_are_refused(root, make, problem, remedy):
    with pytest.raises(UserError, match=problem) as caught:
        make(root)
    assert remedy in str(caught.value.remedy)

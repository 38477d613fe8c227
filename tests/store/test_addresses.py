"""Addresses of studies, arms and runs: path first, then study, then ID; ambiguous addresses are refused."""

import os
from pathlib import Path

import pytest

from taetpu.core.errors import UserError
from taetpu.store.addresses import find_run, find_study, resolve
from taetpu.store.backend import open_store
from taetpu.store.study import StudyFolder


def write_study(root: Path | str, name: str, *runs: tuple[str, int, str]) -> StudyFolder:
    study = StudyFolder(open_store(root), name)
    study.write_study({"study": name, "arms": {arm: {} for arm, _, _ in runs}, "seeds": [0, 1]})
    for arm, seed, identity in runs:
        run = study.run(arm, seed, identity)
        run.start({})
        run.finish({"outcome": "finished"})
    return study


@pytest.fixture
def filled(root: str) -> str:
    """A root with the studies `a` (3 runs) and `cafe` (1 run)."""
    write_study(root, "a", ("baseline", 0, "0" * 8), ("x", 0, "cafe1111"), ("x", 1, "2" * 8))
    write_study(root, "cafe", ("baseline", 0, "3" * 8))
    return root


FORMS = {
    "a": ["baseline/0", "x/0", "x/1"],
    "a/": ["baseline/0", "x/0", "x/1"],
    "a/x": ["x/0", "x/1"],
    "a/x/1": ["x/1"],
    "2222": ["x/1"],
    "cafe1": ["x/0"],
    "cafe": ["baseline/0"],
    "ROOT": ["baseline/0", "x/0", "x/1", "baseline/0"],
    "ROOT/a": ["baseline/0", "x/0", "x/1"],
    "ROOT/a/x/0": ["x/0"],
    "ROOT/a/runs/x": ["x/0", "x/1"],
    "ROOT/a/runs/x/1-22222222": ["x/1"],
}


@pytest.mark.parametrize("address", FORMS)
def test_each_form_names_its_runs(filled: str, address: str):
    match = resolve(address.replace("ROOT", filled), filled)
    assert [f"{run.arm}/{run.seed}" for run in match.runs()] == FORMS[address]
    runs = [run for study in match.studies for run in study.runs()]
    assert [run for run in runs if match.selects(run)] == match.runs()
    assert match.address == address.replace("ROOT", filled)


def test_path_precedes_study_and_study_precedes_id(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("TAETPU_ROOT", raising=False)
    write_study("runs", "beef", ("baseline", 0, "0" * 8))
    write_study("runs", "other", ("baseline", 0, "beef1111"), ("baseline", 1, "1" * 8))
    assert (find_study("beef").where, find_run("beef1").seed) == ("runs/beef", 0)
    (tmp_path / "beef").mkdir()
    assert find_study("beef").where == "runs/beef"  # the folder holds no study
    write_study(".", "beef", ("local", 5, "5" * 8))
    assert find_study("beef").where == str(tmp_path / "beef")
    assert find_run("beef/local/5").id == "5" * 8
    assert find_study("runs/beef").where == str(tmp_path / "runs/beef")
    monkeypatch.chdir(tmp_path / "runs/other/runs")
    assert find_run("baseline/1-11111111").id == "1" * 8


def test_latest_is_the_run_that_finished_last_and_the_study_that_changed_last(tmp_path: Path):
    a = write_study(tmp_path, "a", ("baseline", 0, "0" * 8), ("x", 1, "1" * 8))
    b = write_study(tmp_path, "b", ("baseline", 0, "2" * 8))
    b.run("baseline", 1, "3" * 8).start({})
    for number, file in enumerate(("b/runs/baseline/0-22222222/result.json", "a/runs/x/1-11111111/result.json",
                                   "b/runs/baseline/1-33333333/config.json")):  # fmt: skip
        os.utime(tmp_path / file, (4e9 + number, 4e9 + number))
    assert find_run("latest", tmp_path).where == a.run("x", 1, "1" * 8).where
    assert find_study("latest", tmp_path).where == b.where
    assert resolve("latest", tmp_path).name == "b"


REFUSED = {
    "ROOT": ("2 studies", "studies: a, cafe"),
    "a": ("'a' matches 3 runs", "a/baseline/0 (00000000), a/x/0 (cafe1111), a/x/1"),
    "a/x": ("'a/x' matches 2 runs", "a/x/0 (cafe1111), a/x/1 (22222222)"),
    "b/x": ("no study 'b'", "Use one of: a, cafe"),
    "latest/x": ("'latest' is followed by 'x'", "STUDY/x"),
    "a/y": ("no arm 'y' has runs", "baseline, x"),
    "a/x/2": ("arm 'x' has no seed 2", "Use one of: 0, 1"),
    "a/x/1/0": ("arm 'x' has no seed 1/0", "Use one of: 0, 1"),
    "caffe": ("or run 'caffe'", "Did you mean 'cafe'?"),
    "ffff": ("or run 'ffff'", "STUDY/ARM/SEED, a run's ID, latest, or a path"),
    "ROOT/none": ("no study", "taetpu list"),
}


@pytest.mark.parametrize("address", REFUSED)
def test_unknown_and_ambiguous_addresses_are_refused(filled: str, address: str):
    problem, remedy = REFUSED[address]
    with pytest.raises(UserError, match=problem) as error:
        (find_study if address == "ROOT" else find_run)(address.replace("ROOT", filled), filled)
    assert remedy in str(error.value.remedy)


def test_id_of_several_runs_is_refused_with_their_addresses(tmp_path: Path):
    for name in ("a", "b"):
        write_study(tmp_path, name, ("baseline", 0, "0" * 8))
    with pytest.raises(UserError, match="'0000' matches 2 runs") as error:
        resolve("0000", tmp_path)
    assert "a/baseline/0 (00000000), b/baseline/0 (00000000)" in str(error.value.remedy)

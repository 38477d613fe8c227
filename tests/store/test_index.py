"""Finding studies under a root or in a folder, and their progress."""

import os
import time
from datetime import UTC, datetime
from pathlib import Path

import pytest

from taetpu.core.errors import UserError
from taetpu.store.addresses import find_study
from taetpu.store.backend import LocalStore, Store, open_store
from taetpu.store.index import find_studies, list_studies
from taetpu.store.study import StudyFolder


@pytest.fixture
def filled(store: Store, root: str) -> str:
    """Return a root with study `a` (2 of 4 runs done, one started), study `b` (no runs) and another folder."""
    a, b = StudyFolder(store, "a"), StudyFolder(store, "b")
    a.write_study({"study": "a", "arms": {"baseline": {}, "x": {}}, "seeds": [0, 1]})
    b.write_study({"study": "b", "arms": {"baseline": {}}, "seeds": [0]})
    for arm, seed, identity in [("baseline", 0, "0" * 8), ("x", 0, "1" * 8), ("x", 0, "2" * 8)]:
        run = a.run(arm, seed, identity)
        run.start({})
        run.finish({"outcome": "finished"})
    a.run("x", 1, "3" * 8).start({})
    store.write("notes/read.me", b"")
    return root


def test_entries_count_arms_seeds_and_runs(filled: str):
    a, b = list_studies(filled)
    assert (a.name, a.arms, a.seeds, a.total, a.done, a.started, a.problem) == ("a", 2, 2, 4, 2, 1, None)
    assert (b.name, b.arms, b.seeds, b.total, b.done, b.started, b.problem) == ("b", 1, 1, 1, 0, 0, None)
    assert a.where == f"{filled}/a"


def test_last_change_is_the_time_of_the_newest_metrics(store: Store, filled: str, request: pytest.FixtureRequest):
    run = StudyFolder(store, "a").run("x", 1, "3" * 8)
    if isinstance(store, LocalStore):
        run.append(0, 10, {"loss": ([10], [1.0])})
        os.utime(store.root / run.key / "metrics" / "0-10.json", (4e9, 4e9))
    else:
        world = request.getfixturevalue("world")
        world.skew = 4e9 - time.time()
        run.append(0, 10, {"loss": ([10], [1.0])})
    a, b = list_studies(filled)
    assert abs((a.changed - datetime.fromtimestamp(4e9, UTC)).total_seconds()) < 60
    assert b.changed < a.changed


def test_unreadable_study_does_not_hide_other_studies(store: Store, filled: str):
    store.write("a/study.yaml", b"arms: [", replace=True)
    store.write("b/study.yaml", b"arms: {}", replace=True)
    a, b = list_studies(filled)
    assert a.problem is not None
    assert f"{filled}/a/study.yaml" in a.problem
    assert (a.total, a.done) == (0, 2)
    assert b.problem is not None
    assert "no seeds" in b.problem


def test_place_is_a_root_or_a_study(filled: str):
    assert [folder.name for folder in find_studies(filled)] == ["a", "b"]
    assert find_study(Path(filled) / "b").read_study()["study"] == "b"  # pathlib makes gs:/ of gs://
    assert find_study(f"{filled}/b/").name == "b"
    assert find_study(f"{filled}/b").where == f"{filled}/b"


@pytest.mark.parametrize("root", ["local"], indirect=True)
def test_place_may_be_the_working_folder(filled: str, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.chdir(Path(filled) / "a")
    assert [(entry.name, entry.done) for entry in list_studies(".")] == [("a", 2)]


def test_missing_and_ambiguous_studies_are_refused(filled: str):
    assert list_studies(f"{filled}/nowhere") == []
    with pytest.raises(UserError, match="no study") as caught:
        find_study(f"{filled}/notes")
    assert f"{filled}/notes" in str(caught.value)
    with pytest.raises(UserError, match="2 studies") as caught:
        find_study(filled)
    assert "studies: a, b" in str(caught.value)


def test_file_in_place_of_a_study_is_refused(tmp_path: Path):
    (tmp_path / "mine.yaml").write_text("study: mine")
    with pytest.raises(UserError, match="is a file") as error:
        find_studies(tmp_path / "mine.yaml")
    assert "./runs/mine" in str(error.value.remedy)


def test_tuning_trials_are_not_counted(tmp_path):
    study = StudyFolder(open_store(tmp_path), "tuned")
    study.write_study({"arms": {"baseline": {}}, "seeds": [0]})
    for arm, seed in (("baseline", 0), ("baseline~lr=0.1", 7)):
        run = study.run(arm, seed, "0123abcd")
        run.start({})
        run.finish({"outcome": "finished"})
    (entry,) = list_studies(tmp_path)
    assert (entry.done, entry.total) == (1, 1)

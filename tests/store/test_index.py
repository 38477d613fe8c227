"""What is found under a root or in one study's folder, and how far it has come."""

import os
from datetime import UTC, datetime
from pathlib import Path

import pytest

from taetpu.core.errors import UserError
from taetpu.store.backend import LocalStore, open_store
from taetpu.store.index import find_studies, one_study, studies
from taetpu.store.study import StudyFolder


@pytest.fixture
def root(store: LocalStore) -> Path:
    """Study `a` with 2 of 4 runs done and one started, study `b` without any, and a folder that is no study."""
    a, b = StudyFolder(store, "a"), StudyFolder(store, "b")
    a.write_study({"study": "a", "arms": {"baseline": {}, "x": {}}, "seeds": [0, 1]})
    b.write_study({"study": "b", "arms": {"baseline": {}}, "seeds": [0]})
    for arm, seed, identity in [("baseline", 0, "0" * 8), ("x", 0, "1" * 8), ("x", 0, "2" * 8)]:
        run = a.run(arm, seed, identity)
        run.start({})
        run.finish({"outcome": "finished"})
    a.run("x", 1, "3" * 8).start({})
    store.write("notes/read.me", b"")
    return store.root


def test_counts(root: Path):
    a, b = studies(root)
    assert (a.name, a.arms, a.seeds, a.total, a.done, a.started, a.problem) == ("a", 2, 2, 4, 2, 1, None)
    assert (b.name, b.arms, b.seeds, b.total, b.done, b.started, b.problem) == ("b", 1, 1, 1, 0, 0, None)
    assert a.where == str(root / "a")


def test_last_change_is_that_of_the_newest_metrics(root: Path):
    run = StudyFolder(LocalStore(root), "a").run("x", 1, "3" * 8)
    run.append(0, 10, {"loss": ([10], [1.0])})
    os.utime(root / run.key / "metrics" / "0-10.json", (4e9, 4e9))
    a, b = studies(root)
    assert a.changed == datetime.fromtimestamp(4e9, UTC)
    assert b.changed < a.changed


def test_a_study_that_cannot_be_read_hides_no_other(root: Path):
    (root / "a" / "study.yaml").write_bytes(b"arms: [")
    (root / "b" / "study.yaml").write_bytes(b"arms: {}")
    a, b = studies(root)
    assert a.problem is not None
    assert str(root / "a" / "study.yaml") in a.problem
    assert (a.total, a.done) == (0, 2)
    assert b.problem is not None
    assert "no seeds" in b.problem


def test_a_place_is_a_root_or_one_study(root: Path, monkeypatch: pytest.MonkeyPatch):
    assert [folder.name for folder in find_studies(root)] == ["a", "b"]
    assert one_study(root / "b").read_study()["study"] == "b"
    assert one_study(f"{root}/b/").name == "b"
    monkeypatch.chdir(root / "a")
    assert [(entry.name, entry.done) for entry in studies(".")] == [("a", 2)]


def test_no_study_or_too_many(root: Path):
    assert studies(root / "nowhere") == []
    with pytest.raises(UserError, match="no study is stored here") as caught:
        one_study(root / "notes")
    assert str(root / "notes") in str(caught.value)
    with pytest.raises(UserError, match="2 studies are stored here") as caught:
        one_study(root)
    assert "one of: a, b" in str(caught.value)


def test_a_file_is_no_study_s_folder(tmp_path: Path):
    (tmp_path / "mine.yaml").write_text("study: mine")
    with pytest.raises(UserError, match="this is a file, not a study's folder") as error:
        find_studies(tmp_path / "mine.yaml")
    assert error.value.remedy == "the folder is where the study was run, e.g. ./runs/mine"


def test_runs_that_tuning_tried_do_not_count_as_the_studys(tmp_path):
    study = StudyFolder(open_store(tmp_path), "tuned")
    study.write_study({"arms": {"baseline": {}}, "seeds": [0]})
    for arm, seed in (("baseline", 0), ("baseline~lr=0.1", 7)):
        run = study.run(arm, seed, "0123abcd")
        run.start({})
        run.finish({"outcome": "finished"})
    (entry,) = studies(tmp_path)
    assert (entry.done, entry.total) == (1, 1)

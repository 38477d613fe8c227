"""What is found under a root or in one study's folder, and how far it has come."""

import os
import time
from datetime import UTC, datetime
from pathlib import Path

import pytest

from taetpu.core.errors import UserError
from taetpu.store import index
from taetpu.store.backend import LocalStore, Store, open_store
from taetpu.store.index import find_studies, find_study, list_studies
from taetpu.store.study import StudyFolder


@pytest.fixture
def filled(store: Store, root: str) -> str:
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
    return root


def test_counts(filled: str):
    a, b = list_studies(filled)
    assert (a.name, a.arms, a.seeds, a.total, a.done, a.started, a.problem) == ("a", 2, 2, 4, 2, 1, None)
    assert (b.name, b.arms, b.seeds, b.total, b.done, b.started, b.problem) == ("b", 1, 1, 1, 0, 0, None)
    assert a.where == f"{filled}/a"


def test_last_change_is_that_of_the_newest_metrics(store: Store, filled: str, request: pytest.FixtureRequest):
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


def test_a_study_that_cannot_be_read_hides_no_other(store: Store, filled: str):
    store.write("a/study.yaml", b"arms: [", replace=True)
    store.write("b/study.yaml", b"arms: {}", replace=True)
    a, b = list_studies(filled)
    assert a.problem is not None
    assert f"{filled}/a/study.yaml" in a.problem
    assert (a.total, a.done) == (0, 2)
    assert b.problem is not None
    assert "no seeds" in b.problem


def test_a_place_is_a_root_or_one_study(filled: str):
    assert [folder.name for folder in find_studies(filled)] == ["a", "b"]
    assert find_study(Path(filled) / "b").read_study()["study"] == "b"  # pathlib makes gs:/ of gs://
    assert find_study(f"{filled}/b/").name == "b"
    assert find_study(f"{filled}/b").where == f"{filled}/b"


@pytest.mark.parametrize("root", ["local"], indirect=True)
def test_a_place_is_also_where_one_is(filled: str, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.chdir(Path(filled) / "a")
    assert [(entry.name, entry.done) for entry in list_studies(".")] == [("a", 2)]


def test_no_study_or_too_many(filled: str):
    assert list_studies(f"{filled}/nowhere") == []
    with pytest.raises(UserError, match="no study is stored here") as caught:
        find_study(f"{filled}/notes")
    assert f"{filled}/notes" in str(caught.value)
    with pytest.raises(UserError, match="2 studies are stored here") as caught:
        find_study(filled)
    assert "one of them: a, b" in str(caught.value)


def test_a_file_is_no_study_s_folder(tmp_path: Path):
    (tmp_path / "mine.yaml").write_text("study: mine")
    with pytest.raises(UserError, match="this is a file, not a study's folder") as error:
        find_studies(tmp_path / "mine.yaml")
    assert "./runs/mine" in str(error.value.remedy)


def test_runs_that_tuning_tried_do_not_count_as_the_studys(tmp_path):
    study = StudyFolder(open_store(tmp_path), "tuned")
    study.write_study({"arms": {"baseline": {}}, "seeds": [0]})
    for arm, seed in (("baseline", 0), ("baseline~lr=0.1", 7)):
        run = study.run(arm, seed, "0123abcd")
        run.start({})
        run.finish({"outcome": "finished"})
    (entry,) = list_studies(tmp_path)
    assert (entry.done, entry.total) == (1, 1)


# --- what is remembered ----------------------------------------------------------------------------------------------


@pytest.fixture
def reads(store: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The keys that are read from the store; the index lies in a cache folder of the test's."""
    monkeypatch.setenv("TAETPU_CACHE", str(tmp_path / "cache"))
    found, read = [], type(store).read
    monkeypatch.setattr(type(store), "read", lambda self, key: found.append(key) or read(self, key))
    return found


def test_a_study_file_that_has_not_changed_is_read_once(store: Store, filled: str, reads, monkeypatch):
    monkeypatch.setattr(index, "SETTLED", float("-inf"))  # as of files that were written a while ago
    first = list_studies(filled)
    assert sorted(reads) == ["a/study.yaml", "b/study.yaml"]
    reads.clear()
    StudyFolder(store, "a").run("x", 1, "3" * 8).finish({"outcome": "finished"})
    again = list_studies(filled)
    assert reads == []
    assert [entry.done for entry in again] == [3, 0]
    assert again[1] == first[1]
    time.sleep(0.01)
    b = StudyFolder(store, "b")
    b.write_study({**b.read_study(), "seeds": [0, 1, 2]}, replace=True)
    reads.clear()
    assert list_studies(filled)[1].total == 3
    assert reads == ["b/study.yaml"]


def test_a_file_that_was_just_written_is_read_again(store: Store, filled: str, reads):
    """Two writings within one tick of a disk's clock have one time."""
    list_studies(filled)
    reads.clear()
    list_studies(filled)
    assert sorted(reads) == ["a/study.yaml", "b/study.yaml"]


@pytest.mark.parametrize("damage", [b"", b"[1]", b'{"a": {"written": 1}}', b'{"a": 3, "b": null}'])
def test_a_damaged_index_changes_nothing(filled: str, reads, monkeypatch, tmp_path, damage: bytes):
    monkeypatch.setattr(index, "SETTLED", float("-inf"))
    whole = list_studies(filled)
    (file,) = (tmp_path / "cache" / "studies").iterdir()
    file.write_bytes(damage)
    assert list_studies(filled) == whole
    reads.clear()
    assert list_studies(filled) == whole
    assert reads == []


def test_where_nothing_can_be_remembered_studies_are_listed(filled: str, reads, monkeypatch, tmp_path):
    monkeypatch.setattr(index, "SETTLED", float("-inf"))
    (tmp_path / "cache").write_text("a file where the folder would be")
    assert [entry.done for entry in list_studies(filled)] == [2, 0]

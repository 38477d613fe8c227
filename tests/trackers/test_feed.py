"""Each run reaches a tracker completely and once, also after restarts and with few open runs."""

from pathlib import Path

import pytest
from tests.small import STUDY
from tests.trackers import reading

from taetpu.core.errors import UserError
from taetpu.spec.loading import load_study
from taetpu.store.backend import open_store
from taetpu.store.study import StudyFolder
from taetpu.trackers.feed import Trackers


def whole(folder, own):
    """Check that the tracker with one open run received each run completely and once."""
    assert sorted(own) == ["baseline/0", "baseline/1", "low-lr/0", "low-lr/1"]
    for run in folder.runs():
        tracked, *rows, result = own[f"{run.arm}/{run.seed}"]
        assert (tracked.study, tracked.settings["model.dim"]) == ("small", 16)
        assert [row.step for row in rows] == sorted({step for s in run.metrics().values() for step in s.step.tolist()})
        assert {row.step: row.text for row in rows if row.text is not None} == run.samples()
        assert result == run.result()
    assert len({heard[0].id for heard in own.values()}) == 4


@pytest.mark.slow
def test_adding_trackers_trains_nothing_again(study, own, results):
    folder, first = study(STUDY + "trackers: [keeps]\n")
    before, frozen = results(folder), Path(folder.where, "study.yaml").read_bytes()
    assert first.trained
    whole(folder, own)
    _, told = study(STUDY + "trackers: {keeps: {}, tensorboard: {}, again: {kind: keeps}}\n")
    assert (told.trained, told.off) == (0, {})
    for heard in own.values():
        del heard[: len(heard) // 2]  # what came the first time
    whole(folder, own)
    assert len(list(Path(folder.where, "trackers/tensorboard").rglob("events.*"))) == 4
    assert study(STUDY)[1].trained == 0
    assert results(folder) == before
    assert Path(folder.where, "study.yaml").read_bytes() == frozen


@pytest.fixture
def followed(tmp_path):
    """A run that tests extend, its trackers, and its event file."""
    folder = StudyFolder(open_store(tmp_path), "toy")
    run = folder.run("baseline", 0, "0" * 8)
    run.start({"config": {"model": {"layers": []}, "train": {}}})
    (tmp_path / "s.yaml").write_text(STUDY + "trackers: [tensorboard]\n")
    off = {}
    return run, Trackers(folder, load_study(tmp_path / "s.yaml").trackers, off.__setitem__), off


def events(run) -> reading.Points:
    (file,) = Path(run.store.where(run.study), "trackers").rglob("events.*")
    return reading.tensorboard(file)


def test_restarted_pack_leaves_no_rows_of_its_first_start(followed):
    run, trackers, off = followed
    run.append(0, 10, {"train/loss": ([5, 10], [1.0, 2.0])})
    run.write_sample(10, "first")
    trackers.forward([run])
    assert events(run)["train/loss"] == {5: 1.0, 10: 2.0}
    run.truncate(0)
    trackers.close()
    run.append(0, 20, {"train/loss": ([20], [3.0])})
    trackers.forward([run])
    trackers.forward([run])
    found = events(run)
    assert (found["train/loss"], "sample" in found, off) == ({20: 3.0}, False, {})


def test_replaced_rows_are_sent_again(followed):
    """As at the end of a program that reported a step twice: all metrics are stored again, as one segment."""
    run, trackers, off = followed
    for start in (0, 10):
        run.append(start, start + 10, {"loss": ([start + 5, start + 10], [1.0, 2.0])})
        trackers.follow([run])
    run.store.delete(f"{run.key}/metrics")
    run.append(0, 30, {"loss": ([5, 10, 30], [3.0, 4.0, 5.0]), "late": ([5], [6.0])})
    trackers.follow([run])
    assert (events(run)["loss"], events(run)["late"]) == ({5: 3.0, 10: 4.0, 30: 5.0}, {5: 6.0})
    run.finish({"outcome": "finished", "metrics": {"loss": 5.0}})
    trackers.follow([run])
    assert events(run)["outcome"] == {30: "finished"}
    assert off == {}


def test_non_finite_numbers_are_shown(followed):
    run, trackers, off = followed
    run.append(0, 10, {"train/loss": ([5, 10], [float("nan"), float("inf")])})
    run.finish({"outcome": "diverged", "metrics": {"train/loss": float("nan"), "lr": 1.0}})
    trackers.finish([run])
    assert off == {}
    found = events(run)
    assert str(found["train/loss"]) == "{5: nan, 10: inf}"
    assert (found["outcome"], found["final/lr"]) == ({10: "diverged"}, {10: 1.0})
    assert "final/train/loss" not in found


def test_damaged_store_disables_trackers_only(followed):
    run, trackers, off = followed
    run.append(0, 10, {"train/loss": ([5], [1.0])})
    Path(run.where, "metrics/0-10.json").write_text("damaged")
    trackers.forward([run])
    assert "segment is damaged" in off["tensorboard"]
    trackers.forward([run])


@pytest.mark.parametrize(
    ("written", "problem", "where"),
    [
        ("trackers: {my/board: {kind: tensorboard}}", "tracker name 'my/board'", "trackers.my/board"),
        ("trackers: {board: {}}", "unknown tracker kind 'board'", "trackers.board.kind"),
        ("trackers: {wandb: {mode: offlin}}", "'offlin' is not allowed", "trackers.wandb.mode"),
        ("trackers: {wandb: {project: a/b}}", "'a/b' is not allowed", "trackers.wandb.project"),
        ("trackers: {trackio: {project: ''}}", "'' is not allowed", "trackers.trackio.project"),
        ("trackers: [wandb, wandb]", "tracker 'wandb' is listed twice", "trackers.1"),
        ("trackers: 3", "3 is neither", "trackers"),
    ],
)
def test_mistake_is_reported_with_its_line(tmp_path, written, problem, where):
    (tmp_path / "s.yaml").write_text(STUDY + written)
    with pytest.raises(UserError) as caught:
        load_study(tmp_path / "s.yaml")
    assert caught.value.problem.startswith(problem)
    assert (".".join(map(str, caught.value.path)), caught.value.line) == (where, 9)


def test_checker_of_commands_accepts_valid_lines(tmp_path):
    forms = {
        "trackers: tensorboard": ["tensorboard"],
        "trackers: [tensorboard, wandb]": ["tensorboard", "wandb"],
        "trackers: {tensorboard: none, trackio: }": ["trackio"],
        "trackers: {a: {kind: wandb, project: a}, b: {kind: wandb, project: b}}": ["a", "b"],
        "trackers: []": [],
        "trackers:": [],
    }
    for written, names in forms.items():
        (tmp_path / "s.yaml").write_text(STUDY + written)
        assert list(load_study(tmp_path / "s.yaml").trackers) == names

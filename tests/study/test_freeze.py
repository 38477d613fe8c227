"""The record of a study in its folder, and the refusal of another study in the same folder."""

import pytest
from tests.small import TINY

from taetpu.core.errors import UserError
from taetpu.spec.frozen import check_frozen
from taetpu.spec.loading import load_study
from taetpu.stats.deviations import find_departures
from taetpu.stats.plan import read_plan
from taetpu.store.backend import open_store
from taetpu.store.study import StudyFolder
from taetpu.study.freeze import freeze
from taetpu.study.run_file import run

ARMS = "arms:\n  momentum: {train.optimizer.b1: 0.5}\n"


@pytest.fixture
def froze(tmp_path):
    """Return `froze(seeds, done, arms)`, which freezes the study and finishes the runs of the first `done` seeds."""

    def call(seeds, done, arms=ARMS):
        (tmp_path / "s.yaml").write_text(f"{TINY}seeds: {seeds}\n{arms}")
        study = load_study(tmp_path / "s.yaml")
        folder = StudyFolder(open_store(tmp_path / "root"), study.name)
        freeze(study, folder)
        for spec in study.runs():
            run = folder.run(spec.arm, spec.seed, spec.id)
            if spec.seed < done and run.status() == "absent":
                run.start({})
                run.finish({"outcome": "finished", "steps": 6, "metrics": {}})
        stored = folder.read_study()
        return read_plan(stored, folder.where).error_rate(seeds, stored.get("judged_at")), folder

    return call


def test_seeds_added_after_all_runs_are_done_are_recorded(froze):
    froze(2, done=2)
    assert froze(5, done=5)[0] > 0.05
    assert froze(5, done=5)[1].read_study()["judged_at"] == [2]
    assert froze(6, done=6)[1].read_study()["judged_at"] == [2, 5]


@pytest.mark.parametrize(
    ("seeds", "done", "arms"), [(1, 1, ARMS), (3, 2, ARMS), (3, 0, ARMS), (3, 3, "")], ids=str
)  # a single seed, runs missing, none ended, nothing to compare
def test_seeds_added_before_a_verdict_is_possible_are_not_recorded(froze, seeds, done, arms):
    froze(seeds, done, arms)
    rate, folder = froze(5, done=5, arms=arms)
    assert (rate, folder.read_study()["judged_at"]) == (0.05, [])


def test_plan_written_after_finished_runs_is_recorded(froze):
    """A user who deletes study.yaml could choose another metric after seeing the results."""
    _, folder = froze(2, 2)
    assert "planned_after" not in folder.read_study()
    folder.store.delete(f"{folder.name}/study.yaml")
    _, folder = froze(2, 2)
    stored = folder.read_study()
    assert stored["planned_after"] == 4
    (departure,) = find_departures(stored, read_plan(stored, folder.where))
    assert "written after 4 runs had ended" in departure
    _, folder = froze(3, 3)
    assert folder.read_study()["planned_after"] == 4


def test_folder_without_the_record_is_treated_conservatively(froze):
    _, folder = froze(3, done=2)
    stored = folder.read_study()
    del stored["judged_at"]
    folder.write_study(stored, replace=True)
    assert froze(5, done=5)[0] > 0.05


INERT = f"{TINY}arms:\n  inert: {{model.layers.0.mixer.head_dim: 4}}\n"


def test_another_study_in_the_folder_is_refused_before_arms_are_checked(tmp_path):
    file = tmp_path / "s.yaml"
    file.write_text(INERT)
    study = load_study(file, ("train.steps=8",))
    folder = StudyFolder(open_store(tmp_path), study.name)
    freeze(study, folder)
    with pytest.raises(UserError, match=r"base\.train\.steps was 8, and is 6 now") as caught:
        run(file, root=str(tmp_path))
    assert "inert" not in str(caught.value)
    check_frozen(folder.read_study(), load_study(file, ("train.steps=8",)))


def test_same_sample_in_another_notation_is_the_same_study(tmp_path):
    """An earlier version may have stored a larger number of windows than the split has."""
    (tmp_path / "s.yaml").write_text(TINY)
    study = load_study(tmp_path / "s.yaml", ("train.eval_windows=all",))
    folder = StudyFolder(open_store(tmp_path), study.name)
    freeze(study, folder)
    stored = folder.read_study()
    stored["evaluation"]["asked"] = 1000
    check_frozen(stored, study)

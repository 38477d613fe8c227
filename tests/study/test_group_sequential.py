"""Interim analyses: `run --until-resolved` adds the seeds of the next analysis, and resumes after a stop."""

import pytest
from tests.small import TINY

from taetpu.core.errors import UserError
from taetpu.spec.loading import load_study
from taetpu.spec.study_file import MAX_SEED
from taetpu.store.backend import open_store
from taetpu.store.study import StudyFolder
from taetpu.study.added_seeds import extend_seeds, next_seeds
from taetpu.study.run import Options, run_study
from taetpu.train.callbacks import Callback

LOOKS = "seeds: 2\nmeasure: {looks: [2, 4], equivalence: 1e-6}\narms:\n  momentum: {train.optimizer.b1: 0.5}\n"


@pytest.fixture
def looked(tmp_path):
    """Return `looked(text, root, callback)`, which runs a study as `taetpu run --until-resolved` does."""

    def run(text=TINY + LOOKS, root="root", callback=None):
        (tmp_path / "s.yaml").write_text(text)
        loaded = load_study(tmp_path / "s.yaml")
        folder = StudyFolder(open_store(tmp_path / root), loaded.name)
        return run_study(loaded, folder, callback or Callback(), Options(until_resolved=True)), folder

    return run


class AtSecondLook(Callback):
    """Notes added seeds. If `stop` is set, interrupts training for the second analysis."""

    def __init__(self, stop=False):
        self.stop, self.added = stop, []

    def on_seeds_added(self, seeds):
        self.added.append(tuple(seeds))

    def on_steps(self, step, loss):
        if self.stop and self.added:
            raise KeyboardInterrupt


@pytest.mark.slow
def test_inconclusive_arms_get_the_seeds_of_the_next_analysis(looked):
    callback = AtSecondLook()
    outcome, folder = looked(callback=callback)
    assert callback.added == [(0, 1, 2, 3)]
    assert outcome.results["final"]
    assert folder.read_study()["seeds"] == [0, 1, 2, 3]
    assert folder.read_study()["plan"]["seeds"] == [0, 1]
    assert [len(arm["runs"]) for arm in outcome.results["arms"]] == [4, 4]

    # A study that is stopped before the second analysis ends with the same results.
    with pytest.raises(KeyboardInterrupt):
        looked(root="stopped", callback=AtSecondLook(stop=True))
    again, _ = looked(root="stopped")
    assert again.results == outcome.results


@pytest.mark.slow
def test_study_without_inconclusive_arms_ends_at_the_first_analysis(looked):
    callback = AtSecondLook()
    outcome, _ = looked(TINY + LOOKS.replace("1e-6", "1e6"), callback=callback)
    assert callback.added == []
    assert [arm["verdict"] for arm in outcome.results["arms"]] == [None, "equivalent"]


def test_until_resolved_requires_planned_analyses(looked):
    with pytest.raises(UserError) as caught:
        looked(TINY + "seeds: 2\narms: {momentum: {train.optimizer.b1: 0.5}}\n")
    problem = "--until-resolved requires an interim analysis after the first 2 seeds, but none is planned"
    assert caught.value.problem == problem
    assert "measure: {looks: [2, 4]}" in str(caught.value.remedy)


def test_added_seeds_are_new_and_not_used_for_tuning(tmp_path):
    tune = "tune: {train.optimizer.lr: [1e-3, 1e-2], seeds: [2, 4]}\n"
    (tmp_path / "s.yaml").write_text(TINY + LOOKS + tune)
    study = load_study(tmp_path / "s.yaml")
    assert extend_seeds(study, study.seeds, 4) == (0, 1, 3, 5)
    assert extend_seeds(study, (0, MAX_SEED), 4) == (0, MAX_SEED, 1, 3)
    assert next_seeds(study, study.seeds, {"arms": [{"verdict": None}, {"verdict": "inconclusive"}]}) == (0, 1, 3, 5)
    assert next_seeds(study, study.seeds, {"arms": [{"verdict": None}, {"verdict": "worse"}]}) is None
    assert next_seeds(study, (0, 1, 3, 5), {"arms": [{"verdict": "inconclusive"}]}) is None

"""What a study's folder records when seeds are added: whether verdicts could be read before."""

import pytest
from tests.small import TINY

from taetpu.spec.loading import load_study
from taetpu.stats.plan import read_plan
from taetpu.store.backend import open_store
from taetpu.store.study import StudyFolder
from taetpu.study.freeze import freeze

ARMS = "arms:\n  momentum: {train.optimizer.b1: 0.5}\n"


@pytest.fixture
def froze(tmp_path):
    """`froze(seeds, done, arms)`: freeze the study at so many seeds, then end runs on the first `done` of them."""

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


def test_after_all_runs_have_ended_verdicts_may_have_been_read(froze):
    froze(2, done=2)
    assert froze(5, done=5)[0] > 0.05
    assert froze(5, done=5)[1].read_study()["judged_at"] == [2]
    assert froze(6, done=6)[1].read_study()["judged_at"] == [2, 5]


@pytest.mark.parametrize(
    ("seeds", "done", "arms"), [(1, 1, ARMS), (3, 2, ARMS), (3, 0, ARMS), (3, 3, "")], ids=str
)  # a single seed, runs missing, none ended, nothing to compare
def test_where_no_verdict_could_be_read_more_seeds_cost_nothing(froze, seeds, done, arms):
    froze(seeds, done, arms)
    rate, folder = froze(5, done=5, arms=arms)
    assert (rate, folder.read_study()["judged_at"]) == (0.05, [])


def test_of_a_folder_without_the_record_the_worst_is_assumed(froze):
    _, folder = froze(3, done=2)
    stored = folder.read_study()
    del stored["judged_at"]
    folder.write_study(stored, replace=True)
    assert froze(5, done=5)[0] > 0.05

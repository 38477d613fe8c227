"""A study that trains and compares arms by shares of solved runs, or by the time to a value."""

import numpy as np
import pytest
from tests.small import TINY

import taetpu
from taetpu.spec.loading import load_study
from taetpu.stats.outcomes import smallest_p
from taetpu.stats.verify import verify
from taetpu.store.backend import open_store
from taetpu.store.study import StudyFolder
from taetpu.study.preview import prepare_study, preview

ARMS = "seeds: 3\narms:\n  x: {model.position: none}\n"
EVERY = TINY.replace("eval_every: 6", "eval_every: 2")


@pytest.mark.slow
def test_times_of_trained_runs_are_those_of_their_logs(tmp_path):
    """The value is between the first and the last loss of the baseline, so that runs arrive after different times."""
    (tmp_path / "study.yaml").write_text(
        f"{EVERY}{ARMS}measure: {{primary: val_sample/loss, reach: 2.0, by: tokens}}\n"
    )
    outcome = taetpu.run(tmp_path / "study.yaml", root=str(tmp_path / "runs"))
    folder = StudyFolder(open_store(tmp_path / "runs"), "tiny")
    assert verify(folder) == []
    for arm in outcome.results["arms"]:
        for run in arm["runs"]:
            steps, values = folder.run(arm["name"], run["seed"], run["id"]).metrics()["val_sample/loss"]
            assert steps.tolist() == [2, 4, 6]
            first = np.flatnonzero(values <= 2.0)
            assert run["reached"] == bool(len(first))
            tokens = (steps[first[0]] if len(first) else 6) * 4 * 8
            assert run["value"] == pytest.approx(tokens)
            assert run["measured"] == pytest.approx(values[-1])
    assert outcome.results["groups"][0]["horizon"] == 6 * 4 * 8
    report = (tmp_path / "runs/tiny/report/index.html").read_text()
    assert "Kaplan-Meier" in report


@pytest.mark.slow
def test_the_plan_states_the_smallest_p(tmp_path):
    (tmp_path / "study.yaml").write_text(f"{TINY}{ARMS}measure: {{primary: val/accuracy, solved: 0.9}}\n")
    study = load_study(tmp_path / "study.yaml")
    folder = StudyFolder(open_store(tmp_path / "runs"), "tiny")
    shares = preview(prepare_study(study, folder), folder)["resolution"]["shares"]
    assert shares["smallest_p"] == pytest.approx(smallest_p(3))
    assert shares["needed"] == 3
    with pytest.raises(taetpu.UserError) as refused:
        preview(prepare_study(study, folder), folder, effect=0.2)
    assert refused.value.path == ("effect",)

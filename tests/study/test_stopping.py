"""Runs that stop early in a study: their packs train on, and what they store does not depend on the other runs."""

import json
import shutil
from pathlib import Path

import numpy as np
import pytest
from tests.forged import unsealed
from tests.small import TINY
from tests.study.test_run import stored

from taetpu.spec.loading import load_study
from taetpu.stats.verify import find_contradictions, verify
from taetpu.store.backend import open_store
from taetpu.store.runs import RunFolder
from taetpu.store.study import StudyFolder
from taetpu.study.run import run_study
from taetpu.train.callbacks import Callback

STOP = "stop: {kind: patience, every: 4, windows: 5, patience: %d, min_delta: 10}"
TRAIN = (
    "steps: 24, batch_size: 4, eval_every: 6, checkpoint: 6, log_every: 5, sample: none, "
    "schedule: {kind: plateau, every: 2, windows: 3, patience: 2}, evaluate: {kind: best, every: 2, windows: 8}"
)
BASE = "\n".join(TINY.splitlines()[:-1]) + "\n  train: {%s}\nmeasure: {primary: test/loss}\nseeds: 2\n"
LATE = BASE % f"{TRAIN}, {STOP % 4}"  # no loss is lower than the first one by 10, so runs stop after step 4 * 5
STUDY = (
    f"{LATE}arms:\n  early: {{train.stop.patience: 1}}\n  never: {{train.stop.patience: 1, train.stop.min_delta: 0}}\n"
)
EARLY = BASE % f"{TRAIN}, {STOP % 1}"


class Steps(Callback):
    """Records the steps of dispatches, and which runs stop."""

    def __init__(self):
        self.last, self.stopped = 0, []

    def on_steps(self, step, loss):
        self.last = max(self.last, step)

    def on_stop(self, step, runs, left):
        self.stopped.append((step, sorted((run.arm, run.seed) for run in runs), left))


def runs_of(folder, arm) -> dict[int, RunFolder]:
    return {run.seed: run for run in folder.runs() if run.arm == arm}


def assert_same_run(ours: RunFolder, theirs: RunFolder, logs=True):
    """Check that two runs have the same result, curves, texts and models, bit by bit."""
    results = [dict(run.result()) for run in (ours, theirs)]
    for result in results:
        result.pop("pack"), result.pop("environment")
        if not logs:
            result.pop("metrics"), result.pop("val_sample")
    assert results[0] == results[1]
    assert ours.read_model() == theirs.read_model()
    curves, others = ours.metrics(), theirs.metrics()
    assert curves.keys() == others.keys()
    for name in curves if logs else (name for name in curves if name.startswith("selection/")):
        np.testing.assert_array_equal(curves[name].step, others[name].step, err_msg=name)
        np.testing.assert_array_equal(curves[name].value, others[name].value, err_msg=name)
    if logs:
        assert ours.samples() == theirs.samples()
        for name, sums in ours.evaluation().items():
            np.testing.assert_array_equal(sums, theirs.evaluation()[name], err_msg=name)


@pytest.fixture(scope="module")
def early(tmp_path_factory):
    """Return the outcome, the folder and the events of `EARLY`, whose runs all stop after step 8."""
    root, seen = tmp_path_factory.mktemp("early"), Steps()
    (root / "study.yaml").write_text(EARLY)
    loaded = load_study(root / "study.yaml")
    folder = StudyFolder(open_store(root / "root"), loaded.name)
    return run_study(loaded, folder, seen), folder, seen


@pytest.mark.slow
def test_the_end_of_the_last_run_ends_the_pack(early):
    outcome, folder, seen = early
    assert seen.stopped == [(8, [("baseline", 0), ("baseline", 1)], 16)]
    assert seen.last == 8
    for run in folder.runs():
        result, curves = run.result(), run.metrics()
        assert (result["outcome"], result["steps"], result["stopped_at"]) == ("stopped", 8, 8)
        assert max(int(series.step[-1]) for series in curves.values()) == 8
        assert result["tokens"] == 8 * 4 * 8
        assert curves["train/loss"].step.tolist() == [5, 6, 8]  # windows of 5 steps, evaluated after 6
        assert "val/loss" in result["metrics"]
        losses = curves["selection/evaluate"]
        best = int(np.argmin(losses.value))
        assert result["selection"]["evaluate"] == {"step": int(losses.step[best]), "loss": float(losses.value[best])}
    assert verify(folder) == []
    (arm,) = outcome.results["arms"]
    assert {run["outcome"] for run in arm["runs"]} == {"stopped"}
    assert arm["mean"] == np.mean([run["value"] for run in arm["runs"]])
    page = Path(outcome.report["markdown"]).read_text()
    table = page.partition("Stopping and chosen models")[2].partition("\n## ")[0]
    for choice in arm["choices"]:
        row = next(line for line in table.splitlines() if line.startswith(f"| baseline | {choice['seed']} |"))
        assert f"step {choice['steps']} |" in row
        assert f"step {choice['chosen']} |" in row


@pytest.mark.slow
def test_forged_choices_are_detected(early, tmp_path, monkeypatch):
    shutil.copytree(early[1].where, tmp_path / "tiny")
    unsealed(tmp_path / "tiny", monkeypatch)
    folder = StudyFolder(open_store(tmp_path), "tiny")
    run, plan = folder.runs()[0], folder.read_study()["plan"]
    file, whole = Path(run.where) / "result.json", run.result()
    chosen = whole["selection"]
    forgeries = {
        "stopped_at": {**whole, "stopped_at": 4},
        "steps": {**whole, "outcome": "finished", "stopped_at": None},
        "factor": {**whole, "selection": {**chosen, "schedule": {"loss": 1.0, "factor": 0.25}}},
        "step 6": {**whole, "selection": {**chosen, "evaluate": {"loss": 0.0, "step": 6}}},
    }
    assert [*find_contradictions(run, plan)] == []
    for what, forged in forgeries.items():
        file.write_text(json.dumps(forged))
        assert any(what in line for line in find_contradictions(run, plan)), what


@pytest.mark.slow
def test_a_stopped_run_stores_what_it_stores_alone_and_its_pack_trains_on(study):
    seen, texts = Steps(), ("sample: none", "sample: {tokens: 3}")
    outcome, folder = study(STUDY.replace(*texts), callback=seen)
    _, other = study(EARLY.replace(*texts), root="alone")
    assert seen.stopped[0][:2] == (8, [("early", 0), ("early", 1)])
    assert seen.last >= 20
    for seed, run in runs_of(folder, "early").items():
        assert_same_run(run, runs_of(other, "baseline")[seed])
    assert verify(folder) == []
    arms = {arm["name"]: arm for arm in outcome.results["arms"]}
    assert [choice["stopped"] for choice in arms["early"]["choices"]] == [True, True]
    assert arms["early"]["verdict"]
    assert arms["baseline"]["flops"] == arms["early"]["flops"] * 20 / 8
    assert arms["early"]["efficiency"]["seeds"] == 2  # time to target


@pytest.mark.slow
@pytest.mark.parametrize("step", [7, *(pytest.param(n, marks=pytest.mark.nightly) for n in (3, 9, 17, 22))])
def test_resumed_study_stores_the_same_as_an_undisturbed_one(study, interrupting, step):
    """The study is interrupted before and after runs stop."""
    _, whole = study(STUDY, root="whole")
    with pytest.raises(KeyboardInterrupt):
        study(STUDY, callback=interrupting("on_steps", step))
    _, folder = study(STUDY)
    assert stored(folder) == stored(whole)


@pytest.mark.slow
def test_pack_that_was_killed_after_its_last_run_stopped_is_finished(study):
    class Killed(Callback):
        def on_save(self, step):
            if step == 8:
                raise KeyboardInterrupt

    _, whole = study(EARLY, root="whole")
    with pytest.raises(KeyboardInterrupt):
        study(EARLY, callback=Killed())
    again = Steps()
    _, folder = study(EARLY, callback=again)
    assert again.last == 0  # no step is taken again
    assert stored(folder) == stored(whole)


@pytest.mark.slow
def test_choices_do_not_depend_on_how_runs_are_evaluated(study):
    _, folder = study(STUDY)
    changed = STUDY.replace(
        "eval_every: 6, checkpoint: 6, log_every: 5", "eval_every: 9, eval_windows: 2, log_every: 1"
    )
    _, other = study(changed, root="other")
    for arm in ("baseline", "early", "never"):
        for seed, run in runs_of(folder, arm).items():
            assert run.id == runs_of(other, arm)[seed].id
            assert_same_run(run, runs_of(other, arm)[seed], logs=False)

"""`verify`: every number again from the raw logs, and whatever was changed is found."""

import json
from pathlib import Path

import numpy as np
import pytest

from taetpu.core.errors import UserError
from taetpu.core.identity import identity
from taetpu.stats.analyse import analyse
from taetpu.stats.verify import verify
from taetpu.store.runs import RunFolder
from taetpu.store.study import StudyFolder


ROPE = {"kind": "rope", "base": 1e4}


def recorded(stored: StudyFolder, made: RunFolder) -> RunFolder:
    """A made-up run with a config that fits its arm, under the identity that goes with it."""
    position = ROPE if made.arm == "baseline" else {"kind": "none"}
    model = {"dim": 64, "bias": False, "position": ROPE, "layers": [{"position": position}]}
    config = {"task": {"kind": "copy"}, "model": model, "train": {"steps": 10, "loss_bound": 100.0, "log_every": 5}}
    number = identity(config, made.seed, "data", [])
    run = stored.run(made.arm, made.seed, number)
    about = {"arm": made.arm, "seed": made.seed, "id": number}
    run.take_over(made, {**about, "config": config, "data": "data", "plugins": []})
    stored.store.delete(made.key)
    return run


@pytest.fixture
def folder(store_study, table, draw) -> StudyFolder:
    """An analysed study, each run with curves and sums over its evaluation set."""
    y = 3 + 0.1 * draw(np.random.default_rng(0), 3, 4)
    stored = store_study(table(y))
    for made in stored.runs():
        run = recorded(stored, made)
        value = run.result()["metrics"]["val/loss"]
        run.append(0, 10, {"val/loss": ([5, 10], [9.0, value]), "train/loss": ([5, 10], [2.0, 1.0])})
        run.write_evaluation({"val/nll": np.full(7, value * 4), "val/weight": np.full(7, 4.0)})
    analyse(stored)
    return stored


def change(file: Path, edit) -> None:
    data = json.loads(file.read_text())
    edit(data)
    file.write_text(json.dumps(data))


def test_what_was_not_touched_is_verified(folder) -> None:
    assert verify(folder) == []


@pytest.mark.parametrize(
    ("edit", "where"),
    [
        (lambda d: d["arms"][1].update(effect=0.0), "arms[arm1].effect"),
        (lambda d: d["arms"][2]["ci95"].__setitem__(0, 0.0), "arms[arm2].ci95[0]"),
        (lambda d: d["arms"][2].update(verdict="better"), "arms[arm2].verdict"),
        (lambda d: d["arms"][0]["runs"][3].update(value=1.0), "arms[baseline].runs[3].value"),
        (lambda d: d["noise_floor"].update(sd=1e-9), "noise_floor.sd"),
        (lambda d: d["plan"].update(equivalence=1.0), "plan.equivalence"),
        (lambda d: d["arms"].pop(), "arms is"),
        (lambda d: d.pop("label"), "label is missing"),
        (lambda d: d.update(more=1), "more is not computed from the runs"),
    ],
)
def test_a_changed_number_in_the_results(folder, edit, where: str) -> None:
    change(Path(folder.where, "results.json"), edit)
    assert [problem for problem in verify(folder) if problem.startswith(f"results.json: {where}")]


def test_no_results(folder) -> None:
    Path(folder.where, "results.json").unlink()
    assert verify(folder) == ["results.json is missing"]


def test_a_changed_number_in_a_runs_result(folder) -> None:
    run = folder.runs()[0]
    change(Path(run.where, "result.json"), lambda d: d["metrics"].update({"val/loss": 2.5}))
    problems = verify(folder)
    told = [problem for problem in problems if problem.startswith(f"{run.where}: val/loss is 2.5 in the result, and ")]
    assert [problem.rpartition(" ")[2] for problem in told] == ["set", "log"]  # over the evaluation set, in the log
    assert any(problem.startswith("results.json: arms[arm1].effect") for problem in problems)
    analyse(folder)  # the results that go with the changed run do not hide it
    assert [problem for problem in verify(folder) if problem.startswith(run.where)]


def test_a_result_of_another_step_than_the_logs(folder) -> None:
    run = folder.runs()[0]
    change(Path(run.where, "result.json"), lambda d: d.update(steps=12))
    assert f"{run.where}: the result is of step 12, and the log ends at step 10" in verify(folder)


def test_a_metric_that_was_never_logged(folder) -> None:
    run = folder.runs()[0]
    change(Path(run.where, "result.json"), lambda d: d["metrics"].update({"val/f1": 0.5}))
    assert f"{run.where}: val/f1 is in the result and was never logged" in verify(folder)


def test_changed_sums_over_the_evaluation_set(folder) -> None:
    run = folder.runs()[0]
    run.write_evaluation({"val/nll": np.full(7, 3.0), "val/weight": np.full(7, 4.0)})
    assert any(problem.endswith("0.75 over the evaluation set") for problem in verify(folder))


def test_a_damaged_segment_is_refused(folder) -> None:
    segment = Path(folder.runs()[0].where, "metrics", "0-10.json")
    segment.write_bytes(segment.read_bytes().replace(b"9.0", b"8.0"))
    with pytest.raises(UserError, match="this segment of metrics is damaged"):
        verify(folder)


def test_a_changed_plan_is_refused(folder) -> None:
    study = Path(folder.where, "study.yaml")
    study.write_text(study.read_text().replace("direction: min", "direction: max"))
    with pytest.raises(UserError, match="the analysis plan is not the one that was frozen"):
        verify(folder)

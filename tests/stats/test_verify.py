"""`verify` recomputes every number from the raw logs and finds all changes."""

import json
import re
import shutil
from pathlib import Path

import numpy as np
import pytest
from tests.forged import accept_unsealed, unsealed
from tests.stats.conftest import made_study

from taetpu.core.errors import UserError
from taetpu.core.identity import SCHEMA, identity
from taetpu.stats.analyse import analyse
from taetpu.stats.verify import EARLIER_WORDING, find_differences, verify
from taetpu.store.backend import open_store
from taetpu.store.runs import RunFolder
from taetpu.store.study import StudyFolder

ROPE = {"kind": "rope", "base": 1e4}


def recorded(stored: StudyFolder, made: RunFolder) -> RunFolder:
    """Replace a made-up run by one with a config of its arm and the matching identity."""
    position = ROPE if made.arm == "baseline" else {"kind": "none"}
    model = {"dim": 64, "bias": False, "position": ROPE, "layers": [{"position": position}]}
    config = {"task": {"kind": "copy"}, "model": model, "train": {"steps": 10, "loss_bound": 100.0, "log_every": 5}}
    number = identity(config, made.seed, "data", [])
    run = stored.run(made.arm, made.seed, number)
    about = {"schema": SCHEMA, "arm": made.arm, "seed": made.seed, "id": number}
    run.start({**about, "config": config, "data": "data", "defaults": {}, "plugins": []})
    run.finish(made.result() or {})
    stored.store.delete(made.key)
    return run


@pytest.fixture(scope="module")
def template(tmp_path_factory) -> Path:
    """Store and analyse a study whose runs have curves and sums over their evaluation set."""
    y = 3 + 0.1 * np.random.default_rng(0).normal(size=(3, 4))
    values = {arm: dict(enumerate(row)) for arm, row in zip(("baseline", "arm1", "arm2"), y.tolist(), strict=True)}
    stored = made_study(tmp_path_factory.mktemp("verify"), values)
    for made in stored.runs():
        run = recorded(stored, made)
        value = run.result()["metrics"]["val/loss"]
        run.append(0, 10, {"val/loss": ([5, 10], [9.0, value]), "train/loss": ([5, 10], [2.0, 1.0])})
        run.write_evaluation({"val/nll": np.full(7, value * 4), "val/weight": np.full(7, 4.0)})
    with pytest.MonkeyPatch.context() as patch:
        unsealed(Path(stored.where), patch)
        analyse(stored)
    return Path(stored.where)


@pytest.fixture
def folder(template, tmp_path: Path, monkeypatch) -> StudyFolder:
    """Return a copy of the stored study."""
    accept_unsealed(monkeypatch)
    shutil.copytree(template, tmp_path / template.name)
    return StudyFolder(open_store(tmp_path), template.name)


def change(file: Path, edit) -> None:
    data = json.loads(file.read_text())
    edit(data)
    file.write_text(json.dumps(data))


def test_unchanged_study_is_verified(folder) -> None:
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
        (lambda d: d.update(more=1), "more is stored"),
    ],
)
def test_changed_results_are_found(folder, edit, where: str) -> None:
    change(Path(folder.where, "results.json"), edit)
    assert [problem for problem in verify(folder) if problem.startswith(f"results.json: {where}")]


def test_missing_results_are_found(folder) -> None:
    Path(folder.where, "results.json").unlink()
    assert verify(folder) == ["results.json is missing"]


def test_changed_metric_of_a_run_is_found(folder) -> None:
    run = folder.runs()[0]
    change(Path(run.where, "result.json"), lambda d: d["metrics"].update({"val/loss": 2.5}))
    problems = verify(folder)
    told = [problem for problem in problems if problem.startswith(f"{run.where}: val/loss is 2.5 in the result, but ")]
    assert [problem.rpartition(" ")[2] for problem in told] == [
        "set",
        "log",
    ]  # one over the evaluation set, one in the log
    assert any(problem.startswith("results.json: arms[arm1].effect") for problem in problems)
    analyse(folder)  # also after an analysis of the changed run
    assert [problem for problem in verify(folder) if problem.startswith(run.where)]


def test_contradictions_between_result_log_and_evaluation_are_found(folder) -> None:
    run = folder.runs()[0]
    change(Path(run.where, "result.json"), lambda d: (d.update(steps=12), d["metrics"].update({"val/f1": 0.5})))
    run.write_evaluation({"val/nll": np.full(7, 3.0), "val/weight": np.full(7, 4.0)})
    found = verify(folder)
    assert any(re.match(rf"{run.where}: .* 12 steps, .* step 10$", problem) for problem in found)
    assert any(problem.startswith(f"{run.where}: val/f1 is in") for problem in found)
    assert any(re.search(r"\b0\.75 .*evaluation set$", problem) for problem in found)


def test_damaged_metrics_segment_is_refused(folder) -> None:
    segment = Path(folder.runs()[0].where, "metrics", "0-10.json")
    segment.write_bytes(segment.read_bytes().replace(b"9.0", b"8.0"))
    with pytest.raises(UserError, match="segment is damaged"):
        verify(folder)


def test_changed_plan_is_refused(folder) -> None:
    study = Path(folder.where, "study.yaml")
    study.write_text(study.read_text().replace("direction: min", "direction: max"))
    with pytest.raises(UserError, match="plan differs from"):
        verify(folder)


def test_rounding_differences_are_accepted(folder) -> None:
    def edit(results) -> None:
        arm, digits = results["arms"][1], re.compile(r"\d\.\d+")
        more = digits.sub(lambda figure: f"{float(figure[0]) + 1e-9:.9f}", arm["evidence"])
        arm.update(effect=arm["effect"] * (1 + 1e-13), evidence=more)

    change(Path(folder.where, "results.json"), edit)
    assert verify(folder) == []


@pytest.mark.parametrize(("earlier", "current"), EARLIER_WORDING.items())
def test_sentences_of_earlier_versions_are_accepted(earlier: str, current: str) -> None:
    assert not [*find_differences([f"{earlier} 0.5"], [f"{current} 0.5"], "limits")]
    assert [*find_differences([f"{earlier} 0.6"], [f"{current} 0.5"], "limits")]


def test_changed_number_in_a_sentence_is_found(folder) -> None:
    def edit(results) -> None:
        arm = results["arms"][1]
        arm["evidence"] = re.sub(r"\d\.\d+", lambda figure: f"{float(figure[0]) + 0.01:.3f}", arm["evidence"], count=1)

    change(Path(folder.where, "results.json"), edit)
    assert [problem for problem in verify(folder) if problem.startswith("results.json: arms[arm1].evidence")]


# --- runs and arms ---------------------------------------------------------------------------------------------------


def test_swapped_run_folders_are_found(folder) -> None:
    one, other = (next(run for run in folder.runs() if run.arm == arm) for arm in ("baseline", "arm1"))
    a, b = Path(one.where), Path(other.where)
    for old, new in ((a, b.parent / a.name), (b, a.parent / b.name)):
        old.rename(new)
    with pytest.raises(UserError) as caught:
        analyse(folder)
    damage = next(line for line in caught.value.problem.splitlines() if "records arm 'arm1'" in line).strip()
    assert re.match(rf"{a.parent / b.name}: config\.json .*'baseline'$", damage)
    found = verify(folder)
    assert damage in found
    for arm in ("baseline", "arm1"):  # with matching changes of their records
        for file in Path(folder.where, "runs", arm).glob("*/config.json"):
            change(file, lambda d, arm=arm: d.update(arm=arm))
    analyse(folder)
    found = verify(folder)
    assert len(found) == 2
    found.sort(key=lambda problem: "arm 'arm1'" in problem)
    assert found[1].endswith("model.position is 'rope', but arm 'arm1' has 'none' in study.yaml")
    assert found[0].endswith("runs of arm 'baseline'")


def test_sections_that_the_arm_does_not_change_must_equal_the_baselines(folder, wording) -> None:
    for run in [run for run in folder.runs() if run.arm == "arm1"]:
        about = run.config()
        about["config"]["train"]["loss_bound"] = 50.0
        about["id"] = identity(about["config"], run.seed, "data", [])
        folder.run(run.arm, run.seed, about["id"]).copy_from(run, about)
        folder.store.delete(run.key)
    analyse(folder)
    (problem,) = {problem.partition(": ")[2] for problem in verify(folder)}
    wording(problem)


@pytest.mark.parametrize(
    "edit",
    [
        lambda d: d["config"]["train"].update(loss_bound=9.0),
        lambda d: d.update(plugins=["more"]),
        lambda d: d.update(data="other"),
        lambda d: d.pop("data"),
        lambda d: d.pop("config"),
        lambda d: d.update(seed=7),
        lambda d: d.update(id="0" * 16),
    ],
    ids=["config", "plugins", "data", "no data", "no config", "seed", "ID"],
)
def test_changed_record_of_a_run_is_found(folder, edit, wording) -> None:
    run = folder.runs()[0]
    change(Path(run.where, "config.json"), edit)
    (problem,) = verify(folder)
    wording(problem.replace(run.where.rpartition("-")[2], "ID"))


def test_settings_outside_the_identity_may_differ(folder) -> None:
    change(Path(folder.runs()[0].where, "config.json"), lambda d: d["config"]["train"].update(log_every=1))
    assert verify(folder) == []


def test_overrides_that_differ_from_the_config_are_found(folder) -> None:
    frozen(folder, lambda study: study["arms"]["arm1"].update({"model.position": "alibi", "model.bias": True}))
    analyse(folder)
    told = {problem.partition(": ")[2] for problem in verify(folder)}
    assert told == {
        "model.position is 'none', but arm 'arm1' has 'alibi' in study.yaml",
        "model.bias is False, but arm 'arm1' has True in study.yaml",
    }


def test_edited_baseline_is_found(folder) -> None:
    frozen(folder, lambda study: study["base"]["model"].update(dim=32))
    found = [problem for problem in verify(folder) if "/runs/" in problem]
    assert len(found) == 4
    assert all(problem.endswith("model.dim is 64, but arm 'baseline' has 32 in study.yaml") for problem in found)


# --- the plan --------------------------------------------------------------------------------------------------------


def frozen(folder: StudyFolder, edit) -> None:
    """Edit `study.yaml`."""
    study = folder.read_study()
    edit(study)
    folder.write_study(study, replace=True)


@pytest.mark.parametrize(
    "edit",
    [
        lambda study: study.update(seeds=[1, 2, 3]),
        lambda study: study.update(seeds=[1, 2, 3, 7]),
        lambda study: study.update(seeds=[0, 1, 2, 3, 3]),
        lambda study: study["arms"].pop("arm2"),
        lambda study: study["measure"].update(alpha=0.2),
        lambda study: study["measure"].update(equivalence=1.0),
        lambda study: study["measure"].update(primary="val/accuracy"),
        lambda study: study["measure"].update(looks=[2, 4]),
    ],
    ids=["fewer seeds", "another seed", "doubled seed", "arm", "alpha", "equivalence", "primary", "looks"],
)
def test_departures_from_the_plan_are_found(folder, edit, wording) -> None:
    frozen(folder, edit)
    told = analyse(folder)["departures"]
    wording("\n".join(told))
    assert verify(folder)[: len(told)] == [f"{folder.where}/study.yaml: {line}" for line in told]


def test_additional_seeds_increase_the_error_rate(folder) -> None:
    frozen(folder, lambda study: study.update(seeds=[0, 1, 2, 3, 4]))
    results = analyse(folder)
    assert (results["departures"], verify(folder)) == ([], [])
    assert results["plan"]["error_rate"] > 0.05


def test_runs_outside_the_study_are_found(folder) -> None:
    frozen(folder, lambda study: (study.update(seeds=[0, 1, 2]), study["arms"].pop("arm2")))
    analyse(folder)
    problems = verify(folder)[2:]
    assert len(problems) == 6
    assert problems[0].startswith(folder.runs()[3].where)
    assert "seed 3" in problems[0]
    assert "[0, 1, 2]" in problems[0]
    assert "arm 'arm2' is not in study.yaml" in problems[1]


# --- results and logs ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("edit", "problem"),
    [
        ({"outcome": "diverged"}, "the outcome is 'diverged', but every"),
        (
            {"outcome": "diverged", "diverged_at": 7},
            "the outcome is 'diverged' at step 7, but train/loss is 1.0 in the log",
        ),
        ({"diverged_at": 7}, "the outcome is 'finished', but `diverged_at` is 7"),
        ({"params": 999}, "params is 999 in the result, but 1000 "),
        ({"tokens": 301}, "tokens is 301 in the result, but 300 "),
        ({"flops": 1}, "flops is 1 in the result, but 2000000 "),
    ],
)
def test_results_that_contradict_the_log_or_other_runs_are_found(folder, edit, problem: str) -> None:
    run = folder.runs()[-1]
    change(Path(run.where, "result.json"), lambda d: d.update(edit))
    analyse(folder)
    assert len(found := verify(folder)) == 1
    assert found[0].startswith(f"{run.where}: {problem}")


@pytest.mark.parametrize("loss", [np.nan, 51.0])  # the mean of five losses, of which one is above 100
def test_diverged_run_is_verified(folder, loss) -> None:
    run = folder.runs()[-1]
    last = run.metrics()["val/loss"].value[-1]
    folder.store.delete(f"{run.key}/metrics")
    run.append(0, 10, {"val/loss": ([5, 10], [9.0, last]), "train/loss": ([5, 10], [2.0, loss])})
    edit = {"outcome": "diverged", "diverged_at": 7}
    change(Path(run.where, "result.json"),
           lambda d: (d.update(edit), d["metrics"].update({"train/loss": None if loss != loss else loss})))  # fmt: skip
    analyse(folder)
    assert verify(folder) == []


def test_costs_that_differ_from_the_log_are_found(folder) -> None:
    for run in folder.runs():
        last = run.metrics()["val/loss"].value[-1]
        folder.store.delete(f"{run.key}/metrics")
        run.append(0, 10, {"val/loss": ([10], [last]), "train/loss": ([10], [1.0]), "tokens": ([10], [900.0])})
    assert f"{folder.runs()[0].where}: tokens is 300 in the result, but 900.0 in the log" in verify(folder)


def test_missing_metrics_segment_is_refused(folder) -> None:
    run = folder.runs()[0]
    run.append(15, 20, {"val/loss": ([20], [1.0])})
    with pytest.raises(UserError, match=r"from step 10 to 15 .*missing"):
        verify(folder)


# --- damage ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("part", ["plan", "seeds", "arms", "base", "study"])
def test_study_without_a_part_is_refused(folder, part: str) -> None:
    frozen(folder, lambda study: study.pop(part))
    with pytest.raises(UserError, match=rf"has no {part}\b") as error:
        verify(folder)
    assert error.value.file == f"{folder.where}/study.yaml"
    assert error.value.remedy


@pytest.mark.parametrize(
    "text",
    [
        "[]",
        "{}",
        '{"outcome": "finished", "steps": 10}',
        '{"outcome": "finished", "metrics": {}}',
        '{"outcome": "finished", "steps": 10, "metrics": {"val/loss": "2"}}',
    ],
)
def test_invalid_result_is_refused(folder, text: str, wording) -> None:
    file = Path(folder.runs()[0].where, "result.json")
    file.write_text(text)
    with pytest.raises(UserError) as error:
        analyse(folder)
    wording(error.value.problem.replace(file.parent.name.rpartition("-")[2], "ID"))
    assert str(file) in str(error.value)
    assert "from a copy" in str(error.value.remedy)

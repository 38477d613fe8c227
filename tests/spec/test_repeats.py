"""Arms on several tasks and under several settings: names, baselines, plans and mistakes in the study file."""

import pytest

from taetpu.core.errors import UserError
from taetpu.spec.loading import load_study
from taetpu.spec.suites import MAD
from taetpu.study.freeze import analysis_plan

COPY = {"kind": "copy", "seq_len": 32, "symbols": 8, "min_length": 4, "max_length": 12}
SORT = {"task": {"kind": "sort", "seq_len": 16, "symbols": 8}}
MODEL = {"dim": 16, "num_layers": 1, "mixer": {"kind": "attention", "num_heads": 2}}
TRAIN = {"steps": 3, "batch_size": 4, "optimizer": {"kind": "adamw", "lr": 1e-3}}
ARMS = {"wide": {"model.dim": 24}, "gate": {"model.ffn": "relu"}}


def load(base=None, **parts):
    base = {"task": COPY, "model": MODEL, "train": TRAIN} if base is None else base
    return load_study({"study": "s", "base": base, "arms": ARMS, **parts})


def test_every_arm_is_on_every_task_and_compared_with_its_baseline():
    study = load(tasks={"copy": {}, "sort": {**SORT, "train.steps": 5}})
    against = {arm.name: arm.role.get("against", "baseline") for arm in study.arms}
    at = dict.fromkeys(["baseline@sort", "wide@sort", "gate@sort"], "baseline@sort")
    assert against == {**dict.fromkeys(["baseline", "wide", "gate"], "baseline"), **at}
    assert [arm.config.train.steps for arm in study.arms] == [3, 3, 3, 5, 5, 5]
    assert study.design["tasks"] == {"rungs": ["copy", "sort"], "own": "copy"}


def test_first_task_is_the_baselines_if_it_has_none():
    study = load({"model": MODEL, "train": TRAIN}, tasks={"sort": SORT, "copy": {"task": COPY}})
    assert study.arms[0].config.task.kind == "sort"
    assert study.design["tasks"]["own"] == "sort"


def test_plan_has_the_metric_margin_and_scale_of_each_task():
    measure = {"primary": "val/accuracy", "equivalence": 0.1, "chance": 0.2}
    study = load(tasks={"copy": {}, "sort": {**SORT, "measure": measure}}, measure={"equivalence": 0.05})
    tasks = analysis_plan(study).tasks
    assert (tasks["copy"]["primary"], tasks["copy"]["direction"], tasks["copy"]["equivalence"]) == (
        "val/loss", "min", 0.05,
    )  # fmt: skip
    assert (tasks["sort"]["primary"], tasks["sort"]["direction"], tasks["sort"]["equivalence"]) == (
        "val/accuracy", "max", 0.1,
    )  # fmt: skip
    assert (tasks["sort"]["chance"], tasks["sort"]["best"]) == (0.2, 1.0)
    assert tasks["copy"]["chance"] == pytest.approx(study.source(study.arms[0]).facts["chance_loss"])


def test_measure_of_the_baselines_task_is_that_of_the_study():
    study = load(tasks={"copy": {"measure": {"primary": "val/accuracy", "equivalence": 0.1}}, "sort": SORT})
    plan = analysis_plan(study)
    assert (plan.primary, plan.direction, plan.equivalence) == ("val/accuracy", "max", 0.1)
    assert plan.tasks["sort"]["equivalence"] is None


def test_mad_has_six_tasks_and_its_score_is_the_mean_accuracy():
    study = load({"model": MODEL, "train": TRAIN}, tasks="mad")
    assert study.design["tasks"]["rungs"] == [f"mad-{name}" for name in MAD]
    assert (study.pool, {task.primary for task in study.tasks.values()}) == ("mean", {"val/accuracy"})
    assert {(task.chance, task.best) for task in study.tasks.values()} == {(0.0, 1.0)}


def test_one_setting_changes_at_a_time():
    across = {
        "model.init": ["scaled-fan-in", "fan-in"],
        "train.optimizer.lr": [1e-3, 3e-3],
        "deep": {"model.num_layers": 2},
    }
    base = {"task": COPY, "model": {**MODEL, "init": "scaled-fan-in"}, "train": TRAIN}
    study = load(base, across=across)
    bases = {arm.name: arm.overrides for arm in study.arms if arm.role.get("ladder", {}).get("arm") == "baseline"}
    assert bases == {
        "baseline@init=fan-in": {"model.init": "fan-in"},
        "baseline@lr=0.003": {"train.optimizer.lr": 3e-3},
        "baseline@deep": {"model.num_layers": 2},
    }
    assert analysis_plan(study).across == {"init": ["init=fan-in"], "lr": ["lr=0.003"], "deep": ["deep"]}
    assert len(study.arms) == 4 * 3


def test_study_without_repetitions_has_an_unchanged_plan():
    assert not {"tasks", "pool", "across"} & {*analysis_plan(load()).frozen()}


@pytest.mark.parametrize(
    ("parts", "path", "remedy"),
    [
        ({"tasks": "made"}, ("tasks",), "mad"),
        ({"tasks": 3}, ("tasks",), "mad"),
        ({"tasks": {"sort": SORT}}, ("tasks",), "base.task"),
        ({"tasks": {"copy": {}, "again": None, "sort": SORT}}, ("tasks", "again"), "Remove"),
        ({"tasks": {"copy": {}, "sort": SORT, "pool": "median"}}, ("tasks", "pool"), "iqm"),
        ({"tasks": {"copy": {}, "sort": SORT}, "ladder": {"model.dim": [16, 32]}}, ("tasks",), "tasks"),
        ({"tasks": {"copy": {}, "sort": {**SORT, "model.dim": 32}}}, ("arms", "wide", "model.dim"), "tasks"),
        ({"tasks": {"copy": {}, "sort": {**SORT, "measure": {"direction": "max"}}}}, ("tasks", "sort"), "min"),
        (
            {"tasks": {"copy": {}, "sort": {**SORT, "measure": {"primary": "val/bleu"}}}},
            ("tasks", "sort", "measure", "primary"),
            "val/loss",
        ),
        ({"tasks": {"copy": {}, "sort": SORT}, "tune": {"train.optimizer.lr": [1e-3, 3e-3]}}, ("tune",), "study"),
        ({"across": {"train.optimizer.lr": [2e-3, 3e-3]}}, ("across", "train.optimizer.lr"), "baseline"),
    ],
)
def test_mistakes_are_located(parts, path, remedy):
    with pytest.raises(UserError) as caught:
        load(**parts)
    assert caught.value.path[: len(path)] == path
    assert remedy in caught.value.remedy

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


def test_tasks_without_arms_are_refused():
    with pytest.raises(UserError) as caught:
        load(tasks={"copy": {}, "sort": SORT}, arms={})
    assert caught.value.path == ("tasks",)
    assert caught.value.remedy


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


@pytest.mark.parametrize(
    ("measure", "field"),
    [
        ({"primary": "val/accuracy", "chance": 0.9, "best": 0.5}, "best"),
        ({"primary": "val/accuracy", "chance": 0.5, "best": 0.5}, "best"),
        ({"primary": "val/accuracy", "chance": 1.5}, "chance"),
        ({"primary": "val/loss", "chance": 1.0, "best": 2.0}, "best"),
    ],
)
def test_the_best_value_is_better_than_chance(measure, field):
    study = load(tasks={"copy": {}, "sort": {**SORT, "measure": measure}})
    with pytest.raises(UserError) as caught:
        analysis_plan(study)
    assert caught.value.path == ("tasks", "sort", "measure", field)
    assert f"{measure['chance']:g}" in caught.value.problem


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


def test_sizes_of_a_suite_change_for_all_tasks_or_for_one():
    entries = {
        "suite": "mad",
        "task.seq_len": 32,
        "mad-selective-copy": {"task.copied": 4, "train.steps": 5, "measure": {"equivalence": 0.1}},
        "mad-recall": {"task.seq_len": 16},
        "copy": {"task": COPY, "measure": {"primary": "val/accuracy"}},
        "pool": "iqm",
    }
    study = load({"model": MODEL, "train": TRAIN}, tasks=entries)
    configs = {arm.role["ladder"]["rung"]: arm.config for arm in study.arms if arm.name.startswith("gate")}
    sizes = {name: config.task.seq_len for name, config in configs.items()}
    assert sizes == {"mad-recall": 16, **{f"mad-{name}": 32 for name in MAD[1:]}, "copy": 32}
    assert study.arms[0].config.task.seq_len == 16
    selective = configs["mad-selective-copy"]
    assert (selective.task.copied, selective.train.steps) == (4, 5)
    assert (study.pool, study.tasks["mad-selective-copy"].equivalence) == ("iqm", 0.1)
    assert study.tasks["mad-selective-copy"].best == 1.0


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


@pytest.mark.parametrize(
    ("path", "levels", "value"),
    [
        ("model.init", ["gpt2-scaled", "fan-in"], "scaled-fan-in"),  # a default
        ("train.optimizer.lr", [2e-3, 3e-3], "0.001"),
    ],
)
def test_levels_without_the_baselines_value_are_refused_with_it(path, levels, value):
    with pytest.raises(UserError) as caught:
        load(across={path: levels})
    assert caught.value.path == ("across", path)
    assert f"value {value} " in caught.value.problem


def test_study_without_repetitions_has_an_unchanged_plan():
    assert not {"tasks", "pool", "across"} & {*analysis_plan(load()).frozen()}


@pytest.mark.parametrize(
    ("parts", "path", "remedy"),
    [
        ({"tasks": "made"}, ("tasks",), "mad"),
        ({"tasks": 3}, ("tasks",), "mad"),
        ({"tasks": {"suite": "made"}}, ("tasks", "suite"), "mad"),
        ({"tasks": {"suite": "mad", "train.steps": 7}}, ("tasks", "train.steps"), "base"),
        ({"tasks": {"suite": ["mad"]}}, ("tasks", "suite"), "mad"),
        (
            {"tasks": {"suite": "mad", "mad-recall": {"measure": "val/loss"}}},
            ("tasks", "mad-recall", "measure"),
            "best",
        ),
        ({"tasks": {"suite": "mad", "mad-recall": {3: 4}}}, ("tasks", "mad-recall", 3), "path"),
        ({"tasks": {"copy": {}, "sort": 3}}, ("tasks", "sort"), "task"),
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
        (
            {"tasks": {"copy": {}, "sort": {**SORT, "measure": {"primary": "val_sample/loss"}}}},
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

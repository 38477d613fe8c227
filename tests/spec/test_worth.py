"""`measure.worth` and `ladder.chinchilla`: sizes of the rungs, what is frozen, and mistakes in the study file."""

import pytest

from taetpu.core.errors import UserError
from taetpu.spec.chinchilla import count_parameters
from taetpu.spec.loading import load_study
from taetpu.study.freeze import analysis_plan
from taetpu.study.matching import num_arm_params

TASK = {"kind": "copy", "seq_len": 16, "symbols": 5, "min_length": 2, "max_length": 6}
MODEL = {"dim": 16, "num_layers": 2, "mixer": {"kind": "attention", "num_heads": 2}}
TRAIN = {"batch_size": 4, "optimizer": {"kind": "adamw", "lr": 4e-3}}
ARMS = {"gate": {"model.ffn": "relu"}}
SIZES = {"chinchilla": [0.5, 1, 2], "dial": "depth"}
FOUR = {"model.dim": [8, 16, 24, 32]}


def load(ladder, model=MODEL, train=TRAIN, sets=(), **parts):
    base = {"task": TASK, "model": model, "train": train}
    return load_study({"study": "s", "base": base, "arms": ARMS, "ladder": ladder, **parts}, sets)


def sizes(study):
    return {arm.name: (arm.config.model.dim, len(arm.config.model.layers)) for arm in study.arms}


def tokens_per_parameter(study, name):
    arm = next(arm for arm in study.arms if arm.name == name)
    return arm.config.train.steps * 4 * study.source(arm).seq_len / num_arm_params(study, arm)


# --- ladder.chinchilla -----------------------------------------------------------------------------------------------


def test_depth_scales_layers_and_width_together():
    study = load(SIZES)
    assert {name: size for name, size in sizes(study).items() if "gate" not in name} == {
        "baseline": (16, 2), "baseline@0.5x": (8, 1), "baseline@2x": (32, 4),
    }  # fmt: skip
    assert study.design["ladder"] == {"rungs": ["0.5x", "1x", "2x"], "own": "1x"}
    against = {arm.name: arm.role["against"] for arm in study.arms if arm.name == "gate@2x"}
    assert against == {"gate@2x": "baseline@2x"}


def test_width_keeps_the_layers():
    assert sizes(load({**SIZES, "dial": "width"}))["baseline@2x"] == (32, 2)


@pytest.mark.parametrize("name", ["baseline", "baseline@0.5x", "baseline@2x"])
def test_without_steps_every_rung_has_20_tokens_per_parameter(name):
    assert tokens_per_parameter(load(SIZES), name) == pytest.approx(20, rel=0.02)


def test_with_steps_every_rung_has_the_baselines_tokens_per_parameter():
    study = load(SIZES, train={**TRAIN, "steps": 100})
    assert study.arms[0].config.train.steps == 100
    expected = tokens_per_parameter(study, "baseline")
    for name in ("baseline@0.5x", "baseline@2x"):
        assert tokens_per_parameter(study, name) == pytest.approx(expected, rel=0.02)
    assert load(SIZES, sets={"train.steps": 7}).arms[0].config.train.steps == 7


def test_arms_have_the_steps_of_their_baseline():
    study = load(SIZES)
    steps = {arm.name: arm.config.train.steps for arm in study.arms}
    assert steps["gate@2x"] == steps["baseline@2x"]


def test_parameters_are_counted_as_elsewhere():
    study = load(SIZES)
    for arm in study.arms:
        assert count_parameters(arm.config, study.source(arm)) == num_arm_params(study, arm)


def test_learning_rates_fall_with_the_root_of_the_width():
    study = load(SIZES, train={**TRAIN, "schedule": {"kind": "cosine", "min_lr": 4e-4}})
    rates = {arm.name: arm.config.train for arm in study.arms}
    assert rates["baseline"].optimizer.lr == 4e-3
    assert rates["baseline@2x"].optimizer.lr == pytest.approx(4e-3 / 2**0.5, rel=5e-3)
    assert rates["baseline@0.5x"].schedule.min_lr == pytest.approx(4e-4 * 2**0.5, rel=5e-3)


def test_learning_rates_stay_with_mup():
    study = load(SIZES, train={**TRAIN, "optimizer": {"kind": "adamw", "lr": 4e-3, "base_dim": 16}})
    assert {arm.config.train.optimizer.lr for arm in study.arms} == {4e-3}


def test_head_dim_and_hidden_scale():
    model = {**MODEL, "mixer": {**MODEL["mixer"], "head_dim": 8}, "ffn": {"kind": "relu", "hidden": 32}}
    study = load(SIZES, model, arms={"layer": {"model.norm": "layer"}})
    arm = next(arm for arm in study.arms if arm.name == "baseline@2x")
    layer = arm.config.model.layers[0]
    assert (layer.mixer.num_heads, layer.mixer.head_dim, layer.ffn.hidden) == (4, 8, 64)


def test_identities_are_those_of_a_ladder_that_is_written_out():
    study = load(SIZES)
    paths = ("model.dim", "model.num_layers", "train.optimizer.lr", "train.steps")
    rungs = [next(arm for arm in study.arms if arm.name == name).overrides for name in ("baseline@0.5x", "baseline@2x")]
    steps = study.arms[0].config.train.steps
    own = dict(zip(paths, (16, 2, 4e-3, steps), strict=True))
    written = load(
        {path: [rungs[0][path], own[path], rungs[1][path]] for path in paths}, train={**TRAIN, "steps": steps}
    )
    assert [run.id for run in written.runs()] == [run.id for run in study.runs()]


@pytest.mark.parametrize(
    ("ladder", "path", "says", "remedy"),
    [
        ({"chinchilla": [0.5, 1]}, ("ladder",), "dial", "depth"),
        ({"chinchilla": [0.5, 1], "dial": "heads"}, ("ladder", "dial"), "heads", "depth"),
        ({"dial": "width"}, ("ladder", "chinchilla"), "none", "[0.5, 1, 2]"),
        ({**SIZES, "chinchilla": 2}, ("ladder", "chinchilla"), "2", "[0.5, 1, 2]"),
        ({**SIZES, "chinchilla": [1, -2]}, ("ladder", "chinchilla", 1), "-2", "0.5"),
        ({**SIZES, "chinchilla": [1, "big"]}, ("ladder", "chinchilla", 1), "big", "0.5"),
        ({**SIZES, "chinchilla": [1, 1.3]}, ("ladder", "chinchilla", 1), "20.8", "integer"),
        ({**SIZES, "chinchilla": [1, 0.75], "dial": "depth"}, ("ladder", "chinchilla", 1), "1.5", "integer"),
        ({**SIZES, "train.batch_size": [2, 4, 8]}, ("ladder", "train.batch_size"), "train.batch_size", "chinchilla"),
        ({"chinchilla": [0.5, 2], "dial": "width"}, ("ladder",), "baseline", "baseline"),
        ({"chinchilla": [1, 2, 2], "dial": "width"}, ("ladder", "chinchilla", 2), "2x", "Remove"),
        ({"chinchilla": [1, 1.0625], "dial": "width"}, ("ladder", "chinchilla", 1), "17", "num_heads"),
    ],
)  # fmt: skip
def test_mistakes_in_factors_have_their_place(ladder, path, says, remedy):
    with pytest.raises(UserError) as caught:
        load(ladder)
    assert caught.value.path == path
    assert says in caught.value.problem
    assert remedy in caught.value.remedy


def test_epochs_cannot_be_set_beside_factors():
    with pytest.raises(UserError) as caught:
        load(SIZES, train={**TRAIN, "epochs": 2})
    assert caught.value.path == ("base", "train", "epochs")


def test_an_arm_cannot_set_what_the_ladder_sets():
    with pytest.raises(UserError) as caught:
        load_study({"study": "s", "base": {"task": TASK, "model": MODEL, "train": TRAIN},
                    "arms": {"slow": {"train.optimizer.lr": 1e-4}}, "ladder": SIZES})  # fmt: skip
    assert "train.optimizer.lr" in caught.value.problem


# --- measure.worth ---------------------------------------------------------------------------------------------------


def test_worth_changes_the_plan_and_no_run():
    train = {**TRAIN, "steps": 3}
    plain, asked = load(FOUR, train=train), load(FOUR, train=train, measure={"worth": "flops"})
    assert [run.id for run in plain.runs()] == [run.id for run in asked.runs()]
    assert "worth" not in analysis_plan(plain).frozen()
    assert analysis_plan(asked).frozen()["worth"] == "flops"


@pytest.mark.parametrize(
    ("ladder", "measure", "path", "says"),
    [
        ({"model.dim": [8, 16, 32]}, {}, ("ladder",), "3"),
        (None, {}, ("measure", "worth"), "ladder"),
        ({"task.seq_len": [16, 17, 18, 19]}, {}, ("ladder", "task.seq_len"), "task.seq_len"),
        (FOUR, {"primary": "val/accuracy"}, ("measure", "primary"), "val/accuracy"),
        (FOUR, {"solved": 0.1}, ("measure", "worth"), "worth"),
        (FOUR, {"worth": "hours"}, ("measure", "worth"), "hours"),
    ],
)
def test_worth_is_refused_without_a_law(ladder, measure, path, says):
    with pytest.raises(UserError) as caught:
        load(ladder, train={**TRAIN, "steps": 3}, measure={"worth": "flops", **measure})
    assert caught.value.path == path
    assert says in caught.value.problem

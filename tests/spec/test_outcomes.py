"""`measure.solved` and `measure.reach`: what a study file may say, and what a plan freezes."""

import pytest
from tests.small import TINY

from taetpu.core.errors import UserError
from taetpu.spec.frozen import check_frozen, frozen_data
from taetpu.spec.loading import load_study
from taetpu.study.freeze import analysis_plan

EVERY, UNSET = TINY.replace("eval_every: 6", "eval_every: 2"), TINY.replace("eval_every: 6, ", "")
ARMS = "arms:\n  x: {model.position: none}\n  y: {model.norm: none}\n"


@pytest.fixture
def load(tmp_path):
    def load(text):
        (tmp_path / "study.yaml").write_text(text)
        return load_study(tmp_path / "study.yaml")

    return load


@pytest.mark.parametrize(
    ("text", "measure", "path", "part"),
    [
        (EVERY, "{primary: val_sample/loss, solved: 0.5, reach: 1.9}", ("measure", "reach"), "solved=0.5"),
        (EVERY, "{primary: val/accuracy, solved: 1.5}", ("measure", "solved"), "1.5"),
        (EVERY, "{primary: val/accuracy, solved: 0}", ("measure", "solved"), "solved=0"),
        (EVERY, "{primary: val/loss, solved: -1}", ("measure", "solved"), "solved=-1"),
        (EVERY, "{primary: val_sample/loss, reach: -0.5}", ("measure", "reach"), "reach=-0.5"),
        (EVERY, "{primary: val/loss, reach: 1.9}", ("measure", "primary"), "'val/loss'"),
        (EVERY, "{primary: train/loss, reach: 1.9}", ("measure", "primary"), "'train/loss'"),
        (EVERY, "{primary: val_sample/losss, reach: 1.9}", ("measure", "primary"), "losss"),
        (UNSET, "{primary: val_sample/loss, reach: 1.9}", ("base", "train", "eval_every"), "eval_every"),
        (EVERY, "{primary: val/loss, by: flops}", ("measure", "by"), "by=flops"),
        (EVERY, "{primary: val_sample/loss, reach: 1.9, by: hours}", ("measure", "by"), "hours"),
        (EVERY, "{primary: val_sample/loss}", ("measure", "primary"), "val_sample/loss"),
        (EVERY, "{solved: 0.5, equivalence: 0.1}", ("measure", "equivalence"), "0.1"),
        (
            EVERY,
            "{solved: 0.5, contrasts: {c: {compare: [x, y], to: baseline}}}",
            ("measure", "contrasts", "c"),
            "groups",
        ),
    ],
)
def test_wrong_settings_are_refused_at_their_place(load, text, measure, path, part):
    with pytest.raises(UserError) as caught:
        load(f"{text}{ARMS}measure: {measure}\n")
    assert caught.value.path == path
    assert part in caught.value.problem
    assert caught.value.remedy or path[-1] == "by"


def test_the_plan_freezes_the_outcome_and_its_resolution(load):
    plan = analysis_plan(load(f"{EVERY}{ARMS}measure: {{primary: val_sample/loss, reach: 1.9, by: tokens}}\n"))
    assert (plan.reach, plan.by, plan.eval_every, plan.eval_windows) == (1.9, "tokens", 2, "auto")
    assert plan.direction == "min"
    assert plan.solved is None
    solved = analysis_plan(load(f"{UNSET}{ARMS}measure: {{primary: val/accuracy, solved: 0.99}}\n"))
    assert (solved.solved, solved.direction, solved.better) == (0.99, "max", "max")
    assert not {"reach", "by", "eval_every", "eval_windows"} & {*solved.frozen()}


def test_studies_without_outcomes_freeze_what_they_did(load):
    study = load(f"{EVERY}{ARMS}")
    assert {*frozen_data(study)["measure"]} == {"primary", "direction", "equivalence", "alpha", "looks", "contrasts"}
    assert not {"solved", "reach", "by", "eval_every", "eval_windows"} & {*analysis_plan(study).frozen()}


@pytest.mark.parametrize(
    ("change", "place"),
    [
        (("eval_every: 2", "eval_every: 3"), "base.train.eval_every"),
        (("eval_every: 2", "eval_every: 2, eval_windows: 1"), "base.train.eval_windows"),
        (("reach: 1.9", "reach: 1.8"), "measure.reach"),
        (("val_sample/loss, reach: 1.9", "val/loss, solved: 1.9"), "measure"),
    ],
)
def test_the_resolution_and_the_outcome_may_not_change(load, change, place):
    text = f"{EVERY}{ARMS}measure: {{primary: val_sample/loss, reach: 1.9}}\n"
    study = load(text)
    stored = {**frozen_data(study), "plan": analysis_plan(study).frozen()}
    assert check_frozen(stored, study)["seeds"] == list(study.seeds)
    with pytest.raises(UserError) as caught:
        check_frozen(stored, load(text.replace(*change)))
    assert ".".join(map(str, caught.value.path)).startswith(place)


def test_how_often_a_study_is_evaluated_may_change_without_times(load):
    study = load(f"{EVERY}{ARMS}")
    stored = {**frozen_data(study), "plan": analysis_plan(study).frozen()}
    check_frozen(stored, load(f"{EVERY}{ARMS}".replace("eval_every: 2", "eval_every: 3")))

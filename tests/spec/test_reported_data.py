"""Data by which a run chooses are never those on which its arm is compared."""

import pytest
from tests.small import TINY

from taetpu.core.errors import UserError
from taetpu.spec.loading import load_study

BASE = TINY.replace("{steps: 6,", "{steps: 6, schedule: constant,").replace("sample: none}", "sample: none%s}")
STOP = ", stop: {kind: patience, every: 1, windows: 4, patience: 2}"
BEST = ", evaluate: {kind: best, every: 2, windows: 4}"


@pytest.fixture
def load(tmp_path):
    def load(text):
        (tmp_path / "study.yaml").write_text(text)
        return load_study(tmp_path / "study.yaml")

    return load


@pytest.mark.parametrize("chooses", [STOP, BEST], ids=["stop", "best"])
@pytest.mark.parametrize(
    ("measure", "path", "remedy"),
    [
        ("{}", ("measure", "primary"), "test/loss"),
        ("{primary: val/accuracy}", ("measure", "primary"), "test/accuracy"),
        ("{primary: test/loss, post_hoc: [{knockout: heads}]}", ("measure", "post_hoc", 0, "split"), "test"),
        (
            "{primary: test/loss, contrasts: {x: {spread: val/loss, over: train.optimizer.lr, by: model.bias}}}",
            ("measure", "contrasts", "x", "spread"),
            "test/loss",
        ),
    ],
)
def test_metrics_on_data_by_which_a_run_chooses_are_refused(load, chooses, measure, path, remedy):
    with pytest.raises(UserError) as caught:
        load(f"{BASE % chooses}measure: {measure}\n")
    assert caught.value.path == path
    assert remedy in caught.value.remedy
    assert caught.value.file.name == "study.yaml"


def test_a_single_arm_that_chooses_decides_what_all_arms_report(load):
    arms = "arms:\n  best: {train.evaluate: {kind: best, every: 2, windows: 4}}\n"
    with pytest.raises(UserError) as caught:
        load(f"{BASE % ''}{arms}")
    assert caught.value.path == ("measure", "primary")
    assert "'best'" in caught.value.problem
    load(f"{BASE % ''}{arms}measure: {{primary: test/loss}}\n")


def test_a_mean_of_models_may_be_reported_on_validation_data(load):
    """It does not depend on any loss."""
    load(BASE % ", evaluate: {kind: average-last, count: 2, every: 2}")


@pytest.mark.parametrize("by", ["flops", "time"])
def test_budgets_that_a_run_may_not_spend_are_not_matched(load, by):
    text = f"{BASE % STOP}measure: {{primary: test/loss}}\narms: {{wide: {{model.dim: 16}}}}\n"
    with pytest.raises(UserError) as caught:
        load(f"{text}match: [params, {by}]\n")
    assert caught.value.path == ("match", 1)
    load(f"{text}match: params\n")


def test_the_name_of_the_logged_losses_is_reserved(load):
    with pytest.raises(UserError) as caught:
        load(BASE % ", metrics: {selection: {kind: gradient-norm}}")
    assert caught.value.path == ("base", "train", "metrics", "selection")


def test_more_windows_than_the_validation_split_has_are_refused(load):
    study = load(f"{BASE % BEST.replace('windows: 4', 'windows: 9')}measure: {{primary: test/loss}}\n")
    with pytest.raises(UserError) as caught:
        study.runs()
    assert caught.value.path == ("base", "train", "evaluate", "windows")
    assert "8" in caught.value.remedy
    assert caught.value.line

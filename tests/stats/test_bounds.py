"""A metric with bounds: intervals are cut to what a difference can be, and nothing else moves."""

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from taetpu.report import summary
from taetpu.stats import factorial, model
from taetpu.stats.analyse import analyse
from taetpu.stats.plan import metric_bounds
from taetpu.stats.sensitivity import alternative_analyses

SHARES = (0.0, 1.0)
VALUES = st.lists(st.lists(st.floats(0, 1), min_size=3, max_size=3), min_size=2, max_size=5)


@given(VALUES)
def test_cut_intervals_lie_within_the_bounds_and_hold_all_of_the_others_that_is_possible(y) -> None:
    values = {"baseline" if i == 0 else f"arm{i}": dict(enumerate(row)) for i, row in enumerate(y)}
    free, cut = model.fit_model(values), model.fit_model(values, bounds=SHARES)
    for arm, effect in cut.effects.items():
        other = free.effects[arm]
        assert (effect.effect, effect.p, effect.p_inside(0.1)) == (other.effect, other.p, other.p_inside(0.1))
        if other.interval is None:
            continue
        assert effect.interval == tuple(float(np.clip(end, -1, 1)) for end in other.interval)
        assert effect.is_clipped == (effect.interval != other.interval or 1 in map(abs, other.interval))
        assert effect.interval[0] <= effect.effect <= effect.interval[1] or abs(effect.effect) > 1 - 1e-9


def test_how_large_a_weighted_sum_can_be() -> None:
    assert model.contrast_bounds({"a": 1.0, "b": -1.0}, SHARES) == (-1.0, 1.0)
    assert model.contrast_bounds({"all": 1.0, "a": -1.0, "b": -1.0, "base": 1.0}, SHARES) == (-2.0, 2.0)
    assert model.contrast_bounds({"a": 1.0, "b": -1.0}, metric_bounds("val/loss")) == (-math.inf, math.inf)


def test_other_analyses_are_cut_as_well() -> None:
    ours, theirs = {0: 0.0, 1: 1.0}, {0: 0.4, 1: 0.1}
    assert alternative_analyses(ours, theirs, SHARES)["paired"]["ci95"] == [-1.0, 1.0]
    assert alternative_analyses(ours, theirs)["paired"]["ci95"][1] > 1
    cells = {"baseline": (0, 0), "x": (1, 0), "y": (0, 1), "xy": (1, 1)}
    design = factorial.Factorial({"x": 2, "y": 2}, {arm: {"x": i, "y": j} for arm, (i, j) in cells.items()})
    values = {"baseline": ours, "x": theirs, "y": {0: 0.9, 1: 0.2}, "xy": {0: 0.1, 1: 0.8}}
    for term in factorial.analyse_factorial(design, values, SHARES)["terms"]:
        most = 2.0 ** (len(term["factors"]) - 1)
        assert max(map(abs, term["ci95"])) <= most


@pytest.fixture
def accuracy(store_study):
    """Two arms on two seeds, as noisy as accuracies can be: nothing can be known of them."""
    values = {"baseline": {0: 0.31, 1: 0.046}, "a": {0: 0.0, 1: 0.476}}

    def metrics(arm, seed):
        return {"metrics": {"val/accuracy": values[arm][seed], "train/loss": 1.0}}

    return analyse(store_study(values, primary="val/accuracy", direction="max", result=metrics))


def test_a_report_says_that_an_interval_is_cut_and_names_no_impossible_effect(accuracy) -> None:
    arm = accuracy["arms"][1]
    assert arm["ci95"] == [-1.0, 1.0]
    assert "cut to what is possible" in arm["evidence"]
    noise = summary.describe_noise(accuracy)
    assert accuracy["noise_floor"]["resolves"] > 1
    assert "detect no possible effect on val/accuracy" in noise
    assert "0.82" in noise  # 1 less the baseline's mean
    row = summary.verdict_rows(accuracy)[1]
    assert row.interval == "-1.00 to +1.00"
    assert (row.mean, row.effect) == ("0.24", "+0.06")  # as many decimals as its means


def test_the_effect_in_a_sentence_has_the_decimals_of_the_means(accuracy) -> None:
    assert accuracy["arms"][1]["evidence"].startswith("val/accuracy is 0.06 higher than the baseline's")

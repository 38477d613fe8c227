"""For a metric with bounds, intervals are clipped to the possible range, and nothing else changes."""

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from taetpu.core.metric_spec import LOSS
from taetpu.report import summary
from taetpu.stats import factorial, linear_model
from taetpu.stats.analyse import analyse
from taetpu.stats.secondary_analyses import alternative_analyses

SHARES = (0.0, 1.0)
VALUES = st.lists(st.lists(st.floats(0, 1), min_size=3, max_size=3), min_size=2, max_size=5)


@settings(max_examples=25)
@given(VALUES)
def test_clipped_intervals_are_the_possible_part_of_the_unclipped(y) -> None:
    values = {"baseline" if i == 0 else f"arm{i}": dict(enumerate(row)) for i, row in enumerate(y)}
    free, cut = linear_model.fit_model(values), linear_model.fit_model(values, bounds=SHARES)
    for arm, effect in cut.effects.items():
        other = free.effects[arm]
        assert (effect.effect, effect.p, effect.p_inside(0.1)) == (other.effect, other.p, other.p_inside(0.1))
        if other.interval is None:
            continue
        assert effect.interval == tuple(float(np.clip(end, -1, 1)) for end in other.interval)
        assert effect.is_clipped == (effect.interval != other.interval or 1 in map(abs, other.interval))
        assert effect.interval[0] <= effect.effect <= effect.interval[1] or abs(effect.effect) > 1 - 1e-9


def test_bounds_of_a_weighted_sum() -> None:
    assert linear_model.contrast_bounds({"a": 1.0, "b": -1.0}, SHARES) == (-1.0, 1.0)
    assert linear_model.contrast_bounds({"all": 1.0, "a": -1.0, "b": -1.0, "base": 1.0}, SHARES) == (-2.0, 2.0)
    assert linear_model.contrast_bounds({"a": 1.0, "b": -1.0}, LOSS.bounds) == (-math.inf, math.inf)


def test_alternative_and_factorial_intervals_are_clipped() -> None:
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
    """Return results of two arms on two seeds with the largest possible noise of an accuracy."""
    values = {"baseline": {0: 0.31, 1: 0.046}, "a": {0: 0.0, 1: 0.476}}

    def metrics(arm, seed):
        return {"metrics": {"val/accuracy": values[arm][seed], "train/loss": 1.0}}

    return analyse(store_study(values, primary="val/accuracy", direction="max", result=metrics))


def test_report_shows_clipping_and_no_impossible_effect(accuracy) -> None:
    arm = accuracy["arms"][1]
    assert arm["ci95"] == [-1.0, 1.0]
    assert "clipped" in arm["evidence"]
    noise = summary.describe_noise(accuracy)
    assert accuracy["noise_floor"]["resolves"] > 1
    assert "detect" not in noise
    row = summary.verdict_rows(accuracy)[1]
    assert row.interval == "-1.00 to +1.00"
    assert (row.mean, row.effect) == ("0.24", "+0.06")  # with as many decimal places as the means
    assert accuracy["arms"][1]["evidence"].startswith("val/accuracy is 0.06 higher")

"""Learning curves as data, and specs that Vega-Lite accepts."""

import json

import numpy as np
import pytest
import vl_convert
from hypothesis import given, settings
from hypothesis import strategies as st

from taetpu.report import charts
from taetpu.report.curves import POINTS, over_seeds, read_curves, thinned, vertical_range
from taetpu.store.metrics import Series


def series(step, value) -> Series:
    return Series(np.array(step, np.int64), np.array(value, np.float64))


@settings(max_examples=50, deadline=None)
@given(st.integers(1, 20_000), st.integers(2, 400))
def test_thinning_keeps_first_and_last(length: int, points: int) -> None:
    kept = thinned(length, points)
    assert (kept[0], kept[-1]) == (0, length - 1)
    assert len(kept) == min(length, points)
    assert np.ptp(np.diff(kept)) <= 1 if len(kept) > 1 else True


def test_curve_is_mean_and_range_over_seeds() -> None:
    found = over_seeds([series([1, 2, 3], [3.0, 2.0, 1.0]), series([1, 2, 3], [5.0, np.nan, 2.0]), series([2], [4.0])])
    assert found == [
        {"step": 1, "mean": 4.0, "low": 3.0, "high": 5.0},
        {"step": 2, "mean": 3.0, "low": 2.0, "high": 4.0},
        {"step": 3, "mean": 1.5, "low": 1.0, "high": 2.0},
    ]


def test_curve_of_nothing_finite_is_empty() -> None:
    assert over_seeds([series([1, 2], [np.nan, np.inf])]) == []


def test_long_curves_are_thinned() -> None:
    found = over_seeds([series(np.arange(1, 10_001), np.arange(10_000.0))])
    assert len(found) == POINTS
    assert (found[0]["step"], found[-1]["step"]) == (1, 10_000)


def test_vertical_range_leaves_out_the_start() -> None:
    line = over_seeds([series([1, 100, 1000], [100.0, 2.0, 1.0])])
    low, high = vertical_range([line, []])
    assert 0.9 < low < 1 < high < 2


@pytest.mark.parametrize("seeds", [1, 3])
def test_specs_draw(store_study, seeds: int) -> None:
    """Vega-Lite renders each of them, with every arm's name and a path for every curve."""
    folder = store_study(seeds=seeds)
    results = folder.read_results()
    svg = vl_convert.vegalite_to_svg({**charts.forest(results), "width": 600, "config": charts.THEMES["light"]})
    assert all(arm["name"] in svg for arm in results["arms"][1:])
    assert "NaN" not in svg
    curves = read_curves(folder, results)
    assert [found.metric for found in curves] == ["val/loss", "train/loss"]
    data = {"arm": curves[0].arms["nope"], "baseline": curves[0].arms["baseline"]}
    svg = vl_convert.vegalite_to_svg({**charts.curve(curves[0]), "width": 300, "datasets": data})
    assert "val/loss (nats per token)" in svg
    assert "NaN" not in svg


def test_one_huge_effect_does_not_flatten_the_rest(store_study) -> None:
    arms = {"baseline": ({}, 0.0), "small": ({}, 0.02), "huge": ({}, 8.0)}
    spec = json.dumps(charts.forest(store_study(arms).read_results()))
    assert '"symlog"' in spec
    assert "logarithmic outside the noise" in spec


def test_comparable_effects_stay_linear(store_study) -> None:
    arms = {"baseline": ({}, 0.0), "small": ({}, 0.02), "other": ({}, 0.05)}
    assert "symlog" not in json.dumps(charts.forest(store_study(arms).read_results()))

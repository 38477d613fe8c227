"""Learning curves as chart data, and specs that Vega-Lite renders."""

import json
import re

import numpy as np
import pytest
import vl_convert
from hypothesis import given, settings
from hypothesis import strategies as st

from taetpu.report import charts, curve_charts, design_charts
from taetpu.report.chart_files import render_figure
from taetpu.report.curves import (
    POINTS,
    SEED_POINTS,
    as_rows,
    paired_differences,
    read_curves,
    seed_lines,
    summarise_seeds,
    thin_indices,
    vertical_range,
)
from taetpu.store.metrics import Series


def series(step, value) -> Series:
    return Series(np.array(step, np.int64), np.array(value, np.float64))


@settings(max_examples=20, deadline=None)
@given(st.integers(1, 20_000), st.integers(2, 400))
def test_thinning_keeps_first_and_last(length: int, points: int) -> None:
    kept = thin_indices(length, points)
    assert (kept[0], kept[-1]) == (0, length - 1)
    assert len(kept) == min(length, points)
    assert np.ptp(np.diff(kept)) <= 1 if len(kept) > 1 else True


def test_curve_is_mean_and_range_over_seeds() -> None:
    found = summarise_seeds(
        [series([1, 2, 3], [3.0, 2.0, 1.0]), series([1, 2, 3], [5.0, np.nan, 2.0]), series([2], [4.0])]
    )
    assert found == {"step": [1, 2, 3], "mean": [4.0, 3.0, 1.5], "low": [3.0, 2.0, 1.0], "high": [5.0, 4.0, 2.0]}
    assert as_rows(found)[1] == {"step": 2, "mean": 3.0, "low": 2.0, "high": 4.0}


def test_each_seed_has_its_own_line() -> None:
    found = seed_lines({3: series([1, 2, 3], [3.0, np.nan, 1.0]), 7: series(np.arange(1, 1001), np.arange(1000.0))})
    assert found["seed"] == [3, 3, *[7] * SEED_POINTS]
    assert (found["step"][:3], found["value"][:3]) == ([1, 3, 1], [3.0, 1.0, 0.0])
    assert found["step"][-1] == 1000


def test_differences_are_paired_by_seed_and_step() -> None:
    ours = {0: series([1, 2, 3], [1.0, 2.0, 3.0]), 1: series([1, 2, 3], [11.0, 12.0, 13.0]), 2: series([1], [7.0])}
    theirs = {1: series([2, 3, 4], [11.5, 12.5, 1.0]), 0: series([1, 2, 3], [0.5, 1.5, np.nan])}
    found = summarise_seeds(paired_differences(ours, theirs))
    assert found == {"step": [1, 2, 3], "mean": [0.5] * 3, "low": [0.5] * 3, "high": [0.5] * 3}
    assert paired_differences(ours, {}) == []


def test_curve_without_finite_values_is_empty() -> None:
    assert as_rows(summarise_seeds([series([1, 2], [np.nan, np.inf])])) == []


def test_long_curves_are_thinned() -> None:
    found = summarise_seeds([series(np.arange(1, 10_001), np.arange(10_000.0))])
    assert len(found["step"]) == POINTS
    assert (found["step"][0], found["step"][-1]) == (1, 10_000)


def test_vertical_range_excludes_the_start() -> None:
    line = summarise_seeds([series([1, 100, 1000], [100.0, 2.0, 1.0])])
    low, high = vertical_range([line, {"step": [], "mean": []}])
    assert 0.9 < low < 1 < high < 2
    assert vertical_range([line], also=[-3.0])[0] < -3


def test_vega_lite_renders_forest_plot_and_curves(study, results) -> None:
    svg = vl_convert.vegalite_to_svg({**charts.forest_plot(results), "width": 600, "config": charts.THEMES["light"]})
    assert all(arm["name"] in svg for arm in results["arms"][1:])
    assert "NaN" not in svg
    curves = read_curves(study, results)
    assert [found.metric for found in curves] == ["val/loss", "train/loss"]
    found = curves[0]
    data = {"arm": found.arms["nope"], "baseline": found.arms["baseline"], "seeds": found.seeds["nope"]}
    svg = rendered(curve_charts.fill_spec(curve_charts.curve_chart(found.title), data, COLOUR, found.ranges["nope"]))
    assert "val/loss (nats per token)" in svg
    assert "NaN" not in svg
    assert svg.count(f'stroke="{COLOUR}"') == 3 + 1  # each seed and their mean
    line, bounds = found.differences["nope"], found.difference_ranges["nope"]
    svg = rendered(curve_charts.fill_spec(curve_charts.difference_chart(), {"arm": line}, COLOUR, bounds))
    assert svg.count(f'stroke="{COLOUR}"') == 1
    assert bounds[0] <= min(line["low"][-1], 0) <= max(line["high"][-1], 0) <= bounds[1]


COLOUR = "#123456"


def rendered(spec) -> str:
    return vl_convert.vegalite_to_svg({**spec, "width": 300})


def test_files_have_room_for_labels_in_a_wider_font(results) -> None:
    """A browser with DejaVu Sans needs a sixth more than the font that measured the labels."""
    svg = render_figure(charts.forest_plot(results), ".svg").decode()
    left = float(re.search(r"translate\((\d+),", svg)[1])
    labels = re.findall(r'text-anchor="end"[^>]*>([^<]+)</text>', svg)
    assert {arm["name"] for arm in results["arms"][1:]} <= {*labels}
    assert left - 8 >= 7.4 * max(map(len, labels))  # labels end 8 pixels before the axis


@pytest.mark.parametrize(("largest", "logarithmic"), [(0.05, False), (8.0, True)])
def test_scale_is_logarithmic_if_one_effect_would_flatten_the_others(store_study, largest, logarithmic) -> None:
    arms = {"baseline": ({}, 0.0), "small": ({}, 0.02), "large": ({}, largest)}
    spec = json.dumps(charts.forest_plot(store_study(arms).read_results()))
    assert ('"symlog"' in spec, charts.LOGARITHMIC in spec) == (logarithmic, logarithmic)


LONG = [f"mixer.kind=attention,num_heads=8,position=rope,optimizer.lr={lr}" for lr in ("1e-3", "3e-3")]


def drawn_names(spec) -> list[str]:
    """Return the labels of a chart that are shortened from one of the long names."""
    svg = vl_convert.vegalite_to_svg({**spec, "width": 520, "config": charts.THEMES["light"]})
    return [text for text in re.findall(r"<text[^>]*>([^<]*)</text>", svg) if text.startswith("mixer")]


def test_shortened_names_stay_distinct_in_every_chart(store_study) -> None:
    folder = store_study({"baseline": ({}, 0.0), LONG[0]: ({}, 0.02), LONG[1]: ({}, 0.05)})
    points = [
        {"arm": name, "cost": i + 1, "mean": 2.0 - i, "verdict": "better", "front": True} for i, name in enumerate(LONG)
    ]
    effects = [{"factors": [name], "effect": 0.1, "ci95": [0.0, 0.2]} for name in LONG]
    effects.append({"factors": LONG, "effect": 0.1, "ci95": [0.0, 0.2]})
    for spec, times in (
        (charts.forest_plot(folder.read_results()), 1),
        (design_charts.tradeoff_chart(points, "cost", "val/loss"), 1),
        (design_charts.interaction_heatmap(effects, "min"), 2),
    ):
        names = drawn_names(spec)
        assert len(names) == 2 * times
        assert len(set(names)) == 2
        assert {name[-4:] for name in names} == {"1e-3", "3e-3"}

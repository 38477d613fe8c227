"""Runs are compared by whether they solve their task, or by the time at which they arrive at a value."""

import json
import math
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats
from statsmodels.stats.proportion import confint_proportions_2indep

from taetpu.core.errors import UserError
from taetpu.report.outcomes import arrival_chart, outcome_section
from taetpu.report.terminal_text import COLUMNS, table_text
from taetpu.stats.analyse import analyse
from taetpu.stats.claims import check_claim, parse_claim
from taetpu.stats.divergence import Count
from taetpu.stats.outcomes import compare_shares, log_rank_p, seeds_for_level, smallest_p, wilson
from taetpu.stats.plan import FIRST_FIELDS, Plan, describe_metric, read_plan
from taetpu.stats.secondary_analyses import first_crossing
from taetpu.stats.verify import verify
from taetpu.store.backend import open_store
from taetpu.store.study import StudyFolder

FIELDS = ("solved", "reach", "by", "eval_every", "eval_windows")
Curves = Mapping[str, Mapping[int, Sequence[float]]]


def store_curves(
    root: Path,
    curves: Curves,
    every: int = 10,
    outcome: Callable[[str, int], dict[str, Any]] = lambda arm, seed: {},
    **plan: Any,
) -> StudyFolder:
    """Store a study whose runs have these values of `val_sample/loss`, one each `every` steps."""
    folder, seeds = StudyFolder(open_store(root), "toy"), sorted({seed for row in curves.values() for seed in row})
    how = {"noise": "moderated", "rules": 2, "eval_every": every, "eval_windows": 4, **plan}
    frozen = Plan("val_sample/loss", "min", tuple(curves), tuple(seeds), (len(seeds),), **how).frozen()
    arms = {arm: {} if arm == "baseline" else {"model.position": "none"} for arm in curves}
    base = {"model": {"position": {"kind": "rope"}}}
    folder.write_study({"study": "toy", "base": base, "arms": arms, "seeds": seeds, "plan": frozen})
    for arm, row in curves.items():
        for seed, values in row.items():
            run, steps = folder.run(arm, seed, f"{seed:08x}"), every * len(values)
            run.start({"arm": arm, "seed": seed, "config": {"train": {"steps": steps}}})
            run.append(0, steps, {"val_sample/loss": ([*range(every, steps + 1, every)], list(values))})
            ends = {"val_sample/loss": values[-1] if math.isfinite(values[-1]) else None}
            made = {"outcome": "finished", "diverged_at": None, "steps": steps, "metrics": ends, "params": 10}
            made |= {"flops": 1000.0 * steps, "tokens": 7 * steps, "val_sample": {"windows": 4, "of": 8}}
            run.finish({**made, **outcome(arm, seed)})
    return folder


def arriving(times: Mapping[str, Sequence[int | None]], points: int = 10) -> Curves:
    """Return curves that reach 1.0 at the evaluation with this number, from 1 on, or never."""
    return {
        arm: {
            seed: [2.0 if at is None or number < at else 1.0 for number in range(1, points + 1)]
            for seed, at in enumerate(row)
        }
        for arm, row in times.items()
    }


# --- shares of solved runs --------------------------------------------------------------------------------------------


@settings(max_examples=40, deadline=None)
@given(st.integers(2, 9), st.integers(2, 9), st.data())
def test_shares_are_compared_as_scipy_and_statsmodels_do(n: int, m: int, data: st.DataObject) -> None:
    a, b = data.draw(st.integers(0, n)), data.draw(st.integers(0, m))
    values = {"baseline": {i: float(i < b) for i in range(m)}, "x": {i: float(i < a) for i in range(n)}}
    effect = compare_shares(values, "baseline").effects["x"]
    assert effect.effect == pytest.approx(a / n - b / m)
    expected = stats.boschloo_exact([[a, b], [n - a, m - b]]).pvalue if 0 < a + b < n + m else 1.0
    assert effect.p == pytest.approx(expected)
    assert effect.interval == pytest.approx(confint_proportions_2indep(a, n, b, m, method="newcomb"), abs=1e-5)
    score = stats.binomtest(a, n).proportion_ci(method="wilson")
    assert wilson(Count(a, n - a), stats.norm.isf(0.025))[1:] == pytest.approx((score.low, score.high))


def test_the_smallest_p_belongs_to_all_against_none() -> None:
    assert smallest_p(1) is None
    for seeds in (2, 3, 4, 5):
        tables = [(a, b) for a in range(seeds + 1) for b in range(seeds + 1) if a != b]
        p = min(stats.boschloo_exact([[a, b], [seeds - a, seeds - b]]).pvalue for a, b in tables)
        assert smallest_p(seeds) == pytest.approx(p)
    assert [seeds_for_level(level) for level in (0.05, 0.05 / 3, 0.05 / 8)] == [3, 4, 5]


def test_an_arm_that_solves_the_task_is_better_for_losses_and_accuracies(store_study) -> None:
    """A loss solves at most at the level, an accuracy at least; the value itself counts as solved."""
    for direction, good, bad in (("min", 0.01, 1.0), ("max", 0.99, 0.2)):
        values = {"baseline": dict.fromkeys(range(6), bad), "a": dict.fromkeys(range(6), good)}
        results = analyse(store_study(values, name=direction, direction=direction, solved=good))
        arm = results["arms"][1]
        assert (results["direction"], arm["verdict"], arm["effect"], arm["reached"]) == ("max", "better", 1.0, 6)
        assert arm["p"] == pytest.approx(smallest_p(6))
        assert [run["measured"] for run in arm["runs"]] == [good] * 6


def test_diverged_runs_have_not_solved_the_task(store_study) -> None:
    values = {"baseline": dict.fromkeys(range(6), 0.01), "a": dict.fromkeys(range(6))}
    results = analyse(store_study(values, solved=0.5))
    arm = results["arms"][1]
    assert (arm["verdict"], arm["reached"], arm["diverged"], arm["mean"]) == ("worse", 0, 6, 0.0)
    assert arm["worst_case"] is None
    assert arm["divergence_p"] is None
    assert "0 of 6" in arm["evidence"]
    assert "6 of 6" in arm["evidence"]


def test_arms_are_corrected_together_and_claims_use_exact_intervals(store_study) -> None:
    values = {
        "baseline": dict.fromkeys(range(5), 1.0),
        **{name: dict.fromkeys(range(5), 1.0) for name in "bc"},
        "a": {**dict.fromkeys(range(4), 0.0), 4: 1.0},
    }
    contrast = {"ab": {"compare": ["a"], "to": ["b"]}}
    folder = store_study(values, solved=0.5, contrasts=contrast)
    results = analyse(folder)
    a = next(arm for arm in results["arms"] if arm["name"] == "a")
    p = stats.boschloo_exact([[4, 0], [1, 5]]).pvalue
    assert a["p"] == pytest.approx(p)
    assert a["p_holm"] == pytest.approx(4 * p)  # three arms and a contrast
    assert a["more_seeds"] is not None
    assert a["more_seeds"] > 0
    assert results["contrasts"][0]["effect"] == pytest.approx(0.8)
    low = stats.binomtest(4, 5).proportion_ci(method="wilson").low
    for level, holds in ((low - 0.01, True), (low + 0.01, False)):
        assert check_claim(parse_claim(f"a is above {level}", ()), results, ()).holds == holds
    assert not [problem for problem in verify(folder) if problem.startswith("results.json")]


# --- time to a value --------------------------------------------------------------------------------------------------


def test_times_are_restricted_means_of_observed_evaluations(tmp_path: Path) -> None:
    """A run arrives at an evaluation, not between two; one that never arrives counts with the horizon."""
    results = analyse(store_curves(tmp_path, arriving({"baseline": [2, 3, 2], "a": [4, None, 10]}), reach=1.0))
    base, a = results["arms"]
    assert [run["value"] for run in base["runs"]] == [20.0, 30.0, 20.0]
    assert [(run["value"], run["reached"]) for run in a["runs"]] == [(40.0, True), (100.0, False), (100.0, True)]
    assert a["mean"] == pytest.approx(80.0)
    assert a["reached"] == 2
    assert a["effect"] == pytest.approx(80.0 - 70.0 / 3)
    assert results["direction"] == "min"
    assert results["groups"][0]["horizon"] == 100.0
    share = stats.ecdf(stats.CensoredData.right_censored([40.0, 100.0, 100.0], [False, True, False]))
    assert share.cdf.evaluate(99.0) == pytest.approx(1 / 3)
    drawn = json.dumps(arrival_chart(results))
    assert drawn.count('"a"') > 2
    assert "Infinity" not in drawn


@pytest.mark.parametrize("unit", ["steps", "tokens", "flops"])
def test_units_and_transformed_values_change_no_order(tmp_path: Path, unit: str) -> None:
    """Costs are proportional to steps here, and a monotone change of the metric keeps every arrival."""
    curves = arriving({"baseline": [2, 3, 2, 4], "a": [4, None, 9, 5]})
    steps = analyse(store_curves(tmp_path / "steps", curves, reach=1.0))
    other = analyse(store_curves(tmp_path / unit, curves, reach=1.0, by=unit))
    factor = {"steps": 1.0, "tokens": 7.0, "flops": 1000.0}[unit]
    for before, after in zip(steps["arms"], other["arms"], strict=True):
        assert after["mean"] == pytest.approx(factor * before["mean"])
        assert after["p_holm"] == pytest.approx(before["p_holm"]) if before["p_holm"] else True
        assert after["verdict"] == before["verdict"]
    logs = {arm: {s: [math.log(v) for v in values] for s, values in row.items()} for arm, row in curves.items()}
    changed = analyse(store_curves(tmp_path / f"{unit}-log", logs, reach=0.0))
    assert [arm["effect"] for arm in changed["arms"]] == [arm["effect"] for arm in steps["arms"]]


@settings(max_examples=25, deadline=None)
@given(st.lists(st.integers(1, 10), min_size=3, max_size=6), st.integers(0, 5), st.integers(1, 5))
def test_a_later_arrival_never_shortens_a_mean_time(times: list[int], which: int, later: int) -> None:
    """Each later arrival lengthens the mean or leaves it, up to a run that never arrives."""
    values = np.minimum(np.array(times, float), 10.0)
    moved = values.copy()
    moved[which % len(values)] = min(10.0, moved[which % len(values)] + later)
    assert moved.mean() >= values.mean()
    p = log_rank_p([(t, True) for t in values], [(t, True) for t in moved])
    cubed = log_rank_p([(t**3, True) for t in values], [(t**3, True) for t in moved])
    assert p == cubed or p == pytest.approx(cubed)  # the rank test sees the order alone


def test_the_log_rank_test_is_scipys_and_needs_arrivals(tmp_path: Path) -> None:
    x, y = [(10.0, True), (20.0, True), (50.0, False)], [(30.0, True), (50.0, False), (50.0, True)]
    samples = [stats.CensoredData.right_censored([t for t, _ in side], [not k for _, k in side]) for side in (x, y)]
    assert log_rank_p(x, y) == pytest.approx(stats.logrank(*samples).pvalue)
    assert log_rank_p([(50.0, False)] * 3, [(50.0, False)] * 3) is None
    assert log_rank_p([(20.0, True)] * 3, [(20.0, True)] * 3) is None
    assert log_rank_p(x[:1], y) is None
    folder = store_curves(tmp_path, arriving({"baseline": [2, 3, 2, 4], "a": [4, None, 9, 5]}), reach=1.0)
    arm = analyse(folder)["arms"][1]
    ours, theirs = [(40, True), (100, False), (90, True), (50, True)], [(t, True) for t in (20, 30, 20, 40)]
    assert arm["sensitivity"]["log_rank_p"] == pytest.approx(log_rank_p(ours, theirs))


def test_runs_that_diverged_or_stopped_never_arrive_later(tmp_path: Path) -> None:
    """They count with the horizon of the runs that finished, and an arrival before counts."""
    curves = {arm: dict(row) for arm, row in arriving({"baseline": [2, 3, 2, 3], "a": [3, 5, 4, None]}).items()}
    curves["a"][1] = [2.0, 2.0]  # it stops at step 20
    curves["a"][2] = [2.0, 2.0, math.nan, *[math.nan] * 7]
    curves["a"][3] = [1.0, *[math.nan] * 9]

    def outcome(arm: str, seed: int) -> dict[str, Any]:
        if arm == "a" and seed == 1:
            return {"outcome": "stopped", "stopped_at": 20}
        return {"outcome": "diverged", "diverged_at": 25} if arm == "a" and seed > 1 else {}

    results = analyse(store_curves(tmp_path, curves, outcome=outcome, reach=1.0))
    runs = results["arms"][1]["runs"]
    assert [run["value"] for run in runs] == [30.0, 100.0, 100.0, 10.0]
    assert [run["reached"] for run in runs] == [True, False, False, True]
    assert results["arms"][1]["diverged"] == 2
    assert results["model"]["completers_only"] is False


def test_the_shortest_training_is_the_horizon_of_both_arms(tmp_path: Path) -> None:
    """Otherwise the arm that was trained longer would have more time to arrive."""
    curves = {**arriving({"baseline": [2, 9, None]}), **arriving({"a": [3, 7, 8]}, points=8)}
    results = analyse(store_curves(tmp_path, curves, reach=1.0))
    assert results["groups"][0]["horizon"] == 80.0
    assert [run["value"] for run in results["arms"][0]["runs"]] == [20.0, 80.0, 80.0]
    assert [run["reached"] for run in results["arms"][0]["runs"]] == [True, False, False]


def test_equal_times_of_all_runs_are_judged_by_exact_tests(tmp_path: Path) -> None:
    """If no run of an arm arrives and all of the baseline do at once, the times show no noise."""
    folder = store_curves(tmp_path, arriving({"baseline": [2] * 5, "a": [None] * 5}), reach=1.0)
    arm = analyse(folder)["arms"][1]
    assert arm["verdict"] == "worse"
    assert arm["p"] == pytest.approx(smallest_p(5))


def test_runs_evaluated_otherwise_are_refused(tmp_path: Path) -> None:
    curves = arriving({"baseline": [2, 3], "a": [4, 5]})
    with pytest.raises(UserError, match="every 5") as refused:
        analyse(store_curves(tmp_path / "steps", curves, reach=1.0, eval_every=5))
    assert refused.value.path == ("measure", "reach")
    other = {"val_sample": {"windows": 2, "of": 8}}
    with pytest.raises(UserError, match="windows") as refused:
        analyse(store_curves(tmp_path / "w", curves, outcome=lambda arm, s: other if arm == "a" else {}, reach=1.0))
    assert refused.value.path == ("measure", "reach")


def test_verification_recomputes_times_and_the_terminal_shows_them(tmp_path: Path) -> None:
    folder = store_curves(tmp_path, arriving({"baseline": [2, 3, 2, 4], "a": [4, None, 9, 5]}), reach=1.0, by="flops")
    results = analyse(folder)
    assert not [problem for problem in verify(folder) if problem.startswith("results.json")]
    lines = table_text(results).splitlines()
    assert max(map(len, lines)) <= COLUMNS
    assert any("3 of 4" in line for line in lines)
    section = outcome_section(results)
    assert section.charts
    assert "log-rank p" in section.tables[0].columns
    stored = folder.read_results()
    stored["arms"][1]["runs"][0]["value"] += 1
    folder.write_results(stored)
    assert any("arms[a].runs[0].value" in problem for problem in verify(folder))


def test_a_damaged_curve_is_found_before_times_are_read(tmp_path: Path) -> None:
    """The times come from the logs, so their content is checked, not only their size."""
    folder = store_curves(tmp_path, arriving({"baseline": [2, 3], "a": [4, 5]}), reach=1.0)
    file = next(tmp_path.glob("toy/runs/*/*/metrics/*.json"))
    file.write_text(file.read_text().replace("2.0", "1.0"))
    with pytest.raises(UserError, match="damaged"):
        analyse(folder)


# --- plans ------------------------------------------------------------------------------------------------------------


def test_plans_without_outcomes_have_no_new_fields() -> None:
    plan = Plan("val/loss", "min", ("baseline", "a"), (0, 1), (2,))
    assert {*plan.frozen()} == {*FIRST_FIELDS, "sha256"}
    assert not plan.has_outcome
    assert plan.better == "min"
    how = {"reach": 1.9, "eval_every": 20, "eval_windows": "all"}
    reached = Plan("val_sample/loss", "min", ("baseline", "a"), (0, 1), (2,), **how)
    frozen = reached.frozen()
    assert {*frozen} - {*plan.frozen()} == {*FIELDS} - {"solved", "by"}
    study: Any = {"plan": json.loads(json.dumps(frozen))}
    assert read_plan(study, "here") == reached
    study["plan"]["reach"] = 2.0
    with pytest.raises(UserError, match="plan"):
        read_plan(study, "here")


def test_outcomes_are_named_and_have_a_direction() -> None:
    plan = {"primary": "val/accuracy", "direction": "max", "solved": 0.9}
    spec = describe_metric(plan)
    assert (spec.better, spec.bounds) == ("max", (0.0, 1.0))
    assert "0.9" in spec.title
    assert describe_metric(plan, "val/accuracy").label == "val/accuracy"
    timed = describe_metric({"primary": "val_sample/loss", "direction": "min", "reach": 1.9, "by": "flops"})
    assert (timed.better, timed.unit) == ("min", "FLOPs")


def test_efficiency_is_still_interpolated() -> None:
    """Only times of a plan are those of evaluations: ratios to the baseline's value were always interpolated."""
    assert first_crossing(np.array([10.0, 20.0]), np.array([2.0, 0.0]), 1.0) == 15.0

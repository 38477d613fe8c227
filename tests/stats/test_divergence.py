"""Diverged runs are counted and tested, and never improve a verdict."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats

from taetpu.stats.analyse import analyse
from taetpu.stats.divergence import Count, impute_worst
from taetpu.stats.divergence import boschloo_p as exact_test
from taetpu.stats.linear_model import fit_model
from taetpu.stats.plan import Plan
from taetpu.stats.verdict import Sides, collect_evidence, decide_verdict, format_evidence


def test_diverged_runs_count_with_the_worst_finished_value() -> None:
    values = {"baseline": {0: 1.0, 1: 2.0}, "a": {0: 5.0}}
    lost = {"a": frozenset({1}), "baseline": frozenset()}
    assert impute_worst(values, lost, "min") == {"baseline": {0: 1.0, 1: 2.0}, "a": {0: 5.0, 1: 5.0}}
    assert impute_worst(values, lost, "max") == {"baseline": {0: 1.0, 1: 2.0}, "a": {0: 5.0, 1: 1.0}}
    assert impute_worst({"baseline": {}, "a": {}}, {"a": frozenset({0})}, "min") == {"baseline": {}, "a": {}}


def test_divergence_rates_are_compared_by_boschloos_test() -> None:
    expected = stats.boschloo_exact([[4, 0], [1, 5]]).pvalue
    assert exact_test(Count(1, 4), Count(5, 0)) == pytest.approx(expected)
    assert exact_test(Count(5, 0), Count(5, 0)) is None
    assert exact_test(Count(0, 5), Count(0, 5)) is None
    assert exact_test(Count(0, 1), Count(1, 0)) is None


@settings(max_examples=20, deadline=None)
@given(st.integers(0, 2**32 - 1), st.sets(st.integers(0, 4), min_size=1, max_size=4), st.floats(-3, 3), st.booleans())
def test_no_arm_is_better_with_more_diverged_runs(seed: int, lost: set[int], shift: float, more: bool) -> None:
    """An arm with more diverged runs than the baseline is never better, in either direction."""
    y = 0.1 * np.random.default_rng(seed).normal(size=(4, 5))
    y[1] += shift
    values = {name: dict(enumerate(map(float, row))) for name, row in zip(("baseline", *"abc"), y, strict=True)}
    values["a"] = {seed: value for seed, value in values["a"].items() if seed not in lost}
    plan = Plan("loss", "max" if more else "min", ("baseline", *"abc"), tuple(range(5)), (5,))
    worst = impute_worst(values, {"a": frozenset(lost)}, plan.direction)
    counts = {arm: Count(len(row), 5 - len(row)) for arm, row in values.items()}
    against = dict.fromkeys("abc", "baseline")
    found = collect_evidence(fit_model(values).effects, fit_model(worst).effects, counts, against, plan, 5)["a"]
    assert decide_verdict(found, plan) != "better"
    assert found.imputed is not None
    assert f"{len(lost)} of 5 runs diverged" in format_evidence(found, plan, Sides((5, 5)))


def test_diverged_runs_of_the_baseline_make_no_arm_worse(table, draw, store_study) -> None:
    """Only the good runs of the baseline finished, so a comparison with them is biased against the arm."""
    values = table(3 + 0.01 * draw(np.random.default_rng(0), 4, 5))
    values["arm1"] = {seed: value + 0.5 for seed, value in values["arm1"].items()}
    values["baseline"] |= {0: None, 3: None}
    arms = {arm["name"]: arm for arm in analyse(store_study(values))["arms"]}
    assert arms["arm1"]["effect"] > 0
    assert arms["arm1"]["verdict"] == "inconclusive"
    assert "a fair sample" in arms["arm1"]["evidence"]


def test_study_in_which_all_runs_diverged_has_no_effect(store_study) -> None:
    results = analyse(store_study({"baseline": dict.fromkeys(range(3)), "a": dict.fromkeys(range(3))}))
    arm = results["arms"][1]
    assert results["complete"]
    assert (arm["effect"], arm["p"], arm["verdict"]) == (None, None, "inconclusive")
    assert arm["evidence"] == "No run finished: 3 of 3 diverged, 3 of 3 of the baseline."
    assert results["noise_floor"] == {"sd": None, "seeds": 0, "resolves": None}

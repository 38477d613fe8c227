"""`benchmarks.calibration` computes the same as `taetpu.stats` and scipy, and detects wrong error rates."""

import copy

import numpy as np
import pytest
from benchmarks.calibration import (
    OTHERS,
    OURS,
    broken,
    broken_churn,
    broken_looks,
    simulate,
    simulate_churn,
    simulate_looks,
    table,
)
from benchmarks.calibration_methods import TESTS, judge_with_effects
from benchmarks.calibration_scenarios import SCENARIOS, Scenario
from benchmarks.coverage import coverage, ideal
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats
from tests.suites import by_default

from taetpu.stats.linear_model import fit_model
from taetpu.stats.plan import NoiseModel
from taetpu.stats.verdict import holm


def assert_equals_package(y: np.ndarray, method: NoiseModel) -> list:
    """Compare every p after Holm's correction, and every interval. Return the effects of all studies."""
    judged, effects = TESTS[method](y), []
    for study, rows in enumerate(y.tolist()):
        values = {"baseline" if i == 0 else f"arm{i}": dict(enumerate(row)) for i, row in enumerate(rows)}
        fit = fit_model(values, noise=method)
        p = holm({name: effect.p for name, effect in fit.effects.items()})
        assert judged.p[study] == pytest.approx(list(p.values()), rel=1e-6)
        intervals = np.array([effect.interval for effect in fit.effects.values()])
        assert np.stack([judged.low[study], judged.high[study]], 1) == pytest.approx(intervals, rel=1e-6)
        effects += fit.effects.values()
    return effects


@pytest.mark.slow
@pytest.mark.parametrize("method", ["moderated", "guard"])
@settings(max_examples=40, deadline=None)
@given(
    st.integers(2, 12),
    st.integers(2, 8),
    st.floats(1, 30),
    st.floats(1, 30),
    st.sampled_from([0.0, 0.9, 0.99]),
    st.integers(0, 2**32 - 1),
)
def test_noise_models_equal_those_of_the_package(
    method: NoiseModel, arms: int, seeds: int, baseline: float, arm: float, copied: float, seed: int
) -> None:
    """On full tables, with noisy arms and copies and without."""
    scenario = Scenario("", baseline=baseline, arm=arm, copied=copied)
    assert_equals_package(scenario.draw(np.random.default_rng(seed), 1, arms, seeds), method)


@pytest.mark.parametrize(
    ("arms", "seeds", "how"),
    [
        (2, 5, {}),
        (3, 4, {"arm": 10.0}),
        (6, 2, {"baseline": 4.0}),
        (8, 5, {"copied": 0.95}),
        (10, 5, {"scales": 0.5}),
        (40, 3, {"baseline": 3.0}),
    ],
)
def test_weighed_noise_equals_that_of_the_package(arms: int, seeds: int, how: dict) -> None:
    assert_equals_package(Scenario("", **how).draw(np.random.default_rng(0), 3, arms, seeds), "moderated")


def test_the_guard_equals_that_of_the_package() -> None:
    """None, one, or both of an effect's arms are noisy, or arms are copies: up to four estimates."""
    y = Scenario("", baseline=4.0, arm=4.0).draw(np.random.default_rng(0), 40, 9, 5)
    assert {len(effect.estimates) for effect in assert_equals_package(y, "guard")} == {1, 2, 3, 4}


def test_effects_are_added_after_the_noise_is_weighed() -> None:
    y = SCENARIOS[0].draw(np.random.default_rng(0), 20, 5, 4)
    effect = np.array([0.0, 1.0, -3.0, 2.0])
    added = y + np.concatenate([[0.0], effect])[:, None]
    for method in ("moderated", "guard"):
        _, judged = judge_with_effects(method, y, [np.zeros(4), effect])
        assert judged.p == pytest.approx(TESTS[method](added).p)


def test_other_methods_equal_scipy() -> None:
    y = SCENARIOS[0].draw(np.random.default_rng(0), 2, 2, 6)
    for study in (0, 1):
        baseline, arm = y[study]
        for method, test in (
            ("paired t", stats.ttest_rel(arm, baseline)),
            ("Welch", stats.ttest_ind(arm, baseline, equal_var=False)),
            ("Wilcoxon", stats.wilcoxon(arm, baseline)),
        ):
            assert TESTS[method](y).p[study, 0] == pytest.approx(test.pvalue)


@pytest.mark.parametrize("noisy", by_default(["baseline", "arm"], "arm"))
@pytest.mark.parametrize("method", by_default(["moderated", "guard"], "guard"))
def test_unequal_noise_keeps_the_error_rate(method: str, noisy: str) -> None:
    """Three times the noise in one of nine arms: pooled noise errs, both noise models hardly more than they say."""
    y = Scenario("", **{noisy: 3.0}).draw(np.random.default_rng(1), 2000, 9, 5)
    assert (TESTS["pooled"](y).p < 0.05).any(1).mean() > 0.08
    assert (TESTS[method](y).p < 0.05).any(1).mean() < 0.06


def test_broken_rates_are_named() -> None:
    cell = simulate(SCENARIOS[0], 4, 5, 500, ("moderated", "guard", "pooled"))
    assert broken([cell]) == []
    bad = copy.deepcopy(cell)
    bad["methods"]["moderated"] = {"false": 0.3, "coverage": 0.8, "power": 0.1}
    assert [problem.split(": ")[1][:5] for problem in broken([bad])] == ["false", "cover", "power"]
    assert broken_looks([{"looks": [5, 8], "planned": 0.2, "studies": 10_000}]) == ["looks at [5, 8]: 0.200"]


def test_an_effect_beside_a_noisy_arm_has_a_bound() -> None:
    scenario = next(one for one in SCENARIOS if one.arm == 10)
    cell = simulate(scenario, 10, 5, 100, ("moderated", "guard", "pooled"))
    assert cell["methods"]["moderated"]["power"] > 0.7 > cell["methods"]["guard"]["power"]
    cell["methods"]["moderated"]["power"] = 0.5
    assert any("0.700" in problem for problem in broken([cell]))


def test_tables_fit_a_page() -> None:
    """Studies of two arms, which all of our methods compare by the paired t-test, are left out."""
    methods = ("moderated", "guard", "pooled", "paired t")
    cells = [simulate(one, arms, 3, 50, methods) for one in SCENARIOS for arms in (2, 4) if arms >= one.fewest]
    for columns in (OURS, OTHERS):
        lines = table(cells, columns).splitlines()
        assert max(map(len, lines)) <= 80
        assert len(lines) == 2 + len(SCENARIOS)


def test_planned_looks_keep_the_error_rate_and_unplanned_ones_do_not() -> None:
    rates = simulate_looks(4000, 2, (3, 5, 8))
    assert rates["planned"] < 0.06
    assert rates["unplanned"] > 0.09
    assert broken_looks([simulate_looks(500, 4, (2, 4))]) == []


def test_small_changes_change_few_verdicts() -> None:
    churn = simulate_churn(300, 6, 5)
    assert churn["changed"]["moderated"] < 0.01
    assert broken_churn([churn]) == []
    assert broken_churn([{"arms": 6, "changed": {"moderated": 0.02}}]) == ["churn with 6 arms: 0.0200"]


def test_an_ideal_weighing_covers_noisy_arms_less_often_than_quiet_ones() -> None:
    """Its intervals hold 95 % on average, since the posterior probability of noise is exact."""
    known = ideal(5, 40_000)
    assert known["average"] == pytest.approx(0.95, abs=0.004)
    assert known["noisy"] < 0.935 < 0.965 < known["quiet"]


def test_coverage_is_that_of_the_calibration() -> None:
    scenario = next(scenario for scenario in SCENARIOS if scenario.name == "an arm 3x as noisy")
    rates = simulate(scenario, 4, 3, 200, ["moderated", "guard"])["methods"]
    for method, expected in rates.items():
        worst, average = coverage(scenario, 4, 3, 200, method)
        assert worst == expected["coverage"] < average

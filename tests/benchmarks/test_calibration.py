"""`benchmarks.calibration` computes the same as `taetpu.stats` and scipy, and detects wrong error rates."""

import numpy as np
import pytest
from benchmarks.calibration import SCENARIOS, Scenario, broken, broken_looks, looked, ours, table, tried
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats

from benchmarks import calibration
from taetpu.stats.linear_model import fit_model
from taetpu.stats.verdict import holm


@pytest.mark.slow
@settings(max_examples=40, deadline=None)
@given(
    st.integers(2, 12),
    st.integers(2, 8),
    st.floats(1, 30),
    st.floats(1, 30),
    st.sampled_from([0.0, 0.9, 0.99]),
    st.integers(0, 2**32 - 1),
)
def test_ours_equals_the_package_model(
    arms: int, seeds: int, baseline: float, arm: float, copied: float, seed: int
) -> None:
    """On full tables, with noisy arms and copies and without: every p after Holm's correction, and every interval."""
    y, _ = Scenario("", baseline=baseline, arm=arm, copied=copied).draw(np.random.default_rng(seed), 1, arms, seeds)
    found = fit_model(
        {"baseline" if i == 0 else f"arm{i}": dict(enumerate(row)) for i, row in enumerate(y[0].tolist())}
    )
    judged = ours(y)
    p = holm({name: effect.p for name, effect in found.effects.items()})
    assert judged.p[0] == pytest.approx(list(p.values()), rel=1e-6)
    for i, effect in enumerate(found.effects.values()):
        assert (judged.low[0, i], judged.high[0, i]) == pytest.approx(effect.interval, rel=1e-6)


def test_ours_equals_the_package_model_on_guarded_tables() -> None:
    """None, one, or both of an effect's arms are noisy, or arms are copies: up to four estimates, and ours is the same
    in each."""
    y, _ = Scenario("", baseline=4.0, arm=4.0).draw(np.random.default_rng(0), 40, 9, 5)
    judged, seen = ours(y), set()
    for study, rows in enumerate(y.tolist()):
        found = fit_model({"baseline" if i == 0 else f"arm{i}": dict(enumerate(row)) for i, row in enumerate(rows)})
        seen |= {len(effect.estimates) for effect in found.effects.values()}
        assert judged.low[study] == pytest.approx([effect.interval[0] for effect in found.effects.values()], rel=1e-6)
    assert seen == {1, 2, 3, 4}


def test_other_methods_equal_scipy() -> None:
    y, _ = SCENARIOS[0].draw(np.random.default_rng(0), 2, 2, 6)
    for study in (0, 1):
        baseline, arm = y[study]
        assert calibration.paired_t(y).p[study, 0] == pytest.approx(stats.ttest_rel(arm, baseline).pvalue)
        assert calibration.welch(y).p[study, 0] == pytest.approx(stats.ttest_ind(arm, baseline, equal_var=False).pvalue)
        assert calibration.wilcoxon(y).p[study, 0] == pytest.approx(stats.wilcoxon(arm, baseline).pvalue)


@pytest.mark.parametrize("noisy", ["baseline", "arm"])
def test_the_guard_keeps_the_error_rate(noisy: str) -> None:
    """Three times the noise in one of nine arms: the unguarded model errs, the guarded one hardly more than it says."""
    y, _ = Scenario("", **{noisy: 3.0}).draw(np.random.default_rng(1), 4000, 9, 5)
    residual = y - y.mean(2, keepdims=True) - y.mean(1, keepdims=True) + y.mean((1, 2), keepdims=True)
    error = np.sqrt(2 * (residual**2).sum((1, 2)) / 32 / 5)[:, None]
    plain = calibration.holm(2 * stats.t.sf(np.abs((y[:, 1:] - y[:, :1]).mean(2)) / error, 32))
    assert (plain < 0.05).any(1).mean() > 0.08
    assert (ours(y).p < 0.05).any(1).mean() < 0.06


def test_broken_rates_are_named() -> None:
    found = tried(SCENARIOS[0], 4, 5, 500, ("ours", "Welch"))
    assert broken([found]) == []
    mine = {"false": 0.3, "coverage": [0.95, 0.8, 0.95], "power": 0.1}
    bad = {**found, "methods": {"ours": mine, "Welch": {"false": 0.0, "coverage": [1.0], "power": 0.9}}}
    assert [problem.split(": ")[1][:5] for problem in broken([bad])] == ["any f", "cover", "power"]
    assert broken_looks([{"looks": [5, 8], "planned": 0.2}], 10_000) == ["looks at [5, 8]: 0.200"]


def test_scenarios_that_need_more_arms_are_left_out_and_the_table_shows_the_rest() -> None:
    found = [one for scenario in SCENARIOS if (one := tried(scenario, 2, 3, 50, ("ours", "Wilcoxon")))]
    assert len(found) < len(SCENARIOS)
    told = table(found)
    assert all(one["scenario"] in told for one in found)


def test_planned_looks_keep_the_error_rate_and_unplanned_ones_do_not() -> None:
    found = looked(4000, 2, (3, 5, 8))
    assert found["planned"] < 0.06
    assert found["unplanned"] > 0.09

"""Group-sequential tests match published bounds and keep the error rate."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats

from taetpu.stats.group_sequential import alpha_spent, inflated_error_rate, nominal_level, overall_p


def test_levels_match_published_bounds() -> None:
    """Sources: Lan and DeMets (1983); Jennison and Turnbull (2000), chapter 7."""
    assert nominal_level(0.05, (0.5, 1.0), 0) == pytest.approx(0.00305, abs=1e-5)
    assert nominal_level(0.05, (0.5, 1.0), 1) == pytest.approx(0.0490, abs=1e-4)
    five = [nominal_level(0.05, (0.2, 0.4, 0.6, 0.8, 1.0), look) for look in range(5)]
    bounds = [float(stats.norm.isf(level / 2)) for level in five]
    assert bounds == pytest.approx([4.877, 3.357, 2.680, 2.290, 2.031], abs=2e-3)


def test_last_analysis_spends_the_whole_alpha() -> None:
    assert alpha_spent(0.05, 1.0) == pytest.approx(0.05)
    assert alpha_spent(0.05, 0.3) < alpha_spent(0.05, 0.6) < 0.05


def test_single_analysis_needs_no_correction() -> None:
    assert overall_p(0.0123, (1.0,), 0) == 0.0123
    assert nominal_level(0.05, (1.0,), 0) == pytest.approx(0.05)


@settings(max_examples=8, deadline=None)
@given(st.sampled_from([(0.625, 1.0), (0.375, 0.625, 1.0)]), st.floats(1e-4, 0.4), st.integers(0, 2))
def test_overall_p_is_the_inverse_of_the_nominal_level(shares, alpha: float, look: int) -> None:
    look = min(look, len(shares) - 1)
    p = nominal_level(alpha, shares, look)
    if p > 1e-10:
        assert overall_p(p, shares, look) == pytest.approx(alpha, rel=1e-3)


@settings(max_examples=8, deadline=None)
@given(st.floats(1e-9, 1), st.floats(1e-9, 1))
def test_overall_p_keeps_the_order_and_is_never_smaller(p: float, q: float) -> None:
    one, other = (overall_p(value, (0.625, 1.0), 1) for value in sorted((p, q)))
    assert one <= other * (1 + 1e-4)
    assert overall_p(p, (0.625, 1.0), 0) >= p * (1 - 1e-4)
    assert overall_p(p, (0.625, 1.0), 1) >= p * (1 - 1e-4)


@pytest.mark.parametrize(("number", "rate"), [(1, 0.05), (2, 0.083), (5, 0.142)])
def test_inflated_error_rate_matches_armitage(number: int, rate: float) -> None:
    """Source: Armitage, McPherson and Rowe (1969), table 2."""
    assert inflated_error_rate(0.05, range(1, number + 1)) == pytest.approx(rate, abs=5e-4)


def test_simulated_error_rates_match() -> None:
    """Sums of 8 normal steps are tested after 3, 5 and 8 steps, with and without correction."""
    steps = np.random.default_rng(0).normal(size=(40_000, 8))
    seeds, shares = (3, 5, 8), (0.375, 0.625, 1.0)
    z = np.abs(np.cumsum(steps, axis=1)[:, [2, 4, 7]]) / np.sqrt(seeds)
    bounds = [stats.norm.isf(nominal_level(0.05, shares, look) / 2) for look in range(3)]
    assert (z > bounds).any(1).mean() == pytest.approx(0.05, abs=0.004)
    assert (z > stats.norm.isf(0.025)).any(1).mean() == pytest.approx(inflated_error_rate(0.05, seeds), abs=0.006)

"""Critical values for several arms and one baseline match published tables and scipy."""

import numpy as np
import pytest
from scipy import stats

from taetpu.stats.secondary_analyses import critical_value


@pytest.mark.parametrize(
    ("arms", "df", "value"),
    [(1, 12, 2.18), (2, 5, 3.03), (3, 10, 2.76), (4, 20, 2.65)],
)
def test_critical_values_match_dunnetts_table(arms: int, df: int, value: float) -> None:
    """Two-sided 5 % points, Dunnett (1964), New tables for multiple comparisons with a control."""
    assert critical_value(arms, df) == pytest.approx(value, abs=0.011)


@pytest.mark.parametrize(("arms", "df"), [(2, 4), (9, 2.5)])
def test_critical_values_match_scipys_multivariate_t(arms: int, df: float) -> None:
    shape = 0.5 * np.eye(arms) + 0.5
    c = critical_value(arms, df)
    inside = stats.multivariate_t(shape=shape, df=df).cdf(
        np.full(arms, c), lower_limit=np.full(arms, -c), random_state=np.random.default_rng(0)
    )
    assert inside == pytest.approx(0.95, abs=5e-4)


def test_critical_values_match_scipys_dunnett() -> None:
    rng = np.random.default_rng(1)
    control, groups = rng.normal(size=6), [rng.normal(size=6) for _ in range(4)]
    test = stats.dunnett(*groups, control=control, random_state=np.random.default_rng(0))
    interval = test.confidence_interval(0.95)
    half = (interval.high - interval.low)[0] / 2
    pooled = np.sqrt(np.mean([group.var(ddof=1) for group in (control, *groups)]))
    assert critical_value(4, 25) == pytest.approx(half / (pooled * np.sqrt(2 / 6)), abs=0.01)


@pytest.mark.parametrize(("arms", "df"), [(1, 1.5), (4, 7.3), (30, 200.0)])
def test_critical_values_are_below_bonferronis_and_grow_with_the_number_of_arms(arms: int, df: float) -> None:
    bonferroni = stats.t.isf(0.025 / arms, df)
    assert critical_value(1, df) - 1e-9 <= critical_value(arms, df) <= bonferroni + 1e-5
    assert critical_value(arms, df) < critical_value(arms + 1, df)

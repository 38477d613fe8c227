"""Power analysis matches simulated studies and statsmodels."""

import numpy as np
import pytest
from scipy import stats
from statsmodels.stats.power import TTestIndPower

from taetpu.stats.power import MAX_SEEDS, PowerAnalysis


@pytest.mark.parametrize(("arms", "seeds"), [(1, 5), (7, 3)])
def test_smallest_effect_is_detected_in_80_percent_of_simulated_studies(arms: int, seeds: int) -> None:
    design, sd, rng = PowerAnalysis(arms), 0.3, np.random.default_rng(0)
    effect = design.smallest_effect(sd, seeds)
    assert effect is not None
    y = sd * rng.standard_normal((4000, arms + 1, seeds)) + rng.standard_normal((4000, 1, seeds))
    y[:, 1] += effect
    residuals = y - y.mean(1, keepdims=True) - y.mean(2, keepdims=True) + y.mean((1, 2), keepdims=True)
    df = arms * (seeds - 1)
    t = (y[:, 1] - y[:, 0]).mean(1) / np.sqrt(2 * (residuals**2).sum((1, 2)) / df / seeds)
    assert np.mean(2 * stats.t.sf(np.abs(t), df) < 0.05 / arms) == pytest.approx(0.8, abs=0.02)


def test_power_of_two_independent_groups_matches_statsmodels() -> None:
    design = PowerAnalysis(1, df_a_seed=2.0)
    for seeds, effect in ((5, 2.0), (9, 1.0)):
        expected = TTestIndPower().power(effect, seeds, 0.05)
        assert design.power_at(effect, 1.0, np.array(float(seeds))) == pytest.approx(expected, rel=1e-3)


def test_seeds_needed_is_the_smallest_sufficient_number() -> None:
    design = PowerAnalysis(8)
    needed = design.seeds_needed(0.02, 0.01)
    assert needed is not None
    before, at = design.power_at(0.02, 0.01, np.array([needed - 1.0, needed]))
    assert before < 0.8 <= at
    assert design.smallest_effect(0.01, needed) <= 0.02 < design.smallest_effect(0.01, needed - 1)


def test_undetectable_effects_give_none() -> None:
    assert PowerAnalysis(8).smallest_effect(0.1, 1) is None
    assert PowerAnalysis(8).seeds_needed(1e-6, 1.0) is None
    assert PowerAnalysis(1).seeds_needed(0.4, 1.0) < MAX_SEEDS


def test_smallest_effect_is_proportional_to_the_noise() -> None:
    assert PowerAnalysis(3).smallest_effect(5.0, 4) == pytest.approx(
        500 * PowerAnalysis(3).smallest_effect(0.01, 4), rel=1e-3
    )

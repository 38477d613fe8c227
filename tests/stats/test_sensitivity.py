"""Other analyses: each as scipy and statsmodels have it."""

from itertools import product

import numpy as np
import pytest
from scipy import stats
from statsmodels.stats.weightstats import ttost_paired

from taetpu.stats.model import fit_model
from taetpu.stats.sensitivity import alternative_analyses


def rows(seeds: int) -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(seeds)
    shared = rng.normal(size=seeds)
    return shared + 0.3 * rng.normal(size=seeds) + 0.3, shared + 0.3 * rng.normal(size=seeds)


def seeded(row: np.ndarray) -> dict[int, float]:
    return dict(enumerate(row.tolist()))


@pytest.mark.parametrize("seeds", [3, 5, 8])
def test_by_hand(seeds: int) -> None:
    arm, baseline = rows(seeds)
    found, test = alternative_analyses(seeded(arm), seeded(baseline)), stats.ttest_rel(arm, baseline)
    assert found["paired"]["p"] == pytest.approx(test.pvalue)
    assert found["paired"]["ci95"] == pytest.approx(list(test.confidence_interval()))
    assert found["correlation"] == pytest.approx(stats.pearsonr(arm, baseline).statistic)
    left = [np.delete(arm - baseline, i).mean() for i in range(seeds)]
    assert found["without_a_seed"] == pytest.approx([min(left), max(left)])
    assert (found["sign_flip_p"] is None) == (seeds < 6)


def test_all_flips_by_hand() -> None:
    arm, baseline = rows(6)
    flips = [abs(np.dot(signs, arm - baseline)) for signs in product((-1, 1), repeat=6)]
    expected = np.mean(np.array(flips) >= abs((arm - baseline).sum()) * (1 - 1e-9))
    assert alternative_analyses(seeded(arm), seeded(baseline))["sign_flip_p"] == pytest.approx(expected)


def test_only_shared_seeds_count() -> None:
    arm, baseline = rows(5)
    more = {**seeded(arm), 7: 99.0}
    assert alternative_analyses(more, seeded(baseline)) == alternative_analyses(seeded(arm), seeded(baseline))


@pytest.mark.parametrize("arm", [{}, {0: 1.0}, {0: 1.5, 1: 2.5}])
def test_too_few_seeds_or_no_noise(arm: dict[int, float]) -> None:
    found = alternative_analyses(arm, {0: 1.0, 1: 2.0})
    assert found == {"paired": None, "sign_flip_p": None, "correlation": None, "without_a_seed": None}


@pytest.mark.parametrize("bound", [0.1, 0.5, 2.0])
def test_equivalence_of_two_arms_is_the_paired_test_of_statsmodels(bound: float) -> None:
    arm, baseline = rows(6)
    effect = fit_model({"baseline": seeded(baseline), "a": seeded(arm)}).effects["a"]
    expected, *_ = ttost_paired(arm, baseline, -bound, bound)
    assert effect.p_inside(bound) == pytest.approx(expected)
    low, high = effect.interval_at(0.9)
    assert (expected < 0.05) == (-bound < low and high < bound)

"""Intervals over seeds and items cover the true difference, and tell the two sources of noise apart."""

import math
from dataclasses import replace

import numpy as np
import pytest
from scipy import stats

from taetpu.core.metric_spec import UNBOUNDED
from taetpu.stats.item_effects import crossed_mean


def draw(rng, seeds: int, items: int, of_seed: float, of_item: float, rest: float, mean: float = 0.0) -> np.ndarray:
    by_seed, by_item = rng.normal(0, of_seed, (seeds, 1)), rng.normal(0, of_item, (1, items))
    return mean + by_seed + by_item + rng.normal(0, rest, (seeds, items))


def test_the_error_is_that_of_a_two_way_analysis_of_variance() -> None:
    values = draw(np.random.default_rng(3), 4, 7, 1, 2, 1, mean=5)
    found = crossed_mean(values)
    seeds, items = 7 * values.mean(1).var(ddof=1), 4 * values.mean(0).var(ddof=1)
    rest = (values - values.mean(1, keepdims=True) - values.mean(0) + values.mean()).ravel()
    rest = rest @ rest / (3 * 6)
    assert found.mean == pytest.approx(values.mean())
    assert found.error == pytest.approx(math.sqrt((seeds + items - rest) / 28))
    spread = seeds**2 / 3 + items**2 / 6 + rest**2 / 18
    assert found.df == pytest.approx((seeds + items - rest) ** 2 / spread)
    half = stats.t.isf(0.025, found.df) * (found.error or 0)
    assert found.interval(UNBOUNDED) == pytest.approx([found.mean - half, found.mean + half])
    assert found.interval((found.mean - half / 2, math.inf))[0] == pytest.approx(found.mean - half / 2)  # pyright: ignore[reportOptionalSubscript]


def test_the_parts_of_the_noise_are_estimated_without_bias() -> None:
    rng, number = np.random.default_rng(0), 400
    found = [crossed_mean(draw(rng, 5, 30, 0.3, 1.0, 2.0)) for _ in range(number)]
    assert np.mean([part.item_variance for part in found]) == pytest.approx(1 + 4 / 5, rel=0.05)
    assert np.mean([part.seed_variance for part in found]) == pytest.approx(0.09, rel=0.3)  # truncated at 0


@pytest.mark.parametrize(
    ("of_seed", "of_item", "rest"), [(0.1, 1.0, 0.5), (0.5, 1.0, 1.0), (0.5, 0.1, 0.5), (0.0, 0.0, 1.0)]
)
def test_intervals_cover_the_true_value(of_seed, of_item, rest) -> None:
    rng, number = np.random.default_rng(1), 600
    inside = wrong = 0
    for _ in range(number):
        values = draw(rng, 4, 25, of_seed, of_item, rest)
        low, high = crossed_mean(values).interval(UNBOUNDED) or (0, 0)
        inside += low <= 0 <= high
        low, high = crossed_mean(values[:1]).interval(UNBOUNDED) or (0, 0)  # a single seed: over items only
        wrong += not low <= 0 <= high
    assert inside / number > 0.93
    if of_seed >= 0.5:
        assert wrong / number > 0.15  # seeds are a sample too


def test_differences_on_the_same_items_have_less_noise_than_those_of_separate_items() -> None:
    rng = np.random.default_rng(2)
    difficulty = rng.normal(0, 1, 200)
    arms = [(difficulty + shift + rng.normal(0, 0.3, (3, 200)) > 0).astype(float) for shift in (0, 0.1)]
    paired = crossed_mean(arms[1] - arms[0])
    apart = [crossed_mean(arm).error or 0 for arm in arms]
    assert paired.error is not None
    assert paired.error < 0.6 * math.hypot(*apart)


def test_the_stated_number_of_items_detects_the_effect() -> None:
    rng, effect = np.random.default_rng(4), 0.25
    pilot = replace(crossed_mean(draw(rng, 5, 2000, 0.0, 1.0, 1.0)), mean=effect)
    needed = pilot.items_needed()
    assert needed is not None
    again = [crossed_mean(draw(rng, 5, needed, 0.0, 1.0, 1.0, mean=effect)) for _ in range(300)]
    detected = np.mean([(part.interval(UNBOUNDED) or [0])[0] > 0 for part in again])
    assert 0.7 < detected < 0.9
    assert (pilot.item_share or 0) > 0.95


def test_noise_of_seeds_alone_leaves_no_number_of_items() -> None:
    values = draw(np.random.default_rng(5), 3, 50, 5.0, 0.1, 0.1, mean=1.0)
    found = crossed_mean(values)
    assert found.items_needed() is None
    assert found.item_share is not None
    assert found.item_share < 0.05


def test_few_or_equal_values_have_no_error() -> None:
    for values in (np.ones((3, 50)), np.random.default_rng(0).normal(size=(3, 4))):
        found = crossed_mean(values)
        assert (found.error, found.interval(UNBOUNDED), found.item_share, found.items_needed()) == (None,) * 4
    single = crossed_mean(np.random.default_rng(0).normal(size=(1, 30)))
    assert single.error == pytest.approx(math.sqrt((single.item_variance or 0) / 30))
    assert (single.item_share, single.items_needed(), single.df) == (None, None, 29)

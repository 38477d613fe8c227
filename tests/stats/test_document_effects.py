"""Effects over documents: the estimate is the mean per target, and intervals contain all true effects together."""

import numpy as np
import pytest

from taetpu.stats.document_effects import LEAST, estimate_effects


def test_an_effect_is_the_mean_change_per_target():
    found = estimate_effects(np.array([[1.0, 2.0, 6.0, 0.0, 1.0]]), np.array([1.0, 2.0, 3.0, 2.0, 2.0]), draws=200)
    assert found.estimate == pytest.approx([1.0])
    assert found.low[0] < 1.0 < found.high[0]


def test_the_error_of_equal_documents_is_that_of_a_mean():
    values = np.random.default_rng(0).standard_normal((2, 40))
    found = estimate_effects(values * 7, np.full(40, 7.0), draws=10)
    np.testing.assert_allclose(found.error, values.std(1, ddof=1) / 40**0.5)


def test_intervals_need_a_minimum_of_documents():
    for documents in (1, LEAST - 1):
        found = estimate_effects(np.ones((1, documents)), np.ones(documents))
        assert np.isnan([*found.low, *found.high]).all()
        assert np.isnan(found.error).all() == (documents == 1)


def test_changes_without_variance_have_an_interval_without_width():
    found = estimate_effects(np.zeros((2, 8)), np.ones(8), draws=50)
    np.testing.assert_array_equal([found.low, found.estimate, found.high], np.zeros((3, 2)))


def test_an_effect_of_few_documents_leaves_the_intervals_of_others():
    rng = np.random.default_rng(0)
    changes, weights = rng.standard_normal((6, 40)), np.full(40, 10.0)
    alone = estimate_effects(changes, weights)
    few = 1e-3 * rng.standard_normal((1, 40))
    few[0, 0] = 50.0  # a sample without this document has nearly no variance
    found = estimate_effects(np.concatenate([changes, few]), weights)
    np.testing.assert_allclose(found.critical[:6], alone.critical, rtol=0.05)
    assert found.critical[6] > 3 * alone.critical[0]


def test_an_effect_without_variance_in_most_samples_has_no_interval():
    changes = np.zeros((2, 8))
    changes[0], changes[1, 0] = np.arange(8), 1.0
    found = estimate_effects(changes, np.ones(8))
    assert np.isfinite([found.low[0], found.high[0]]).all()
    assert np.isnan([found.low[1], found.high[1]]).all()
    assert found.has_intervals


@pytest.mark.slow
@pytest.mark.parametrize(("documents", "effects", "skewed"), [(32, 12, False), (64, 12, True)])
def test_coverage(documents, effects, skewed):
    """Of 1000 simulated tables, 93 to 97 % have intervals with all true effects; the standard error is 0.7 %."""
    rng, hits = np.random.default_rng(0), 0
    true = np.full(effects, 0.02) if skewed else 0.05 * np.arange(effects) / effects
    for seed in range(1000):
        weights = rng.integers(20, 130, documents).astype(float)
        common = rng.standard_normal((documents, 1))  # documents are more or less difficult for all effects
        noise = rng.gamma(1.0, 1.0, (documents, effects)) - 1 if skewed else rng.standard_normal((documents, effects))
        changes = (true + 0.02 * noise + 0.01 * common) * weights[:, None]
        found = estimate_effects(changes.T, weights, draws=500, seed=seed)
        hits += bool(((found.low <= true) & (true <= found.high)).all())
    assert 0.93 <= hits / 1000 <= 0.97

"""Orders without a table are permutations that look random and depend on seed and epoch."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

from taetpu.data import base
from taetpu.data.feistel import permuted


@given(st.integers(1, 3000), st.integers(0, 2**32 - 1), st.integers(0, 100))
def test_every_number_occurs_once(count, seed, epoch):
    assert sorted(permuted(np.arange(count), seed, epoch, count).tolist()) == [*range(count)]


def test_places_are_computed_one_by_one():
    whole = permuted(np.arange(5000), 3, 1, 5000)
    assert permuted(np.array([4999, 17, 17]), 3, 1, 5000).tolist() == whole[[4999, 17, 17]].tolist()


@pytest.mark.slow
def test_a_place_has_any_number_with_equal_probability():
    count = 100
    orders = np.stack([permuted(np.arange(count), seed, 0, count) for seed in range(2000)])
    for place in (0, 1, 50, 99):
        assert stats.chisquare(np.bincount(orders[:, place], minlength=count)).pvalue > 1e-4
    steps = (orders[:, 1:] - orders[:, :-1]) % count  # neighbours are independent
    assert stats.chisquare(np.bincount(steps.ravel(), minlength=count)[1:]).pvalue > 1e-4


def test_two_billion_windows_need_no_table():
    count = 2**31 - 1
    rows = permuted(np.arange(10**5), 1, 0, count)
    assert len(np.unique(rows)) == 10**5
    assert rows.max() < count
    assert abs(np.corrcoef(np.arange(10**5), rows)[0, 1]) < 0.02


@pytest.mark.parametrize("batch", [3, 8])
def test_epochs_of_a_large_corpus(monkeypatch, batch):
    monkeypatch.setattr(base, "MOST_STORED", 10)
    rows = base.epoch_rows(5, 0, 12, batch, 17)
    flat = rows.ravel().tolist()
    assert sorted(flat[:17]) == [*range(17)]
    assert sorted(flat[17:34]) == [*range(17)]
    assert flat[:17] != flat[17:34]
    assert base.epoch_rows(5, 7, 5, batch, 17).tolist() == rows[7:].tolist()  # a resumed run

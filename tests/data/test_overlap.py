"""Verbatim overlap equals a search window by window."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from taetpu.data.overlap import BLOCK, WINDOW, overlap

PIECES = [np.random.default_rng(i).integers(0, 3, 20 + 30 * i).astype(np.int32) for i in range(4)]


def searched(train: np.ndarray, held_out: np.ndarray) -> float:
    seen = {tuple(train[i : i + WINDOW]) for i in range(len(train) - WINDOW + 1)}
    windows = [tuple(held_out[i : i + WINDOW]) in seen for i in range(len(held_out) - WINDOW + 1)]
    return sum(windows) / len(windows)


@settings(deadline=None, max_examples=60)
@given(train=st.lists(st.sampled_from(PIECES), max_size=5), held_out=st.lists(st.sampled_from(PIECES), max_size=5))
def test_overlap_equals_a_search_window_by_window(train, held_out):
    empty = np.zeros(0, np.int32)
    one, other = np.concatenate([empty, *train]), np.concatenate([empty, *held_out])
    found = overlap(one, other)
    assert found is None if len(other) < WINDOW else found == pytest.approx(searched(one, other))


def test_a_window_across_two_blocks_is_found():
    train = np.random.default_rng(0).integers(0, 50, 2 * BLOCK).astype(np.int32)
    held_out = np.concatenate([train[start : start + WINDOW] for start in (0, BLOCK - 7, len(train) - WINDOW)])
    held_out = np.concatenate([held_out, held_out[::-1]])
    assert overlap(train, held_out) == pytest.approx(3 / (len(held_out) - WINDOW + 1))

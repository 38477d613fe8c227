"""The windows that a step reads, and the division of a token stream into windows."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from taetpu.core.config_parsing import build_component
from taetpu.data import base
from taetpu.data.base import epoch_rows, evaluation_order, evaluation_split, permutation, train_windows

sizes = st.integers(1, 20)


@settings(deadline=None)
@given(seed=st.integers(0, 2**32), windows=sizes, batch=sizes)
def test_every_epoch_reads_every_window_once(seed: int, windows: int, batch: int):
    rows = epoch_rows(seed, 0, 3 * windows, batch, windows).ravel()  # as many epochs as three batches hold windows
    for epoch in rows[: len(rows) // windows * windows].reshape(-1, windows):
        assert sorted(epoch) == list(range(windows))


@settings(deadline=None)
@given(seed=st.integers(0, 5), start=st.integers(0, 50), count=sizes, batch=sizes, windows=sizes)
def test_rows_of_a_step_do_not_depend_on_the_requested_range(
    seed: int, start: int, count: int, batch: int, windows: int
):
    whole = epoch_rows(seed, 0, start + count, batch, windows)
    assert whole.dtype == np.int32
    np.testing.assert_array_equal(epoch_rows(seed, start, count, batch, windows), whole[start:])


@pytest.mark.parametrize("windows", [1, 2, 3, 7, 64, 100, 583, 5000])
def test_every_prefix_of_the_evaluation_order_is_spread_over_the_split(windows: int):
    order = evaluation_order(windows)
    assert sorted(order) == list(range(windows))
    ends = np.arange(1, windows + 1)
    for size in (1, 2, 4, 37, 64, 300):  # whatever part of the split is asked about has its share of the sample
        inside = np.searchsorted(np.sort(order[:size]), ends)
        assert np.abs(inside - ends * min(size, windows) / windows).max() <= 1 + np.log2(size + 1)


def test_a_sample_does_not_follow_a_period_of_the_text():
    """In a text of 512 records of four windows each, evenly spaced windows would all be of one kind."""
    kinds = np.bincount(evaluation_order(2048)[:512] % 4, minlength=4)
    assert kinds.min() > 80


def test_the_evaluation_order_is_the_same_in_every_version():
    assert evaluation_order(10).tolist() == [0, 8, 3, 6, 1, 9, 2, 5, 7, 4]


def test_seeds_and_epochs_differ():
    orders = {tuple(permutation(seed, epoch, 50)) for seed in range(4) for epoch in range(4)}
    assert len(orders) == 16


def test_the_order_of_windows_is_pinned():
    # A different order would change every stored run's data without changing its identity.
    assert permutation(0, 0, 8).tolist() == [0, 2, 1, 5, 4, 3, 6, 7]
    assert not permutation(0, 0, 8).flags.writeable


@given(length=st.integers(2, 60), seq_len=st.integers(1, 12))
def test_windows_lose_no_target_between_them(length: int, seq_len: int):
    stream = np.arange(length, dtype=np.int32)
    windows = train_windows(stream, seq_len)
    assert windows.shape == ((length - 1) // seq_len, seq_len + 1)
    np.testing.assert_array_equal(windows[:, 1:].ravel(), stream[1 : 1 + windows.shape[0] * seq_len])
    np.testing.assert_array_equal(windows[:, :-1] + 1, windows[:, 1:])


@given(text=st.text(alphabet="abc\u00e9", min_size=2, max_size=40), seq_len=st.integers(1, 12))
def test_evaluation_covers_the_whole_split(text: str, seq_len: int):
    tokenizer = build_component("tokenizer", "byte").train(text)  # pyright: ignore[reportAttributeAccessIssue]
    stream = tokenizer.encode(text)
    split = evaluation_split(stream, seq_len, vocab_size=256, num_bytes=len(text.encode()), escape_bits=3.0)
    counted = split.weights.ravel() > 0
    np.testing.assert_array_equal(split.targets.ravel()[counted], stream[1:])
    np.testing.assert_array_equal(split.tokens.ravel()[counted], stream[:-1])
    assert counted.sum() == len(stream) - 1 == split.num_bytes - 1
    assert split.unpredicted_bits == 8 + 3  # the first byte, and what no token expresses
    assert (~counted).sum() < seq_len
    assert split.tokens.dtype == split.targets.dtype == np.int32
    assert split.weights.dtype == np.float32


@pytest.mark.parametrize("far", [10**6, 10**9])
def test_late_steps_are_as_cheap_as_early_ones(far: int):
    rows = epoch_rows(3, far, 2, 4, 7)
    assert rows.shape == (2, 4)
    assert set(rows.ravel()) <= set(range(7))


def test_long_orders_are_mapped_from_the_disk_and_are_the_same(tmp_path, monkeypatch):
    monkeypatch.setenv("TAETPU_CACHE", str(tmp_path / "cache"))
    in_memory = base.permutation.__wrapped__(3, 1, 5000)
    monkeypatch.setattr(base, "MOST_IN_MEMORY", 4999)
    mapped = base.permutation.__wrapped__(3, 1, 5000)
    assert isinstance(mapped, np.memmap)
    assert not mapped.flags.writeable
    assert np.array_equal(mapped, in_memory)
    assert [*(tmp_path / "cache").iterdir()] == []
    monkeypatch.setenv("TAETPU_CACHE", "/proc/no such folder")
    assert np.array_equal(base.permutation.__wrapped__(3, 1, 5000), in_memory)

"""Metric windows depend only on step numbers."""

import math

import numpy as np
import pytest

from taetpu.data.base import Split
from taetpu.train.metric_series import (
    MOST_BLOCKS,
    MetricBuffer,
    checkpoint_steps,
    metrics_from_sums,
    split_metrics,
    sum_blocks,
)


def recorded(cuts, every=4, start=0, flush_at=()):
    buffer = MetricBuffer(2, every, start)
    values = np.arange(40, dtype=np.float32).reshape(2, 20)
    at, out = 0, []
    for size in cuts:
        buffer.add_steps({"train/loss": values[:, at : at + size]})
        at += size
        if at in flush_at:
            out.append(buffer.flush())
    return [*out, buffer.flush()]


def test_windows_do_not_depend_on_dispatches():
    assert recorded([20]) == recorded([1, 2, 3, 5, 9]) == recorded([7, 7, 6])


def test_window_is_the_mean_of_its_steps_at_its_last_step():
    ((start, end, points),) = recorded([10])
    assert (start, end) == (0, 10)
    assert points[0]["train/loss"] == ([4, 8, 10], [1.5, 5.5, 8.5])
    assert points[1]["train/loss"][1][0] == 21.5


def test_a_flush_ends_a_window():
    first, second = recorded([6, 4], flush_at=(6,))
    assert first[:2] == (0, 6)
    assert second[:2] == (6, 10)
    assert first[2][0]["train/loss"] == ([4, 6], [1.5, 4.5])
    assert second[2][0]["train/loss"] == ([8, 10], [6.5, 8.5])


def test_nan_in_a_window_is_not_hidden():
    buffer = MetricBuffer(1, 4, 0)
    buffer.add_steps({"train/loss": np.array([[1.0, np.nan, 1.0, 1.0]], np.float32)})
    assert math.isnan(buffer.flush()[2][0]["train/loss"][1][0])


def split(num_bytes):
    return Split(*np.zeros((3, 1, 4)), num_bytes)


def test_bits_per_byte_counts_bytes_not_tokens():
    found = metrics_from_sums({"nll": 8 * math.log(2), "correct": 1.0, "weight": 4.0}, "val", split(16))
    assert found["val/bits_per_byte"] == pytest.approx(0.5)
    assert found["val/loss"] == pytest.approx(2 * math.log(2))
    assert found["val/accuracy"] == 0.25
    assert "val/bits_per_byte" not in metrics_from_sums({"nll": 1.0, "correct": 1.0, "weight": 4.0}, "val", split(None))


def test_sample_counts_its_share_of_the_bytes():
    weights = np.ones((4, 2), np.float32)
    whole = Split(*np.zeros((2, 4, 2), np.int32), weights, num_bytes=16, unpredicted_bits=4.0)
    sums = {"nll": np.full((1, 2), 3.5 * math.log(2)), "correct": np.zeros((1, 2)), "weight": np.full((1, 2), 2.0)}
    (found,) = split_metrics(sums, "val_sample", whole)  # half of the positions, at 7 bits
    assert found["val_sample/bits_per_byte"] == pytest.approx((14 + 4) / 16)


@pytest.mark.parametrize(
    ("rule", "steps"), [(4, [4, 8, 10]), ("log", [1, 2, 4, 8, 10]), ("eval", [5, 10]), ("end", [10])]
)
def test_checkpoint_rules(rule, steps):
    assert checkpoint_steps(10, rule, [5, 10]) == steps


@pytest.mark.parametrize("sequences", [1, MOST_BLOCKS, MOST_BLOCKS + 1, 5 * MOST_BLOCKS - 3])
def test_sum_blocks_adds_neighbouring_sequences(sequences):
    values = np.arange(sequences, dtype=np.float64)
    found = sum_blocks(values)
    assert len(found) == -(-sequences // -(-sequences // MOST_BLOCKS)) <= MOST_BLOCKS
    assert found.sum() == values.sum()
    assert (np.diff(found[:-1]) > 0).all()

"""Metrics segments store exact values, detect damage and are joined in step order."""

import json
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.testing import assert_array_equal

from taetpu.core.errors import UserError
from taetpu.store.metrics import decode_segment, encode_segment, join_segments, segment_bounds

STEPS = [1, 5, 7, 10]
ODD = [np.nan, np.inf, -np.inf, -0.0, 1e-45, 3.4e38, 0.1, 1 / 3]


@given(
    st.dictionaries(st.text(max_size=8), st.lists(st.sampled_from(ODD) | st.floats(width=32), max_size=6), max_size=4)
)
def test_float32_values_come_back_exactly(columns: dict[str, list[float]]):
    series = {name: (np.arange(len(v)), np.array(v, dtype=np.float32)) for name, v in columns.items()}
    read = decode_segment(encode_segment(0, 10, series), "x.json")
    assert set(read) == set(series)
    for name, (step, value) in series.items():
        assert_array_equal(read[name].step, step)
        assert read[name].value.dtype == np.float64
        assert_array_equal(read[name].value.astype(np.float32), value)
        assert_array_equal(np.signbit(read[name].value), np.signbit(value) & ~np.isnan(value))


@given(st.lists(st.floats(), max_size=6))
def test_float64_values_come_back_exactly(values: list[float]):
    read = decode_segment(encode_segment(0, 9, {"x": (np.arange(len(values)), values)}), "x.json")["x"]
    assert_array_equal(read.value, values)


def test_segment_is_plain_json():
    data = encode_segment(0, 10, {"b": (STEPS, [1, 2.5, np.nan, -np.inf]), "a": ([], [])})
    assert json.loads(data)["series"] == {
        "a": {"step": [], "value": []},
        "b": {"step": STEPS, "value": [1.0, 2.5, "NaN", "-Infinity"]},
    }


SEGMENT = encode_segment(0, 10, {"train/loss": (STEPS, [1.5, 2.25, np.nan, 0.1])})


@given(st.integers(0, len(SEGMENT) - 1), st.integers(1, 255))
def test_every_changed_byte_is_detected(place: int, change: int):
    damaged = bytearray(SEGMENT)
    damaged[place] ^= change
    with pytest.raises(UserError, match="damaged"):
        decode_segment(bytes(damaged), "x.json")


def test_every_truncation_is_detected():
    for length in range(len(SEGMENT)):
        with pytest.raises(UserError, match="damaged") as caught:
            decode_segment(SEGMENT[:length], "runs/a/metrics/0-10.json")
        assert "where:  runs/a/metrics/0-10.json" in str(caught.value)
        assert "--retrain-damaged" in str(caught.value)


@given(st.sets(st.integers(1, 40)), st.lists(st.floats(width=32), min_size=40, max_size=40))
def test_joined_segments_contain_all_points(cuts: set[int], values: list[float]):
    """This holds for every division of the steps 1..40 into segments, some of which lack the second metric."""
    steps = np.arange(1, 41)
    whole = {"loss": (steps, np.array(values)), "rare": (steps[::10], np.array(values)[::10])}
    edges = sorted({0, 40, *cuts})
    segments = []
    for start, end in pairwise(edges):
        inside = {name: (step > start) & (step <= end) for name, (step, _) in whole.items()}
        part = {name: (step[inside[name]], value[inside[name]]) for name, (step, value) in whole.items()}
        segments.append(decode_segment(encode_segment(start, end, {k: v for k, v in part.items() if len(v[0])}), "x"))
    for name, series in join_segments(segments).items():
        assert_array_equal(series.step, whole[name][0])
        assert_array_equal(series.value, whole[name][1])
    assert set(join_segments(segments)) == set(whole)


@pytest.mark.parametrize(
    ("step", "value", "problem"),
    [
        ([1, 2], [1.0], "shape"),
        ([[1]], [[1.0]], "shape"),
        ([2, 1], [1.0, 1.0], "must increase"),
        ([1, 1], [1.0, 1.0], "must increase"),
        ([11], [1.0], "within 0..10"),
    ],
)
def test_invalid_points_are_refused(step: list[int], value: list[float], problem: str):
    with pytest.raises(ValueError, match=problem):
        encode_segment(0, 10, {"x": (step, value)})


def test_names_of_segments_contain_their_steps():
    assert segment_bounds("s/runs/a/metrics/90-1000.json") == (90, 1000)
    with pytest.raises(UserError, match="not a metrics"):
        segment_bounds("s/runs/a/metrics/notes.txt")

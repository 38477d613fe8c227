"""`benchmarks.feed`: both feeds train the same runs."""

import pytest
from benchmarks.feed import measure, show
from benchmarks.shapes import Shape

TINY = Shape(dim=16, seq=16, batch=8, layers=1, heads=2)


@pytest.mark.slow
def test_rates_are_compared_within_rounds(text):
    found = measure(TINY, text, runs=2, rounds=2, seconds=0.2)
    assert found["about"]["layout"]["width"] == 2
    ratios = [
        (one["host"]["tokens"] / one["host"]["seconds"]) / (one["resident"]["tokens"] / one["resident"]["seconds"])
        for one in found["windows"]
    ]
    assert (found["ratio"]["least"], found["ratio"]["most"]) == pytest.approx((min(ratios), max(ratios)))
    assert all(0 < one[feed]["loss"] < 4.5 for one in found["windows"] for feed in one)
    assert f"{found['ratio']['median']:.3f}" in show(TINY, found)

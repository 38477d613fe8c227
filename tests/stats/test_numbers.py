"""Figures as text."""

import pytest

from taetpu.stats import numbers


@pytest.mark.parametrize(
    ("value", "interval", "text"),
    [
        (0.41234, (0.4, 0.42468), "+0.412"),
        (-0.41234, (-0.6, -0.2), "-0.41"),
        (123.456, (100, 146.9), "+123"),
        (0.00001, (-0.1, 0.1), "0.00"),
        (-0.41234, None, "-0.4123"),
        (None, None, "-"),
        (0.0, None, "0"),
        (-1e-16, None, "0"),
        (0.0, (-0.02, 0.02), "0.000"),
    ],
)
def test_effect_is_cut_where_it_becomes_uncertain(value, interval, text: str) -> None:
    assert numbers.effect(value, interval) == text


def test_interval() -> None:
    assert numbers.interval((-0.01234, 0.04321)) == "-0.012 to +0.043"
    assert numbers.interval(None) == "-"


@pytest.mark.parametrize(("p", "text"), [(0.0001, "<0.001"), (0.0412, "0.041"), (1.0, "1.000"), (None, "-")])
def test_p_value(p, text: str) -> None:
    assert numbers.p_value(p) == text


@pytest.mark.parametrize(
    ("value", "text"),
    [(999, "999"), (1000, "1.00k"), (999_999, "1.00M"), (106_432, "106k"), (3.21e13, "32.1T"), (None, "-")],
)
def test_amount(value, text: str) -> None:
    assert numbers.amount(value) == text

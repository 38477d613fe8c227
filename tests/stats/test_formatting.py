"""Numbers are formatted with the digits that their uncertainty supports."""

import pytest

from taetpu.stats import formatting


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
        (3.21e-15, (3.1e-15, 3.32e-15), "+3.21e-15"),
        (-3.21e98, (-4e98, -2e98), "-3.2e98"),
        (1234567.8, (1234500, 1234630), "+1.234568e6"),
        (5e-5, (4e-5, 6e-5), "+5.0e-5"),
        (2e-16, (-1e-7, 1e-7), "0.00000000"),
        (1e-15, (-1e-14, 3e-14), "+1e-15"),
    ],
)
def test_effect_is_rounded_by_its_interval(value, interval, text: str) -> None:
    assert formatting.effect(value, interval) == text


def test_interval_is_formatted() -> None:
    assert formatting.interval((-0.01234, 0.04321)) == "-0.012 to +0.043"
    assert formatting.interval(None) == "-"
    assert formatting.interval((-1.5e-12, 3.5e-12)) == "-1.5e-12 to +3.5e-12"
    assert formatting.interval((0.00005, 0.00015)) == "+0.000050 to +0.000150"  # both ends in one notation


@pytest.mark.parametrize(("p", "text"), [(0.0001, "<0.001"), (0.0412, "0.041"), (1.0, "1.000"), (None, "-")])
def test_p_value_is_formatted(p, text: str) -> None:
    assert formatting.p_value(p) == text


@pytest.mark.parametrize(
    ("value", "text"),
    [(999, "999"), (1000, "1.00k"), (999_999, "1.00M"), (106_432, "106k"), (3.21e13, "32.1T"), (None, "-")],
)
def test_amount_has_an_si_prefix(value, text: str) -> None:
    assert formatting.amount(value) == text


@pytest.mark.parametrize(
    ("text", "amounts"),
    [
        (formatting.size, {None: "-", 0: "0 B", 512: "512 B", 1_536_000: "1.54 MB", 40_000_000_000: "40.0 GB"}),
        (formatting.seconds, {None: "-", 3e-7: "300 ns", 2.5e-6: "2.5 us", 0.0123: "12.3 ms", 59: "59 s",
                                 90: "1.5 min", 7200: "2 h"}),
    ],
)  # fmt: skip
def test_sizes_and_times_have_units(text, amounts) -> None:
    assert {value: text(value) for value in amounts} == amounts


def test_amount_shows_its_change_from_the_baseline() -> None:
    assert formatting.with_change(970, 1000, formatting.amount) == "970 (-3%)"
    assert formatting.with_change(970, 970, formatting.amount) == "970"
    assert formatting.with_change(970, None, formatting.amount) == "970"
    assert formatting.with_change(None, 970, formatting.amount) == "-"

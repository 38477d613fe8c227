"""Shortened names fit the width and stay distinct."""

from hypothesis import given, settings
from hypothesis import strategies as st

from taetpu.report.short_names import shorten_names

NAMES = st.lists(st.text("ab-=.", min_size=1, max_size=60), min_size=1, max_size=12, unique=True)


@settings(max_examples=50)
@given(NAMES, st.integers(10, 40))
def test_shortened_names_fit_and_stay_distinct(names: list[str], width: int) -> None:
    found = shorten_names(names, width)
    assert len(set(found)) == len(names)
    assert max(map(len, found)) <= width
    assert [short for short, name in zip(found, names, strict=True) if len(name) <= width] == [
        name for name in names if len(name) <= width
    ]


def test_shortening_keeps_the_distinguishing_part() -> None:
    names = [f"position=rope,optimizer=adamw,lr={lr},warmup=100,decay=cosine" for lr in ("0.001", "0.003")]
    first, second = shorten_names(names, 32)
    assert (first[:2], first[-2:]) == (second[:2], second[-2:])
    assert first.replace("1,", "3,") == second
    assert shorten_names(["abcdefghijk", "x"], 8) == ["abc..ijk", "x"]

"""Figures as text: no more digits than the uncertainty supports."""

import math
from collections.abc import Sequence

SIGNIFICANT = 2
"""Digits kept of an uncertainty; values are cut at the same decimal place."""


def decimals(uncertainty: float | None, value: float = 1.0) -> int:
    """Decimal places for a value known to within `uncertainty`; without one, four significant digits of `value`.

    `decimals(0.0123)` is 3: the uncertainty reads 0.012.
    """
    known = uncertainty is not None and uncertainty > 0 and math.isfinite(uncertainty)
    size, digits = (abs(uncertainty or 0), SIGNIFICANT) if known else (abs(value), 4)
    if size == 0 or not math.isfinite(size):
        return digits
    return min(max(digits - 1 - math.floor(math.log10(size)), 0), 12)


def number(value: float | None, places: int, sign: bool = False) -> str:
    """A value with `places` decimals, `-` where there is none. With `sign`, `+` before what is above zero."""
    if value is None or not math.isfinite(value):
        return "-"
    text = f"{value:+.{places}f}" if sign else f"{value:.{places}f}"
    return text.lstrip("+-") if float(text) == 0 else text  # no -0.00


def half_width(interval: Sequence[float] | None) -> float | None:
    """Half the width of `[low, high]`, which is the uncertainty of its middle."""
    return None if interval is None else (interval[1] - interval[0]) / 2


def effect(value: float | None, interval: Sequence[float] | None) -> str:
    """A signed effect, cut where its interval becomes uncertain."""
    return number(value, decimals(half_width(interval), value or 0), sign=True)


def interval(bounds: Sequence[float] | None) -> str:
    """`+0.012 to +0.034`; `-` where there is none."""
    if bounds is None:
        return "-"
    places = decimals(half_width(bounds))
    return f"{number(bounds[0], places, sign=True)} to {number(bounds[1], places, sign=True)}"


def p_value(p: float | None) -> str:
    """Three decimals, `<0.001` below that; `-` where there is none."""
    if p is None:
        return "-"
    return "<0.001" if p < 0.001 else f"{p:.3f}"


def amount(value: float | None) -> str:
    """A count in three significant digits with an SI prefix: `1.06M`, `32.1T`."""
    if value is None:
        return "-"
    for power, prefix in ((18, "E"), (15, "P"), (12, "T"), (9, "G"), (6, "M"), (3, "k")):
        if abs(value) >= 0.9995 * 10**power:
            return f"{value / 10**power:#.3g}".rstrip(".") + prefix
    return f"{value:g}"

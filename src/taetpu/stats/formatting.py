"""Formatting of numbers with only as many digits as their uncertainty supports."""

import math
import re
from collections.abc import Callable, Sequence

SIGNIFICANT = 2
"""Number of significant digits of an uncertainty. A value has the same number of decimal places as its uncertainty."""
MAX_PLACES = 12
"""Maximum number of decimal places that are written, and of those of a mantissa."""
NO_MINIMUM = -999
"""A number of decimal places below that of any number."""
SMALLEST, LARGEST = 1e-4, 1e6
"""Absolute values from the first to below the second are written without a power of ten."""

SMALL = re.compile(r"(?<![\d.])([+-]?)0\.(000+)(?:([1-9])(\d*))?(?![\d.])")
"""A figure below 0.001: its sign, leading zeros, first digit and other digits."""
MAX_NAMES = 6
"""Maximum number of names listed in a sentence."""


def decimals(uncertainty: float | None, value: float = 1.0) -> int:
    """Return the number of decimal places for a value with this uncertainty.

    For example, `decimals(0.0123)` is 3, since the uncertainty is written as 0.012. Without a positive, finite
    uncertainty, `value` gets four significant digits. The number is negative only for uncertainties from `LARGEST` on.
    """
    known = uncertainty is not None and uncertainty > 0 and math.isfinite(uncertainty)
    size, digits = (abs(uncertainty or 0), SIGNIFICANT) if known else (abs(value), 4)
    if size == 0 or not math.isfinite(size):
        return digits
    places = digits - 1 - math.floor(math.log10(size))
    return places if size >= LARGEST else max(places, 0)


def mean_places(residual_sd: float | None, baseline: float | None) -> int:
    """Return the number of decimal places for a study's means. Effects have at least as many decimal places.

    Args:
        residual_sd: standard deviation of one run's noise, or None if it is unknown.
        baseline: the baseline's mean. It determines the number of decimal places if `residual_sd` is None.
    """
    return decimals(residual_sd, baseline or 0)


def fixed_places(places: int) -> int:
    """Return a number of decimal places for formats without a power of ten: from 0 to `MAX_PLACES`."""
    return min(max(places, 0), MAX_PLACES)


def is_zero(value: float, places: int = 0) -> bool:
    """Return whether a value is zero up to rounding, next to means with `places` decimal places."""
    return abs(value) < 10.0 ** -max(MAX_PLACES, places + 6)


def number(value: float | None, places: int, sign: bool = False, scale: float | None = None) -> str:
    """Format a value with `places` decimal places, e.g. as `0.012`, or `1.2e-15` outside `SMALLEST` to `LARGEST`.

    Args:
        value: the value. None and non-finite values are formatted as `-`.
        places: the number of decimal places.
        sign: whether positive values start with `+`.
        scale: the absolute value that decides whether a power of ten is written; by default, that of the value.
    """
    if value is None or not math.isfinite(value):
        return "-"
    rounded, plus = round(value, places), "+" if sign else ""
    if rounded == 0:
        return f"{0:.{fixed_places(places)}f}" if places <= MAX_PLACES else "0"
    if SMALLEST <= (abs(rounded) if scale is None else scale) < LARGEST:
        return f"{rounded:{plus}.{fixed_places(places)}f}"
    digits = fixed_places(places + math.floor(math.log10(abs(rounded))))
    mantissa, exponent = f"{rounded:{plus}.{digits}e}".split("e")
    return f"{mantissa}e{int(exponent)}"


def half_width(interval: Sequence[float] | None) -> float | None:
    """Return half the width of an interval, which is the uncertainty of its centre."""
    return None if interval is None else (interval[1] - interval[0]) / 2


def effect(value: float | None, interval: Sequence[float] | None, places: int = NO_MINIMUM) -> str:
    """Format a signed effect, rounded according to the width of its interval.

    Args:
        value: the effect.
        interval: the interval of the effect.
        places: minimum number of decimal places, usually the number for the arms' means.
    """
    return number(value, effect_places(value, interval, places), sign=True)


def effect_places(value: float | None, interval: Sequence[float] | None, places: int = NO_MINIMUM) -> int:
    """Return the number of decimal places for an effect: at least one if a nonzero effect would be rounded to `0`."""
    if value is None or is_zero(value, places):
        return places if interval is None else max(places, decimals(half_width(interval)))
    return max(decimals(half_width(interval), value), places, NO_MINIMUM if round(value) else 1)


def interval(bounds: Sequence[float] | None, places: int = NO_MINIMUM) -> str:
    """Format an interval as `+0.012 to +0.034`, or as `-` if it is None.

    Args:
        bounds: the ends of the interval.
        places: minimum number of decimal places, usually the number for the effect or for the means.
    """
    if bounds is None:
        return "-"
    places, scale = max(decimals(half_width(bounds)), places), max(map(abs, bounds))
    return f"{number(bounds[0], places, True, scale)} to {number(bounds[1], places, True, scale)}"


def ends(bounds: Sequence[float] | None, places: int, sign: bool = False) -> str:
    """Format the ends of an interval with `places` decimal places; "-" for None."""
    return "-" if bounds is None else " to ".join(number(end, places, sign) for end in bounds)


def scientific(text: str) -> str:
    """Write the figures below 0.001 in a text with the same digits and a power of ten, e.g. `+5.01e-6`."""
    return SMALL.sub(lambda figure: _scientific(*figure.groups()), text)


def _scientific(sign: str, zeros: str, first: str, digits: str) -> str:
    return f"{sign}{first}{'.' * bool(digits)}{digits}e-{len(zeros) + 1}" if first else f"{sign}0"


def spread(sd: float | None) -> str:
    """Format a standard deviation or another uncertainty with two significant digits, e.g. `0.012`."""
    return number(sd, decimals(sd))


def p_value(p: float | None) -> str:
    """Format a p-value with three decimal places; `<0.001` for smaller values and `-` for None."""
    if p is None:
        return "-"
    return "<0.001" if p < 0.001 else f"{p:.3f}"


def amount(value: float | None) -> str:
    """Format a count with three significant digits and an SI prefix, e.g. `1.06M` or `32.1T`."""
    if value is None:
        return "-"
    for power, prefix in ((18, "E"), (15, "P"), (12, "T"), (9, "G"), (6, "M"), (3, "k")):
        if abs(value) >= 0.9995 * 10**power:
            return f"{value / 10**power:#.3g}".rstrip(".") + prefix
    return f"{value:g}"


def with_change(value: float | None, base: float | None, text: Callable[[float | None], str]) -> str:
    """Format an amount with its relative difference from the baseline's amount, e.g. `103k (-3.0%)`."""
    if value is None or not base or value == base:
        return text(value)
    share = 100 * (value / base - 1)
    return f"{text(value)} ({share:+.2g}%)" if abs(share) < 10 else f"{text(value)} ({share:+.0f}%)"


def size(value: float | None) -> str:
    """Format a number of bytes with an SI prefix, e.g. `1.5 MB`."""
    text = amount(value)
    digits = text.rstrip("kMGTPE")
    return text if value is None else f"{digits} {text[len(digits) :]}B"


def list_names(names: Sequence[str]) -> str:
    """Join names with commas, shortening long lists as in `a, b, c, d, e and 4 more`."""
    shown = names if len(names) <= MAX_NAMES else names[: MAX_NAMES - 1]
    more = f" and {len(names) - len(shown)} more" if len(shown) < len(names) else ""
    return ", ".join(shown) + more


def seconds(value: float | None) -> str:
    """Format a time given in seconds in a suitable unit, e.g. `3.2 ms` or `1.5 min`."""
    if value is None:
        return "-"
    units = ((3600, "h"), (60, "min"), (1, "s"), (1e-3, "ms"), (1e-6, "us"))
    unit, name = next(((unit, name) for unit, name in units if value >= unit), (1e-9, "ns"))
    return f"{value / unit:.3g} {name}"


def join_and(parts: list[str]) -> str:
    """Join parts into a list such as `a and b` or `a, b, and c`."""
    if len(parts) < 3:
        return " and ".join(parts)
    return f"{', '.join(parts[:-1])}, and {parts[-1]}"

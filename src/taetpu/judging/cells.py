"""The cells of tables as numbers, seeds and names."""

import math
import re
from decimal import Decimal
from fractions import Fraction
from typing import Any

from taetpu.core.errors import UserError, shorten
from taetpu.core.number_parsing import DECIMAL, INTEGER
from taetpu.core.streams import escape_controls
from taetpu.store.flat_config import format_value

BLANK = ("", "na", "n/a", "null", "none", "-", "--")
"""What tables write for a missing number, in lower case."""
NOT_FINITE = re.compile(r"[-+]?(nan|inf|infinity)", re.IGNORECASE)
DECIMAL_COMMA = re.compile(r"[-+]?\d*,\d+([eE][-+]?\d+)?")
LARGEST_SEED = 2**53
"""Larger seeds are not exact in JSON, and are names of blocks."""
SMALLEST_METRIC, LARGEST_METRIC = 1e-100, 1e100
"""The smallest and largest absolute value of a metric but 0, of which sums of squares are exact enough."""
LONGEST_SHOWN = 60


def is_blank(value: Any) -> bool:
    """Return whether the cell of a metric holds no value. NaN is a value: that of a run that diverged."""
    return value is None or (isinstance(value, str) and value.strip().lower() in BLANK)


def is_empty(value: Any) -> bool:
    """Return whether the cell of a name, a seed or a setting holds no value. `none` is a name."""
    return value is None or value != value or (isinstance(value, str) and not value.strip())


def parse_metric(value: Any, where: str) -> float:
    """Return a metric as a number, which is NaN for a run that diverged.

    Args:
        value: the cell, not blank.
        where: the place of the cell, for messages.

    Raises:
        UserError: If the cell does not hold a number.
    """
    if isinstance(value, str):
        text = value.strip()
        if NOT_FINITE.fullmatch(text):
            return math.nan
        if DECIMAL.fullmatch(text):
            return check_range(float(text), where, text)
        if DECIMAL_COMMA.fullmatch(text):
            remedy = f"Write a decimal point, as in {text.replace(',', '.')}, and no other marks between digits."
            raise _wrong(f"{shown(text)} has a decimal comma", where, remedy)
    elif (number := _number(value)) is not None:
        return check_range(number, where) if math.isfinite(number) else math.nan
    remedy = "Write a number, nan for a run that diverged, or nothing for a run that is missing."
    raise _wrong(f"{shown(value)} is not a number", where, remedy)


def check_range(number: float, where: str, text: str = "") -> float:
    """Return a number. Raises `UserError`, with its text, if its square is beyond the range of numbers."""
    if abs(number) > LARGEST_METRIC:
        raise _wrong(f"a metric may be at most {LARGEST_METRIC:g}, got {text or number}", where)
    if 0 < abs(number) < SMALLEST_METRIC:
        raise _wrong(f"a metric other than 0 must be at least {SMALLEST_METRIC:g}, got {text or number}", where)
    return number


def parse_seed(value: Any) -> int | str:
    """Return a seed as an integer if it is one, and as text otherwise."""
    if isinstance(value, int) and not isinstance(value, bool):
        return value
    if (number := _number(value)) is not None and number.is_integer():
        return int(number)
    text = format_cell(value)
    if INTEGER.fullmatch(text):
        return int(text)
    if DECIMAL.fullmatch(text) and float(text).is_integer():  # a column of integers with a gap, written by pandas
        return int(float(text))
    return text


def parse_setting(value: Any) -> Any:
    """Return a setting as a number if it is one, and as text, a boolean or None otherwise."""
    if is_empty(value):
        return None
    if isinstance(value, str):
        text = format_cell(value)
        if INTEGER.fullmatch(text) and len(text) < 16:
            return int(text)
        return float(text) if DECIMAL.fullmatch(text) and math.isfinite(float(text)) else text
    if isinstance(value, bool | int) or (isinstance(value, float) and math.isfinite(value)):
        return value
    return format_cell(value)


def format_cell(value: Any) -> str:
    """Return a cell as text on one line."""
    return printable(" ".join(format_value(value).split()))


def printable(text: str) -> str:
    """Return a text for files and terminals: control characters are escaped, and what UTF-8 lacks is `?`."""
    return escape_controls(text.encode(errors="replace").decode())


def shown(value: Any) -> str:
    """Return a cell for messages, in quotes."""
    return shorten(repr(value), LONGEST_SHOWN)


def place(where: str, column: str) -> str:
    """Return the place of a cell for messages."""
    return f"{where}, column {column!r}"


def _number(value: Any) -> float | None:
    """Return a number of any type as a float; None for anything else."""
    return float(value) if isinstance(value, int | float | Decimal | Fraction) and not isinstance(value, bool) else None


def _wrong(problem: str, where: str, remedy: str | None = None) -> UserError:
    return UserError(problem, file=where, remedy=remedy)

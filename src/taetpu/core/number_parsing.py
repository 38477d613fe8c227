"""Parsing of numbers in study files, claims and command lines, according to the core schema of YAML 1.2.

Python's `int` and `float` also read `0_1` as 1 and `1e3_0` as 1e30, and accept digits of other scripts.
"""

import math
import re

INTEGER = re.compile(r"[-+]?[0-9]+")
DECIMAL = re.compile(r"[-+]?(?:[0-9]+(?:\.[0-9]*)?|\.[0-9]+)(?:[eE][-+]?[0-9]+)?")
"""A pattern that matches every finite number, including integers."""


def parse_int(text: str) -> int:
    """Parse an integer in decimal digits. Raise `ValueError` for other text."""
    if INTEGER.fullmatch(text) is None:
        raise ValueError(f"{text!r} is not an integer")
    return int(text)


def parse_float(text: str) -> float:
    """Parse a number in decimal digits. Raise `ValueError` for other text, including infinities and NaN."""
    if DECIMAL.fullmatch(text) is None or not math.isfinite(number := float(text)):
        raise ValueError(f"{text!r} is not a finite number")
    return number

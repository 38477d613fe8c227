"""The division of tests between the default suite, `make slow` and `make nightly`.

`make slow` runs the slow tests near the last day's commits (`tests.slow_tests`) and one of `SHARE` equal parts of all.
The part changes from day to day, and `make nightly` runs all of them.
"""

import os
import zlib
from collections.abc import Iterable
from datetime import date
from typing import Any

import pytest

# Processes of pytest-xdist inherit the variable, so that all of them select the same cases.
SEED = int(os.environ.setdefault("TAETPU_TEST_SEED", str(date.today().toordinal())))
"""The seed of what changes from day to day: `TAETPU_TEST_SEED`, by default the number of the day."""
SHARE = int(os.environ.get("SHARE", "1"))
"""The number of parts of the slow tests, of which one runs."""


def by_default(cases: Iterable[Any], *names: Any) -> list[Any]:
    """Return the cases for `parametrize`. Those named run by default, and the others are slow tests."""
    cases = list(cases)
    assert all(name in cases for name in names), f"{names} are not all in {cases}"
    return [case if case in names else pytest.param(case, marks=pytest.mark.slow, id=str(case)) for case in cases]


def first_by_default(cases: Iterable[tuple[Any, ...]], number: int = 1) -> list[Any]:
    """Return cases of several arguments for `parametrize`. The first run by default, the others are slow tests."""
    return [pytest.param(*case, marks=() if place < number else pytest.mark.slow) for place, case in enumerate(cases)]


def in_part(name: str, share: int = SHARE, seed: int = SEED) -> bool:
    """Return whether a test is in the part of today. Successive seeds select all parts in turn."""
    return (zlib.crc32(name.encode()) + seed) % share == 0

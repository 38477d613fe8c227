"""The division of a test's cases between the default suite, `make slow` and `make nightly`."""

import os
import zlib
from collections.abc import Iterable
from datetime import date
from typing import Any

import pytest

# Processes of pytest-xdist inherit the variable, so that all of them select the same cases.
SEED = int(os.environ.setdefault("TAETPU_TEST_SEED", str(date.today().toordinal())))
"""The seed of the cases that change from day to day: `TAETPU_TEST_SEED`, by default the number of the day."""


def by_default(cases: Iterable[Any], *names: Any) -> list[Any]:
    """Return the cases for `parametrize`: those named run by default, a third of the others in `make slow`.

    The third changes from day to day. `make nightly` runs the other cases.
    """
    cases = list(cases)
    assert all(name in cases for name in names), f"{names} are not all in {cases}"
    now = rotating([case for case in cases if case not in names], share=3)

    def mark(case: Any) -> Any:
        return pytest.mark.slow if case in now else pytest.mark.nightly

    return [case if case in names else pytest.param(case, marks=mark(case), id=str(case)) for case in cases]


def rotating(cases: Iterable[Any], share: int = 10, seed: int = SEED) -> list[Any]:
    """Return one of `share` equal parts of the cases. Successive seeds select all parts in turn."""
    ordered = sorted(cases, key=lambda case: zlib.crc32(repr(case).encode()))
    return [case for i, case in enumerate(ordered) if (i - seed) % share == 0]

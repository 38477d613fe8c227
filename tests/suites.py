"""The division of a test's cases between the default suite and `make slow`."""

from collections.abc import Iterable
from typing import Any

import pytest


def by_default(cases: Iterable[Any], *names: Any) -> list[Any]:
    """Return the cases for `parametrize`: those named run by default, all others in `make slow`."""
    cases = list(cases)
    assert all(name in cases for name in names), f"{names} are not all in {cases}"
    return [case if case in names else pytest.param(case, marks=pytest.mark.slow, id=str(case)) for case in cases]

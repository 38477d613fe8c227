"""The hub, on this machine."""

from collections.abc import Iterator

import pytest
from tests.dataset_hub import State, serving


@pytest.fixture
def datasets(monkeypatch, tmp_path) -> Iterator[State]:
    """Return a server that answers as the hub, without datasets."""
    with serving(monkeypatch, tmp_path) as state:
        yield state

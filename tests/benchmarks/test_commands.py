"""The benchmark of commands: each command of its table succeeds, and has a budget above its start."""

import pytest
from benchmarks.commands import BUDGETS, measure


@pytest.mark.nightly
def test_every_command_succeeds(tmp_path):
    rows = list(measure(list(BUDGETS), tmp_path, rounds=1))
    assert [words for words, _, _ in rows] == list(BUDGETS)
    assert all(0 < warm.cpu < 60 for _, _, warm in rows)

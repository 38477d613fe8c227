"""The README's table of the study file names every kind of the slots that it lists."""

import re
from pathlib import Path

import pytest

from taetpu.core.registry import kinds

README = (Path(__file__).parents[2] / "README.md").read_text()
WRITTEN = {
    "task": r"^\| `task` \|(.*)$",
    "optimizer": r"`optimizer` \(([^)]*)\)",
    "schedule": r"`schedule` \(([^)]*)\)",
    "eval_metric": r"`eval_metrics` \(([^)]*)\)",
}


@pytest.mark.parametrize("slot", WRITTEN)
def test_the_readme_names_every_kind(slot):
    text = re.search(WRITTEN[slot], README, re.MULTILINE)[1]
    assert set(kinds(slot)) <= set(re.findall(r"`([\w-]+)`", text))


def test_the_readme_names_no_other_optimizers_schedules_and_metrics():
    known = {*kinds("optimizer"), *kinds("schedule"), *kinds("eval_metric"), "ema", "groups"}
    for slot in ("optimizer", "schedule", "eval_metric"):
        assert set(re.findall(r"`([\w-]+)`", re.search(WRITTEN[slot], README)[1])) <= known

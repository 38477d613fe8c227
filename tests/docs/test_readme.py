"""The README's table of the study file names every kind of the slots that it lists, and counts the synthetic tasks."""

import re
from pathlib import Path

import pytest

from taetpu.core.registry import kinds

README = (Path(__file__).parents[2] / "README.md").read_text()
WRITTEN = {
    "optimizer": r"`optimizer` \(([^)]*)\)",
    "schedule": r"`schedule` \(([^)]*)\)",
    "eval_metric": r"`eval_metrics` \(([^)]*)\)",
}


def builtin(slot):
    """Return the kinds of taetpu, without those of plug-ins that other tests have loaded."""
    return {kind for kind, cls in kinds(slot).items() if cls.__module__.startswith("taetpu.")}


@pytest.mark.parametrize("slot", WRITTEN)
def test_the_readme_names_every_kind_and_no_other(slot):
    named = set(re.findall(r"`([\w-]+)`", re.search(WRITTEN[slot], README)[1]))
    assert named - {"ema", "groups"} == builtin(slot)


def test_the_readme_counts_the_synthetic_tasks():
    line = re.search(r"^\| `task` \|(.*)$", README, re.MULTILINE)[1]
    read = {"text", "tokens", "classification", "regression", "token-classification", "pairs"}
    assert read <= set(re.findall(r"`([\w-]+)`", line))
    assert int(re.search(r"(\d+) synthetic kinds", line)[1]) == len(builtin("task") - read)

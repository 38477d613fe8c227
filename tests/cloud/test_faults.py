"""FAULTS.md names tests that there are."""

import ast
import re
from pathlib import Path

import pytest

HERE = Path(__file__).parent
TEXT = (HERE / "FAULTS.md").read_text(encoding="utf-8")
NAMED = re.findall(r"`([\w./]+)::(\w+)`", TEXT)


def named_in(file: Path) -> set[str]:
    return {node.name for node in ast.parse(file.read_text(encoding="utf-8")).body if isinstance(node, ast.FunctionDef)}


@pytest.mark.parametrize("file", sorted({file for file, _ in NAMED}))
def test_every_test_that_is_named_exists(file):
    there = named_in(HERE / file)
    assert {name for other, name in NAMED if other == file} <= there


def test_every_fault_has_a_test():
    rows = [line.split("|") for line in TEXT.splitlines() if line.startswith("| ")]
    faults = [(fault.strip(), tests) for _, fault, tests, _ in rows if fault.strip() != "fault"]
    assert len(faults) > 50
    assert [fault for fault, tests in faults if "::test_" not in tests] == []

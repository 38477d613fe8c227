"""Damage to random files of a study, injected by `python -m tests.faults`."""

import subprocess
import sys
from pathlib import Path

import pytest


def broken(*given: str) -> str:
    command = [sys.executable, "-m", "tests.faults", *given]
    done = subprocess.run(command, cwd=Path(__file__).parents[2], capture_output=True, text=True, check=False)
    return "" if done.returncode == 0 else done.stdout + done.stderr


@pytest.mark.slow
def test_no_fault_is_used_silently():
    assert broken("--faults", "15") == ""


@pytest.mark.nightly
def test_a_thousand_faults():
    assert broken("--all", "--seed", "1") == ""

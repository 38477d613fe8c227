"""A bar that appears only if work takes long."""

import time
from io import StringIO

from rich.console import Console

from taetpu.study.progress import DelayedBar


def shown(terminal: bool, least: float = 0.0) -> str:
    """Return the output of work that takes `least` seconds or, on a terminal, until something is printed."""
    out, began = StringIO(), time.monotonic()
    with DelayedBar(Console(file=out, force_terminal=terminal, width=80), "checking arms") as update:
        update(0, 2)
        while time.monotonic() - began < least and not out.getvalue():
            time.sleep(0.01)
        update(2, 2)
    return out.getvalue()


def test_it_prints_nothing_before_the_delay_and_off_a_terminal(monkeypatch):
    assert shown(terminal=True) == ""
    monkeypatch.setattr("taetpu.study.progress.DELAY", 0.05)
    assert shown(terminal=False, least=0.2) == ""


def test_it_appears_in_the_middle_of_the_first_piece_of_work(monkeypatch):
    monkeypatch.setattr("taetpu.study.progress.DELAY", 0.05)
    assert "checking arms" in shown(terminal=True, least=10)

"""The bar of work that is mostly over at once."""

import time
from io import StringIO

from rich.console import Console

from taetpu.study.spinner import Waiting


def shown(terminal: bool, least: float = 0.0) -> str:
    """What appears while work takes `least` seconds and, on a terminal, until something does."""
    out, began = StringIO(), time.monotonic()
    with Waiting(Console(file=out, force_terminal=terminal, width=80), "checking arms") as told:
        told(0, 2)
        while time.monotonic() - began < least and not out.getvalue():
            time.sleep(0.01)
        told(2, 2)
    return out.getvalue()


def test_it_is_silent_while_patience_lasts_and_off_a_terminal(monkeypatch):
    assert shown(terminal=True) == ""
    monkeypatch.setattr("taetpu.study.spinner.PATIENCE", 0.05)
    assert shown(terminal=False, least=0.2) == ""


def test_it_appears_in_the_middle_of_the_first_piece_of_work(monkeypatch):
    monkeypatch.setattr("taetpu.study.spinner.PATIENCE", 0.05)
    assert "checking arms" in shown(terminal=True, least=10)

"""The bar of work that is mostly over at once."""

from io import StringIO

from rich.console import Console

from taetpu.study.waiting import Waiting


def shown(terminal: bool) -> str:
    out = StringIO()
    with Waiting(Console(file=out, force_terminal=terminal, width=80), "checking arms") as told:
        told(1, 2)
        told(2, 2)
    return out.getvalue()


def test_it_is_silent_while_patience_lasts_and_off_a_terminal(monkeypatch):
    assert shown(terminal=True) == ""
    monkeypatch.setattr("taetpu.study.waiting.PATIENCE", 0.0)
    assert shown(terminal=False) == ""
    assert "checking arms" in shown(terminal=True)

"""What a question leaves that is answered by no, by Ctrl-C or by the end of the input, in a real terminal."""

import os
import pty
import select
import subprocess
import sys

import pytest

from taetpu.cli.consent import agreed
from taetpu.core.errors import UserError

ASKED = {
    "Delete it?": ("None", " [y/N]: "),
    "Really?": ("'mine'", " Type 'mine' to agree: "),
}
"""A question, what has to be typed, and what stands behind it."""
ENTRY = """
import sys
import typer
from taetpu.cli import main
from taetpu.cli.consent import agreed

@main.app.command()
def ask():
    agreed("delete mine", {question!r}, yes=False, dry_run=False, typed={typed})
    print("done")

sys.argv = ["taetpu", "ask"]
main.main()
"""


def answered(question: str, answer: bytes) -> tuple[int, str]:
    """The exit code of a command that asks, and what the terminal shows of it."""
    typed, _ = ASKED[question]
    terminal, side = pty.openpty()
    script = ENTRY.format(question=question, typed=typed)
    # A session of its own, whose terminal this is: it turns the keys into signals.
    setsid = ["setsid", "--ctty", "--wait", sys.executable, "-c", script]
    shown = b""
    with subprocess.Popen(setsid, stdin=side, stdout=side, stderr=side) as process:
        os.close(side)
        patience = 30
        while True:
            if not select.select([terminal], [], [], 2)[0]:
                patience -= 1
                if not patience:
                    process.kill()
                    raise AssertionError(shown)
                # Python may miss a signal that comes just before it begins to read.
                if ASKED[question][1].encode() in shown:
                    os.write(terminal, answer)
                continue
            try:
                read = os.read(terminal, 1024)
            except OSError:  # it has ended
                break
            shown += read
            if read.endswith(b" ") and shown.endswith(b": "):
                os.write(terminal, answer)
        code = process.wait(60)
    os.close(terminal)
    return code, shown.decode().replace("\r\n", "\n")


@pytest.mark.parametrize("question", ASKED)
@pytest.mark.parametrize(("key", "code"), [(b"\x03", 130), (b"\x04", 130), (b"n\n", 1)], ids=["ctrl-c", "ctrl-d", "no"])
def test_whoever_does_not_agree_is_told_that_nothing_was_changed(question, key, code):
    ended, shown = answered(question, key)
    assert ended == code, shown
    asked, _, after = shown.partition(ASKED[question][1])
    assert asked == f"delete mine\n{question}"
    assert after.splitlines()[1:] == ["nothing was changed"], "no traceback, and nothing else"


def test_whoever_agrees_goes_on():
    for question, key in {"Delete it?": b"y\n", "Really?": b"mine\n"}.items():
        code, shown = answered(question, key)
        assert (code, shown.splitlines()[-1]) == (0, "done")


def test_a_dry_run_asks_nobody(capsys):
    assert agreed("make it", "Make it?", yes=True, dry_run=True) is False
    assert capsys.readouterr().err == "make it\ndry run: nothing was changed\n"


def test_nobody_is_asked_where_nobody_is(monkeypatch):
    with open(os.devnull) as nobody:
        monkeypatch.setattr(sys, "stdin", nobody)
        with pytest.raises(UserError) as refused:
            agreed("make it", "Make it?", yes=False, dry_run=False)
    assert refused.value.problem == "nobody is here to agree to this"

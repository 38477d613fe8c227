"""`check_component`: every kind of the package passes, and the command says what was checked of a plug-in."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from taetpu.core.errors import UserError
from taetpu.core.registry import BUILTIN_MODULES, kinds
from taetpu.testing import check_component
from taetpu.testing.slots import CHECKS

SETTINGS = {
    **{kind: {"seq_len": 12, "eval_size": 8} for kind in ("copy", "reverse", "sort", "histogram", "induction")},
    "text": {"source": "README.md", "seq_len": 12},
    "bpe": {"vocab_size": 280},
    "activation": {"site": "residual"},
}
EVERY = [(slot, kind) for slot in BUILTIN_MODULES for kind in kinds(slot)]
QUICK = {("schedule", "cosine"), ("tokenizer", "char"), ("tokenizer", "bpe"), ("task", "copy")}


def test_every_slot_has_checks():
    assert set(CHECKS) == set(BUILTIN_MODULES)


@pytest.mark.parametrize(
    ("slot", "kind"), [pytest.param(*k, marks=() if k in QUICK else pytest.mark.slow, id="/".join(k)) for k in EVERY]
)
def test_every_kind_of_the_package_passes(slot, kind, monkeypatch):
    monkeypatch.chdir(Path(__file__).parents[2])
    report = check_component(slot, kind, **SETTINGS.get(kind, {}))
    assert report.findings
    assert {finding.outcome for finding in report.findings} <= {"passed", "note"}


# --- the command -----------------------------------------------------------------------------------------------------

PLUGIN = """\
from taetpu.plugin import Hook, Number, Traced, register


@register("hook", "shift")
class Shift(Hook):
    by: int

    def batch(self, batch, now):
        return batch._replace(tokens=(batch.tokens + self.by) % 11)
"""


@pytest.mark.slow
@pytest.mark.parametrize(
    ("arguments", "code", "out", "err"),
    [
        (["idea.py", "--set", "shift.by=3"], 0, "batch repeats  passed", ""),
        (["idea.py", "--set", "shift.by=0.5"], 2, "", "error: hook/shift: 0.5 is not allowed"),
        (["idea.py"], 2, "", "'by' is missing"),
        (["idea.py", "--set", "shft.by=3"], 2, "", "Did you mean 'shift'?"),
        (["nowhere.py"], 2, "", "cannot read this plug-in"),
    ],
)
def test_the_command(tmp_path, arguments, code, out, err):
    (tmp_path / "idea.py").write_text(PLUGIN)
    done = run(tmp_path, *arguments)
    assert done.returncode == code, done.stderr
    assert out in done.stdout
    assert err in done.stderr
    assert "Traceback" not in done.stderr


@pytest.mark.slow
def test_the_command_fails_where_a_check_does(tmp_path):
    (tmp_path / "idea.py").write_text(PLUGIN.replace(" % 11", ""))
    done = run(tmp_path, "idea.py", "--set", "shift.by=3")
    assert done.returncode == 1
    assert "batch repeats: tokens range from 3 to 13, expected 0 to 10" in done.stderr
    assert "where:  idea.py:8 in batch" in done.stderr


def run(folder: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "taetpu.testing", *arguments]
    return subprocess.run(command, cwd=folder, env=os.environ, capture_output=True, text=True, check=False, timeout=300)


def test_an_unknown_kind_is_a_users_error():
    with pytest.raises(UserError, match="unknown ffn kind 'swigloo'"):
        check_component("ffn", "swigloo")

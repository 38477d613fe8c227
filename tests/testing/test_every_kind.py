"""`check_component` passes for built-in kinds, and the command reports the checks of a plug-in."""

from pathlib import Path

import pytest

from taetpu.core.errors import UserError
from taetpu.core.registry import BUILTIN_MODULES, kinds
from taetpu.testing import check_component
from taetpu.testing.__main__ import main
from taetpu.testing.checks_by_slot import CHECKS

SETTINGS = {
    **{kind: {"seq_len": 12, "eval_size": 8} for kind in ("copy", "reverse", "sort", "histogram", "induction")},
    "mqar": {"seq_len": 16, "eval_size": 8, "symbols": 12},
    "text": {"source": "README.md", "seq_len": 12},
    "bpe": {"vocab_size": 280},
    "activation": {"site": "residual"},
    "mamba2": {"head_dim": 8, "state": 4},
    "in_context_score": {"early": 2, "late": 6},
}
QUICK = {("schedule", "cosine"), ("tokenizer", "bpe"), ("task", "copy")}
SLOW = {
    ("mixer", "attention"), ("position", "rope"), ("norm", "rms"), ("embedding", "tied"),
    ("optimizer", "adamw"), ("optimizer", "muon"), ("metric", "gradient-norm"), ("eval_metric", "macro_f1"),
}  # fmt: skip
"""Some kinds; the others are checked nightly."""


def every_kind():
    for slot in BUILTIN_MODULES:
        for kind in kinds(slot):
            one = (slot, kind)
            marks = () if one in QUICK else pytest.mark.slow if one in SLOW else pytest.mark.nightly
            yield pytest.param(*one, marks=marks, id="/".join(one))


def test_every_slot_has_checks():
    assert set(CHECKS) == set(BUILTIN_MODULES)


@pytest.mark.parametrize(("slot", "kind"), [*every_kind()])
def test_every_built_in_kind_passes(slot, kind, monkeypatch):
    monkeypatch.chdir(Path(__file__).parents[2])
    example = {name: value for name, value in kinds(slot)[kind].example.items() if "." not in name}
    report = check_component(slot, kind, **{**example, **SETTINGS.get(kind, {})})
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


@pytest.fixture
def command(tmp_path, monkeypatch, capsys):
    """Return a function that writes a plug-in and runs the command: `(code, stdout, stderr)`."""

    def run(source: str, *arguments: str) -> tuple[int, str, str]:
        (tmp_path / "idea.py").write_text(source)
        monkeypatch.chdir(tmp_path)
        monkeypatch.setattr("sys.argv", ["taetpu.testing", *arguments])
        with pytest.raises(SystemExit) as ended:
            main()
        return ended.value.code or 0, *capsys.readouterr()

    return run


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
def test_the_command_checks_kinds_and_rejects_invalid_input(command, arguments, code, out, err):
    done = command(PLUGIN, *arguments)
    assert done[0] == code
    assert out in done[1]
    assert err in done[2]


def test_the_command_names_the_line_of_a_failed_check(command):
    code, _, err = command(PLUGIN.replace(" % 11", ""), "idea.py", "--set", "shift.by=3")
    assert code == 1
    assert "batch repeats: tokens range from 3 to 13, expected 0 to 10" in err
    assert "where:  idea.py:8 in batch" in err


def test_an_unknown_kind_is_a_user_error():
    with pytest.raises(UserError, match="unknown ffn kind 'swigloo'"):
        check_component("ffn", "swigloo")

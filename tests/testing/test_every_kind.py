"""Every built-in kind passes `check_component`, and the command reports the checks of a plug-in.

The default suite checks some kinds without a model; `test_combinations` has a model with a kind of every slot. Slow
tests check all kinds.
"""

from pathlib import Path

import pytest
from tests.suites import by_default
from tests.tokenizer_files import write_tokenizer

from taetpu.core.config_parsing import build_component
from taetpu.core.errors import UserError
from taetpu.core.registry import BUILTIN_MODULES, kinds
from taetpu.nn.slot_calls import PARTS
from taetpu.testing import check_component
from taetpu.testing.__main__ import main
from taetpu.testing.checks_by_slot import CHECKS, check_form
from taetpu.testing.data import TEXT
from taetpu.testing.report import Checks
from taetpu.testing.standalone import check_draws, check_parts

ROOT = Path(__file__).parents[2]

LABELLED = ("classification", "token-classification", "pairs")
SETTINGS = {
    **{kind: {"seq_len": 12, "eval_size": 8} for kind, cls in kinds("task").items() if "eval_size" in cls.model_fields},
    **{f"mqar{kind}": {"seq_len": 24, "eval_size": 8, "symbols": 14} for kind in ("", "-forgetting", "-compositional")},
    **{kind: {"seq_len": 16, "eval_size": 8, "symbols": 6} for kind in ("mad-recall", "mad-noisy-recall")},
    "mad-selective-copy": {"seq_len": 16, "eval_size": 8, "copied": 3},
    "grammar": {"seq_len": 16, "eval_size": 8},
    "variable-binding": {"seq_len": 18, "eval_size": 8},
    "lego": {"seq_len": 26, "eval_size": 8},
    "modular-addition": {"modulus": 11},
    "text": {"source": "README.md", "seq_len": 12},
    "tokens": {"source": "tests/data/stored", "seq_len": 12, "vocab_size": 96},
    **{kind: {"source": "tests/data/labelled.jsonl", "seq_len": 40} for kind in LABELLED},
    "regression": {"source": "tests/data/labelled.jsonl", "seq_len": 40, "label": "score"},
    "bpe": {"vocab_size": 280},
    "activation": {"site": "residual"},
    "mamba2": {"head_dim": 8, "state": 4},
    "window": {"width": 3},
    "local": {"width": 3},
    "factorised": {"size": 8},
    "block-sparse": {"block": 2, "local": 1},
    "in_context_score": {"early": 2, "late": 6},
    "layerskip": {"rate": 0.4},
    **{kind: {"file": "items.jsonl"} for kind, cls in kinds("eval_metric").items() if "file" in cls.model_fields},
}
ONE_A_SLOT = {
    "mixer": "attention", "position": "rope", "rope_scaling": "yarn", "norm": "layer", "ffn": "moe",
    "residual": "layer-scale", "short_conv": "canon", "order": "macaron", "layer_dropout": "stochastic-depth",
    "after": "x0", "adapter": "lora", "mask": "window", "qk_norm": "rms", "values": "residual", "scores": "softcap",
    "normalizer": "sink", "gate": "sigmoid", "embedding": "untied", "stem": "norm", "readout": "dense",
    "logits": "softcap",
    "head": "multi-token", "init": "fan-in", "optimizer": "adamw", "schedule": "cosine",
    "stop": "patience", "evaluate": "best", "objective": "causal-lm", "hook": "freeze",
    "metric": "gradient-norm", "eval_metric": "exact_match", "task": "copy", "tokenizer": "char", "tracker": "trackio",
}  # fmt: skip
"""A kind of each slot, which is checked without a model."""
NOT_CAUSAL = {("mask", "full"), ("mask", "local"), ("mask", "prefix")}
"""Kinds whose models extend no text, so padding and caches are not checked."""
ELSEWHERE = {("tokenizer", "hub"), ("tokenizer", "start")}
"""Kinds that need a server or a stored model, which other tests have."""
EVERY = [(slot, kind) for slot in BUILTIN_MODULES for kind in kinds(slot) if (slot, kind) not in ELSEWHERE]


def settings_of(slot, kind):
    """Return the settings with which a kind is checked."""
    cls = kinds(slot)[kind]
    example = {name: value for name, value in cls.example.items() if "." not in name}
    return {**example, **{name: value for name, value in SETTINGS.get(kind, {}).items() if name in cls.model_fields}}


def cases():
    return [pytest.param(*one, marks=pytest.mark.slow, id="/".join(one)) for one in EVERY]


def test_every_slot_has_checks():
    assert set(CHECKS) == set(ONE_A_SLOT) == set(BUILTIN_MODULES)


@pytest.mark.parametrize("slot", by_default(ONE_A_SLOT, "mixer", "schedule"))
def test_one_kind_of_each_slot_passes(slot, monkeypatch):
    monkeypatch.chdir(ROOT)
    component = build_component(slot, {"kind": ONE_A_SLOT[slot], **settings_of(slot, ONE_A_SLOT[slot])})
    checks = Checks(component)
    checks.run("form", check_form, component)
    if slot in PARTS:
        check_parts(checks)
    elif slot == "init":
        checks.run("draw", check_draws, component)
    else:
        CHECKS[slot](checks)
    assert {finding.outcome for finding in checks.report.findings} <= {"passed", "note"}, checks.report


@pytest.mark.parametrize(("slot", "kind"), cases())
def test_every_built_in_kind_passes(slot, kind, monkeypatch, tmp_path):
    monkeypatch.chdir(ROOT)
    settings = settings_of(slot, kind)
    if slot == "tokenizer" and "path" in settings:
        settings["path"] = str(write_tokenizer(tmp_path / settings["path"], TEXT))
    report = check_component(slot, kind, **settings)
    skipped = {finding.check for finding in report.findings if finding.outcome == "not checked"}
    assert skipped == ({"padding", "cache"} if (slot, kind) in NOT_CAUSAL else set())
    assert {finding.outcome for finding in report.findings} <= {"passed", "note", "not checked"}
    notes = {finding.check: finding.message for finding in report.findings if finding.outcome == "note"}
    assert "padding" not in notes, report
    assert notes.get("difference", "not checked").startswith("not checked"), report


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
        return int(ended.value.code or 0), *capsys.readouterr()

    return run


@pytest.mark.parametrize(
    ("arguments", "code", "out", "err"),
    [
        (["idea.py", "--set", "shift.by=3"], 0, "batch repeats  passed", ""),
        (["idea.py", "--set", "shift.by=0.5"], 2, "", "error: hook/shift: 0.5 is not allowed"),
        (["idea.py"], 2, "", "'by' is missing"),
        (["idea.py", "--set", "shft.by=3"], 2, "", "Did you mean 'shift'?"),
        (["nowhere.py"], 2, "", "cannot read"),
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

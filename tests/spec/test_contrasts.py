"""`measure.contrasts` in study files."""

import pytest

from taetpu.core.errors import UserError
from taetpu.spec.loading import load_study

STUDY = """\
study: s
base:
  task: {{kind: copy, seq_len: 16}}
  model: {{dim: 32, num_layers: 2}}
  train: {{steps: 10, optimizer: {{kind: adamw, lr: 1e-3}}}}
grid: {{train.optimizer.lr: [1e-3, 3e-3, 1e-2], model.mixer.qk_norm: {levels}}}
arms: {{relu: {{model.ffn: relu}}, gelu: {{model.ffn: gelu-erf}}}}
measure:
  contrasts: {contrasts}
"""


@pytest.fixture
def load(tmp_path):
    def write_and_load(contrasts, levels="[none, rms]"):
        (tmp_path / "s.yaml").write_text(STUDY.format(contrasts=contrasts, levels=levels))
        return load_study(tmp_path / "s.yaml").contrasts

    return write_and_load


def test_a_spread_is_resolved_to_the_arms_of_a_grid(load):
    found = load("{steady: {spread: val/loss, over: train.optimizer.lr, by: model.mixer.qk_norm}}")
    one = found["steady"]
    assert one["level"] == "rms"
    assert sorted(one["compare"]) == ["lr=0.001,qk_norm=rms", "lr=0.003,qk_norm=rms", "lr=0.01,qk_norm=rms"]
    assert sorted(one["to"]) == ["baseline", "lr=0.003,qk_norm=none", "lr=0.01,qk_norm=none"]


def test_comparisons_take_one_arm_or_several(load):
    found = load("{a: {compare: relu, to: gelu}, b: {compare: [relu, gelu], to: baseline}}")
    assert found == {
        "a": {"compare": ["relu"], "to": ["gelu"]},
        "b": {"compare": ["relu", "gelu"], "to": ["baseline"]},
    }


@pytest.mark.parametrize(
    ("contrasts", "problem", "remedy", "place"),
    [
        ("{a: {compare: rellu, to: gelu}}", "no arm 'rellu'", "Did you mean 'relu'?", "measure.contrasts.a.compare"),
        ("{a: {compare: relu, to: [relu, gelu]}}", "'relu' is on both", "Remove", "measure.contrasts.a.to"),
        ("{a: {compare: [relu, relu], to: gelu}}", "listed twice", "once", "measure.contrasts.a.compare"),
        ("{a: {compare: relu}}", "neither a comparison", "{compare: ARM, to: ARM}", "measure.contrasts.a"),
        ("{a: {compare: relu, to: gelu, over: x}}", "neither", "spread: val/loss", "measure.contrasts.a"),
        ("{a: {spread: val/los, over: train.optimizer.lr, by: model.mixer.qk_norm}}", "no run measures 'val/los'",
         "Did you mean 'val/loss'?", "measure.contrasts.a.spread"),
        ("{a: {spread: val/loss, over: train.optimizer.lr, by: model.norm}}", "changes model.norm alone",
         "grid: {train.optimizer.lr: [...], model.norm: [...]}", "measure.contrasts.a.by"),
        ("{a: {spread: val/loss, over: train.optimizer.lr, by: model.ffn}}", "train.optimizer.lr=0.003 with "
         "model.ffn=relu",
         "Cross both settings", "measure.contrasts.a"),
        ("{a: {spread: val/loss, over: model.ffn, by: model.ffn.kind}}", "same setting, model.ffn",
         "another setting", "measure.contrasts.a.by"),
        ("{a: {comparee: relu, to: gelu}}", "unknown field 'comparee'", "Did you mean 'compare'?",
         "measure.contrasts.a.comparee"),
    ],
)  # fmt: skip
def test_an_invalid_contrast_is_refused(load, contrasts, problem, remedy, place):
    with pytest.raises(UserError) as caught:
        load(contrasts)
    assert problem in str(caught.value)
    assert remedy in str(caught.value)
    assert f"at {place}\n" in f"{caught.value}\n"


@pytest.mark.parametrize(
    ("rates", "levels", "value", "setting"),
    [
        (
            "[3e-3, 1e-2]",
            "[none, rms]",
            "0.001",
            "train.optimizer.lr",
        ),
        ("[1e-3, 3e-3]", "[rms]", "none", "model.mixer.qk_norm"),
    ],
)
def test_a_grid_without_the_value_of_the_baseline_is_refused_with_this_value(
    load, rates, levels, value, setting, monkeypatch
):
    monkeypatch.setitem(globals(), "STUDY", STUDY.replace("[1e-3, 3e-3, 1e-2]", rates))
    with pytest.raises(UserError) as caught:
        load("{a: {spread: val/loss, over: train.optimizer.lr, by: model.mixer.qk_norm}}", levels)
    assert caught.value.remedy.startswith(f"Add {value}, ")
    assert f" {setting} in grid" in caught.value.remedy

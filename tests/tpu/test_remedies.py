"""Remedies for runs that do not fit, with a fake compiler."""

from pathlib import Path

import pytest

from taetpu.core.chips import parse_slice
from taetpu.spec.loading import load_study
from taetpu.tpu.group_plan import plan_group
from taetpu.tpu.preflight import describe_failures
from taetpu.tpu.remedies import find_advice
from taetpu.train.layout import group_runs, parse_packing

STUDY = """\
study: large
base:
  task: {kind: copy, seq_len: 64, symbols: 5, min_length: 2, max_length: 6, eval_size: 32}
  model: {dim: DIM, num_layers: LAYERS, mixer: {kind: attention, num_heads: 16}}
  train: {steps: 20, batch_size: 16, sample: none}
seeds: 1
arms: {deeper: {model.num_layers: 3}}
"""
LARGE = {"needed": 2**35, "available": 2**34, "largest": []}
V5E = parse_slice("v5e-1")


def make_plans(folder: Path, dim: int = 32, layers: int = 2):
    (folder / "large.yaml").write_text(STUDY.replace("DIM", str(dim)).replace("LAYERS", str(layers)))
    study = load_study(folder / "large.yaml")
    return [
        plan_group(V5E, members, study.sources.prepare(members.runs[0].config), parse_packing("off"))
        for members in group_runs(study.runs())
    ]


def parts(one):
    return one.first.config.train.accumulate


def fits(enough):
    """Return a compiler for which a program fits if `enough` is true of its plan."""
    return lambda one, tpu: {"memory": {"needed": 2**33}} if enough(one) else {"too_large": LARGE}


def advise(one, compile_plan, **large):
    return find_advice(one, {"too_large": {**LARGE, **large}}, V5E, compile_plan)


@pytest.mark.slow
def test_the_cheapest_setting_that_compiles_is_the_remedy(tmp_path: Path) -> None:
    (one, _) = make_plans(tmp_path)
    assert advise(one, fits(lambda plan: parts(plan) >= 4))["remedy"] == "--set train.accumulate=4"
    full = advise(one, fits(lambda plan: plan.execution.remat == "full" and parts(plan) == 1))
    assert (full["remedy"], full["needs"]) == ("--set train.compute.remat=full", 2**33)


@pytest.mark.slow
def test_a_state_that_is_too_large_gets_a_larger_slice_without_compiling(tmp_path: Path) -> None:
    (one, _), compiled = make_plans(tmp_path, dim=3072, layers=24), []
    found = advise(one, lambda plan, tpu: compiled.append(plan), state=True)
    assert found == {"remedy": None, "needs": None, "larger": {"tpu": "v5litepod-4", "data": 4, "model": 1}}
    assert compiled == []


def program(arm: str, **large):
    return {"arms": [arm], "too_large": {**LARGE, "remedy": None, "needs": None, "larger": None, **large}}


def test_failures_name_the_remedy() -> None:
    larger = {"tpu": "v5litepod-4", "data": 4, "model": 1}
    programs = [program("a", remedy="--set x=1", needs=2**33), program("b", state=True, larger=larger), program("c")]
    one, other, third = describe_failures({"tpu": "v5litepod-1", "programs": programs})
    assert "Use --set x=1" in one
    assert "8.00 GiB" in one
    assert "run needs 32.00 GiB of 16.00 GiB" in other
    assert "--tpu v5litepod-4 --set 'train.compute.mesh={data: 4, model: 1}'" in other
    assert "smaller model" in third

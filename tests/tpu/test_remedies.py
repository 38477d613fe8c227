"""Remedies for runs that do not fit, with a fake compiler."""

from pathlib import Path

import pytest

from taetpu.core.chips import parse_slice
from taetpu.spec.loading import load_study
from taetpu.tpu.compiler import describe_crash
from taetpu.tpu.group_plan import plan_group
from taetpu.tpu.preflight import describe_failures
from taetpu.tpu.remedies import find_larger_slice, find_remedies
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


def test_one_setting_makes_all_fit(tmp_path: Path) -> None:
    base, deeper = make_plans(tmp_path)
    least = {2: 4, 3: 8}  # microbatches needed, by layers
    compile_plan = fits(lambda one: parts(one) >= least[len(one.first.config.model.layers)])
    refused = [(one, {"too_large": LARGE}) for one in (base, deeper)]
    assert find_remedies([], V5E, compile_plan) == []
    assert [one and one.setting for one in find_remedies(refused[:1], V5E, compile_plan)] == ["train.accumulate=4"]
    assert [one and one.setting for one in find_remedies(refused, V5E, compile_plan)] == ["train.accumulate=8"] * 2


def test_without_a_shared_remedy_each_plan_has_its_own(tmp_path: Path) -> None:
    base, deeper = make_plans(tmp_path)

    def enough(one):
        shallow = len(one.first.config.model.layers) == 2
        return parts(one) == 16 if shallow else one.execution.remat == "full" and parts(one) == 1

    refused = [(one, {"too_large": LARGE}) for one in (base, deeper)]
    found = find_remedies(refused, V5E, fits(enough))
    assert [one and one.setting for one in found] == ["train.accumulate=16", "train.compute.remat=full"]


def test_a_state_that_is_too_large_gets_a_larger_slice_without_trying_settings(tmp_path: Path) -> None:
    (one, _), compiled = make_plans(tmp_path, dim=3072, layers=24), []

    def compile_plan(found, tpu):
        compiled.append(tpu.name)
        return {"memory": {"needed": 2**33}}

    assert find_remedies([(one, {"too_large": {**LARGE, "state": True}})], V5E, compile_plan) == [None]
    assert compiled == []  # one device cannot divide it
    found = find_larger_slice(one, V5E, compile_plan)
    assert found is not None
    assert (found.tpu.name, found.plan.layout.data, compiled) == ("v5litepod-4", 4, ["v5litepod-4"])
    refused = find_larger_slice(one, V5E, fits(lambda _: False))
    assert refused is not None
    assert (refused.tpu.devices, refused.facts) == (8, None)  # not compiled a second time


def program(arm: str, **large):
    return {"arms": [arm], "too_large": {**LARGE, "remedy": None, "needs": None, "larger": None, **large}}


def test_failures_name_the_remedy() -> None:
    both = [program(arm, remedy="--set x=1", needs=2**33 + n * 2**30) for n, arm in enumerate(("a", "b"))]
    found = describe_failures({"tpu": "v5litepod-1", "programs": both})
    assert "--set" not in found[0] + found[1]
    assert "--set x=1" in found[2]
    assert "9.00 GiB" in found[2]
    other = {"tpu": "v5litepod-4", "data": 4, "model": 1, "needs": None}
    (alone,) = describe_failures({"tpu": "v5litepod-1", "programs": [program("a", state=True, larger=other)]})
    assert "the state (parameters and moments) of one run needs 32.00 GiB of 16.00 GiB" in alone
    assert "--tpu v5litepod-4 --set 'train.compute.mesh={data: 4, model: 1}'" in alone


@pytest.mark.parametrize(
    ("message", "expected"),
    [
        ("the process ended with code 9: ", "the compiler ended with code 9; try another slice"),
        ("the process ended with code 1: x\ny\n", "the compiler ended with code 1: y; try another slice"),
        ("killed by SIGKILL", "the compiler was killed by SIGKILL; this machine may have too little memory"),
    ],
)
def test_a_crash_is_described_by_its_last_line(message: str, expected: str) -> None:
    assert describe_crash(message) == expected

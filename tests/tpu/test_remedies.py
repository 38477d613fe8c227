"""What is advised where runs do not fit, by a compiler that is made up."""

from pathlib import Path

import pytest

from taetpu.core.chips import resolve
from taetpu.spec.loading import load_study
from taetpu.tpu.compiler import _ended
from taetpu.tpu.group_plan import plan_group
from taetpu.tpu.preflight import refusals
from taetpu.tpu.remedies import helped, larger
from taetpu.train.layout import group, parse_packing

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
V5E = resolve("v5e-1")


def planned(folder: Path, dim: int = 32, layers: int = 2):
    (folder / "large.yaml").write_text(STUDY.replace("DIM", str(dim)).replace("LAYERS", str(layers)))
    study = load_study(folder / "large.yaml")
    return [
        plan_group(V5E, members, study.sources.prepare(members.runs[0].config), parse_packing("off"))
        for members in group(study.runs())
    ]


def parts(one):
    return one.first.config.train.accumulate


def fits(enough):
    """A compiler by whom a program fits where `enough` says so."""
    return lambda one, tpu: {"memory": {"needed": 2**33}} if enough(one) else {"too_large": LARGE}


def test_one_setting_makes_all_fit(tmp_path: Path) -> None:
    base, deeper = planned(tmp_path)
    least = {2: 4, 3: 8}  # in how many parts the batch has to be, by layers
    compiled = fits(lambda one: parts(one) >= least[len(one.first.config.model.layers)])
    refused = [(one, {"too_large": LARGE}) for one in (base, deeper)]
    assert helped([], V5E, compiled) == []
    assert [one and one.setting for one in helped(refused[:1], V5E, compiled)] == ["train.accumulate=4"]
    assert [one and one.setting for one in helped(refused, V5E, compiled)] == ["train.accumulate=8"] * 2


def test_where_no_setting_helps_all_each_has_its_own(tmp_path: Path) -> None:
    base, deeper = planned(tmp_path)

    def enough(one):
        shallow = len(one.first.config.model.layers) == 2
        return parts(one) == 16 if shallow else one.execution.remat == "full" and parts(one) == 1

    refused = [(one, {"too_large": LARGE}) for one in (base, deeper)]
    found = helped(refused, V5E, fits(enough))
    assert [one and one.setting for one in found] == ["train.accumulate=16", "train.compute.remat=full"]


def test_a_state_that_is_too_large_is_not_tried_in_vain_and_has_a_slice_that_holds_it(tmp_path: Path) -> None:
    (one, _), asked = planned(tmp_path, dim=3072, layers=24), []

    def compiled(found, tpu):
        asked.append(tpu.name)
        return {"memory": {"needed": 2**33}}

    assert helped([(one, {"too_large": {**LARGE, "state": True}})], V5E, compiled) == [None]
    assert asked == []  # on one device there is nothing to divide it over
    found = larger(one, V5E, compiled)
    assert found is not None
    assert (found.tpu.name, found.planned.layout.data, asked) == ("v5litepod-4", 4, ["v5litepod-4"])
    refused = larger(one, V5E, fits(lambda _: False))
    assert refused is not None
    assert (refused.tpu.devices, refused.facts) == (8, None)  # not asked a second time


def program(arm: str, **large):
    return {"arms": [arm], "too_large": {**LARGE, "remedy": None, "needs": None, "larger": None, **large}}


def test_a_refusal_says_what_to_do() -> None:
    both = [program(arm, remedy="--set x=1", needs=2**33 + n * 2**30) for n, arm in enumerate(("a", "b"))]
    found = refusals({"tpu": "v5litepod-1", "programs": both})
    assert "compiles" not in found[0] + found[1]
    assert found[2] == "with this all of them compile: --set x=1, with which the largest needs 9.00 GiB"
    other = {"tpu": "v5litepod-4", "data": 4, "model": 1, "needs": None}
    (alone,) = refusals({"tpu": "v5litepod-1", "programs": [program("a", state=True, larger=other)]})
    assert "state alone, parameters and moments, takes 32.00 GiB of 16.00 GiB" in alone
    assert "--tpu v5litepod-4 --set 'train.compute.mesh={data: 4, model: 1}', which was not compiled" in alone


@pytest.mark.parametrize(
    ("why", "said"),
    [
        ("the process ended with code 9: ", "the compiler ended with code 9; another slice may compile"),
        ("the process ended with code 1: x\ny\n", "the compiler ended with code 1: y; another slice may compile"),
        ("killed by SIGKILL", "the compiler was killed by SIGKILL; this machine's memory may be too small for it"),
    ],
)
def test_a_compiler_that_ended_is_told_in_plain_words(why: str, said: str) -> None:
    assert _ended(why) == said

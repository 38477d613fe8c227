"""Which runs share a program, and what is decided once."""

from dataclasses import replace

import pytest

from taetpu.spec.design import RunSpec
from taetpu.train import plan
from taetpu.train.plan import PackPlan, group, plan_packs


@pytest.fixture
def runs(make, text):
    task, _ = text
    arms = {
        "baseline": make(task),
        "lr": make(task, optimizer={"kind": "adamw", "lr": 0.1}),
        "dropped": make(task, {"mixer": {"kind": "attention", "num_heads": 2, "drop_heads": [1]}}),
        "relu": make(task, {"ffn": "relu"}),
    }
    return [RunSpec(arm, seed, c, f"{i}{seed}") for i, (arm, c) in enumerate(arms.items()) for seed in range(3)]


def test_runs_that_differ_in_numbers_share_a_program(runs):
    groups = group(runs)
    assert [{run.arm for run in g.runs} for g in groups] == [{"baseline", "lr", "dropped"}, {"relu"}]
    assert groups[0].live == {"model.layers.*.mixer.drop_heads"}
    assert groups[1].live == frozenset()  # no mask where no run of the program has one


def test_every_run_is_in_one_pack_and_plans_survive_the_store(runs, text):
    plans = plan_packs(runs, [text[1]] * len(runs))
    assert sorted(names for p in plans for names in p.runs) == sorted((r.arm, r.seed, r.id) for r in runs)
    for p in plans:
        assert p.width >= len(p.runs)
        assert p.width % p.devices == 0
        assert PackPlan.from_data({**p.__dict__}) == p


def test_a_small_memory_makes_narrow_packs_of_one_width(runs, text, monkeypatch):
    monkeypatch.setattr(plan, "memory_bytes", lambda: 4 * plan.run_bytes(runs[0].config, text[1]) + 1)
    plans = plan_packs(runs[:9], [text[1]] * 9)
    assert [len(p.runs) for p in plans] == [3, 3, 3]
    assert len({p.width for p in plans}) == 1


def test_what_auto_precision_meant_first_it_means_later(runs, text):
    (first, *_) = plan_packs(runs[:3], [text[1]] * 3)
    assert first.precision == "float32"  # this machine's device is a CPU
    (later, *_) = plan_packs(runs[9:], [text[1]] * 3, [replace(first, precision="bfloat16")])
    assert later.precision == "bfloat16"

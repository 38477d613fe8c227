"""Grouping of runs that share a program, layouts and pack plans."""

import json
from dataclasses import replace

import jax
import pytest
from tests.suites import by_default

from taetpu.core.errors import UserError
from taetpu.nn.compute_options import DEFAULT_OPTIONS, ComputeOptions
from taetpu.spec.resolved_study import RunSpec
from taetpu.train import layout as layout_module
from taetpu.train.layout import AUTO, Layout, Packing, RunGroup, Workload, default_layout, group_runs, parse_packing
from taetpu.train.pack_plan import PackPlan, plan_packs


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


@pytest.fixture
def work(runs, text):
    """Return `work(n)`, which returns a workload of n runs of one structure."""
    return lambda n: Workload(RunGroup(frozenset(), (runs * 100)[:n]), text[1], "float32")


def test_runs_that_differ_only_in_numbers_share_a_program(runs):
    groups = group_runs(runs)
    assert [{run.arm for run in g.runs} for g in groups] == [{"baseline", "lr", "dropped"}, {"relu"}]
    assert groups[0].live == {"model.layers.*.mixer.drop_heads"}
    assert groups[1].live == frozenset()  # no run of this program has a mask


def test_every_run_is_in_one_pack_and_plans_are_restored_from_json(runs, text):
    plans = plan_packs(runs, [text[1]] * len(runs))
    assert sorted(names for p in plans for names in p.runs) == sorted((r.arm, r.seed, r.id) for r in runs)
    for p in plans:
        assert p.width >= len(p.runs)
        assert p.width % p.layout.devices == 0
        assert p.chosen == "rule of thumb"
        assert PackPlan.from_data(json.loads(json.dumps(p.data))) == p


def test_auto_precision_keeps_the_dtype_of_earlier_plans(runs, text):
    (first, *_) = plan_packs(runs[:3], [text[1]] * 3)
    assert first.precision == "float32"  # this machine's device is a CPU
    (later, *_) = plan_packs(runs[9:], [text[1]] * 3, [replace(first, precision="bfloat16")])
    assert later.precision == "bfloat16"


@pytest.mark.parametrize("room", by_default([1, 2, 3, 4, 7, 100], 3))
@pytest.mark.parametrize("packing", [AUTO, Packing(5)])
def test_pack_fits_into_memory(work, monkeypatch, room, packing):
    """Padding counts too."""
    state, step = (f(work(1).config, work(1).source) for f in (layout_module.state_bytes, layout_module.step_bytes))
    monkeypatch.setattr(layout_module, "memory_bytes", lambda: step + room * state + state // 2)
    for count in range(1, 13):
        layout = default_layout(work(count), packing)
        assert layout.width * state + min(layout.width, layout.devices) * step <= layout_module.memory_bytes()
        assert layout.width <= (packing.widest or count + 1)
        assert layout.width % layout.devices == 0 or layout == Layout(1, 2)


def test_packs_are_no_wider_than_requested(runs, text):
    nine = (runs[:9], [text[1]] * 9)
    narrow = plan_packs(*nine, packing=parse_packing(3))
    assert {p.chosen for p in narrow} == {"asked for"}
    assert max(p.width for p in narrow) <= 3
    alone = plan_packs(*nine, packing=parse_packing("off"))
    assert [(p.layout, len(p.runs)) for p in alone] == [(Layout(1, 2), 1)] * 9


@pytest.mark.parametrize(
    ("train", "model", "counts"),
    [
        ({}, {}, [1, 2]),
        ({"batch_size": 6, "accumulate": 2}, {}, [1]),  # microbatches of three
        ({"batch_size": 8, "accumulate": 2}, {}, [1, 2]),
        ({}, {"dropout": 0.1}, [1]),
    ],
)
def test_batch_is_divided_only_without_random_numbers(make, text, train, model, counts):
    assert layout_module.exact_shard_counts(make(text[0], model, **train)) == counts


@pytest.mark.parametrize("wrong", ["on", "0", "-3", "2.5", "", 0, -1, True, 2.0, None])
def test_invalid_packing_is_refused_with_the_valid_values(wrong):
    with pytest.raises(UserError) as error:
        parse_packing(wrong)
    assert repr(wrong) in error.value.problem
    assert error.value.path == ("pack",)
    assert "auto, off" in (error.value.remedy or "")


def test_plan_respects_the_requested_width():
    plan = PackPlan("x", (("baseline", 0, "a"),), Layout(4, 2), DEFAULT_OPTIONS, "float32")
    assert [plan.respects(parse_packing(text)) for text in ("auto", 4, 3, "off")] == [True, True, False, False]


@pytest.mark.parametrize(("width", "devices"), [(8, 2), (6, 2), (5, 1), (2, 2), (12, 4)])
def test_halving_halves_packs_until_every_run_is_alone(width, devices):
    names = tuple(("arm", seed, f"{seed}") for seed in range(width - 1))
    plans = [PackPlan("x", names, Layout(width, devices), ComputeOptions(unroll=2), "float32", ("a.*.b",), "measured")]
    while plans[0].width > 1:
        before, plans = plans, [half for one in plans for half in one.halved(one.runs)]
        assert plans[0].width == -(-before[0].width // 2)
        assert len({half.layout for half in plans}) == 1
        assert all(half.width % half.layout.devices == 0 and len(half.runs) <= half.width for half in plans)
        assert [run for half in plans for run in half.runs] == list(names)
        assert len({half.id for half in plans}) == len(plans)
        assert {(half.halved_from, half.compute.unroll, half.chosen, half.live) for half in plans} == {
            (width, 2, "measured", ("a.*.b",))
        }
    assert len(plans) == len(names)


def test_even_width_gives_fewest_packs_with_least_padding():
    for devices in (1, 2, 3):
        for runs in range(1, 40):
            for most in range(devices, 20):
                every = range(devices, most + 1, devices)
                width = layout_module.even_width(runs, most, devices)
                packs = -(-runs // width)
                assert width in every
                assert packs == min(-(-runs // other) for other in every)
                assert all(other >= width for other in every if -(-runs // other) == packs)


def test_packs_may_use_one_or_both_devices():
    assert layout_module.device_counts() == [1, 2]
    assert jax.local_device_count() == 2

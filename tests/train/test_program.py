"""A pack trains each run as if it were alone, whatever the sizes of dispatches."""

import re

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from taetpu.core.errors import UserError
from taetpu.core.static_dynamic import promoted_fields, split
from taetpu.data.base import evaluation_order
from taetpu.nn.compute_options import ComputeOptions
from taetpu.train.layout import Layout
from taetpu.train.program import Program, stack_numbers
from taetpu.train.run_axis import make_mesh


@pytest.fixture(scope="module")
def configs(make, text):
    """Return configs that share a program: a baseline, another learning rate, a dropped head, a dropped layer."""
    task, _ = text
    return [
        make(task),
        make(task, optimizer={"kind": "adamw", "lr": 0.01, "weight_decay": 0.5}),
        make(task, {"mixer": {"kind": "attention", "num_heads": 2, "drop_heads": [1]}}),
        make(task, {"layers": {0: {"drop": ["layer"]}}}),
    ]


def test_run_is_bitwise_identical_packed_and_solo(trainer, configs, text):
    live = promoted_fields(configs[2]) | promoted_fields(configs[3])  # one solo program for all four
    packed = trainer(configs, text[1], seeds=[5, 6, 7, 8])
    losses = packed.advance(8, 4)["train/loss"]
    for i, config in enumerate(configs):
        solo = trainer([config], text[1], seeds=[5 + i], live=live)
        np.testing.assert_array_equal(losses[i], solo.advance(8, 4)["train/loss"][0])
        for a, b in zip(jax.tree.leaves(packed.state), jax.tree.leaves(solo.state), strict=True):
            np.testing.assert_array_equal(np.asarray(a)[i], np.asarray(b)[0])
    assert len({tuple(row) for row in losses}) == 4


def test_results_are_bitwise_independent_of_dispatch_sizes(trainer, configs, text):
    whole, cut = (trainer(configs, text[1]) for _ in range(2))
    one, other = whole.advance(8, 4), cut.advance(1, 3, 2, 5, 1)
    for name in one:
        np.testing.assert_array_equal(one[name], other[name])
    for a, b in zip(jax.tree.leaves(whole.state), jax.tree.leaves(cut.state), strict=True):
        np.testing.assert_array_equal(np.asarray(a), np.asarray(b))
    assert whole.program.advance._cache_size() == 1  # all dispatch sizes share one compiled program


@pytest.mark.slow
def test_two_devices_give_the_same_bits_in_packs_of_two_and_four(trainer, configs, text):
    live = promoted_fields(configs[2]) | promoted_fields(configs[3])
    found = []
    for width in (2, 4):
        run = trainer(configs[:width], text[1], devices=2, live=live)
        losses = run.advance(8)["train/loss"][0]
        found.append([losses, *(np.asarray(a)[0] for a in jax.tree.leaves(run.state))])
    for a, b in zip(*found, strict=True):
        np.testing.assert_array_equal(a, b)
    one = trainer(configs, text[1]).advance(8)["train/loss"]
    np.testing.assert_allclose(one[0], losses, atol=2e-6)  # one device agrees with two


@pytest.mark.nightly
def test_batch_divided_over_two_devices_gives_the_same_step(trainer, make, text):
    config = make(text[0], batch_size=8, accumulate=2)
    whole, divided = (trainer([config], text[1], devices=devices) for devices in (1, 2))
    assert divided.program.mesh.shape["data"] == 2
    np.testing.assert_allclose(whole.advance(8)["train/loss"], divided.advance(8)["train/loss"], atol=2e-6)
    model = jax.device_get(whole.state.model)
    sums = [
        jax.device_get(run.program.evaluate(run.program.place(model), run.program.evaluation_set("val")))
        for run in (whole, divided)
    ]
    np.testing.assert_array_equal(sums[0]["weight"], sums[1]["weight"])  # each sequence in its place
    np.testing.assert_allclose(sums[0]["nll"], sums[1]["nll"], rtol=1e-5)
    np.testing.assert_allclose(sums[0]["nll"].sum(), sums[1]["nll"].sum(), rtol=1e-6)


def test_padding_changes_no_run(trainer, configs, text):
    """Two runs padded to a width of four are bitwise identical to the first two of four runs."""
    live = promoted_fields(configs[2]) | promoted_fields(configs[3])
    padded = trainer(configs[:2], text[1], width=4, live=live).advance(8)["train/loss"]
    first = trainer(configs, text[1]).advance(8)["train/loss"]
    np.testing.assert_array_equal(padded[:2], first[:2])


def test_diverged_run_does_not_affect_the_other_runs(trainer, make, configs, text):
    wild = make(text[0], optimizer={"kind": "adamw", "lr": 1e20})
    calm = trainer(configs, text[1]).advance(8)["train/loss"]
    pack = trainer([*configs[:3], wild], text[1], live=promoted_fields(configs[3]))
    losses = pack.advance(8)["train/loss"]
    np.testing.assert_array_equal(calm[:3], losses[:3])
    diverged = np.asarray(pack.state.diverged_at)
    assert (diverged[:3] == -1).all()
    assert diverged[3] == np.flatnonzero(~(losses[3] <= configs[0].train.loss_bound))[0]


@pytest.mark.slow
def test_packed_evaluation_equals_evaluation_of_each_model(trainer, configs, text):
    pack = trainer(configs, text[1])
    windows = pack.program.evaluation_set("val")
    sums = {k: np.asarray(v).reshape(4, -1) for k, v in pack.program.evaluate(pack.state.model, windows).items()}
    split = text[1].evaluation("val")
    order = evaluation_order(len(split.tokens))
    for weight in sums["weight"]:  # every window once, padding not counted
        np.testing.assert_array_equal(weight, np.pad(split.weights[order].sum(1), (0, len(weight) - len(order))))
    model = jax.tree.map(lambda a: a[2], pack.state.model)
    logits = jax.jit(lambda m, x: m(x))(model, jnp.asarray(split.tokens))
    nll = -jax.nn.log_softmax(logits)[np.arange(len(split.tokens))[:, None], np.arange(16)[None], split.targets]
    ours, theirs = sums["nll"][2], (nll * split.weights).sum(1)[order]
    np.testing.assert_allclose(ours[: len(theirs)], theirs, rtol=1e-5)
    assert not ours[len(theirs) :].any()


@pytest.mark.slow
def test_deep_stack_is_unrolled_as_planned(make, text):
    task, source = text
    structure, numbers = split(make(task, {"num_layers": 9}))
    for unroll in (1, 4):
        program = Program(structure, source, Layout(1), steps=9, execution=ComputeOptions(unroll=unroll))
        numbers_of_pack, seeds = stack_numbers([numbers]), np.zeros(1, np.int32)
        state = jax.eval_shape(program.init, numbers_of_pack, seeds)
        rows = np.zeros((1, program.chunk, 4), np.int32)
        step = program.advance.trace(state, numbers_of_pack, seeds, rows, np.int32(1), program.arrays)
        loops = re.findall(r"length=9\b.*?unroll=(\d+)", str(step.jaxpr), re.DOTALL)
        assert loops
        assert {int(found) for found in loops} == {unroll}


def test_pack_for_more_devices_than_available_is_refused():
    with pytest.raises(UserError, match=r"on 3 devices, .* has 2"):
        make_mesh(Layout(3, 3))


@pytest.mark.slow
def test_shapes_match_the_arguments_of_training(trainer, configs, text):
    run = trainer(configs, text[1], devices=2)
    shapes = run.program.shapes(split(configs[0], promoted_fields(configs[2]) | promoted_fields(configs[3]))[1])
    rows = np.zeros((4, run.program.chunk, 4), np.int32)
    real = {
        "init": (run.numbers, run.seeds),
        "advance": (run.state, run.numbers, run.seeds, rows, np.int32(0), run.program.arrays),
        "evaluate": (run.state.model, run.program.evaluation_set("val"), np.int32(0)),
    }
    for name, given in real.items():
        told = getattr(shapes, name)
        assert jax.tree.structure(told) == jax.tree.structure(given)
        for one, other in zip(jax.tree.leaves(told), jax.tree.leaves(given), strict=True):
            assert (one.shape, one.dtype) == (other.shape, other.dtype)
            if isinstance(other, jax.Array):
                assert one.sharding.is_equivalent_to(other.sharding, other.ndim)

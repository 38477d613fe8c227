"""A pack trains each of its runs as if it were alone, wherever its dispatches are cut."""

import re

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from taetpu.core.errors import UserError
from taetpu.core.static_dynamic import promoted_fields, split
from taetpu.data.batches import evaluation_order
from taetpu.nn.compute_options import ComputeOptions
from taetpu.train.layout import Layout
from taetpu.train.program import Program, make_mesh, stack_numbers


@pytest.fixture(scope="module")
def configs(make, text):
    """Runs that share a program: another rate, a dropped head, a dropped layer."""
    task, _ = text
    return [
        make(task),
        make(task, optimizer={"kind": "adamw", "lr": 0.01, "weight_decay": 0.5}),
        make(task, {"mixer": {"kind": "attention", "num_heads": 2, "drop_heads": [1]}}),
        make(task, {"layers": {1: {"drop": ["layer"]}}}),
    ]


def test_packed_agrees_with_solo(trainer, configs, text):
    live = promoted_fields(configs[2]) | promoted_fields(configs[3])  # one solo program for all four
    packed = trainer(configs, text[1], seeds=[5, 6, 7, 8]).advance(8, 4)["train/loss"]
    for i, config in enumerate(configs):
        solo = trainer([config], text[1], seeds=[5 + i], live=live).advance(8, 4)["train/loss"][0]
        np.testing.assert_allclose(packed[i], solo, atol=2e-6)
    assert len({tuple(row) for row in packed}) == 4  # the four really differ


def test_cutting_dispatches_elsewhere_changes_no_bit(trainer, configs, text):
    whole, cut = (trainer(configs, text[1]) for _ in range(2))
    one, other = whole.advance(8, 4), cut.advance(1, 3, 2, 5, 1)
    for name in one:
        np.testing.assert_array_equal(one[name], other[name])
    for a, b in zip(jax.tree.leaves(whole.state), jax.tree.leaves(cut.state), strict=True):
        np.testing.assert_array_equal(np.asarray(a), np.asarray(b))


@pytest.mark.slow
def test_a_run_is_the_same_bits_in_a_pack_of_any_width(trainer, configs, text):
    """Runs of one device take turns, so what is trained beside a run does not touch it."""
    live = promoted_fields(configs[2]) | promoted_fields(configs[3])
    for devices, widths in ((1, (1, 2, 4)), (2, (2, 4))):
        found = []
        for width in widths:
            run = trainer(configs[:width], text[1], devices=devices, seeds=[5, 6, 7, 8][:width], live=live)
            losses = run.advance(8, 4)["train/loss"][0]
            found.append([losses, *(np.asarray(a)[0] for a in jax.tree.leaves(run.state))])
        for other in found[1:]:
            for a, b in zip(found[0], other, strict=True):
                np.testing.assert_array_equal(a, b)


@pytest.mark.slow
@pytest.mark.parametrize("accumulate", [1, 2])
def test_a_batch_divided_over_two_devices_is_the_same_step(trainer, make, text, accumulate):
    config = make(text[0], batch_size=8, accumulate=accumulate)
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


@pytest.mark.slow
def test_two_devices_agree_with_one(trainer, configs, text):
    one = trainer(configs, text[1]).advance(8)["train/loss"]
    two = trainer(configs, text[1], devices=2).advance(8)["train/loss"]
    np.testing.assert_allclose(one, two, atol=2e-6)


@pytest.mark.slow
def test_padding_moves_no_run(trainer, configs, text):
    """Two runs filled up to four are the same bits as the first two of four others at that width."""
    padded = trainer(configs[:2], text[1], width=4).advance(8)["train/loss"]
    first = trainer(configs[:2] * 2, text[1], seeds=[0, 1, 2, 3]).advance(8)["train/loss"]
    np.testing.assert_array_equal(padded[:2], first[:2])


@pytest.mark.slow
def test_one_compile_serves_every_chunk_length(trainer, configs, text):
    run = trainer(configs, text[1], chunk=9)
    run.advance(8, 1, 3)
    assert run.program.advance._cache_size() == 1


def test_a_diverged_run_leaves_its_neighbours_alone(trainer, make, text):
    task, source = text
    calm, wild = make(task), make(task, optimizer={"kind": "adamw", "lr": 1e20}, clip=None)
    alone = trainer([make(task, clip=None)] * 2, source).advance(8)["train/loss"]
    pack = trainer([make(task, clip=None), wild], source)
    both = pack.advance(8)["train/loss"]
    np.testing.assert_array_equal(alone[0], both[0])
    diverged = np.asarray(pack.state.diverged_at)
    assert diverged[0] == -1
    assert diverged[1] == np.flatnonzero(~(both[1] <= calm.train.loss_bound))[0]


@pytest.mark.slow
def test_every_run_of_a_pack_evaluates_as_it_would_alone(trainer, configs, text):
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


def test_a_deep_stack_is_trained_with_as_many_layers_a_pass_as_planned(make, text):
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


def test_more_devices_than_there_are_is_refused():
    with pytest.raises(UserError, match="started on 3 devices; this machine has 2"):
        make_mesh(Layout(3, 3))


def test_shapes_are_those_of_what_the_program_is_called_with(trainer, configs, text):
    """What is compiled ahead of time is what training calls."""
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

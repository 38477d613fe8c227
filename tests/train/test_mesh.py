"""A run that is divided over devices computes the same as on one device."""

import json
import subprocess
import sys

import jax
import numpy as np
import pytest
from tests.train.eight import collectives

from taetpu.core.static_dynamic import split
from taetpu.store.backend import LocalStore
from taetpu.store.pack_checkpoints import PackFolder
from taetpu.train.checkpoint import Checkpoints


@pytest.fixture(scope="module")
def one(trainer, make, text):
    """Return two runs on one device, and eight losses of each."""
    run = trainer([make(text[0])] * 2, text[1])
    return run, run.advance(8)["train/loss"]


@pytest.mark.slow
@pytest.mark.parametrize("mesh", [{"data": 2}, {"model": 2}], ids=str)
def test_run_divided_over_two_devices_agrees_with_one(trainer, make, text, one, mesh, tmp_path):
    divided = trainer([make(text[0])] * 2, text[1], devices=2, **mesh)
    shardings = jax.tree.map(lambda a: a.sharding, divided.state)
    np.testing.assert_allclose(divided.advance(8)["train/loss"], one[1], atol=1e-5)
    for place, array in zip(jax.tree.leaves(shardings), jax.tree.leaves(divided.state), strict=True):
        assert place.is_equivalent_to(array.sharding, array.ndim)  # a step changes no sharding
    matrix = divided.state.model.stacks[0].block.ffn.up
    assert matrix.addressable_shards[0].data.size * 2 == matrix.size

    checkpoints = Checkpoints(PackFolder(LocalStore(tmp_path), "study", "pack"))
    checkpoints.save(8, divided.state)
    back, step = checkpoints.resume(divided.state)
    assert step == 8
    for a, b in zip(jax.tree.leaves(divided.state), jax.tree.leaves(back), strict=True):
        np.testing.assert_array_equal(np.asarray(a), np.asarray(b))
        assert a.sharding.is_equivalent_to(b.sharding, a.ndim)


@pytest.mark.slow
def test_runs_on_separate_devices_need_no_collectives(trainer, make, text):
    config = make(text[0])
    program = trainer([config] * 2, text[1], devices=2).program
    compiled = program.advance.lower(*program.shapes(split(config)[1]).advance).compile()
    assert collectives(compiled.as_text()) == {}


@pytest.mark.nightly
def test_two_runs_divided_over_eight_devices_agree_with_one_device():
    """Data and model parallelism together give the same losses with an eighth of the memory per device."""
    command = [sys.executable, "-m", "tests.train.eight"]
    found = json.loads(subprocess.run(command, capture_output=True, check=True, text=True).stdout)
    one, divided = found["one"], found["all"]
    np.testing.assert_allclose(divided["losses"], one["losses"], atol=1e-5)
    np.testing.assert_allclose(divided["nll"], one["nll"], rtol=1e-5)
    assert one["collectives"] == {}
    assert divided["collectives"]
    assert divided["share"] == pytest.approx(1 / 8, rel=0.15)


@pytest.mark.slow
def test_muon_with_a_mean_divided_over_two_devices_agrees_with_one(trainer, make, text):
    optimizer = {"kind": "muon", "ema": 0.9, "groups": {"embedding": {"lr": 0.5}}}
    one, divided = (
        trainer([make(text[0], optimizer=optimizer)] * 2, text[1], devices=len(mesh) + 1, **mesh)
        for mesh in ({}, {"data": 2})
    )
    np.testing.assert_allclose(divided.advance(4)["train/loss"], one.advance(4)["train/loss"], atol=1e-5)
    shown, expected = (run.program.evaluated(run.state, run.numbers) for run in (divided, one))
    for a, b, old in zip(
        jax.tree.leaves(shown), jax.tree.leaves(expected), jax.tree.leaves(divided.state.model), strict=True
    ):
        np.testing.assert_allclose(np.asarray(a), np.asarray(b), atol=1e-4)
        assert a.sharding.is_equivalent_to(old.sharding, a.ndim)

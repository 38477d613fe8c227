"""A run that is divided over devices computes what one device does."""

import json
import subprocess
import sys

import jax
import numpy as np
import pytest
from tests.train.eight import collectives

from taetpu.core.static_dynamic import split
from taetpu.store.backend import LocalStore
from taetpu.store.packs import PackFolder
from taetpu.train.checkpoint import Checkpoints


@pytest.fixture(scope="module")
def one(trainer, make, text):
    """Two runs on one device: eight losses of each."""
    run = trainer([make(text[0])] * 2, text[1])
    return run, run.advance(8)["train/loss"]


@pytest.mark.slow
@pytest.mark.parametrize("mesh", [{"data": 2}, pytest.param({"model": 2}, marks=pytest.mark.slow)], ids=str)
def test_a_run_divided_over_two_devices_agrees_with_one(trainer, make, text, one, mesh, tmp_path):
    divided = trainer([make(text[0])] * 2, text[1], devices=2, **mesh)
    lie = jax.tree.map(lambda a: a.sharding, divided.state)
    np.testing.assert_allclose(divided.advance(8)["train/loss"], one[1], atol=1e-5)
    for place, array in zip(jax.tree.leaves(lie), jax.tree.leaves(divided.state), strict=True):
        assert place.is_equivalent_to(array.sharding, array.ndim)  # a step moves nothing
    matrix = divided.state.model.stacks[0].block.ffn.up
    assert matrix.addressable_shards[0].data.size * 2 == matrix.size

    with Checkpoints(PackFolder(LocalStore(tmp_path), "study", "pack")) as checkpoints:
        checkpoints.save(8, divided.state)
        back, step = checkpoints.resume(divided.state)
    assert step == 8
    for a, b in zip(jax.tree.leaves(divided.state), jax.tree.leaves(back), strict=True):
        np.testing.assert_array_equal(np.asarray(a), np.asarray(b))
        assert a.sharding.is_equivalent_to(b.sharding, a.ndim)


@pytest.mark.slow
def test_runs_that_share_no_device_do_not_speak_with_each_other(trainer, make, text):
    """The program on two devices has no collective; that of a divided run has."""
    config = make(text[0])
    found = []
    for mesh in ({}, {"data": 2}):
        program = trainer([config] * 2, text[1], devices=2, **mesh).program
        compiled = program.advance.lower(*program.shapes(split(config)[1]).advance).compile()
        found.append(collectives(compiled.as_text()))
    assert found[0] == {}
    assert found[1]["all-gather"] > 0


@pytest.mark.slow
def test_meshes_of_eight_devices_agree_with_one():
    """FSDP, tensor parallelism, and both for each of two runs: the same losses, and an eighth of the memory."""
    command = [sys.executable, "-m", "tests.train.eight"]
    found = json.loads(subprocess.run(command, capture_output=True, check=True, text=True).stdout)
    one = found.pop("one")
    assert one["collectives"] == {}
    for name, mesh in found.items():
        np.testing.assert_allclose(mesh["losses"], one["losses"], atol=1e-5, err_msg=name)
        np.testing.assert_allclose(mesh["nll"], one["nll"], rtol=1e-5, err_msg=name)
    assert found.pop("runs")["collectives"] == {}
    for name, mesh in found.items():
        assert mesh["collectives"], name
        assert mesh["share"] == pytest.approx(1 / 8, rel=0.15), name

"""Packs side by side on simulated devices, in processes or threads, also several on one: the bits of packs in turn."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
from tests.study.killed_side_by_side import STUDY, stored

from taetpu.store.addresses import find_study
from taetpu.store.study import StudyFolder
from taetpu.study.pack_store import stored_plans

DRIVER = """
import sys
from taetpu.core.jax_setup import prepare_jax
prepare_jax()
import jax
from collections import Counter
from taetpu.study import device_threads, executor, side_by_side
from taetpu.train import beside
import taetpu
way, devices, shared = sys.argv[1].split("-")
assert jax.device_count() == int(devices)
beside.LEAST_SECONDS = 0
if way == "threads":
    executor.in_threads = side_by_side.in_threads = lambda: True
if way == "turn":
    executor.fits_beside = lambda queue: False
beside.packs_per_device = device_threads.packs_per_device = lambda: int(shared)
busy, start = set(), device_threads.DeviceThreads.start
def recorded(threads, pack):
    try:
        return start(threads, pack)
    finally:
        busy.add(max([0, *Counter(device for each in threads.busy for device in each.devices).values()]))
device_threads.DeviceThreads.start = recorded
taetpu.run("study.yaml", root=sys.argv[1])
assert not busy or max(busy) == int(shared), busy
"""


def train(folder: Path, way: str, devices: int, shared: int = 1) -> StudyFolder:
    """Train the study in a process with as many devices, all on the cores of this machine, and return its folder.

    Args:
        folder: the folder of the study file.
        way: how packs train: "processes", "threads" or "turn".
        devices: the number of devices.
        shared: the number of packs that may share a device.
    """
    environment = os.environ | {"XLA_FLAGS": f"--xla_force_host_platform_device_count={devices}"}
    root = f"{way}-{devices}-{shared}"
    subprocess.run([sys.executable, "-c", DRIVER, root], cwd=folder, env=environment, check=True, capture_output=True)
    return find_study(folder / root)


@pytest.fixture
def study(tmp_path):
    """The folder of a study file."""
    (tmp_path / "study.yaml").write_text(STUDY.replace("STEPS", "12").replace("seeds: 2", "seeds: 5"))
    return tmp_path


@pytest.mark.slow
def test_each_pack_has_the_bits_of_the_same_pack_alone(study):
    beside, threads, turn = (train(study, way, 8) for way in ("processes", "threads", "turn"))
    plans = stored_plans(beside)
    assert [plan.data for plan in plans] == [plan.data for plan in stored_plans(turn)]
    assert len(plans) > 1
    assert max(plan.layout.devices for plan in plans) < 8
    assert stored(beside) == stored(threads) == stored(turn)


@pytest.mark.slow
@pytest.mark.parametrize(("devices", "shared"), [(1, 3), (2, 2)])
def test_packs_that_share_a_device_have_the_bits_of_packs_in_turn(study, devices, shared):
    threads, turn = (train(study, way, devices, shared) for way in ("threads", "turn"))
    assert {plan.layout.devices for plan in stored_plans(threads)} == {1}
    assert stored(threads) == stored(turn)

"""Packs side by side on eight simulated devices, in processes or threads: the bits of the same packs in turn."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
from tests.study.killed_side_by_side import STUDY, stored

from taetpu.store.addresses import find_study
from taetpu.study.pack_store import stored_plans

DRIVER = """
import sys
from taetpu.core.jax_setup import prepare_jax
prepare_jax()
import jax
from taetpu.study import executor, side_by_side
from taetpu.train import beside
import taetpu
assert jax.device_count() == 8
beside.LEAST_SECONDS = 0
if sys.argv[1] == "threads":
    executor.in_threads = side_by_side.in_threads = lambda: True
if sys.argv[1] == "turn":
    executor.fits_beside = lambda queue: False
taetpu.run("study.yaml", root=sys.argv[1])
"""


def train(folder: Path, root: str) -> None:
    """Train the study in a process with eight devices, all on the cores of this machine."""
    environment = os.environ | {"XLA_FLAGS": "--xla_force_host_platform_device_count=8"}
    subprocess.run([sys.executable, "-c", DRIVER, root], cwd=folder, env=environment, check=True, capture_output=True)


@pytest.mark.slow
def test_each_pack_has_the_bits_of_the_same_pack_alone(tmp_path):
    (tmp_path / "study.yaml").write_text(STUDY.replace("STEPS", "12").replace("seeds: 2", "seeds: 5"))
    roots = ("beside", "threads", "turn")
    for root in roots:
        train(tmp_path, root)
    beside, threads, turn = (find_study(tmp_path / root) for root in roots)
    plans = stored_plans(beside)
    assert [plan.data for plan in plans] == [plan.data for plan in stored_plans(turn)]
    assert len(plans) > 1
    assert max(plan.layout.devices for plan in plans) < 8
    assert stored(beside) == stored(threads) == stored(turn)

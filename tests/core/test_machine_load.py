"""The share of the cores that other processes use: computed from /proc/stat, and seen on this machine."""

import subprocess
import sys
import time

import pytest

from taetpu.core.machine_load import BUSY, PROBE_SECONDS, STAT, LoadMeter, busy_seconds

STATS = """\
cpu  900 0 0 900 0 0 0 0 0 0
cpu0 100 20 30 700 50 1 2 3 40 0
cpu1 200 0 0 100 0 0 0 0 0 0
cpu10 400 0 0 100 0 0 0 0 0 0
intr 5 5
"""


@pytest.mark.parametrize(("cores", "ticks"), [({0}, 156), ({1}, 200), ({0, 10}, 556), (set(), 0)])
def test_busy_time_is_that_of_the_cores_without_idle_time_and_guests(cores, ticks):
    assert busy_seconds(STATS, cores, 100) == ticks / 100


@pytest.fixture
def busy():
    """A process that computes until the test ends."""
    child = subprocess.Popen([sys.executable, "-c", "print(1, flush=True)\nwhile True: pass"], stdout=subprocess.PIPE)
    assert child.stdout is not None
    child.stdout.readline()
    yield child
    child.kill()
    child.communicate()


@pytest.mark.skipif(not STAT.exists(), reason="needs /proc/stat")
def test_a_busy_process_is_seen(busy):
    meter = LoadMeter()
    time.sleep(PROBE_SECONDS)
    assert meter.others() > BUSY
    assert meter.probe() > BUSY


@pytest.mark.skipif(not STAT.exists(), reason="needs /proc/stat")
def test_the_time_of_this_process_is_not_that_of_others():
    """On all cores, other processes use what this one does not."""
    meter, until = LoadMeter(), time.process_time() + 0.4
    began = time.perf_counter()
    while time.process_time() < until:
        pass
    passed = time.perf_counter() - began
    ours = 0.4 / passed / len(meter.cores)
    assert 0 <= meter.others() <= 1.1 - ours

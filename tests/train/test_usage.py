"""The share of a device's peak and its memory: told as they are, or not at all."""

import gc
import mmap

import jax
import pytest

from taetpu.core.chips import find_peak
from taetpu.report.usage import describe_usage
from taetpu.train.memory import host_bytes
from taetpu.train.usage import measure_usage, memory_in_use, resident_bytes, utilisation


@pytest.mark.parametrize(("kind", "devices"), [("TPU v5 lite", 8), ("TPU v4", 4), ("NVIDIA H100 80GB HBM3", 1)])
def test_utilisation_is_the_share_of_what_all_devices_are_published_to_reach(kind, devices):
    published = find_peak(kind)
    assert published is not None
    assert published.bf16_flops is not None
    assert utilisation(kind, devices, 0.4 * devices * published.bf16_flops) == pytest.approx(0.4)
    assert utilisation(kind, devices, None) is None  # before a step was timed


def test_a_cpu_has_no_peak_and_none_is_made_up():
    seen = measure_usage(jax.devices(), 1e12)
    assert seen.utilisation is None
    assert set(seen.times) == {"memory_bytes", "memory_limit"}
    assert "peak" not in describe_usage(seen.times)


def test_a_cpus_memory_is_this_processs_share_of_the_machines():
    gc.collect()
    before, size = resident_bytes(), 256 << 20
    with mmap.mmap(-1, size) as held:  # fresh pages, which no array that was freed before has left
        for start in range(0, size, mmap.PAGESIZE):
            held[start] = 1
        grown = resident_bytes() - before
    assert size * 0.9 < grown < size * 1.5
    memory, limit = memory_in_use(jax.devices())
    assert memory is not None
    assert 0 < memory < host_bytes() == limit


class Told:
    """A device that says this of its memory."""

    platform = "tpu"

    def __init__(self, **stats: int):
        self.stats = stats

    def memory_stats(self):
        return self.stats or None


def test_of_several_devices_the_fullest_is_told():
    full, empty = Told(bytes_in_use=9, bytes_limit=16), Told(bytes_in_use=2, bytes_limit=16)
    assert memory_in_use([empty, full]) == (9, 16)
    assert memory_in_use([empty, Told()]) == (2, 16)
    assert memory_in_use([Told(bytes_in_use=3)]) == (3, None)
    assert memory_in_use([Told()]) == (None, None)

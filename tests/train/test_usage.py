"""Utilisation and memory of devices are reported only if they are known."""

import gc
import mmap

import jax
import pytest

from taetpu.core.chips import find_peak
from taetpu.report.usage_text import describe_usage
from taetpu.train.memory import host_bytes
from taetpu.train.usage import measure_usage, memory_in_use, resident_bytes, utilisation


@pytest.mark.parametrize(("kind", "devices"), [("TPU v5 lite", 8), ("TPU v4", 4), ("NVIDIA H100 80GB HBM3", 1)])
def test_utilisation_is_relative_to_the_published_peak_of_all_devices(kind, devices):
    published = find_peak(kind)
    assert published is not None
    assert published.bf16_flops is not None
    assert utilisation(kind, devices, 0.4 * devices * published.bf16_flops) == pytest.approx(0.4)
    assert utilisation(kind, devices, None) is None


def test_cpu_has_no_utilisation():
    seen = measure_usage(jax.devices(), 1e12)
    assert seen.utilisation is None
    assert set(seen.times) == {"memory_bytes", "memory_limit"}
    assert "peak" not in describe_usage(seen.times)


def test_memory_of_a_cpu_is_the_memory_of_this_process():
    gc.collect()
    before, size = resident_bytes(), 64 << 20
    with mmap.mmap(-1, size) as held:  # new pages, not pages of arrays that were freed before
        for start in range(0, size, mmap.PAGESIZE):
            held[start] = 1
        grown = resident_bytes() - before
    assert size * 0.9 < grown < size * 1.5
    memory, limit = memory_in_use(jax.devices())
    assert memory is not None
    assert 0 < memory < host_bytes() == limit


class FakeDevice:
    """A device with the given memory stats."""

    platform = "tpu"

    def __init__(self, **stats: int):
        self.stats = stats

    def memory_stats(self):
        return self.stats or None


def test_memory_is_that_of_the_fullest_device():
    full, empty = FakeDevice(bytes_in_use=9, bytes_limit=16), FakeDevice(bytes_in_use=2, bytes_limit=16)
    assert memory_in_use([empty, full]) == (9, 16)
    assert memory_in_use([empty, FakeDevice()]) == (2, 16)
    assert memory_in_use([FakeDevice(bytes_in_use=3)]) == (3, None)
    assert memory_in_use([FakeDevice()]) == (None, None)

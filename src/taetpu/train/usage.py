"""Device utilisation and memory usage while a pack trains."""

import os
import resource
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import jax

from taetpu.core.chips import find_peak
from taetpu.train.device_capabilities import Device
from taetpu.train.memory import host_bytes

STATM = Path("/proc/self/statm")


@dataclass(frozen=True)
class Usage:
    """The utilisation and memory of a pack's devices.

    Attributes:
        utilisation: model FLOPs per second as a share of the published bf16 peak; None if no peak is published, as for
            CPUs, or if no step has been timed yet.
        memory: bytes in use on the device with the highest memory usage, or by this process on a CPU; None if unknown.
        limit: total memory of that device in bytes; None if unknown.
    """

    utilisation: float | None
    memory: int | None
    limit: int | None

    @property
    def times(self) -> dict[str, float]:
        """The known values, keyed by the names under which they are stored with a run's times."""
        named = {"utilisation": self.utilisation, "memory_bytes": self.memory, "memory_limit": self.limit}
        return {name: float(value) for name, value in named.items() if value is not None}


def measure_usage(devices: Sequence[Device], flops_per_second: float | None) -> Usage:
    """Return the current usage of devices.

    Args:
        devices: the devices of a pack.
        flops_per_second: model FLOPs per second on all devices together; None if no step has been timed yet.
    """
    memory, limit = memory_in_use([device for device in devices if device.process_index == jax.process_index()])
    return Usage(utilisation(devices[0].device_kind, len(devices), flops_per_second), memory, limit)


def utilisation(device_kind: str, devices: int, flops_per_second: float | None) -> float | None:
    """Return the model FLOPs utilisation; None if unknown.

    The utilisation is the ratio of model FLOPs per second to the published peak of the devices. FLOPs for
    rematerialisation and padding do not count.

    Source: Chowdhery et al. 2022 (PaLM), section 4.1.
    """
    published = find_peak(device_kind)
    if flops_per_second is None or published is None or not published.bf16_flops:
        return None
    return flops_per_second / (devices * published.bf16_flops)


def memory_in_use(devices: Sequence[Device]) -> tuple[int | None, int | None]:
    """Return the bytes in use and the total bytes of the device with the highest memory usage. See `Usage`."""
    if devices[0].platform == "cpu":
        return resident_bytes(), host_bytes()
    stats = [
        device_stats for device in devices if (device_stats := device.memory_stats()) and "bytes_in_use" in device_stats
    ]
    if not stats:
        return None, None
    fullest = max(stats, key=lambda device_stats: device_stats["bytes_in_use"])
    return int(fullest["bytes_in_use"]), int(fullest["bytes_limit"]) if fullest.get("bytes_limit") else None


def resident_bytes() -> int:
    """Return the resident set size of this process in bytes. Without `/proc`, as on macOS, return the peak size."""
    if STATM.exists():
        return int(STATM.read_text(encoding="utf-8").split()[1]) * os.sysconf("SC_PAGE_SIZE")
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss

"""How well a device is used while a pack trains: the share of its peak, and its memory."""

import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import jax

from taetpu.core.chips import find_peak
from taetpu.train.memory import host_bytes, peak_bytes

STATM = Path("/proc/self/statm")


@dataclass(frozen=True)
class Usage:
    """What was seen of a device.

    Attributes:
        utilisation: the model's operations a second as a share of the published bf16 peak of the devices; None where
            nothing is published, as of a CPU, or no step was timed yet.
        memory: bytes in use, of the device that has most in use; of a CPU this process's. None where none is told.
        limit: bytes that there are; None where none is told.
    """

    utilisation: float | None
    memory: int | None
    limit: int | None

    @property
    def times(self) -> dict[str, float]:
        """As noted with a run's times: what is known, by name."""
        named = {"utilisation": self.utilisation, "memory_bytes": self.memory, "memory_limit": self.limit}
        return {name: float(value) for name, value in named.items() if value is not None}


def usage(devices: Sequence[Any], flops_per_second: float | None) -> Usage:
    """What these devices are used for now.

    Args:
        flops_per_second: that the model's training takes on all of them together (`train.count`); None before it is
            known.
    """
    memory, limit = memory_in_use([device for device in devices if device.process_index == jax.process_index()])
    return Usage(utilisation(devices[0].device_kind, len(devices), flops_per_second), memory, limit)


def utilisation(device_kind: str, devices: int, flops_per_second: float | None) -> float | None:
    """Model FLOPs utilisation: the operations that the model needs, over what the devices are published to reach.

    As defined by Chowdhery et al. 2022 (PaLM), section 4.1: what is computed twice, or for places of a pack that
    nobody needs, does not count.
    """
    published = find_peak(device_kind)
    if flops_per_second is None or published is None or not published.bf16_flops:
        return None
    return flops_per_second / (devices * published.bf16_flops)


def memory_in_use(devices: Sequence[Any]) -> tuple[int | None, int | None]:
    """Bytes in use and bytes there are, of the fullest of these devices; see `Usage`."""
    if devices[0].platform == "cpu":
        return resident_bytes(), host_bytes()
    stats = [found for device in devices if (found := device.memory_stats()) and "bytes_in_use" in found]
    if not stats:
        return None, None
    fullest = max(stats, key=lambda found: found["bytes_in_use"])
    return int(fullest["bytes_in_use"]), int(fullest["bytes_limit"]) if fullest.get("bytes_limit") else None


def resident_bytes() -> int:
    """What this process holds of the machine's memory; the most so far where the system does not say."""
    if STATM.exists():
        return int(STATM.read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")
    return peak_bytes()

"""The devices that jax finds, and whether they are those that the machine has."""

import os
from collections.abc import Sequence
from typing import Any

import jax

from taetpu.core.chips import chip_of
from taetpu.core.devices import Accelerators, accelerators
from taetpu.core.errors import UserError
from taetpu.tpu.verifying.checks import Finding
from taetpu.train.device_capabilities import first_device


def devices(there: Sequence[Accelerators] | None = None) -> Finding:
    """Start jax, and count."""
    there = accelerators() if there is None else there
    try:
        first_device()
    except UserError as error:
        return Finding("FAILED", error.problem, remedy=error.remedy)
    local = jax.local_devices()
    platform, kind = local[0].platform, local[0].device_kind
    values: dict[str, Any] = {
        "platform": platform,
        "kind": kind,
        "local": len(local),
        "all": jax.device_count(),
        "processes": jax.process_count(),
        "topology": topology(jax.devices()),
        "memory_bytes": (local[0].memory_stats() or {}).get("bytes_limit"),
    }
    chosen = os.environ.get("JAX_PLATFORMS", "").split(",")[0]
    if platform == "cpu" and there and chosen != "cpu":
        kinds = " and ".join(kind.kind for kind in there)
        return Finding("FAILED", f"jax runs on the CPU, though this machine has a {kinds}", values)
    for known in there:
        limited = os.environ.get(known.variable or "")
        chip = chip_of(kind)
        expected = len(known.files) * (chip.devices_per_chip if chip else 1)
        if known.kind == _kind(platform) and known.variable and not limited and len(local) < expected:
            figure = f"jax finds {len(local)} of {expected} devices"
            return Finding("FAILED", figure, values | {"expected": expected})
    return Finding("ok", told(values), values)


def _kind(platform: str) -> str | None:
    """The machine's name for jax's platform."""
    return {"tpu": "TPU", "gpu": "NVIDIA GPU", "cuda": "NVIDIA GPU"}.get(platform)


def topology(found: Sequence[Any]) -> list[int] | None:
    """Chips along each axis; None where devices have no place (CPUs, GPUs)."""
    places = [device.coords for device in found if hasattr(device, "coords")]
    return [len(set(axis)) for axis in zip(*places, strict=True)] if places else None


def told(values: dict[str, Any]) -> str:
    """What was found, in words."""
    shape = "x".join(map(str, values["topology"])) if values["topology"] else ""
    memory = f"{values['memory_bytes'] / 2**30:.1f} GiB each" if values["memory_bytes"] else ""
    hosts = f"{values['all']} on {values['processes']} machines" if values["processes"] > 1 else ""
    return ", ".join(part for part in (f"{values['local']} x {values['kind']}", shape, memory, hosts) if part)

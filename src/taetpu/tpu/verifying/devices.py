"""Check the devices that jax finds, and collectives over them."""

import os
from collections.abc import Callable, Sequence
from typing import Any

import jax
import numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from taetpu.core.accelerators import Accelerators, find_accelerators
from taetpu.core.chips import find_chip
from taetpu.core.errors import UserError
from taetpu.tpu.verifying.checks import Finding
from taetpu.tpu.verifying.rates import MEBI, fastest_seconds, format_rate, on_accelerator
from taetpu.train.device_capabilities import first_device

AXIS = "device"
COLLECTIVES: dict[str, Callable[[Any], Any]] = {
    "psum": lambda x: jax.lax.psum(x, AXIS),
    "all_gather": lambda x: jax.lax.all_gather(x, AXIS, axis=0, tiled=True),
}
REFERENCES: dict[str, Callable[[np.ndarray], np.ndarray]] = {
    "psum": lambda parts: parts.sum(axis=0),
    "all_gather": lambda parts: parts.reshape(-1),
}
ACCELERATOR_KINDS = {"tpu": "TPU", "gpu": "NVIDIA GPU", "cuda": "NVIDIA GPU"}
"""Kind of accelerator as named by `core.accelerators.find_accelerators`, by jax platform."""


def devices(installed: Sequence[Accelerators] | None = None) -> Finding:
    """Start jax and compare its devices with the machine's device files.

    Args:
        installed: accelerators in the machine; default: all accelerators that have a device file.
    """
    installed = find_accelerators() if installed is None else installed
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
        "topology": _topology(jax.devices()),
        "memory_bytes": (local[0].memory_stats() or {}).get("bytes_limit"),
    }
    requested = os.environ.get("JAX_PLATFORMS", "").split(",")[0]
    if platform == "cpu" and installed and requested != "cpu":
        kinds = " and ".join(entry.kind for entry in installed)
        return Finding("FAILED", f"jax runs on the CPU, but this machine has a {kinds}", values)
    chip = find_chip(kind)
    for accelerator in installed:
        restricted = os.environ.get(accelerator.variable or "")
        expected = len(accelerator.files) * (chip.devices_per_chip if chip else 1)
        same_kind = accelerator.kind == ACCELERATOR_KINDS.get(platform)
        if same_kind and accelerator.variable and not restricted and len(local) < expected:
            figure = f"jax finds {len(local)} of {expected} devices"
            return Finding("FAILED", figure, values | {"expected": expected})
    return Finding("ok", _format_devices(values), values)


def _topology(jax_devices: Sequence[Any]) -> list[int] | None:
    """Return the number of chips along each axis; None for devices without coordinates (CPUs, GPUs)."""
    coordinates = [device.coords for device in jax_devices if hasattr(device, "coords")]
    return [len(set(axis)) for axis in zip(*coordinates, strict=True)] if coordinates else None


def _format_devices(values: dict[str, Any]) -> str:
    shape = "x".join(map(str, values["topology"])) if values["topology"] else ""
    memory = f"{values['memory_bytes'] / 2**30:.1f} GiB each" if values["memory_bytes"] else ""
    hosts = f"{values['all']} on {values['processes']} machines" if values["processes"] > 1 else ""
    return ", ".join(part for part in (f"{values['local']} x {values['kind']}", shape, memory, hosts) if part)


def collectives(references: dict[str, Callable[[np.ndarray], np.ndarray]] = REFERENCES) -> Finding:
    """Compare each collective over all local devices with numpy, and measure its rate.

    The rate is the number of bytes in the result on one device, divided by the duration in seconds.
    """
    devices = jax.local_devices()
    if len(devices) < 2:
        return Finding("skipped", "needs at least 2 devices")
    mesh, rows = Mesh(np.array(devices), (AXIS,)), PartitionSpec(AXIS)

    def place(parts: np.ndarray) -> jax.Array:
        return jax.device_put(parts, NamedSharding(mesh, rows))

    # Float32 sums of small integers are exact in any order.
    small = np.random.default_rng(0).integers(-1000, 1000, (len(devices), 1000)).astype(np.float32)
    count = (64 if on_accelerator() else 4) * MEBI // 4
    large = place(np.ones((len(devices), count), np.float32))
    values: dict[str, Any] = {"devices": len(devices)}
    for name, collective in COLLECTIVES.items():
        # Each device returns its result as a row, so that a message can name the devices with wrong results.
        run = jax.jit(jax.shard_map(lambda x, f=collective: f(x[0])[None], mesh=mesh, in_specs=rows, out_specs=rows))
        results, expected = np.asarray(run(place(small))), references[name](small)
        wrong = [number for number, row in enumerate(results) if not np.array_equal(row, expected)]
        if wrong:
            figure = f"{name} over {len(devices)} devices is wrong on device {', '.join(map(str, wrong))}"
            return Finding("FAILED", figure, values | {"wrong": {name: wrong}})
        size = count * 4 * (len(devices) if name == "all_gather" else 1)
        values[name] = size / fastest_seconds(lambda run=run: run(large))
    rates = ", ".join(f"{name.replace('_', '-')} {format_rate(values[name], 'B')}" for name in COLLECTIVES)
    return Finding("ok", f"{len(devices)} devices: {rates}", values)

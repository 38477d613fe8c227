"""The devices that jax finds, and whether they are those that the machine has."""

import os
from collections.abc import Callable, Sequence
from typing import Any

import jax
import numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from taetpu.core.chips import chip_of
from taetpu.core.devices import Accelerators, accelerators
from taetpu.core.errors import UserError
from taetpu.tpu.verifying.checks import Finding
from taetpu.tpu.verifying.rates import MEBI, accelerated, rate, shortest
from taetpu.train.device_capabilities import first_device

AXIS = "device"
KINDS: dict[str, Callable[[Any], Any]] = {
    "psum": lambda x: jax.lax.psum(x, AXIS),
    "all_gather": lambda x: jax.lax.all_gather(x, AXIS, axis=0, tiled=True),
}
RIGHT: dict[str, Callable[[np.ndarray], np.ndarray]] = {
    "psum": lambda parts: parts.sum(axis=0),
    "all_gather": lambda parts: parts.reshape(-1),
}


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


def over(devices: list[Any]) -> tuple[Callable[[str], Any], Callable[[np.ndarray], jax.Array]]:
    """`compiled(kind)`, whose result every device holds a copy of, and `placed(parts)`, a row a device."""
    mesh = Mesh(np.array(devices), (AXIS,))
    parts = PartitionSpec(AXIS)

    def compiled(kind: str) -> Any:
        # Out by rows as well, so that what each device has come to can be looked at.
        return jax.jit(jax.shard_map(lambda x: KINDS[kind](x[0])[None], mesh=mesh, in_specs=parts, out_specs=parts))

    return compiled, lambda rows: jax.device_put(rows, NamedSharding(mesh, parts))


def collectives(right: dict[str, Callable[[np.ndarray], np.ndarray]] | None = None) -> Finding:
    """Each collective over all local devices, against numpy; then its rate, in bytes that a device ends up with."""
    devices, right = jax.local_devices(), right or RIGHT
    if len(devices) < 2:
        return Finding("skipped", "one device has nothing to share")
    compiled, placed = over(devices)
    # Whole numbers: their sums are exact in float32, whatever the order.
    small = np.random.default_rng(0).integers(-1000, 1000, (len(devices), 1000)).astype(np.float32)
    count = (64 if accelerated() else 4) * MEBI // 4
    large = placed(np.ones((len(devices), count), np.float32))
    values: dict[str, Any] = {"devices": len(devices)}
    for kind in KINDS:
        found, expected = np.asarray(compiled(kind)(placed(small))), right[kind](small)
        wrong = [number for number, row in enumerate(found) if not np.array_equal(row, expected)]
        if wrong:
            figure = f"{kind} over {len(devices)} devices is wrong on device {', '.join(map(str, wrong))}"
            return Finding("FAILED", figure, values | {"wrong": {kind: wrong}})
        run = compiled(kind)
        size = count * 4 * (len(devices) if kind == "all_gather" else 1)
        values[kind] = size / shortest(lambda run=run: run(large))
    told = ", ".join(f"{kind.replace('_', '-')} {rate(values[kind], 'B')}" for kind in KINDS)
    return Finding("ok", f"{len(devices)} devices: {told}", values)

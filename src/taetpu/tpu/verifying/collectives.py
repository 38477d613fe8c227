"""Sums and gathers over all devices of this machine: right to the bit, and how fast."""

from collections.abc import Callable
from typing import Any

import jax
import numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from taetpu.tpu.verifying.checks import Finding
from taetpu.tpu.verifying.rates import MEBI, accelerated
from taetpu.tpu.verifying.timing import rate, shortest

AXIS = "device"
KINDS: dict[str, Callable[[Any], Any]] = {
    "psum": lambda x: jax.lax.psum(x, AXIS),
    "all_gather": lambda x: jax.lax.all_gather(x, AXIS, axis=0, tiled=True),
}
RIGHT: dict[str, Callable[[np.ndarray], np.ndarray]] = {
    "psum": lambda parts: parts.sum(axis=0),
    "all_gather": lambda parts: parts.reshape(-1),
}


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

"""How fast the devices multiply, move memory, and take data from the host; against what is published of them."""

import time
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from taetpu.core.chips import Peak, peak
from taetpu.tpu.verifying.checks import Finding, Status

SHARE = 0.5
"""A device that reaches less than this share of what is published is called slow."""
EVEN = 0.8
"""So is one that is slower than this share of the fastest beside it."""
LONG = 0.02
"""Seconds that one product should take, so that starting it does not count."""
LARGEST = 8192
MEBI = 2**20
WINDOW = 0.4
"""Seconds that one measurement goes on for, once it is compiled."""


def accelerated() -> bool:
    return jax.default_backend() != "cpu"


def shortest(call: Callable[[], Any], window: float = WINDOW) -> float:
    """Seconds of the fastest of several calls, each waited for; the first one, which compiles, is not counted.

    The fastest, since what disturbs a call only ever makes it longer.
    """
    jax.block_until_ready(call())
    best, ends = float("inf"), time.perf_counter() + window
    while time.perf_counter() < ends or best == float("inf"):
        began = time.perf_counter()
        jax.block_until_ready(call())
        best = min(best, time.perf_counter() - began)
    return best


def rate(value: float, unit: str) -> str:
    """`12.3 TFLOP/s`: a rate in the largest unit that leaves something before the point."""
    for factor, prefix in ((1e15, "P"), (1e12, "T"), (1e9, "G"), (1e6, "M")):
        if value >= factor:
            return f"{value / factor:.3g} {prefix}{unit}/s"
    return f"{value:.3g} {unit}/s"


def multiplying(device: Any, dtype: Any, precision: str) -> float:
    """FLOP/s of square products on one device, of the size from which they take `LONG`."""
    product = jax.jit(lambda a: jnp.matmul(a, a, precision=precision))
    size, took = 256, 0.0
    while took < LONG and size < LARGEST:
        size *= 2
        took = product_seconds(product, size, dtype, device, WINDOW / 4)
    return 2 * size**3 / min(took, product_seconds(product, size, dtype, device, WINDOW))


def product_seconds(product: Any, size: int, dtype: Any, device: Any, window: float) -> float:
    """Seconds that a product of that size takes at least."""
    with jax.default_device(device):
        a = jax.random.normal(jax.random.key(0), (size, size), dtype)  # zeros and ones would draw less power
    return shortest(lambda: product(a), window)


def moving(device: Any) -> float:
    """Bytes/s read and written by one device, adding 1 to an array that no cache holds."""
    count = (512 if accelerated() else 64) * MEBI // 4
    array = jax.device_put(jnp.zeros(count, jnp.float32), device)
    add = jax.jit(lambda x: x + 1)
    return 2 * array.nbytes / shortest(lambda: add(array))


def flops(known: Peak | None = None) -> Finding:
    """The rate of bfloat16 products of every device, and of float32 products of the first."""
    devices = jax.local_devices() if accelerated() else jax.local_devices()[:1]
    known = known or peak(devices[0].device_kind)
    halves = [multiplying(device, jnp.bfloat16, "default") for device in devices]
    full = multiplying(devices[0], jnp.float32, "highest")
    values = {"bfloat16": halves, "float32": full, "peak_bfloat16": known.bf16_flops if known else None}
    text = f"bf16 {rate(min(halves), 'FLOP')}"
    status, against = compared(halves, known.bf16_flops if known else None, known)
    return Finding(status, f"{text}{against}; f32 {rate(full, 'FLOP')}", values)


def memory(known: Peak | None = None) -> Finding:
    """The bandwidth of every device's own memory."""
    devices = jax.local_devices() if accelerated() else jax.local_devices()[:1]
    known = known or peak(devices[0].device_kind)
    found = [moving(device) for device in devices]
    values = {"bandwidth": found, "peak_bandwidth": known.hbm_bandwidth if known else None}
    status, against = compared(found, known.hbm_bandwidth if known else None, known)
    return Finding(status, f"{rate(min(found), 'B')}{against}", values)


def compared(found: list[float], best: float | None, known: Peak | None) -> tuple[Status, str]:
    """Whether rates are what they should be, and in words, how they stand to what is published."""
    status: Status = "ok"
    if best is None or known is None:
        against = " (no published peak to compare with)"
    else:
        share = min(found) / best
        against = f", {share:.0%} of {known.name}'s peak"
        status = "ok" if share >= SHARE else "slow"
    if min(found) < EVEN * max(found):
        slowest = found.index(min(found))
        return "slow", f"{against}; device {slowest} has {min(found) / max(found):.0%} of the fastest's"
    return status, against


def transfer() -> Finding:
    """Bytes/s from the host to the first device and back, and whether they come back as they were sent."""
    if not accelerated():
        return Finding("skipped", "a CPU's memory is the host's own")
    return transferred(jax.local_devices()[0], 128 * MEBI)


def transferred(device: Any, size: int, back: Callable[[Any], np.ndarray] = np.asarray) -> Finding:
    """`size` random bytes to a device and, by `back`, to the host again."""
    sent = np.random.default_rng(0).integers(0, 2**31, size // 4, dtype=np.int32)
    there = sent.nbytes / shortest(lambda: jax.device_put(sent, device))
    returned, seconds = sent, float("inf")
    for _ in range(3):
        array = jax.block_until_ready(jax.device_put(sent, device) + 0)  # a new one: jax keeps what it was given
        began = time.perf_counter()
        returned = back(array)
        seconds = min(seconds, time.perf_counter() - began)
    values = {"to_device": there, "from_device": sent.nbytes / seconds}
    if wrong := int(np.sum(returned != sent)):
        return Finding("FAILED", f"{wrong} of {sent.size} numbers came back changed", values)
    return Finding("ok", f"to the device {rate(there, 'B')}, back {rate(sent.nbytes / seconds, 'B')}", values)

"""Measure the rates of matmul and memory, and compare them with the published peaks."""

import time
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp

from taetpu.core.chips import Peak, find_peak
from taetpu.tpu.verifying.checks import Finding, Status

MIN_SHARE_OF_PEAK = 0.5
"""A device is slow if its rate is below this share of its published peak."""
MIN_SHARE_OF_FASTEST = 0.8
"""A device is slow if its rate is below this share of the rate of the machine's fastest device."""
MIN_SECONDS = 0.02
"""Target duration of a timed matmul: long enough that the overhead of launching the matmul is negligible."""
MAX_SIZE = 8192
MEBI = 2**20
WINDOW = 0.4
"""Seconds for which a call is repeated after its compilation."""


def on_accelerator() -> bool:
    """Return whether jax's default backend is an accelerator."""
    return jax.default_backend() != "cpu"


def fastest_seconds(call: Callable[[], Any], window: float = WINDOW) -> float:
    """Return the shortest time of repeated calls, excluding the first call, which compiles.

    The minimum is used because disturbances can only slow a call down.
    """
    jax.block_until_ready(call())
    best, end = float("inf"), time.perf_counter() + window
    while time.perf_counter() < end or best == float("inf"):
        start = time.perf_counter()
        jax.block_until_ready(call())
        best = min(best, time.perf_counter() - start)
    return best


def format_rate(value: float, unit: str) -> str:
    """Format a rate with three digits and an SI prefix, such as `12.3 TFLOP/s`."""
    for factor, prefix in ((1e15, "P"), (1e12, "T"), (1e9, "G"), (1e6, "M")):
        if value >= factor:
            return f"{value / factor:.3g} {prefix}{unit}/s"
    return f"{value:.3g} {unit}/s"


def _matmul_rate(device: Any, dtype: Any, precision: str) -> float:
    """Return the FLOP/s of square matmuls on a device.

    The size is the smallest power of 2 for which a matmul takes `MIN_SECONDS`, but at most `MAX_SIZE`.
    """
    matmul = jax.jit(lambda a: jnp.matmul(a, a, precision=precision))

    def seconds(window: float) -> float:
        with jax.default_device(device):
            a = jax.random.normal(jax.random.key(0), (size, size), dtype)  # zeros and ones would draw less power
        return fastest_seconds(lambda: matmul(a), window)

    size, best = 256, 0.0
    while best < MIN_SECONDS and size < MAX_SIZE:
        size *= 2
        best = seconds(WINDOW / 4)
    return 2 * size**3 / min(best, seconds(WINDOW))


def _memory_rate(device: Any) -> float:
    """Return the bytes/s that a device reads and writes when it adds 1 to an array larger than its caches."""
    count = (512 if on_accelerator() else 64) * MEBI // 4
    array = jax.device_put(jnp.zeros(count, jnp.float32), device)
    add = jax.jit(lambda x: x + 1)
    return 2 * array.nbytes / fastest_seconds(lambda: add(array))


def _timed_devices() -> list[Any]:
    """Return all local accelerators; on a CPU, only the first device, because CPU devices share the cores."""
    return jax.local_devices() if on_accelerator() else jax.local_devices()[:1]


def flops(known: Peak | None = None) -> Finding:
    """Measure the rate of bfloat16 matmul on every device, and of float32 matmul on the first device.

    Args:
        known: published peak rates; default: those of the first device.
    """
    devices = _timed_devices()
    known = known or find_peak(devices[0].device_kind)
    bfloat16 = [_matmul_rate(device, jnp.bfloat16, "default") for device in devices]
    float32 = _matmul_rate(devices[0], jnp.float32, "highest")
    best = known.bf16_flops if known else None
    status, comparison = compare_rates(bfloat16, best, known)
    figure = f"bf16 {format_rate(min(bfloat16), 'FLOP')}{comparison}; f32 {format_rate(float32, 'FLOP')}"
    return Finding(status, figure, {"bfloat16": bfloat16, "float32": float32, "peak_bfloat16": best})


def memory(known: Peak | None = None) -> Finding:
    """Measure the memory bandwidth of every device. `known` has the same meaning as in `flops`."""
    devices = _timed_devices()
    known = known or find_peak(devices[0].device_kind)
    rates = [_memory_rate(device) for device in devices]
    best = known.hbm_bandwidth if known else None
    status, comparison = compare_rates(rates, best, known)
    figure = f"{format_rate(min(rates), 'B')}{comparison}"
    return Finding(status, figure, {"bandwidth": rates, "peak_bandwidth": best})


def compare_rates(rates: list[float], best: float | None, known: Peak | None) -> tuple[Status, str]:
    """Return the status of the devices' rates, and text that compares them with the published peak and each other."""
    status: Status = "ok"
    slowest, fastest = min(rates), max(rates)
    if best is None or known is None:
        comparison = " (no published peak)"
    else:
        comparison = f", {slowest / best:.0%} of {known.name}'s peak"
        status = "ok" if slowest >= MIN_SHARE_OF_PEAK * best else "slow"
    if slowest < MIN_SHARE_OF_FASTEST * fastest:
        share = f"device {rates.index(slowest)} reaches {slowest / fastest:.0%} of the fastest"
        return "slow", f"{comparison}; {share}"
    return status, comparison

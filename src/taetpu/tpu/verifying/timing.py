"""How long a call takes on a device."""

import time
from collections.abc import Callable
from typing import Any

import jax

WINDOW = 0.4
"""Seconds that one measurement goes on for, once it is compiled."""


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

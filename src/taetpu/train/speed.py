"""How fast this machine multiplies, and what share of that rate a training step reaches: known before any compile."""

import os
import time
from contextlib import suppress

import jax
import jax.numpy as jnp
import numpy as np

from taetpu.core.errors import UserError
from taetpu.core.runtime import cache_folder, cpu_cores
from taetpu.store.backend import open_store
from taetpu.store.documents import from_json, to_json

SIZE, WINDOW = 1024, 0.1  # of the product that is timed, and for how many seconds
VALID = 3600.0  # seconds after which the rate is measured again

# Shares of the matmul rate that whole train steps reached on CPUs by the width of the model, least and most over
# depths, lengths, batches and layouts (docs/log.md, "time, before it is measured").
DIMS = (8, 16, 32, 64, 128, 256, 512, 1024)
LEAST = (0.01, 0.03, 0.10, 0.16, 0.25, 0.35, 0.40, 0.45)
MOST = (0.12, 0.25, 0.55, 0.60, 0.65, 0.70, 0.80, 0.90)


def shares(dim: int) -> tuple[float, float]:
    """The least and the most of the matmul rate that a train step of a model of this width reaches on a CPU."""
    least, most = (float(np.interp(np.log2(dim), np.log2(DIMS), values)) for values in (LEAST, MOST))
    return least, most


def contention() -> float:
    """By what factor other processes may slow this one down: runnable processes per core, at least 1."""
    return max(1.0, os.getloadavg()[0] / cpu_cores()) if hasattr(os, "getloadavg") else 1.0


def matmul_rates(machine: str) -> tuple[float, float]:
    """FLOP/s of float32 products on all cores of this machine: as last measured, and the best of all measurements.

    Both are the same on a machine that does nothing else; on a shared one the last rate is what others leave.

    Args:
        machine: the name under which they are kept in the cache folder.
    """
    store, key, best = open_store(cache_folder()), f"rates/{machine}.json", 0.0
    with suppress(UserError, KeyError, TypeError):  # damaged, or of another version: measured again
        known = from_json(store.read(key), store.where(key)) if store.exists(key) else {"best": 0.0, "at": 0.0}
        best = float(known["best"])
        if 0 <= time.time() - known["at"] < VALID:
            return float(known["last"]), best
    last = measured_rate()
    best = max(best, last)
    with suppress(UserError):  # a cache that cannot be written costs time alone
        store.write(key, to_json({"last": last, "best": best, "at": time.time()}), replace=True)
    return last, best


def measured_rate() -> float:
    """FLOP/s of float32 products of `SIZE`, the best of those that fit into `WINDOW` seconds."""
    matrix = jax.device_put(np.random.default_rng(0).standard_normal((SIZE, SIZE), np.float32))
    product = jax.jit(jnp.matmul).lower(matrix, matrix).compile()
    jax.block_until_ready(product(matrix, matrix))
    shortest, end = float("inf"), time.perf_counter() + WINDOW
    while (began := time.perf_counter()) < end:
        jax.block_until_ready(product(matrix, matrix))
        shortest = min(shortest, time.perf_counter() - began)
    return 2 * SIZE**3 / shortest

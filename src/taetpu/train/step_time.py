"""The time per training step: measured, remembered from earlier training, or bounded by the matmul rate."""

import hashlib
import math
import os
import platform
import time
from contextlib import suppress
from dataclasses import asdict
from functools import cache
from importlib.metadata import version
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from taetpu.core.config import to_data
from taetpu.core.distributed import multi_process
from taetpu.core.errors import UserError
from taetpu.core.flags import program_flags
from taetpu.core.identity import FIELDS_OUTSIDE_IDENTITY, canonical_json
from taetpu.core.runtime import cache_folder, cpu_cores
from taetpu.core.static_dynamic import split
from taetpu.data.batches import Source
from taetpu.nn.compute_options import DEFAULT_OPTIONS, ComputeOptions
from taetpu.spec.identity import plugin_sources
from taetpu.spec.schema import ResolvedConfig
from taetpu.store.backend import open_store
from taetpu.store.documents import from_json, to_json
from taetpu.train.layout import Layout, Workload
from taetpu.train.memory import memory_bytes
from taetpu.train.program import Program, stack_numbers

FOLDER = "trained"  # subfolder of the cache folder
DISPATCH = 0.3  # seconds per dispatch, long enough that the dispatch overhead is negligible
# Seconds per window, number of windows. The fastest window counts, since other processes can only slow steps down.
WINDOW, WINDOWS = 1.0, 3


class StepTimer:
    """A compiled pack whose steps can be timed. Its runs share one config and have the seeds 0, 1, 2 ...

    Args:
        config: the config of the runs.
        source: the prepared task of the runs.
        layout: the layout of the pack.
        live: fields that are traced although they are neutral (see `train.pack_plan.PackPlan`).
        precision: dtype of activations and matrix products.
        execution: the compute options of the model.

    Raises:
        JaxRuntimeError: if the pack does not fit into memory.
    """

    def __init__(
        self, config: ResolvedConfig, source: Source, layout: Layout, *,
        live: frozenset[str], precision: str, execution: ComputeOptions = DEFAULT_OPTIONS,
    ):  # fmt: skip
        structure, numbers = split(config, live)
        steps = config.train.total_steps(source.num_windows)
        self.program = Program(structure, source, layout, steps=steps, precision=precision, execution=execution)
        seeds = range(layout.width)
        self.numbers = self.program.place(stack_numbers([numbers for _ in seeds]))
        self.seeds = self.program.place(np.array(seeds, np.int32))
        batch, chunk = config.train.batch_size, self.program.chunk
        self.rows = np.stack([source.rows(seed, 0, chunk, batch) for seed in seeds])
        self.state = self.program.init(self.numbers, self.seeds)
        self.size = 1
        self.train()  # compiles

    def train(self) -> float:
        """Take `size` steps, and return the duration of all of them in seconds."""
        began = time.perf_counter()
        self.state, metrics = self.program.advance(
            self.state, self.numbers, self.seeds, self.rows, np.int32(self.size), self.program.arrays
        )
        jax.block_until_ready(metrics)
        return time.perf_counter() - began

    def window(self, seconds: float) -> float:
        """Train for about `seconds` seconds, and return the seconds per step."""
        passed, steps = 0.0, 0
        while passed < seconds:
            duration = self.train()
            passed, steps = passed + duration, steps + self.size
            self.size = max(1, min(int(self.size * DISPATCH / duration), self.program.chunk))
        return passed / steps


def measure_step(work: Workload, layout: Layout) -> float:
    """Measure the seconds per step of a pack.

    Raises:
        UserError: if there are several processes, since a single process cannot run the pack alone.
    """
    if multi_process():
        problem = "one of several processes cannot time steps"
        remedy = "Run the study in one process first, which keeps the times, or use match: flops."
        raise UserError(problem, remedy=remedy)
    trial = StepTimer(
        work.config, work.source, layout, live=work.group.live, precision=work.precision, execution=work.execution
    )
    return min(trial.window(WINDOW) for _ in range(WINDOWS))


def remembered_step(work: Workload, layout: Layout) -> float | None:
    """Return the seconds per step of a pack, as stored by earlier training on this machine; None if not stored."""
    store, key = open_store(cache_folder()), _key(_identity(work, layout))
    try:
        seconds = from_json(store.read(key), store.where(key))["seconds"] if store.exists(key) else math.nan
        return seconds if math.isfinite(seconds) else None
    except (UserError, KeyError, TypeError):  # damaged or written by another version: will be overwritten
        return None


def remember_step(work: Workload, layout: Layout, seconds: float) -> None:
    """Store the seconds per step of a pack in the cache folder, for later forecasts."""
    identity = _identity(work, layout)
    with suppress(UserError):  # a cache that cannot be written must not stop the study
        open_store(cache_folder()).write(_key(identity), to_json({**identity, "seconds": seconds}), replace=True)


def _key(identity: dict[str, Any]) -> str:
    return f"{FOLDER}/{hashlib.sha256(canonical_json(identity).encode()).hexdigest()[:16]}.json"


def _identity(work: Workload, layout: Layout) -> dict[str, Any]:
    """Return the properties of the machine and the program that determine the time per step."""
    config = to_data(split(work.config, work.group.live)[0])
    train = {
        k: v for k, v in config["train"].items() if k not in (*FIELDS_OUTSIDE_IDENTITY, "steps", "epochs", "loss_bound")
    }
    task = {k: v for k, v in config["task"].items() if k not in ("source", "val", "test")}
    program = {"task": task, "model": config["model"], "train": train, "precision": work.precision}
    return {
        "machine": machine_facts(),
        "layout": asdict(layout),
        "program": program | work.execution.non_default,
        "plugins": plugin_sources(work.config),
        "vocab": work.source.vocab_size,
        "seq_len": work.source.seq_len,
    }


def machine_facts() -> dict[str, Any]:
    """Return the properties of this machine that affect the speed of a program."""
    return {
        "cpu": cpu_model(),
        "cores": cpu_cores(),
        "devices": [device.device_kind for device in jax.local_devices()],
        "jaxlib": version("jaxlib"),
        "memory": round(memory_bytes() / 2**30),
        **program_flags(),
    }


def cpu_model() -> str:
    """Return the name of the processor."""
    info = Path("/proc/cpuinfo")
    lines = info.read_text().splitlines() if info.exists() else []
    names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return names[0] if names else platform.processor()


MATRIX_SIZE, MATMUL_SECONDS = 1024, 0.1  # size of the timed product, and the seconds it is repeated for

# The lowest and highest shares of the matmul rate that whole train steps reached on CPUs, by model width. They were
# measured over several depths, sequence lengths, batch sizes and layouts (docs/log.md, "time, before it is measured").
DIMS = (8, 16, 32, 64, 128, 256, 512, 1024)
LEAST = (0.01, 0.03, 0.10, 0.16, 0.25, 0.35, 0.40, 0.45)
MOST = (0.12, 0.25, 0.55, 0.60, 0.65, 0.70, 0.80, 0.90)


def efficiency_bounds(dim: int) -> tuple[float, float]:
    """Return lower and upper bounds for the share of the matmul rate that a train step reaches on a CPU.

    Args:
        dim: the width of the model.
    """
    least, most = (float(np.interp(np.log2(dim), np.log2(DIMS), values)) for values in (LEAST, MOST))
    return least, most


def cpu_contention() -> float:
    """Return the factor by which other processes may slow this one: runnable processes per core, at least 1."""
    return max(1.0, os.getloadavg()[0] / cpu_cores()) if hasattr(os, "getloadavg") else 1.0


@cache
def matmul_rate() -> float:
    """Measure float32 matrix products for `MATMUL_SECONDS` seconds on all cores, and return the best FLOP/s."""
    matrix = jax.device_put(np.random.default_rng(0).standard_normal((MATRIX_SIZE, MATRIX_SIZE), np.float32))
    product = jax.jit(jnp.matmul).lower(matrix, matrix).compile()
    jax.block_until_ready(product(matrix, matrix))
    shortest, end = float("inf"), time.perf_counter() + MATMUL_SECONDS
    while (began := time.perf_counter()) < end:
        jax.block_until_ready(product(matrix, matrix))
        shortest = min(shortest, time.perf_counter() - began)
    return 2 * MATRIX_SIZE**3 / shortest

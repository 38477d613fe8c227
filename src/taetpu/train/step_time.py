"""The time per training step: measurements, and a cache of times from earlier training on this machine."""

import hashlib
import platform
import time
from collections.abc import Sequence
from importlib.metadata import version
from pathlib import Path
from typing import Any

import jax
import numpy as np

from taetpu.core.config import to_data
from taetpu.core.distributed import multi_process
from taetpu.core.errors import UserError
from taetpu.core.identity import FIELDS_OUTSIDE_IDENTITY, canonical_json
from taetpu.core.jax_setup import cpu_cores
from taetpu.core.static_dynamic import promoted_fields, split
from taetpu.data.base import Source
from taetpu.nn.compute_options import DEFAULT_OPTIONS, ComputeOptions
from taetpu.spec.resolved_study import RunSpec
from taetpu.spec.study_config import ResolvedConfig
from taetpu.store.remembered import recall, remember
from taetpu.train.choose_compute import choose_compute
from taetpu.train.data_feed import open_feed
from taetpu.train.layout import Layout, RunGroup, Workload, auto_precision
from taetpu.train.pack_plan import PackPlan
from taetpu.train.program import Program, stack_numbers

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
        with open_feed(self.program, seeds) as feed:
            self.most = feed.limit(0)
            self.rows, self.arrays = feed.read(0, self.most)
        self.numbers = self.program.place(stack_numbers([numbers for _ in seeds]))
        self.seeds = self.program.place(np.array(seeds, np.int32))
        self.state = self.program.init(self.numbers, self.seeds)
        self.size = 1
        self.train()  # compiles

    def train(self) -> float:
        """Take `size` steps, and return the duration of all of them in seconds."""
        began = time.perf_counter()
        self.state, metrics = self.program.advance(
            self.state, self.numbers, self.seeds, self.rows, np.int32(self.size), self.arrays
        )
        jax.block_until_ready(metrics)
        return time.perf_counter() - began

    def window(self, seconds: float) -> float:
        """Train for about `seconds` seconds, and return the seconds per step."""
        passed, steps = 0.0, 0
        while passed < seconds:
            duration = self.train()
            passed, steps = passed + duration, steps + self.size
            self.size = max(1, min(int(self.size * DISPATCH / duration), self.most))
        return passed / steps


def measure_step(work: Workload, layout: Layout) -> float:
    """Measure the seconds per step of a pack.

    Raises:
        UserError: if there are several processes, since a single process cannot run the pack alone.
    """
    if multi_process():
        problem = "steps cannot be timed while several processes share a study"
        remedy = "Run the study in one process first so that the times are stored, or use `match: flops`."
        raise UserError(problem, remedy=remedy)
    trial = step_timer(work, layout)
    return min(trial.window(WINDOW) for _ in range(WINDOWS))


def step_timer(work: Workload, layout: Layout) -> StepTimer:
    """Return the timer of a workload's pack. It compiles the pack."""
    return StepTimer(
        work.config, work.source, layout, live=work.group.live, precision=work.precision, execution=work.execution
    )


def remember_step(plan: PackPlan, config: ResolvedConfig, seconds: float) -> None:
    """Store the seconds per step of a pack in the cache folder, so that `taetpu plan` can predict training times."""
    remember(_step_key(plan, config), {"seconds": seconds})


def remembered_step(plan: PackPlan, config: ResolvedConfig) -> float | None:
    """Return the stored seconds per step of an identical pack on this machine, or None if no time is stored."""
    seconds = (recall(_step_key(plan, config)) or {}).get("seconds")
    return seconds if isinstance(seconds, float) else None


def _step_key(plan: PackPlan, config: ResolvedConfig) -> str:
    """Return the cache key of a pack: a hash of the machine and the program, without the number of steps."""
    program = step_program(config, frozenset(plan.live), plan.layout, plan.precision, plan.compute)
    machine = [cpu_model(), cpu_cores(), jax.local_devices()[0].device_kind, version("jaxlib")]
    return f"steps/{hashlib.sha256(canonical_json([*machine, *program]).encode()).hexdigest()[:16]}.json"


def step_program(
    config: ResolvedConfig, live: frozenset[str], layout: Layout, precision: str, execution: ComputeOptions
) -> list[Any]:
    """Return plain data that is equal for runs whose steps take as long: the program, without the number of steps."""
    data = to_data(split(config, live)[0])
    train = {k: v for k, v in data["train"].items() if k not in ("steps", "epochs", *FIELDS_OUTSIDE_IDENTITY)}
    return [data["task"], data["model"], train, str(layout), precision, str(execution)]


def step_workload(runs: Sequence[RunSpec], source: Source) -> Workload:
    """Return the workload of runs that share a program, as they are trained on this machine."""
    config = runs[0].config
    precision = auto_precision() if config.train.precision == "auto" else config.train.precision
    group = RunGroup(frozenset(promoted_fields(config)), tuple(runs))
    return Workload(group, source, precision, choose_compute(config, source, precision))


def cpu_model() -> str:
    """Return the name of the processor."""
    info = Path("/proc/cpuinfo")
    lines = info.read_text(encoding="utf-8", errors="replace").splitlines() if info.exists() else []
    names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return names[0] if names else platform.processor()

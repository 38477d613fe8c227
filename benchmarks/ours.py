"""taetpu as a contestant, with its programs driven as in a study. Import it after `prepare_jax`."""

import time
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.shapes import Shape, baseline
from taetpu.core.config_parsing import load_config
from taetpu.data.base import Source
from taetpu.nn.compute_options import DEFAULT_OPTIONS, ComputeOptions
from taetpu.spec.resolved_study import RunSpec
from taetpu.spec.study_config import ResolvedConfig, RunConfig
from taetpu.train.data_feed import open_feed
from taetpu.train.layout import AUTO, Layout, RunGroup, Workload, default_layout
from taetpu.train.model_cost import flops_per_token, num_params
from taetpu.train.step_time import StepTimer
from taetpu.train.trainer import dispatch_size

FOREVER = 10**6  # steps: a window's end comes first
PRECISION = "float32"


class Training(StepTimer):
    """A training loop that draws batches, reads losses and sizes dispatches as the trainer does."""

    taken = 0

    feed = None

    def __init__(
        self, config: ResolvedConfig, source: Source, layout: Layout, execution: ComputeOptions = DEFAULT_OPTIONS
    ):
        self.layout = layout
        super().__init__(config, source, layout, live=frozenset(), precision=PRECISION, execution=execution)

    def train(self) -> float:
        self.feed = self.feed or open_feed(self.program, range(self.layout.width))
        began = time.perf_counter()
        self.size = min(self.size, self.feed.limit(self.taken))
        rows, arrays = self.feed.read(self.taken, self.size)
        self.state, metrics = self.program.advance(
            self.state, self.numbers, self.seeds, rows, np.int32(self.size), arrays
        )
        self.losses = np.asarray(metrics["train/loss"])[:, self.size - 1]
        self.taken += self.size
        return time.perf_counter() - began

    def next_size(self, took: float) -> int:
        return dispatch_size(self.size, self.size / took)


def usual(config: ResolvedConfig, source: Source, runs: int) -> Layout:
    """Return the trainer's layout for a number of runs."""
    waiting = tuple(RunSpec("baseline", seed, config, str(seed)) for seed in range(runs))
    return default_layout(Workload(RunGroup(frozenset(), waiting), source, PRECISION), AUTO)


class Ours:
    """A pack in training.

    Args:
        runs: how many wait to be trained; the pack is laid out as for so many of which none was measured before.
        layout: the pack's, where it is asked for outright.
        feed: where training data is, `resident` or `host`.
    """

    def __init__(
        self, shape: Shape, text: Path, runs: int = 1, layout: dict[str, int] | None = None, feed: str = "resident"
    ):
        config = load_config(RunConfig, baseline(shape, text, FOREVER)).resolve()
        source = config.task.prepare(text.parent)
        self.layout = Layout(**layout) if layout else usual(config, source, runs)
        self.tokens = shape.tokens * self.layout.width
        self.sizes = (config.model, source.vocab_size, shape.seq)
        self.training = Training(config, source, self.layout, ComputeOptions(feed=feed))

    @property
    def about(self) -> dict[str, Any]:
        runs, cores = self.layout.width, self.layout.devices
        return {
            "layout": asdict(self.layout),
            "way": f"{runs} run{'s' * (runs > 1)} on {cores} core{'s' * (cores > 1)}",
            "params": num_params(*self.sizes),
            "flops_per_token": flops_per_token(*self.sizes),
        }

    def window(self, seconds: float) -> dict[str, float]:
        """Train for about `seconds`; the loss is the pack's mean at the last step."""
        before, began = self.training.taken, time.perf_counter()
        self.training.window(seconds)
        steps, passed = self.training.taken - before, time.perf_counter() - began
        loss = float(self.training.losses.mean())
        return {"steps": steps, "seconds": passed, "tokens": steps * self.tokens, "loss": loss}

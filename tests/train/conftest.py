import numpy as np
import pytest

from taetpu.core.config_parsing import load_config
from taetpu.core.static_dynamic import promoted_fields, split
from taetpu.data.base import Source
from taetpu.nn.compute_options import ComputeOptions
from taetpu.spec.study_config import ResolvedConfig, RunConfig
from taetpu.train.data_feed import open_feed
from taetpu.train.layout import Layout, structure_key
from taetpu.train.program import Program, stack_numbers

COPY = {"kind": "copy", "seq_len": 16, "symbols": 6, "min_length": 2, "max_length": 6}


def settings(task=COPY, model=(), **train) -> ResolvedConfig:
    """Return the resolved config of a small run."""
    data = {
        "task": task,
        "model": {"dim": 16, "num_layers": 1, "mixer": {"kind": "attention", "num_heads": 2}, **dict(model)},
        "train": {"steps": 12, "batch_size": 4, "schedule": {"kind": "cosine", "warmup": 3}, "sample": None, **train},
    }
    return load_config(RunConfig, data).resolve()


@pytest.fixture(scope="session")
def text(tmp_path_factory) -> tuple[dict, Source]:
    """Return the config of a text task over a small file, and its source."""
    folder = tmp_path_factory.mktemp("text")
    words = np.random.default_rng(0).choice(["the", "cat", "sat", "on", "a", "mat", "and", "ate"], 800)
    (folder / "words.txt").write_text(" ".join(words) + "\n")
    task = {"kind": "text", "source": str(folder / "words.txt"), "seq_len": 16, "val": 0.1, "test": 0.1}
    return task, settings(task).task.prepare(folder)


_PROGRAMS: dict[tuple, Program] = {}


def program(structure, source, steps, width, devices, chunk, options, **mesh) -> Program:
    """Return a program. Tests share programs, because compilation takes most of the time of these tests."""
    key = (structure_key(structure), source.fingerprint, steps, width, devices, chunk, *options.items(), *mesh.items())
    if key not in _PROGRAMS:
        precision = structure.train.precision.replace("auto", "float32")
        _PROGRAMS[key] = Program(
            structure, source, Layout(width, devices, **mesh), steps=steps, precision=precision, chunk=chunk,
            execution=ComputeOptions(**options),
        )  # fmt: skip
    return _PROGRAMS[key]


class Trainer:
    """A pack of runs that tests train step by step."""

    def __init__(
        self, configs, source, width=None, devices=1, seeds=None, chunk=8, live=(), feed="resident", options=(), **mesh
    ):
        live = frozenset(live).union(*(promoted_fields(c) for c in configs))
        parts = [split(c, live) for c in configs]
        self.structure, self.source = parts[0][0], source
        self.width = width or len(configs)
        steps = configs[0].train.total_steps(source.num_windows)
        self.program = program(
            self.structure, source, steps, self.width, devices, chunk, {"feed": feed, **dict(options)}, **mesh
        )
        fill = [0] * (self.width - len(configs))
        order = [*range(len(configs)), *fill]
        self.numbers = self.program.place(stack_numbers([parts[i][1] for i in order]))
        self.seed_list = [(seeds or list(range(len(configs))))[i] for i in order]
        self.seeds = self.program.place(np.array(self.seed_list, np.int32))
        self.state = self.program.init(self.numbers, self.seeds)
        self.feed, self.step = open_feed(self.program, self.seed_list), 0

    def advance(self, *sizes) -> dict[str, np.ndarray]:
        """Take steps in dispatches of these sizes, and return the metrics, `(width, steps)`."""
        found = []
        for size in sizes:
            rows, arrays = self.feed.read(self.step, size)
            self.state, metrics = self.program.advance(
                self.state, self.numbers, self.seeds, rows, np.int32(size), arrays
            )
            found.append({name: np.asarray(v)[:, :size] for name, v in metrics.items()})
            self.step += size
        return {name: np.concatenate([f[name] for f in found], 1) for name in found[0]}

    def observe(self, every=1) -> dict[str, np.ndarray]:
        """Measure the metrics that are due every `every` steps, and return `{name: (width,)}`."""
        rows, arrays = self.feed.read(self.step, 1)
        found = self.program.observe(every)(self.state, self.numbers, self.seeds, rows[:, 0], arrays)
        return {name: np.asarray(values) for name, values in found.items()}


@pytest.fixture(scope="session")
def make():
    return settings


@pytest.fixture(scope="session")
def trainer():
    return Trainer

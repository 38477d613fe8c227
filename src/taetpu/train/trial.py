"""One way of packing runs, tried out: the pack's program is compiled as training will, and timed for a while.

`python -m taetpu.train.trial` does it in a process of its own: it reads what to try (JSON, one line), then a number of
seconds a line, and answers each line with one. It ends when its input does, whatever it is doing: with its parent.
"""

import json
import os
import sys
import threading
import time
import warnings
from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path
from queue import SimpleQueue
from typing import Any

import jax
import numpy as np

from taetpu.core.loading import load
from taetpu.core.plugins import load_plugins
from taetpu.core.static_dynamic import split
from taetpu.data.batches import Source
from taetpu.nn.compute_options import AS_BUILT, Execution
from taetpu.spec.schema import ResolvedConfig
from taetpu.train.memory import out_of_memory, peak_bytes
from taetpu.train.pack import Program, stack_numbers
from taetpu.train.plan import Layout

DISPATCH = 0.3  # seconds that a dispatch should take: long enough that issuing it costs nothing


class Trial:
    """A pack of `layout.width` copies of one run, on as many seeds, ready to be timed.

    Raises:
        JaxRuntimeError: it does not fit into the device's memory.
    """

    def __init__(
        self, config: ResolvedConfig, source: Source, layout: Layout, *,
        live: frozenset[str], precision: str, execution: Execution = AS_BUILT,
    ):  # fmt: skip
        structure, numbers = split(config, live)
        steps = config.train.total_steps(source.num_windows)
        form = {"precision": precision, "execution": execution, **asdict(layout)}
        self.program = Program(structure, source, steps=steps, **form)
        everyone = range(layout.width)
        self.numbers = self.program.place(stack_numbers([numbers for _ in everyone]))
        self.seeds = self.program.place(np.array(everyone, np.int32))
        batch, chunk = config.train.batch_size, self.program.chunk
        self.rows = np.stack([source.rows(seed, 0, chunk, batch) for seed in everyone])
        self.state = self.program.init(self.numbers, self.seeds)
        self.size = 1
        self.train()  # compiles

    def train(self) -> float:
        """Take `size` steps; the seconds that it took."""
        began = time.perf_counter()
        self.state, metrics = self.program.advance(
            self.state, self.numbers, self.seeds, self.rows, np.int32(self.size), self.program.arrays
        )
        jax.block_until_ready(metrics)
        return time.perf_counter() - began

    def window(self, seconds: float) -> float:
        """Train for about so long; gives the seconds a step."""
        passed, taken = 0.0, 0
        while passed < seconds:
            took = self.train()
            passed, taken = passed + took, taken + self.size
            self.size = min(self.next_size(took), self.program.chunk)
        return passed / taken

    def next_size(self, took: float) -> int:
        """How many steps to dispatch after a dispatch that took so many seconds."""
        return max(1, int(self.size * DISPATCH / took))

    @property
    def bytes(self) -> int:
        """The memory that this process has held at most."""
        return peak_bytes()

    def close(self) -> None:
        """Nothing is to be ended; a process of its own would be."""


def requested(request: dict[str, Any]) -> Trial:
    """The trial that a parent asks for; see `train.calibrate.Shape.request`."""
    load_plugins([Path(file) for file in request["plugins"]])
    config = load(ResolvedConfig, request["config"])
    source = config.task.prepare(Path(request["folder"]))
    if source.fingerprint != request["data"] or str(jax.devices()) != request["devices"]:
        raise RuntimeError("this process sees other data or other devices than its parent")
    live = frozenset(request["live"])
    how = {"live": live, "precision": request["precision"], "execution": Execution(**request["execution"])}
    return Trial(config, source, Layout(**request["layout"]), **how)


def lines() -> Iterator[Any]:
    """What the parent says, line by line. The process ends with it, also in the middle of a compile."""
    heard: SimpleQueue[str] = SimpleQueue()

    def listen() -> None:
        for line in sys.stdin:
            heard.put(line)
        os._exit(0)

    threading.Thread(target=listen, daemon=True).start()
    while True:
        yield json.loads(heard.get())


def main() -> None:
    """Answer the parent: `{"bytes": ...}` when ready, `{"seconds", "bytes"}` for each window, or why there is none."""
    warnings.simplefilter("ignore")  # the parent has shown them
    said = lines()
    answers = sys.stdout
    sys.stdout = sys.stderr  # what a plug-in prints is no answer
    try:
        trial = requested(next(said))
        print(json.dumps({"bytes": trial.bytes}), file=answers, flush=True)
        for seconds in said:
            found = trial.window(seconds)
            print(json.dumps({"seconds": found, "bytes": trial.bytes}), file=answers, flush=True)
    except Exception as error:
        failure = {"error": f"{type(error).__name__}: {error}", "memory": out_of_memory(error)}
        print(json.dumps(failure), file=answers, flush=True)


if __name__ == "__main__":
    main()

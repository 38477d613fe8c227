"""The programs of packs: that of the last pack, and that of a following pack, which a thread compiles meanwhile."""

import threading
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from typing import Any

import jax
import numpy as np

from taetpu.core.distributed import multi_process
from taetpu.core.static_dynamic import split
from taetpu.data.base import Batch, Source
from taetpu.spec.eval_sample import Sample
from taetpu.train.device_capabilities import Device
from taetpu.train.pack_plan import Pack
from taetpu.train.program import Program
from taetpu.train.run_axis import DIVIDED

AHEAD_ON = ("tpu",)
"""Backends on which programs are compiled ahead.

A CPU's cores are busy with training. On a GPU, XLA chooses algorithms by timing them on the GPU that trains, so the
choice, and with it the last bits of results, could depend on what is trained meanwhile.
"""


class ProgramCache:
    """A cache of the last pack's program, which the next pack often shares. Earlier programs are freed.

    Args:
        on: the devices to use; all devices by default.
    """

    def __init__(self, on: Sequence[Device] | None = None) -> None:
        self.on = on
        self.programs: dict[str, Program] = {}
        self.ahead: AheadCompilation | None = None

    def get(self, pack: Pack, source: Source) -> Program:
        """Return the program of a pack; `source` is the pack's prepared task.

        A program that is being compiled ahead is awaited.
        """
        key = pack.program_key
        if key not in self.programs:
            self.clear()
            program = None
            if self.ahead is not None and self.ahead.key == key:
                program, self.ahead = self.ahead.result(), None
            self.programs[key] = program or build_program(pack, source, self.on)
        return self.programs[key]

    def compile_ahead(self, pack: Pack, source: Source, sample: Sample) -> None:
        """Start to compile the program of a pack that is trained later, unless another program is being compiled.

        Args:
            pack: the pack.
            source: the pack's prepared task.
            sample: the sample of the validation split.
        """
        key, last = pack.program_key, self.ahead
        busy = last is not None and (last.key == key or last.thread.is_alive())
        if not busy and key not in self.programs:
            self.ahead = AheadCompilation(pack, build_program(pack, source, self.on), sample)
            self.ahead.thread.start()

    def clear(self) -> None:
        """Free the cached program."""
        self.programs.clear()

    def close(self) -> None:
        """Compile nothing more ahead. The compilation that runs ends in its thread, for which the process waits."""
        if self.ahead is not None:
            self.ahead.stopped.set()


class AheadCompilation:
    """The compilation of a pack's program in a thread.

    The functions that every pack calls are compiled for the arguments with which `PackTrainer` and `Evaluator` call
    them. JAX keeps these compilations, so that the calls find them. The others are compiled where they are called.

    Errors are discarded: the pack itself compiles again and raises its error.

    Args:
        pack: the pack.
        program: the pack's program.
        sample: the sample of the validation split.

    Attributes:
        key: the key of the program.
        thread: the thread, which is not started.
        stopped: set to compile no further function.
    """

    def __init__(self, pack: Pack, program: Program, sample: Sample):
        self.key, self.pack, self.program, self.sample = pack.program_key, pack, program, sample
        self.stopped, self.whole = threading.Event(), False
        self.thread = threading.Thread(target=self._compile, name="compile ahead")

    def result(self) -> Program | None:
        """Wait for the compilation, and return the program; None if the compilation failed or was stopped."""
        self.thread.join()
        return self.program if self.whole else None

    def _compile(self) -> None:
        with suppress(Exception):
            for lower in self._functions():
                if self.stopped.is_set():
                    return
                lower.compile()
            self.whole = True

    def _functions(self) -> Iterator[Any]:
        """Yield the lowered functions, that of the training steps first."""
        program: Any = self.program  # a jitted function has methods that `Callable` does not have
        count, shapes = np.int32(0), program.shapes(split(self.pack.config, frozenset(self.pack.plan.live))[1])
        state, numbers, seeds, rows, _, data = shapes.advance
        yield program.advance.lower(state, numbers, seeds, rows, count, data)
        for windows in self._evaluation_sets():
            yield program.evaluate.lower(state.model, program.abstract(windows, DIVIDED), count)
        if self.pack.config.train.start is None:
            yield program.init.lower(*shapes.init)

    def _evaluation_sets(self) -> Iterable[Batch]:
        """Return an evaluation set of each shape."""
        val = self.program.source.evaluation("val")
        most = 0 if val is None else self.sample.size_within(len(val.tokens))
        sets = [self.program.windows(name, most) for name in self.program.structure.task.evaluation_sets]
        return {str(jax.tree.map(np.shape, windows)): windows for windows in sets if windows is not None}.values()


def build_program(pack: Pack, source: Source, on: Sequence[Device] | None = None) -> Program:
    """Return the program of a pack, of which nothing is compiled yet.

    Args:
        pack: the pack.
        source: the pack's prepared task.
        on: the devices to use; all devices by default.
    """
    plan = pack.plan
    structure, _ = split(pack.config, frozenset(plan.live))
    return Program(
        structure, source, plan.layout, steps=structure.train.total_steps(source.num_windows),
        precision=plan.precision, execution=plan.compute, on=on,
    )  # fmt: skip


def compiles_ahead() -> bool:
    """Return whether programs are compiled ahead by default: on the backends in `AHEAD_ON`, with one process."""
    return jax.default_backend() in AHEAD_ON and not multi_process()

"""The loop that trains a pack: from its plan to finished run folders, also when it is killed in between."""

import math
import time
from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Any, NoReturn

import jax
import numpy as np

from taetpu.core.config import to_data
from taetpu.core.distributed import (
    any_process,
    broadcast,
    in_every_process,
    is_primary,
    multi_process,
    on_primary,
    raise_local_failure,
    to_host,
)
from taetpu.core.errors import Failed
from taetpu.core.plugins import check_unchanged
from taetpu.core.signals import raise_interrupts, record_interrupts, record_sigterm
from taetpu.core.static_dynamic import split
from taetpu.data.batches import Source
from taetpu.store.study import StudyFolder
from taetpu.train.callbacks import Callback
from taetpu.train.checkpoint import Checkpoints
from taetpu.train.evaluator import Evaluator
from taetpu.train.metric_buffer import MetricBuffer, checkpoint_steps
from taetpu.train.model_io import to_files
from taetpu.train.pack_plan import Pack
from taetpu.train.profile import OFF, Profile
from taetpu.train.program import Program, stack_numbers
from taetpu.train.readback import NotReproduced, mismatches
from taetpu.train.results import Files, NoWriter, ResultWriter, cost
from taetpu.train.step import TrainState
from taetpu.train.training_flops import training_flops_per_token
from taetpu.train.usage import Usage, measure_usage

# A dispatch takes about this long: short enough for a lively progress bar, long enough that issuing it costs nothing. A
# pack of many large runs takes longer, for a few steps: fetching and storing a state costs up to a tenth of a step.
SECONDS_PER_DISPATCH = 0.7
FEW_STEPS, MOST_SECONDS = 4, 4.0


def dispatch_size(last: int, pace: float) -> int:
    """Return the steps of the next dispatch, after one of `last` steps at `pace` steps a second."""
    fitting = max(SECONDS_PER_DISPATCH * pace, min(FEW_STEPS, MOST_SECONDS * pace))
    return int(np.clip(fitting, 1, 2 * last))


@dataclass
class PackTrainer:
    """Trains one pack to its end.

    Args:
        program: compiled functions; shared by packs of one structure and layout.
        study: the folder that holds its checkpoints.
        writer: writes the runs' metrics, models and results.
        evaluator: evaluates their models.
        callback: observes training.
        profile: observes dispatches and may trace some.
    """

    pack: Pack
    program: Program
    study: StudyFolder
    writer: ResultWriter | NoWriter
    evaluator: Evaluator
    callback: Callback
    profile: Profile = OFF

    def __post_init__(self) -> None:
        self.plan, self.runs = self.pack.plan, self.pack.runs
        padding = [self.runs[0]] * (self.plan.width - len(self.runs))
        placed = [*self.runs, *padding]
        numbers = [split(run.config, frozenset(self.plan.live))[1] for run in placed]
        self.train = self.runs[0].config.train
        self.steps = self.program.steps
        self.numbers = self.program.place(stack_numbers(numbers))
        self.seeds_on_host = [run.seed for run in placed]
        self.seeds = self.program.place(np.array(self.seeds_on_host, np.int32))
        self.evals = self.train.evaluations(self.steps)
        self.saves = checkpoint_steps(self.steps, self.train.checkpoint, self.evals)
        intervals = {metric.every for metric in self.train.metrics.values()}
        self.observations = {
            step - 1: [n for n in intervals if step % n == 0] for n in intervals for step in range(n, self.steps + 1, n)
        }
        self.dispatch, self.began = 1, time.monotonic()
        # Wall time of steps, without the first dispatch, which compiles.
        self.compiled, self.timed, self.timed_steps = False, 0.0, 0

    @property
    def source(self) -> Source:
        """The prepared task."""
        return self.program.source

    def run(self) -> None:
        """Train from the last checkpoint, or from the start, to finished run folders.

        Of several processes the primary writes. The others train along: it announces the pack to them.

        Raises:
            Separated: something failed in this process alone.
            PeerFailed: something that all processes do together failed in another one.
        """
        if multi_process() and is_primary():
            self.announce()
        with raise_local_failure():
            self.train_pack()

    def announce(self) -> None:
        """Broadcast all that the other processes need to train the pack along (see `train.follower`)."""
        runs = [{"arm": run.arm, "seed": run.seed, "id": run.id, "config": to_data(run.config)} for run in self.runs]
        sample = self.evaluator.sample.frozen
        broadcast({"pack": self.plan.data, "runs": runs, "sample": sample, "open": list(self.writer.open)})
        in_every_process(lambda: None)  # they load it

    def train_pack(self) -> None:
        """Train to the last step, and finish."""
        checkpoints = Checkpoints(self.study.pack(self.plan.id), self.callback.on_damage)
        with self.interruptible() as self.check, record_sigterm() as self.ending, checkpoints, self.profile:
            state, step = self.resume(checkpoints)
            self.buffer = MetricBuffer(self.plan.width, self.train.log_every, step)
            for border in sorted({*self.evals, *self.saves, *self.observations}):
                if border > step:
                    state, step = self.advance(state, step, border)
                    if step < border:
                        self.leave(state, step, checkpoints)
                    if step in self.evals or step in self.saves:
                        self.close_border(state, step, checkpoints)
                if border == step:  # what is observed of the next step is stored behind this one, so it is repeated
                    self.observe(state, step)
        self.finish(state)

    def interruptible(self) -> AbstractContextManager[Callable[[], bool | None]]:
        """Handle Ctrl-C. One of several processes must not stop while others go on: they agree at a border."""
        return record_interrupts() if multi_process() else raise_interrupts()

    def resume(self, checkpoints: Checkpoints) -> tuple[TrainState, int]:
        """Return the newest state and its step. Whatever was logged after it is dropped."""
        state, step = checkpoints.resume(self.program.init(self.numbers, self.seeds), self.verify)
        self.callback.on_resume(step)
        self.write(lambda writer: writer.truncate(step))
        return state, step

    def verify(self, about: dict[str, Any]) -> None:
        """Raise `Damaged` unless the runs' files are those that a checkpoint was written after."""
        if isinstance(self.writer, ResultWriter):
            self.writer.verify(about)

    def write(self, use: Callable[[ResultWriter], None]) -> None:
        """Use the writer, in the primary process, in a step that succeeds for all processes or for none."""
        writer = self.writer
        on_primary(lambda: use(writer) if isinstance(writer, ResultWriter) else None)

    def advance(self, state: TrainState, step: int, border: int) -> tuple[TrainState, int]:
        """Train to `border`, or to where the run can be left before it; return the state and its step.

        Metrics are read one dispatch late, so that the device never waits for the host.
        """
        pending: tuple[int, dict[str, jax.Array]] | None = None
        clock = time.monotonic()
        while step < border or pending:
            stop, leave, dispatch = any_process(bool(self.check()), self.ending(), number=self.dispatch)
            if stop:
                raise KeyboardInterrupt
            if leave:
                border = min(border, self.buffer.next_window_end(step))
            issued = None
            if step < border:
                most = min(self.program.chunk, border - step)
                size = self.profile.next_size(step, min(dispatch, most), most, state)
                state, metrics = self.program.advance(
                    state, self.numbers, self.seeds, self.to_program(self.rows(step, size)), np.int32(size),
                    self.program.arrays,
                )  # fmt: skip
                step, issued = step + size, (size, metrics)
                self.profile.on_dispatch(size, metrics)
            if pending:
                self.log(*pending)
                clock = self.count_time(pending[0], clock)
            pending = issued
        return state, step

    def count_time(self, steps: int, since: float) -> float:
        """Add the wall time of a dispatch to that of all, and size the next one; return the time now."""
        now = time.monotonic()
        if self.compiled and not self.profile.affects_time(self.buffer.end):
            self.timed, self.timed_steps = self.timed + now - since, self.timed_steps + steps
        self.compiled = True
        self.dispatch = dispatch_size(self.dispatch, steps / max(now - since, 1e-6))
        return now

    def leave(self, state: TrainState, step: int, checkpoints: Checkpoints) -> NoReturn:
        """Store everything between borders, because the machine is about to be preempted; then stop."""
        if step > self.buffer.start:
            self.store(step)
        if checkpoints.latest() != step:
            self.save_state(state, step, checkpoints)
        raise KeyboardInterrupt

    def rows(self, step: int, size: int) -> np.ndarray:
        """Return the window numbers of the next `size` steps, `(width, chunk, batch)`.

        Entries beyond `size`, and those of runs of other processes, are zeros that are never read.
        """
        batch = self.train.batch_size
        rows = np.zeros((self.plan.width, self.program.chunk, batch), np.int32)
        for i in self.program.local_runs:
            rows[i, :size] = self.source.rows(self.seeds_on_host[i], step, size, batch)
        return rows

    def to_program(self, rows: np.ndarray) -> np.ndarray | jax.Array:
        """Return rows as the program takes them: each of several processes hands in its own."""
        return self.program.place(rows) if multi_process() else rows

    def log(self, size: int, metrics: dict[str, jax.Array]) -> None:
        """Record the metrics of a dispatch; waits until it is done."""
        on_host = {name: to_host(values)[:, :size] for name, values in metrics.items()}
        self.buffer.add_steps(on_host)
        self.callback.on_steps(self.buffer.end, on_host["train/loss"][: len(self.runs), -1])
        self.callback.on_usage(self.used())

    def observe(self, state: TrainState, step: int) -> None:
        """Measure the metrics that are due at the next update, and store them under its number, counted from 1."""
        for every in self.observations.get(step, ()):
            rows = self.to_program(self.rows(step, 1)[:, 0])
            values = self.program.observe(every)(state, self.numbers, self.seeds, rows, self.program.arrays)
            on_host = {name: to_host(value) for name, value in values.items()}
            for i in range(len(self.runs)):
                self.buffer.add_point(step + 1, i, {name: float(value[i]) for name, value in on_host.items()})
            self.callback.on_observe(step)

    def close_border(self, state: TrainState, step: int, checkpoints: Checkpoints) -> None:
        """Evaluate, sample and store: metrics before the state that they belong to."""
        if step in self.evals:
            values = self.evaluator.evaluate(state.model, "val", whole=step == self.steps)
            for i, run in enumerate(self.runs):
                self.buffer.add_point(step, i, {**values[i], **cost(self.program, run, step)})
                self.callback.on_evaluate(step, run, values[i])
            texts = self.evaluator.draw_texts(state.model, self.seeds, step)
            self.write(lambda writer: writer.write_texts(step, texts))
            for place, text in texts.items():
                self.callback.on_sample(step, self.runs[place], text)
        self.store(step)
        if step in self.saves:
            if self.train.keep_checkpoints and step < self.steps:
                files = self.model_files(state)
                self.write(lambda writer: writer.write_checkpoints(step, files))
            self.save_state(state, step, checkpoints)
        self.callback.on_save(step)

    def store(self, step: int) -> None:
        """Store what was measured since the last time."""
        start, end, points = self.buffer.flush()
        self.write(lambda writer: writer.append(start, end, points, self.times()))

    def times(self) -> dict[str, float]:
        """Return wall times: so far, of a step of one run, and of a token in evaluation; NaN before it is known."""
        step = self.timed / self.timed_steps / self.plan.width if self.timed_steps else math.nan
        forward = self.evaluator.seconds_per_token
        passed = {"seconds": time.monotonic() - self.began, "step_seconds": step, "forward_seconds": forward}
        return passed | self.used().times

    def used(self) -> Usage:
        """Return how well the pack's devices are used; padding does not count."""
        tokens = len(self.runs) * self.train.batch_size * self.source.seq_len * self.timed_steps
        per_token = training_flops_per_token(self.runs[0].config, self.source)
        rate = tokens * per_token / self.timed if self.timed else None
        return measure_usage(list(self.program.mesh.devices.flat), rate)

    def save_state(self, state: TrainState, step: int, checkpoints: Checkpoints) -> None:
        """Write the resume state, with the digests of what is stored of the runs.

        Raises:
            UserError: a plug-in changed what all runs share; nothing computed since then is resumed from.
        """
        in_every_process(check_unchanged)
        digests: dict[str, Any] = {}
        self.write(lambda writer: digests.update(writer.digests()))
        checkpoints.save(step, state, runs=digests)

    def finish(self, state: TrainState) -> None:
        """Write each run's model and result. The result comes last: it alone says that a run is done.

        Raises:
            NotReproduced: the saved model of a run does not compute what was trained; that run gets no result.
            UserError: a plug-in changed what all runs share; no run of the pack gets a result.
        """
        test = self.evaluator.evaluate(state.model, "test")
        if "val" not in self.evaluator.sums:  # killed between the last evaluation and the result
            self.evaluator.evaluate(state.model, "val")
        diverged = to_host(state.diverged_at)
        stored = self.write_models(self.model_files(state))
        wrong = mismatches(self.program, state.model, stored, self.evaluator.windows, self.evaluator.first_batch)
        in_every_process(check_unchanged)
        right = [i for i in stored if i not in wrong]
        self.write(lambda writer: writer.finish(right, self.evaluator, test, diverged))
        if wrong:
            raise NotReproduced({self.runs[i].id: f"{self.runs[i].folder.where}: {wrong[i]}" for i in wrong})

    def write_models(self, files: dict[int, Files]) -> dict[int, Files]:
        """Write the final models, and return them as read back.

        Processes that do not write return `files`, which the primary checks to be the same.
        """
        stored = dict(files)

        def write_and_read(writer: ResultWriter) -> None:
            writer.write_models(files)
            stored.update(writer.read_models())
            if multi_process() and stored != files:
                raise Failed(f"the models of pack {self.plan.id} cannot be read back as they were written")

        self.write(write_and_read)
        return stored

    def model_files(self, state: TrainState) -> dict[int, Files]:
        """Return the models of the open runs as files, by place in the pack."""
        files: dict[int, Files] = {}
        for i in self.writer.open:
            model = jax.tree.map(lambda a, i=i: to_host(a[i]) if multi_process() else a[i], state.model)
            source = self.source
            files[i] = to_files(
                model, self.runs[i].config.model, vocab_size=source.vocab_size, seq_len=source.seq_len,
                tokenizer=source.tokenizer,
            )  # fmt: skip
        return files

"""The loop that trains a pack, from its plan to finished run folders. Training resumes after interruptions."""

import math
import time
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from dataclasses import asdict, dataclass, field
from functools import partial
from signal import SIGINT, SIGTERM
from typing import Any, NoReturn

import jax
import jax.numpy as jnp
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
from taetpu.core.signals import record_signal
from taetpu.core.static_dynamic import split
from taetpu.data.base import Source
from taetpu.nn.lm import LM
from taetpu.optim.selection import SELECTION
from taetpu.spec.start import StoredParameters
from taetpu.store.study import StudyFolder
from taetpu.train.callbacks import Callback
from taetpu.train.checkpoint import Checkpoints
from taetpu.train.data_feed import open_feed
from taetpu.train.evaluator import Evaluator
from taetpu.train.metric_series import MetricBuffer, checkpoint_steps
from taetpu.train.model_cost import named_shapes
from taetpu.train.model_io import to_files
from taetpu.train.pack_clock import PackClock, spends
from taetpu.train.pack_plan import Pack
from taetpu.train.profile import Profile
from taetpu.train.program import Program, StartArrays, stack_numbers
from taetpu.train.reload_check import NotReproduced, mismatches
from taetpu.train.result_writer import Files, NoWriter, ResultWriter, cost
from taetpu.train.selection import selection_facts, selection_steps
from taetpu.train.step import TrainState
from taetpu.train.training_flops import training_flops_per_token
from taetpu.train.usage import Usage, measure_usage

# The target duration of a dispatch: short enough for a responsive progress bar, long enough that the dispatch overhead
# is negligible. If steps are slow, a dispatch takes up to MOST_SECONDS, so that it contains up to FEW_STEPS steps: each
# dispatch fetches and stores the state of the runs, which costs up to a tenth of a step.
SECONDS_PER_DISPATCH = 0.7
FEW_STEPS, MOST_SECONDS = 4, 4.0


def dispatch_size(last: int, pace: float) -> int:
    """Return the number of steps in the next dispatch.

    Args:
        last: the number of steps in the previous dispatch.
        pace: steps per second in the previous dispatch.
    """
    fitting = max(SECONDS_PER_DISPATCH * pace, min(FEW_STEPS, MOST_SECONDS * pace))
    return int(np.clip(fitting, 1, 2 * last))


def take_run(array: Any, run: int) -> Any:
    """Return the part of an array of a pack that belongs to one run, on the host except for random keys.

    JAX would compile a slice for every shape. Where several processes hold the pack, it has to slice on the devices.
    """
    if multi_process():
        return to_host(array[run])
    return array[run] if jnp.issubdtype(array.dtype, jax.dtypes.prng_key) else to_host(array)[run, ...]


@dataclass
class PackTrainer:
    """Trains one pack to the last step.

    Args:
        pack: the pack.
        program: the compiled functions. Packs with the same structure and layout share them.
        study: the folder of the study, which holds the pack's checkpoints.
        writer: the writer of the runs' metrics, models and results.
        evaluator: the evaluator of the runs' models.
        callback: the callback that receives the events of training.
        profile: the profile, which traces a few dispatches; None to profile nothing.
        starts: the stored models that the runs start from; None for runs whose parameters are drawn.
        alone: whether no other pack trains at the same time. Otherwise, the times of steps are not stored.
        clock: measures what the time of the pack is spent on.
        when_compiled: called after the first dispatch, which compiles the train step.
        stop: returns whether to store everything and stop, as on SIGTERM.
    """

    pack: Pack
    program: Program
    study: StudyFolder
    writer: ResultWriter | NoWriter
    evaluator: Evaluator
    callback: Callback
    profile: Profile | None = None
    starts: Sequence[StoredParameters | None] = ()
    alone: bool = True
    clock: PackClock = field(default_factory=PackClock)
    when_compiled: Callable[[], None] = lambda: None
    stop: Callable[[], bool] = lambda: False

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
        self.scores = self.evaluator.items.steps(self.steps)
        self.selections = selection_steps(self.train, self.steps)
        self.stopped_at = np.full(self.plan.width, -1)  # the number of steps after which each run stopped, or -1
        self.dispatch, self.began = 1, time.monotonic()
        # The wall time of steps, excluding the first dispatch, which compiles.
        self.compiled, self.timed, self.timed_steps = False, 0.0, 0

    @property
    def source(self) -> Source:
        """The prepared task."""
        return self.program.source

    @property
    def over(self) -> bool:
        """Whether all runs have stopped. Copies that pad the pack do not count."""
        return bool((self.stopped_at[: len(self.runs)] >= 0).all())

    def run(self) -> None:
        """Train from the latest checkpoint, or from the start, to finished run folders.

        With several processes, the primary process announces the pack to the others. All processes train it, and only
        the primary process writes.

        Raises:
            LocalFailure: if this process failed outside an operation that all processes execute together.
            PeerFailed: if an operation that all processes execute together failed in another process.
        """
        if multi_process() and is_primary():
            self.announce()
        with raise_local_failure():
            self.train_pack()

    def announce(self) -> None:
        """Broadcast everything that the other processes need to train the pack (see `train.follower`)."""
        runs = [{"arm": run.arm, "seed": run.seed, "id": run.id, "config": to_data(run.config)} for run in self.runs]
        sample = asdict(self.evaluator.sample)
        items = {name: each.file.sha256 for name, each in self.evaluator.items.sets.items()}
        broadcast(
            {"pack": self.plan.data, "runs": runs, "sample": sample, "open": list(self.writer.open), "items": items}
        )
        in_every_process(lambda: None)  # the other processes load the pack

    def train_pack(self) -> None:
        """Train to the last step, and write the results."""
        checkpoints = Checkpoints(self.study.pack(self.plan.id), self.callback.on_damage)
        # With several processes, Ctrl-C is only recorded, so that all processes stop at the same dispatch.
        interrupts = record_signal(SIGINT) if multi_process() else nullcontext(lambda: False)
        feed = open_feed(self.program, self.seeds_on_host)
        with (
            interrupts as self.interrupted, record_signal(SIGTERM) as self.ending, self.profile or nullcontext(),
            feed as self.feed,
        ):  # fmt: skip
            state, step = self.resume(checkpoints)
            self.buffer = MetricBuffer(self.plan.width, self.train.log_every, step)
            self.end_runs(state)
            if step == 0 and 0 in self.evals:
                self.evaluate(state, 0)
            if not self.steps:
                self.store(0)
            for border in sorted({*self.evals, *self.saves, *self.scores, *self.observations, *self.selections}):
                if self.over:
                    break
                if border > step:
                    state, step = self.advance(state, step, border)
                    if step < border:
                        self.leave(state, step, checkpoints)
                    if step in self.selections:
                        state = self.select(state, step)
                    if step in self.scores:
                        self.score_items(state, step)
                    if step in self.evals or step in self.saves or self.over:
                        self.close_border(state, step, checkpoints)
                if border == step:  # also after resuming, which deletes values stored under step + 1
                    self.observe(state, step)
        self.finish(state)
        if any(any_process(self.interrupted(), self.ending() or self.stop(), number=0)[:2]):
            raise KeyboardInterrupt  # the signal came after the last dispatch, and the study must not go on

    def resume(self, checkpoints: Checkpoints) -> tuple[TrainState, int]:
        """Return the latest state and its step. Everything that was logged after this step is deleted."""
        state, step = checkpoints.resume(
            self.program.init(self.numbers, self.seeds, *self.start_arrays()),
            check=self.writer.verify if isinstance(self.writer, ResultWriter) else lambda about: None,
        )
        self.callback.on_resume(step)
        self.write(lambda writer: writer.truncate(step))
        return state, step

    def start_arrays(self) -> tuple[StartArrays, ...]:
        """Return the parameters that the runs start from, with a leading run axis; nothing if all are drawn."""
        stored = [start for start in self.starts if start is not None]
        if not stored:
            return ()
        config, source = self.runs[0].config, self.source
        shapes = named_shapes(config.model, source.interface, source.seq_len)
        starts = [start.fitting(shapes) for start in stored]
        starts += [starts[0]] * (self.plan.width - len(starts))
        return (self.program.place({name: np.stack([arrays[name] for arrays in starts]) for name in starts[0]}),)

    @spends("written")
    def write(self, use: Callable[[ResultWriter], None]) -> None:
        """Call `use` with the writer in the primary process. If the call fails, all processes fail."""
        writer = self.writer
        on_primary(lambda: use(writer) if isinstance(writer, ResultWriter) else None)

    @spends("trained")
    def advance(self, state: TrainState, step: int, border: int) -> tuple[TrainState, int]:
        """Train to `border`, and return the state and its step.

        If the machine is about to be preempted, training stops earlier, at the end of a metric window. Metrics are read
        one dispatch late, so that the device never waits for the host.
        """
        pending: tuple[int, dict[str, jax.Array]] | None = None
        clock = time.monotonic()
        while step < border or pending:
            stop, leave, dispatch = any_process(self.interrupted(), self.ending() or self.stop(), number=self.dispatch)
            if stop:
                raise KeyboardInterrupt
            if leave:
                border = min(border, self.buffer.next_window_end(step))
            issued = None
            if step < border:
                most = min(self.feed.limit(step), border - step)
                size = min(dispatch, most)
                if self.profile:
                    size = self.profile.next_size(step, size, most, state)
                rows, arrays = self.feed.read(step, size)
                state, metrics = self.program.advance(
                    state, self.numbers, self.seeds, self.program.place(rows), np.int32(size), arrays
                )
                step, issued = step + size, (size, metrics)
                if self.profile:
                    self.profile.on_dispatch(size, metrics)
            if pending:
                self.log(*pending)
                clock = self.count_time(pending[0], clock)
            pending = issued
        return state, step

    def count_time(self, steps: int, since: float) -> float:
        """Record the wall time of a dispatch, choose the size of the next dispatch, and return the current time."""
        now = time.monotonic()
        profiled = self.profile is not None and self.profile.affects_time(self.buffer.end)
        if self.compiled and not profiled:
            self.timed, self.timed_steps = self.timed + now - since, self.timed_steps + steps
        if not self.compiled:
            self.compiled = True
            self.when_compiled()
        self.dispatch = dispatch_size(self.dispatch, steps / max(now - since, 1e-6))
        return now

    def leave(self, state: TrainState, step: int, checkpoints: Checkpoints) -> NoReturn:
        """Store everything and stop, because the machine is about to be preempted."""
        if step > self.buffer.start:
            self.store(step)
        if checkpoints.latest() != step:
            self.save_state(state, step, checkpoints)
        raise KeyboardInterrupt

    def log(self, size: int, metrics: dict[str, jax.Array]) -> None:
        """Wait until a dispatch is done, and record its metrics."""
        on_host = {name: to_host(values)[:, :size] for name, values in metrics.items()}
        self.buffer.add_steps(on_host)
        self.callback.on_steps(self.buffer.end, on_host["train/loss"][: len(self.runs), -1])
        self.callback.on_usage(self.used())

    @spends("evaluated")
    def observe(self, state: TrainState, step: int) -> None:
        """Measure the metrics that are due at the next update, and record them under the update's number, from 1."""
        for every in self.observations.get(step, ()):
            rows, arrays = self.feed.read(step, 1)
            values = self.program.observe(every)(
                state, self.numbers, self.seeds, self.program.place(rows[:, 0]), arrays
            )
            on_host = {name: to_host(value) for name, value in values.items()}
            for i in range(len(self.runs)):
                self.buffer.add_point(step + 1, i, {name: float(value[i]) for name, value in on_host.items()})

    @spends("evaluated")
    def score_items(self, state: TrainState, step: int) -> None:
        """Measure the scores on items that are due at `step`, and record them."""
        models = self.program.evaluated(state, self.numbers)
        for i, values in enumerate(self.evaluator.items.evaluate(models, self.scores[step])[: len(self.runs)]):
            self.buffer.add_point(step, i, values)

    @spends("evaluated")
    def select(self, state: TrainState, step: int) -> TrainState:
        """Let the runs choose by their validation loss, and return the state in which those that stop are ended.

        A run's curves end where it stops, with the values that it has if it is trained alone.
        """
        state, losses = self.program.select(state, self.numbers, self.seeds, self.program.selection_set)
        on_host = {name: to_host(values) for name, values in losses.items()}
        for name in (f"{SELECTION}/{slot}" for slot in self.selections[step]):
            for i in range(len(self.runs)):
                self.buffer.add_point(step, i, {name: float(on_host[name][i])} if name in on_host else {})
        if state.stopped_at is None or not (new := self.newly_stopped(state)):
            return state
        models = self.program.evaluated(state, self.numbers)
        values = self.evaluator.evaluate(models, "val", whole=False)
        texts = self.evaluator.draw_texts(models, self.seeds, step)
        for i in new:
            self.buffer.add_point(step, i, {**values[i], **cost(self.program, self.runs[i], step)})
        self.end_runs(state)
        self.write(lambda writer: writer.write_texts(step, {i: text for i, text in texts.items() if i in new}))
        self.callback.on_stop(step, [self.runs[i] for i in new], (self.steps - step) if self.over else 0)
        for i in new:
            self.callback.on_evaluate(step, self.runs[i], values[i])
        return state

    def newly_stopped(self, state: TrainState) -> list[int]:
        """Return the indices of the runs that have stopped since the last call of `end_runs`."""
        stopped = to_host(state.stopped_at)[: len(self.runs)] >= 0
        return np.flatnonzero(stopped & (self.stopped_at[: len(self.runs)] < 0)).tolist()

    def end_runs(self, state: TrainState) -> None:
        """End the curves of the runs that have stopped."""
        if state.stopped_at is not None:
            self.stopped_at = to_host(state.stopped_at)
            for i in np.flatnonzero(self.stopped_at >= 0).tolist():
                self.buffer.end_run(i)

    def close_border(self, state: TrainState, step: int, checkpoints: Checkpoints) -> None:
        """Evaluate, sample and store as due at `step`. Metrics are stored before the state to which they belong."""
        if step in self.evals and not self.over:
            self.evaluate(state, step)
        self.store(step)
        if step in self.saves or self.over:
            if self.train.keep_checkpoints and step < self.steps:
                files = {
                    i: files
                    for i, files in self.model_files(self.program.evaluated(state, self.numbers)).items()
                    if self.stopped_at[i] < 0
                }
                self.write(lambda writer: writer.write_checkpoints(step, files))
            self.save_state(state, step, checkpoints)
        self.callback.on_save(step)
        self.clock.note()

    @spends("evaluated")
    def evaluate(self, state: TrainState, step: int) -> None:
        """Evaluate and sample the models at `step`, and record the values."""
        models = self.program.evaluated(state, self.numbers)
        values = self.evaluator.evaluate(models, "val", whole=step == self.steps)
        for i, run in enumerate(self.runs):
            self.buffer.add_point(step, i, {**values[i], **cost(self.program, run, step)})
            self.callback.on_evaluate(step, run, values[i])
        texts = self.evaluator.draw_texts(models, self.seeds, step)
        texts = {place: text for place, text in texts.items() if self.stopped_at[place] < 0}
        self.write(lambda writer: writer.write_texts(step, texts))
        for place, text in texts.items():
            self.callback.on_sample(step, self.runs[place], text)

    def store(self, step: int) -> None:
        """Store all values measured since the last store."""
        start, end, points = self.buffer.flush()
        self.write(lambda writer: writer.append(start, end, points, self.times(), self.stopped_at))

    def times(self) -> dict[str, float]:
        """Return the total wall time, the time per step of one run and per evaluated token, and the usage of devices.

        Times that are not known yet are NaN.
        """
        step, forward = (self.step_seconds, self.evaluator.seconds_per_token) if self.alone else (math.nan, math.nan)
        passed = {"seconds": time.monotonic() - self.began, "step_seconds": step, "forward_seconds": forward}
        return passed | self.used().times

    @property
    def step_seconds(self) -> float:
        """The wall time per step of one run, excluding the first dispatch; NaN if it is not known yet."""
        return self.timed / self.timed_steps / self.plan.width if self.timed_steps else math.nan

    def used(self) -> Usage:
        """Return the utilisation and memory of the pack's devices. Padding does not count as utilisation."""
        tokens = len(self.runs) * self.train.batch_size * self.source.seq_len * self.timed_steps
        per_token = training_flops_per_token(self.runs[0].config, self.source)
        rate = tokens * per_token / self.timed if self.timed else None
        return measure_usage(list(self.program.mesh.devices.flat), rate)

    @spends("written")
    def save_state(self, state: TrainState, step: int, checkpoints: Checkpoints) -> None:
        """Write a checkpoint, with the digests of the runs' stored files."""
        digests: dict[str, Any] = {}
        self.write(lambda writer: digests.update(writer.digests()))
        checkpoints.save(step, state, runs=digests)

    def finish(self, state: TrainState) -> None:
        """Write each run's model and result. The result is written last, since it marks the run as done.

        Raises:
            NotReproduced: if a saved model does not reproduce the losses of its run. This run then gets no result.
        """
        models = self.program.evaluated(state, self.numbers)
        with self.clock.spend("evaluated"):
            final = self.evaluator.evaluate_at_end(models)
            if "val" not in self.evaluator.sums:  # the process was killed between the last evaluation and the result
                self.evaluator.evaluate(models, "val")
        diverged = to_host(state.diverged_at)
        final = [whole | rest for whole, rest in zip(self.evaluator.whole.get("val", final), final, strict=True)]
        selected = selection_facts(self.train, state)
        stored = self.write_models(self.model_files(models))
        with self.clock.spend("evaluated"):
            wrong = mismatches(self.program, models, stored, self.evaluator.windows, self.evaluator.first_batch)
        right = [i for i in stored if i not in wrong]
        self.write(lambda writer: writer.finish(right, self.evaluator, final, diverged, selected))
        if wrong:
            raise NotReproduced({self.runs[i].id: f"{self.runs[i].folder.where}: {wrong[i]}" for i in wrong})

    @spends("written")
    def write_models(self, files: dict[int, Files]) -> dict[int, Files]:
        """Write the final models, read them back, and return them.

        Processes that do not write return `files`. The primary process checks that the files read back are identical.
        """
        stored = dict(files)

        def write_and_read(writer: ResultWriter) -> None:
            writer.write_models(files)
            stored.update(writer.read_models())
            if multi_process() and stored != files:
                raise Failed(f"the models of pack {self.plan.id} cannot be read back as they were written")

        self.write(write_and_read)
        return stored

    @spends("written")
    def model_files(self, models: LM) -> dict[int, Files]:
        """Return the models of the runs without a result as files, by index in the pack.

        Args:
            models: the models, with a leading run axis.
        """
        files: dict[int, Files] = {}
        for i in self.writer.open:
            model = jax.tree.map(partial(take_run, run=i), models)
            source, start = self.source, self.starts[i] if self.starts else None
            files[i] = to_files(
                model, self.runs[i].config.model, interface=source.interface, seq_len=source.seq_len,
                tokenizer=source.tokenizer, tokens=source.unit if source.tokenizer is None else "",
                special_tokens=source.special_tokens
                or (None if start is None or source.tokenizer is None else start.special_tokens),
            )  # fmt: skip
        return files

"""The host's side of training a pack: from its plan to finished run folders, whenever it is killed in between."""

import math
import time
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from functools import partial
from typing import Any, NoReturn

import jax
import numpy as np

from taetpu.core.distributed import fetched, several, together
from taetpu.core.plugins import refuse_changes
from taetpu.core.signals import ending, listening, noted
from taetpu.core.static_dynamic import split
from taetpu.data.batches import Source, evaluation_order
from taetpu.spec.evaluation import Sample
from taetpu.spec.resolved_study import RunSpec
from taetpu.store.backend import at_once
from taetpu.store.metrics import SAMPLED
from taetpu.store.runs import RunFolder
from taetpu.store.study import StudyFolder
from taetpu.train.callbacks import Watcher
from taetpu.train.checkpoint import Checkpoints
from taetpu.train.count import num_params
from taetpu.train.flops import training_flops_per_token
from taetpu.train.memory import kv_bytes, state_bytes, step_bytes
from taetpu.train.metric_buffer import Recorder, blocks, checkpoint_steps, measured
from taetpu.train.model_io import to_files
from taetpu.train.pack import Program, stack_numbers
from taetpu.train.pack_plan import PackPlan
from taetpu.train.profile import OFF, Profile
from taetpu.train.readback import NotReproduced, mismatches
from taetpu.train.step import TrainState
from taetpu.train.usage import Usage, usage

# A dispatch should take about this long: short enough for a lively progress bar, long enough to cost nothing. A pack of
# many large runs takes longer, for a few steps: fetching and storing a run's state costs as much as a tenth of a step.
SECONDS_PER_DISPATCH = 0.7
FEW_STEPS, MOST_SECONDS = 4, 4.0


def dispatch_size(last: int, pace: float) -> int:
    """How many steps to dispatch next, after so many at so many a second."""
    fitting = max(SECONDS_PER_DISPATCH * pace, min(FEW_STEPS, MOST_SECONDS * pace))
    return int(np.clip(fitting, 1, 2 * last))


@dataclass
class PackTrainer:
    """Trains one pack to its end.

    Args:
        program: compiled functions; shared by packs of one structure and width.
        runs, folders: the pack's runs and where each is stored.
        environment: what the runs were trained with, for their results.
        sample: of the validation split, evaluated during training.
        profile: is told of dispatches, and may trace some.
    """

    plan: PackPlan
    program: Program
    runs: Sequence[RunSpec]
    folders: Sequence[RunFolder]
    study: StudyFolder
    watcher: Watcher
    environment: dict[str, Any]
    sample: Sample
    profile: Profile = OFF

    def __post_init__(self) -> None:
        padding = [self.runs[0]] * (self.plan.width - len(self.runs))
        everyone = [*self.runs, *padding]
        numbers = [split(run.config, frozenset(self.plan.live))[1] for run in everyone]
        self.train = self.runs[0].config.train
        self.steps = self.program.steps
        self.numbers = self.program.place(stack_numbers(numbers))
        self.seeds_on_host = [run.seed for run in everyone]
        self.seeds = self.program.place(np.array(self.seeds_on_host, np.int32))
        self.evals = self.train.evaluations(self.steps)
        self.saves = checkpoint_steps(self.steps, self.train.checkpoint, self.evals)
        looks = {metric.every for metric in self.train.metrics.values()}
        self.looks = {step - 1: [n for n in looks if step % n == 0]
                      for n in looks for step in range(n, self.steps + 1, n)}  # fmt: skip
        # Killed while results were written: what is done stays as it is, and is only trained along.
        self.open = [folder for folder in self.folders if folder.status() != "done"]
        self.own_runs = self.program.own_runs
        self.facts = dict(self.source.facts)
        self.dispatch, self.began = 1, time.monotonic()
        # Wall time of steps, the first dispatch left out because it compiles, and of a token in the last evaluation.
        self.compiled, self.timed, self.timed_steps, self.forward = False, 0.0, 0, math.nan
        self.sequences: dict[str, dict[str, np.ndarray]] = {}  # of the last evaluation, by split
        self.first_batch: dict[str, dict[str, np.ndarray]] = {}  # the same in the order of `windows`
        self.warm: set[str] = set()  # splits whose evaluation is compiled
        held = self.source.evaluation("val")
        self.held_out = 0 if held is None else len(held.tokens)  # windows, of which so many are in the sample:
        self.sampled = self.sample.among(self.held_out) if self.held_out else 0
        self.windows = {name: self.program.evaluation_set(name, self.sampled) for name in ("val", "test")}

    @property
    def source(self) -> Source:
        return self.program.source

    def run(self) -> None:
        """Train from the last checkpoint, or from the start, to finished run folders."""
        pack = self.plan.id
        saved = Checkpoints(self.study.pack(pack), self.watcher.damaged)
        with self.interruptible() as self.check, ending() as self.ending, saved as checkpoints, self.profile:
            state, step = self.begin(checkpoints)
            self.recorder = Recorder(self.plan.width, self.train.log_every, step)
            for border in sorted({*self.evals, *self.saves, *self.looks}):
                if border > step:
                    state, step = self.advance(state, step, border)
                    if step < border:
                        self.leave(state, step, checkpoints)
                    if step in self.evals or step in self.saves:
                        self.at_border(state, step, checkpoints)
                if border == step:  # a look at the next step is taken again after a stop: it is stored behind this one
                    self.look(state, step)
        self.finish(state)

    def interruptible(self) -> AbstractContextManager[Callable[[], Any]]:
        """Hears Ctrl-C. One of several processes must not stop where others go on: they agree on where to."""
        return noted() if several() else listening()

    def begin(self, checkpoints: Checkpoints) -> tuple[TrainState, int]:
        """The state to go on from. What was logged after it is dropped: it will be written again, the same."""
        state, step = checkpoints.resume(self.program.init(self.numbers, self.seeds), self.check_runs)
        self.watcher.resumed(step)
        for folder in self.open:
            folder.truncate(step)
        return state, step

    def check_runs(self, about: dict[str, Any]) -> None:
        """Raise `Damaged` unless the files of the runs are those that a checkpoint was written after."""
        for folder in self.open:
            if folder.key in about.get("runs", {}):
                folder.verify_files(about["runs"][folder.key])
            else:  # of an earlier version
                folder.metrics()

    def advance(self, state: TrainState, step: int, border: int) -> tuple[TrainState, int]:
        """Train to `border`, or to where the run can be left before it; the step that was reached.

        Metrics are read one dispatch late, so that the device never waits for the host.
        """
        pending: tuple[int, Any] | None = None
        clock = time.monotonic()
        while step < border or pending:
            stop, leave, dispatch = together(self.check(), self.ending(), number=self.dispatch)
            if stop:
                raise KeyboardInterrupt
            if leave:
                border = min(border, self.recorder.closes(step))
            issued = None
            if step < border:
                most = min(self.program.chunk, border - step)
                size = self.profile.next(step, min(dispatch, most), most, state)
                count = np.int32(size)
                state, metrics = self.program.advance(
                    state, self.numbers, self.seeds, self.fed(self.rows(step, size)), count, self.program.arrays
                )
                step, issued = step + size, (size, metrics)
                self.profile.dispatched(size, metrics)
            if pending:
                self.log(*pending)
                now = time.monotonic()
                pace = pending[0] / max(now - clock, 1e-6)
                if self.compiled and not self.profile.distorts(self.recorder.end):
                    self.timed, self.timed_steps = self.timed + now - clock, self.timed_steps + pending[0]
                self.compiled = True
                self.dispatch, clock = dispatch_size(self.dispatch, pace), now
            pending = issued
        return state, step

    def leave(self, state: TrainState, step: int, checkpoints: Checkpoints) -> NoReturn:
        """Write down what there is, between borders, because the machine is about to be taken away."""
        if step > self.recorder.start:
            self.store(step)
        if checkpoints.latest() != step:
            self.save_state(state, step, checkpoints)
        raise KeyboardInterrupt

    def rows(self, step: int, size: int) -> np.ndarray:
        """Window numbers of the next `size` steps, `(width, chunk, batch)`; what is beyond `size` is not read, nor what
        belongs to another process.
        """
        batch = self.train.batch_size
        rows = np.zeros((self.plan.width, self.program.chunk, batch), np.int32)
        for i in self.own_runs:
            rows[i, :size] = self.source.rows(self.seeds_on_host[i], step, size, batch)
        return rows

    def fed(self, rows: np.ndarray) -> Any:
        """Rows as the program takes them: of several processes each hands in its own."""
        return self.program.place(rows) if several() else rows

    def log(self, size: int, metrics: dict[str, jax.Array]) -> None:
        """Take in the metrics of a dispatch; waits until it is done."""
        host = {name: fetched(values)[:, :size] for name, values in metrics.items()}
        self.recorder.add_steps(host)
        self.watcher.advanced(self.recorder.end, host["train/loss"][: len(self.runs), -1])
        self.watcher.used(self.used())

    def look(self, state: TrainState, step: int) -> None:
        """Measure what is due of the next update; it is that update's number, counted from 1, that it is stored by."""
        for every in self.looks.get(step, ()):
            rows = self.fed(self.rows(step, 1)[:, 0])
            found = self.program.observe(every)(state, self.numbers, self.seeds, rows, self.program.arrays)
            host = {name: fetched(values) for name, values in found.items()}
            for i in range(len(self.runs)):
                self.recorder.add_point(step + 1, i, {name: float(values[i]) for name, values in host.items()})
            self.watcher.looked(step)

    def at_border(self, state: TrainState, step: int, checkpoints: Checkpoints) -> None:
        """Evaluate, sample, and write down what there is, metrics before the state that they belong to."""
        if step in self.evals:
            values = self.evaluation(state, "val", whole=step == self.steps)
            for i, run in enumerate(self.runs):
                self.recorder.add_point(step, i, {**values[i], **self.spent(run, step)})
                self.watcher.evaluated(step, run, values[i])
            self.show_samples(state, step)
        self.store(step)
        if step in self.saves:
            self.save(state, step, checkpoints)
        self.watcher.stored(step)

    def store(self, step: int) -> None:
        """Write what was measured since the last time."""
        start, end, points = self.recorder.flush()
        times = {name: ([end], [value]) for name, value in self.times().items()}
        at_once(
            self.study.store,
            (partial(folder.append, start, end, series, times)
             for folder, series in zip(self.folders, points, strict=False) if folder in self.open),
        )  # fmt: skip

    def times(self) -> dict[str, float]:
        """Wall time so far, and what a step and an evaluated token of one run have taken; NaN before it is known."""
        step = self.timed / self.timed_steps / self.plan.width if self.timed_steps else math.nan
        taken = {"seconds": time.monotonic() - self.began, "step_seconds": step, "forward_seconds": self.forward}
        return taken | self.used().times

    def used(self) -> Usage:
        """What the pack's devices are used for; places of the pack that only fill it up do not count."""
        run, seq_len = self.runs[0], self.source.seq_len
        tokens = len(self.runs) * self.train.batch_size * seq_len * self.timed_steps
        per_token = training_flops_per_token(run.config, self.source)
        rate = tokens * per_token / self.timed if self.timed else None
        return usage(list(self.program.mesh.devices.flat), rate)

    def save(self, state: TrainState, step: int, checkpoints: Checkpoints) -> None:
        """Write the models where they are kept, then the resume state: once that stands, nothing before is redone."""
        if self.train.keep_checkpoints and step < self.steps:
            for i, folder in enumerate(self.folders):
                if folder in self.open:
                    folder.write_checkpoint(step, self.model_files(state, i))
        self.save_state(state, step, checkpoints)

    def save_state(self, state: TrainState, step: int, checkpoints: Checkpoints) -> None:
        """Write the resume state, with digests of what is stored of the runs by now.

        Raises:
            UserError: a plug-in has changed what all runs share; nothing computed since then is resumed from.
        """
        refuse_changes()
        checkpoints.save(step, state, runs={folder.key: folder.digests() for folder in self.open})

    def evaluation(self, state: TrainState, split_name: str, *, whole: bool = True) -> list[dict[str, float]]:
        """The metrics of every run on a split and, of `val`, on the sample; on that alone unless `whole`. Nothing where
        the task has no such split.
        """
        windows, data = self.windows[split_name], self.source.evaluation(split_name)
        if windows is None or data is None:
            return [{}] * self.plan.width
        began, (_, size, length) = time.monotonic(), windows.tokens.shape
        order = evaluation_order(len(data.tokens))
        count = -(-(len(order) if whole else self.sampled) // size)
        rows = self.program.evaluated(state.model, windows, count)
        if split_name in self.warm:  # the first time compiles
            self.forward = (time.monotonic() - began) / (count * size * length * self.plan.width)
        self.warm.add(split_name)
        part = {name: values[:, : self.sampled] for name, values in rows.items()}
        metrics = measured(part, SAMPLED, data) if split_name == "val" else [{}] * self.plan.width
        if whole:  # in the split's own order
            own = {name: values[:, np.argsort(order)] for name, values in rows.items()}
            self.sequences[split_name] = own
            self.first_batch[split_name] = {name: values[:, :size] for name, values in rows.items()}
            metrics = [a | b for a, b in zip(measured(own, split_name, data), metrics, strict=True)]
        return metrics

    def spent(self, run: RunSpec, step: int) -> dict[str, float]:
        """What a run has cost after `step` steps: tokens seen and training FLOPs."""
        tokens = step * self.train.batch_size * self.source.seq_len
        per_token = training_flops_per_token(run.config, self.source)
        return {"tokens": tokens, "flops": tokens * per_token}

    def show_samples(self, state: TrainState, step: int) -> None:
        """A continuation of the task's prompt from the first seed of every arm."""
        if self.train.sample is None or not self.runs[0].config.task.causal:
            return
        prompt = self.source.prompt()
        drawn = fetched(self.program.sample(state.model, self.seeds, np.int32(step), prompt))
        shown: set[str] = set()
        for i, run in enumerate(self.runs):
            if run.arm not in shown:
                shown.add(run.arm)
                text = self.source.show(drawn[i])
                self.folders[i].write_sample(step, text)
                self.watcher.sampled(step, run, text)

    def finish(self, state: TrainState) -> None:
        """Write each run's model and result. The result comes last: it alone says that a run is done.

        Raises:
            NotReproduced: the saved model of a run does not compute what was trained; that run gets no result.
            UserError: a plug-in has changed what all runs share; no run of the pack gets a result.
        """
        test = self.evaluation(state, "test")
        if "val" not in self.sequences:  # killed between the last evaluation and the result
            self.evaluation(state, "val")
        diverged = fetched(state.diverged_at)
        places = [i for i, folder in enumerate(self.folders) if folder in self.open]
        at_once(self.study.store, (partial(self.folders[i].write_model, self.model_files(state, i)) for i in places))
        stored = {i: self.folders[i].read_model() for i in places}
        wrong = mismatches(self.program, state.model, stored, self.windows, self.first_batch)
        refuse_changes()
        at_once(
            self.study.store,
            (partial(self.finish_run, i, test[i], int(diverged[i])) for i in places if i not in wrong),
        )  # fmt: skip
        if wrong:
            raise NotReproduced({self.runs[i].id: f"{self.folders[i].where}: {wrong[i]}" for i in wrong})

    def finish_run(self, i: int, test: dict[str, float], diverged: int) -> None:
        """Write one run's evaluation and result.

        Args:
            test: its metrics on the test split.
            diverged: the step at which it did; below 0 if it did not.
        """
        run, folder = self.runs[i], self.folders[i]
        folder.write_evaluation({
            f"{name}/{sum_}": blocks(values[i])
            for name, sums in self.sequences.items() for sum_, values in sums.items()
        })  # fmt: skip
        spent = self.spent(run, self.steps)
        series = folder.metrics()
        looked = {*spent, *(name for name in series if name.split("/")[0] in self.train.metrics)}
        last = {name: float(s.value[-1]) for name, s in series.items() if name not in looked}
        bad = diverged >= 0 or not all(math.isfinite(v) for v in last.values())
        folder.finish(
            {
                "outcome": "diverged" if bad else "finished",
                "diverged_at": diverged if diverged >= 0 else None,
                "steps": self.steps,
                "metrics": {**last, **test},
                "val_sample": {"windows": self.sampled, "of": self.held_out},
                "params": num_params(run.config.model, self.source.vocab_size, self.source.seq_len),
                "memory": {
                    "training": state_bytes(run.config, self.source)
                    + step_bytes(run.config, self.source, self.plan.compute, self.plan.precision),
                    "kv_cache": kv_bytes(run.config, self.source),
                },
                **spent,
                "pack": self.plan.facts,
                "environment": {**self.environment, "data": self.facts},
            }
        )

    def model_files(self, state: TrainState, i: int) -> dict[str, bytes]:
        """The model of one run as files."""
        model = jax.tree.map(lambda a: fetched(a[i]) if several() else a[i], state.model)
        source = self.source
        config = self.runs[i].config.model
        return to_files(model, config, vocab_size=source.vocab_size, seq_len=source.seq_len, tokenizer=source.tokenizer)

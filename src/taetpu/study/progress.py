"""The display of a study in training: a live table on a terminal, one line per evaluation in logs."""

import time
import traceback
from collections.abc import Sequence
from datetime import timedelta
from threading import Timer
from types import TracebackType
from typing import Any

import numpy as np
from rich.console import Console, Group
from rich.live import Live
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TaskProgressColumn, TextColumn, TimeElapsedColumn
from rich.table import Table
from rich.text import Text

from taetpu.core.errors import Failed
from taetpu.core.plugins import explain_plugin_error
from taetpu.report.short_names import shorten_names
from taetpu.report.usage import describe_usage
from taetpu.spec.resolved_study import RunSpec
from taetpu.store.metrics import progress_metric
from taetpu.train.callbacks import Callback, Forecast, Span
from taetpu.train.layout import Layout
from taetpu.train.pack_plan import PackPlan
from taetpu.train.usage import Usage

WIDTH = 80  # columns of a sampled text
MIN_SECONDS = 0.2  # training time before a speed is shown
NAME = 36  # columns of an arm's name
ROWS = 12  # maximum number of arms in the table
DELAY = 2.0  # seconds before a bar appears


class StudyProgress(Callback):
    """Displays the training of a study on `console`. Use it as a context manager around the training."""

    def __init__(self, console: Console):
        self.console = console
        self.bars = Progress(
            TextColumn("{task.description}"),
            BarColumn(bar_width=16),
            TaskProgressColumn(),
            TextColumn("{task.fields[rate]}"),
            TimeElapsedColumn(),
            TextColumn("{task.fields[left]}"),
            console=console,
        )
        self.bar = self.bars.add_task("preparing", total=None, rate="", left="")
        self.pace = Pace()
        self.losses: dict[str, dict[int, float]] = {}
        self.primary = "val/loss"
        self.evals: dict[str, dict[int, dict[str, float]]] = {}
        self.text = ""
        self.use = ""
        self.runs: Sequence[RunSpec] = ()
        self.step = 0
        self.live = Live(get_renderable=self.render, console=console, refresh_per_second=4, transient=True)

    def __enter__(self) -> "StudyProgress":
        if self.console.is_terminal:
            self.live.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None):
        if self.console.is_terminal:
            self.live.stop()

    def on_study_begin(self, primary: str) -> None:
        """Store the primary metric, which represents evaluations."""
        self.primary = primary

    def on_step_timing(self, arm: str) -> None:
        """Display the arm whose step is timed."""
        self.bars.update(self.bar, description=f"timing a step of {arm}")

    def on_plan_reused(self, plan: PackPlan) -> None:
        """Report a pack whose stored plan is used although it does not respect `--pack`."""
        layout = describe_layout(plan.layout)
        self.warn(f"{len(plan.runs)} runs keep their stored plan, unlike --pack: {layout} ({plan.chosen})")

    def on_damage(self, where: str, problem: str, moved: str) -> None:
        """Report a damaged file."""
        self.warn(f"damaged: {where}: {problem}" + (f"; moved to {moved}" if moved else ""))

    def on_forecast(self, forecast: Forecast | None) -> None:
        """Store the forecast, and print the predicted duration in logs."""
        self.pace.forecast = forecast
        if forecast is not None:
            self.log(f"time: {_between(forecast.total)}, from {forecast.source}; refined once steps have been timed")

    def on_train_begin(self, run_steps: int) -> None:
        """Extend the bar by the given number of run-steps."""
        self.bars.update(self.bar, total=self.bars.tasks[0].completed + run_steps)

    def on_pack_begin(self, number: int, total: int, runs: Sequence[RunSpec]) -> None:
        """Display the pack and its arms."""
        self.runs, self.step, self.use = runs, 0, ""
        self.pace.pack(total - number)
        self.bars.update(self.bar, description=f"pack {number}/{total}", rate="compiling", left=self.left())
        arms = self.arms()
        names = ", ".join(arms[:3]) + (f" and {len(arms) - 3} more" if len(arms) > 3 else "")
        self.log(f"pack {number} of {total}: {names} ({len(runs)} runs)")

    def on_resume(self, step: int) -> None:
        """Advance the bar to the step of the checkpoint."""
        self.step = step
        self.bars.advance(self.bar, step * len(self.runs))
        if step:
            self.log(f"  resuming from step {step}")

    def on_steps(self, step: int, loss: np.ndarray) -> None:
        """Advance the bar, and display losses and speed."""
        taken = (step - self.step) * len(self.runs)
        self.step = step
        self.pace.trained(taken)
        for run, value in zip(self.runs, loss, strict=True):
            self.losses.setdefault(run.arm, {})[run.seed] = float(value)
        self.bars.advance(self.bar, taken)
        self.bars.update(self.bar, rate=self.rate() or "compiling", left=self.left())

    def on_usage(self, usage: Usage) -> None:
        """Display the utilisation of the devices."""
        self.use = describe_usage(usage.times)

    def on_xla_flags_changed(self, plan: PackPlan, before: dict[str, Any], now: dict[str, Any]) -> None:
        """Report a pack that resumes with different XLA flags."""
        then, here = (" ".join(flag for given in one.values() for flag in given) or "none" for one in (before, now))
        self.warn(f"{len(plan.runs)} runs resume under other XLA flags: their numbers may differ in the last bits "
                  f"(then: {then}; now: {here})")  # fmt: skip

    def on_profile(self, where: str, summary: dict[str, Any] | None, problem: str) -> None:
        """Report the profile of a pack."""
        if summary is None:
            self.warn(f"  profiling failed: {problem}")
            return
        again = sum(one["again"] for one in summary["compiles"])
        shares = ", ".join(f"{name} {summary[name]:.0%}" for name in ("compute", "transfer", "idle"))
        self.warn(f"  profile of {summary['steps']} steps: {shares}, recompiles {again}; {where}/summary.txt")

    def on_evaluate(self, step: int, run: RunSpec, values: dict[str, float]) -> None:
        """Display the evaluation of a run. After the last run of the pack, print the mean of each arm in logs."""
        self.pace.lap("evaluated")
        self.evals.setdefault(run.arm, {})[run.seed] = values
        if run is self.runs[-1]:
            metric, arms = self.shown_metric(self.arms()), self.arms()
            means = "  ".join(f"{arm} {_mean(self.values(arm, metric))}" for arm in arms)
            pace = ", ".join(part for part in (self.rate(), self.use, self.left()) if part)
            self.log(f"  step {step}: {metric} {means}" + (f"  ({pace})" if pace else ""))

    def shown_metric(self, arms: Sequence[str]) -> str:
        """Return the metric that represents the primary metric in the last evaluations of the given arms."""
        return progress_metric(self.primary, (found for arm in arms for found in self.evals.get(arm, {}).values()))

    def values(self, arm: str, metric: str) -> dict[int, float]:
        """Return the value of a metric in an arm's last evaluations, by seed."""
        return {seed: found[metric] for seed, found in self.evals.get(arm, {}).items() if metric in found}

    def on_observe(self, step: int) -> None:
        """Record the time that an observation took."""
        self.pace.lap("observed")

    def on_sample(self, step: int, run: RunSpec, text: str) -> None:
        """Display a generated text."""
        self.pace.lap("sampled")
        self.text = f"{run.arm}: {' '.join(text.split())}"
        self.log(f"  sample of {self.text}"[:WIDTH])

    def on_save(self, step: int) -> None:
        """Record the time that storing a checkpoint took."""
        self.pace.lap("stored")

    def on_seeds_added(self, seeds: Sequence[int]) -> None:
        """Report that seeds were added for the next interim analysis."""
        self.warn(f"an arm is inconclusive: training {len(seeds)} seeds per arm for the next interim analysis")

    def on_replicate(self, runs: Sequence[RunSpec]) -> None:
        """Report the runs that are trained again."""
        self.warn(f"reused runs trained again to verify them: {len(runs)}")

    def on_remote_pack_end(self, number: int, total: int, runs: Sequence[RunSpec], run_steps: int) -> None:
        """Display a pack that was trained on another machine."""
        arms = list(dict.fromkeys(run.arm for run in runs))
        self.runs = runs
        self.log(
            f"pack {number} of {total} ended: {', '.join(arms[:3])}{' ...' if len(arms) > 3 else ''} ({len(runs)} runs)"
        )
        self.bars.update(self.bar, description=f"packs {number}/{total}", rate="", left="")
        self.bars.advance(self.bar, run_steps)

    def on_wait(self, reason: str) -> None:
        """Display the reason for which the study waits."""
        if reason:
            self.log(f"waiting: {reason}")
        self.bars.update(self.bar, description=f"waiting: {reason}" if reason else "preparing", rate="", left="")

    def on_pack_split(self, runs: Sequence[RunSpec], plans: Sequence[PackPlan], error: Exception | None) -> None:
        """Report a pack that ran out of memory, and subtract its steps from the bar."""
        self.bars.advance(self.bar, -self.step * len(self.runs))
        self.step = 0
        names = f"{len(plans)} packs of {plans[0].width}"
        self.warn(f"out of memory: the pack of {len(runs)} runs, and those like it, restart as {names} ({error})")

    def on_pack_failed(self, runs: Sequence[RunSpec], error: Exception) -> None:
        """Print the error of a pack. A traceback is included unless the message explains the error."""
        if isinstance(error, Failed):  # the message explains the error
            message = f"runs failed: {len(runs)}\n{error}"
        else:
            trace = "".join(traceback.format_exception(error)).rstrip()  # the error may be in a plug-in
            self.console.print(Text(trace), style="dim", soft_wrap=True)
            message = (
                f"pack of {len(runs)} runs failed: {explain_plugin_error(error) or f'{type(error).__name__}: {error}'}"
            )
        self.console.print(Text(message), style="red", soft_wrap=True)

    def on_tracker_failed(self, tracker: str, problem: str) -> None:
        """Report a tracker that is switched off because it failed."""
        self.warn(f"tracker {tracker} is switched off: {problem}; training continues")

    def arms(self) -> list[str]:
        """Return the arms of the pack in training."""
        return list(dict.fromkeys(run.arm for run in self.runs))

    def rate(self) -> str:
        """Return the speed of the pack, such as `12,345 tokens/s`, or "" if it is unknown."""
        train, task = self.runs[0].config.train, self.runs[0].config.task
        steps = self.pace.steps_per_second()
        return f"{steps * train.batch_size * task.seq_len:,.0f} tokens/s" if steps else ""

    def left(self) -> str:
        """Return the remaining time, such as `0:01:05 left`; a range if no step was timed yet, "" if it is unknown."""
        bar = self.bars.tasks[0]
        seconds = self.pace.left((bar.total or 0) - bar.completed)
        if seconds is not None:
            return f"{timedelta(seconds=round(seconds))} left"
        expected = self.pace.expected()
        return f"{_between(expected)} left" if expected else ""

    def log(self, line: str) -> None:
        """Print a line in logs. A terminal shows the live table instead."""
        if not self.console.is_terminal:
            self.console.print(Text(line), soft_wrap=True)

    def warn(self, line: str) -> None:
        """Print a line in logs and on terminals."""
        self.console.print(Text(line), style="yellow", soft_wrap=True)

    def render(self) -> Group:
        """Return the live display: the bar, the device utilisation, the arms' last losses and the last sample."""
        arms = list(self.losses)[-ROWS:]
        metric = self.shown_metric(arms)
        table = Table(box=None, pad_edge=False, header_style="dim")
        table.add_column("arm", no_wrap=True)
        table.add_column("train/loss", justify="right")
        table.add_column(metric, justify="right")
        for arm, name in zip(arms, shorten_names(arms, NAME), strict=True):
            table.add_row(Text(name), _mean(self.losses[arm]), _mean(self.values(arm, metric)))
        sample = Text(self.text[: 2 * WIDTH], style="dim italic")
        use = [Text(self.use, style="dim")] if self.use else []
        return Group(self.bars, *use, *([table] if arms else []), sample)


class Pace:
    """Measures the speed of training and predicts the remaining time. Compile time is measured separately."""

    def __init__(self) -> None:
        self.clock = self.started = time.monotonic()
        self.forecast: Forecast | None = None
        self.evaluated = False  # whether an evaluation has been timed
        self.packs, self.packs_left = 0, 0
        self.compiling = 0.0  # seconds, over all packs
        self.working = 0.0  # seconds of everything else: steps, evaluations, checkpoints
        self.steps = 0  # run-steps taken in `working`
        self.reset_pack()

    def reset_pack(self) -> None:
        """Clear the events and steps of the previous pack."""
        self.seen: set[str] = set()
        self.pack_seconds, self.pack_steps = 0.0, 0

    def pack(self, left: int) -> None:
        """Start measuring a pack. `left` is the number of packs that follow it."""
        self.packs, self.packs_left, self.clock = self.packs + 1, left, time.monotonic()
        self.reset_pack()

    def lap(self, event: str) -> float:
        """Record an event and return the seconds since the previous event.

        The first event of its kind in a pack counts as compile time, and 0 is returned.
        """
        now = time.monotonic()
        took, self.clock = now - self.clock, now
        first = event not in self.seen
        self.seen.add(event)
        if first:
            self.compiling += took
            return 0.0
        self.working += took
        self.evaluated |= event == "evaluated"
        return took

    def trained(self, run_steps: int) -> None:
        """Record the number of steps that the runs of the pack have taken since the last call, in total."""
        if took := self.lap("trained"):
            self.steps += run_steps
            self.pack_steps += run_steps
            self.pack_seconds += took

    def steps_per_second(self) -> float | None:
        """Return this pack's run-steps per second, excluding evaluations and checkpoints; None if they are unknown."""
        return self.pack_steps / self.pack_seconds if self.pack_seconds > MIN_SECONDS else None

    def expected(self) -> Span | None:
        """Return the remaining time according to the forecast, or None without a forecast."""
        passed, known = time.monotonic() - self.started, self.forecast
        return known and Span(max(known.total.low - passed, 0.0), max(known.total.high - passed, 0.0))

    def left(self, run_steps: float) -> float | None:
        """Return the predicted seconds for `run_steps` further steps, including the compile time of later packs.

        The prediction uses the measured speed. Until an evaluation has been timed, the times of evaluation and
        compilation come from the forecast. Returns None before the first steps have been timed.
        """
        if not self.steps:
            return None
        known = self.forecast
        waiting = "trained" not in self.seen  # this pack is not compiled yet
        compiling, beside = self.compiling / (self.packs - waiting), 0.0
        if known is not None and not self.evaluated:
            compiling, beside = max(compiling, known.compiling.middle / known.programs), known.beside
        return run_steps * self.working / self.steps * (1 + beside) + (self.packs_left + waiting) * compiling


def describe_layout(layout: Layout) -> str:
    """Return a description of a layout, such as `packs of 8 on 2 devices`."""
    packs = f"packs of {layout.width}" if layout.width > 1 else "each run alone"
    devices = f" on {layout.devices} devices" if layout.devices > 1 else ""
    return packs + devices


def _between(span: Span) -> str:
    """Return a span as text, such as `0:01:00 to 0:03:30`."""
    low, high = (timedelta(seconds=round(end)) for end in (span.low, span.high))
    return f"{low} to {high}"


def _mean(values: dict[int, float]) -> str:
    return f"{np.mean(list(values.values())):.3f}" if values else "-"


class DelayedBar:
    """A progress bar that appears on a terminal if the work takes longer than `DELAY`.

    Use it as a context manager, and call it with the number of finished parts and the total number of parts.
    """

    def __init__(self, console: Console, what: str):
        self.bars = Progress(
            TextColumn("{task.description}"), BarColumn(bar_width=16), MofNCompleteColumn(),
            console=console, transient=True,
        )  # fmt: skip
        self.bar = self.bars.add_task(what, total=None)
        self.timer = Timer(DELAY, self.bars.start)
        self.timer.daemon = True

    def __enter__(self) -> "DelayedBar":
        if self.bars.console.is_terminal:
            self.timer.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None):
        self.timer.cancel()
        if self.timer.is_alive():  # the timer is starting the bar right now
            self.timer.join()
        if self.bars.live.is_started:  # otherwise stop() prints an empty line
            self.bars.stop()

    def __call__(self, done: int, total: int) -> None:
        """Update the bar."""
        self.bars.update(self.bar, completed=done, total=total)

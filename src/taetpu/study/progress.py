"""The display of a study in training: a live table on a terminal, one line per evaluation in logs."""

import traceback
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
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

from taetpu.core.errors import Failed, UserError
from taetpu.core.plugins import explain_plugin_error
from taetpu.core.streams import escape_controls
from taetpu.report.short_names import shorten_names
from taetpu.report.usage_text import describe_usage
from taetpu.spec.resolved_study import RunSpec, Study
from taetpu.store.metrics import progress_metric
from taetpu.study.data_travel import describe_travel
from taetpu.study.freeze import analysis_plan
from taetpu.train.callbacks import Callback
from taetpu.train.pack_plan import PackPlan
from taetpu.train.usage import Usage

WIDTH = 80  # columns of a sampled text
SPEED_SECONDS = 300.0  # period over which the speed is averaged
NAME = 36  # columns of an arm's name
SHOWN_AFTER = 2.0  # seconds before the bar of a check appears
ROWS = 12  # maximum number of arms in the table


@dataclass
class PackInTraining:
    """A pack that is being trained: its runs, its number from 1, and the step that it has reached."""

    runs: Sequence[RunSpec] = ()
    number: int = 0
    step: int = 0


class StudyProgress(Callback):
    """Displays the training of a study on `console`. Use it as a context manager around the training.

    Args:
        console: the terminal or file.
        samples: whether logs contain the texts that models generate. A terminal always shows the last one.
        nodes: whether other nodes train, so that they need the study's data.
    """

    def __init__(self, console: Console, samples: bool = False, nodes: bool = False):
        self.console, self.samples, self.nodes = console, samples, nodes
        self.bars = Progress(
            TextColumn("{task.description}"),
            BarColumn(bar_width=16),
            TaskProgressColumn(),
            TextColumn("{task.fields[rate]}"),
            TimeElapsedColumn(),
            TextColumn("{task.fields[left]}"),
            console=console,
            speed_estimate_period=SPEED_SECONDS,
        )
        self.bar = self.bars.add_task("preparing", total=None, rate="", left="")
        self.losses: dict[str, dict[int, float]] = {}
        self.primary, self.label = "val/loss", str
        self.header = ""
        self.evals: dict[str, dict[int, dict[str, float]]] = {}
        self.look: str | None = None  # the command of `taetpu lens` that opens a model of the study first
        self.evaluated: dict[tuple[str, int], int] = {}  # the step of the last evaluation, by arm and seed
        self.text = ""
        self.use = ""
        self.pack = PackInTraining()
        self.packs: list[PackInTraining] = []  # several if packs train side by side
        self.live = Live(get_renderable=self.render, console=console, refresh_per_second=4, transient=True)

    def __enter__(self) -> "StudyProgress":
        if self.console.is_terminal:
            self.live.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None):
        if self.console.is_terminal:
            self.live.stop()

    def on_study_begin(self, study: Study) -> None:
        """Store the name of the primary metric, which is displayed for each evaluation, and the header of a log.

        If other nodes train, display which data they need.
        """
        for line in describe_travel(study, shared=True) if self.nodes else ():
            self.console.print(Text(escape_controls(line)))
        task, plan = study.arms[0].config.task, analysis_plan(study)
        self.look = "sample" if task.causal else "check" if task.eval_group is None else None
        self.primary, self.label = plan.primary, lambda series: plan.metric(series).label
        self.header = (
            f"study {study.name}: arms {len(study.arms)}, seeds {len(study.seeds)}, metric {plan.metric().title}\n"
            "a line for each evaluation of a pack: the mean of each arm over its seeds (speed, memory, time left)\n"
        )

    def on_step_timing(self, arm: str) -> None:
        """Display the arm whose step is timed."""
        self.bars.update(self.bar, description=f"timing a step of {arm}")

    def on_plan_reused(self, plan: PackPlan) -> None:
        """Report a pack whose stored plan is used although it does not respect `--pack`."""
        width, runs = plan.layout.width, len(plan.runs)
        self.warn(f"--pack is ignored for {runs} runs, which are planned in packs of {width} ({plan.chosen})")

    def on_damage(self, where: str, problem: str, moved: str) -> None:
        """Report a damaged file."""
        self.warn(f"damaged: {where}: {problem}" + (f"; moved to {moved}" if moved else ""))

    def on_train_begin(self, run_steps: int) -> None:
        """Extend the bar by the given number of steps, summed over runs."""
        self.bars.update(self.bar, total=self.bars.tasks[0].completed + run_steps)

    def on_pack_begin(self, number: int, total: int, runs: Sequence[RunSpec]) -> None:
        """Display the pack and its arms."""
        self.pack = PackInTraining(runs, number)
        self.packs.append(self.pack)
        self.describe_packs(total)
        self.bars.update(self.bar, rate=self.rate() or "compiling", left=self.left())
        self.log(f"pack {number} of {total}: {self.arm_names()}")

    def on_switch(self, runs: Sequence[RunSpec]) -> None:
        """Assign the events that follow to the pack with these runs."""
        self.pack = next(pack for pack in self.packs if pack.runs == runs)

    def on_pack_end(self, runs: Sequence[RunSpec]) -> None:
        """Remove a pack from those in training."""
        self.packs = [pack for pack in self.packs if pack.runs != runs]

    def describe_packs(self, total: int) -> None:
        """Display the numbers of the packs in training."""
        numbers = ", ".join(str(pack.number) for pack in self.packs)
        name = "pack" if len(self.packs) == 1 else "packs"
        self.bars.update(self.bar, description=f"{name} {numbers}/{total}")

    def on_resume(self, step: int) -> None:
        """Subtract the steps before the checkpoint from the remaining work."""
        self.pack.step = step
        self.add_work(-step * len(self.pack.runs))
        if step:
            self.log(f"  resuming from step {step}")

    def on_steps(self, step: int, loss: np.ndarray) -> None:
        """Advance the bar, and display losses and speed."""
        taken = (step - self.pack.step) * len(self.pack.runs)
        self.pack.step = step
        for run, value in zip(self.pack.runs, loss, strict=True):
            self.losses.setdefault(run.arm, {})[run.seed] = float(value)
        self.bars.advance(self.bar, taken)
        self.bars.update(self.bar, rate=self.rate() or "compiling", left=self.left())

    def on_usage(self, usage: Usage) -> None:
        """Display the utilisation of the devices."""
        self.use = describe_usage(usage.times)

    def on_profile(self, where: str, summary: dict[str, Any] | None, problem: str) -> None:
        """Report the profile of a pack."""
        if summary is None:
            self.warn(f"  profiling failed: {problem}")
            return
        again = sum(program["again"] for program in summary["compiles"])
        shares = ", ".join(f"{name} {summary[name]:.0%}" for name in ("compute", "transfer", "idle"))
        self.warn(f"  profile of {summary['steps']} steps: {shares}, recompiles {again}; see {where}/summary.txt")

    def on_evaluate(self, step: int, run: RunSpec, values: dict[str, float]) -> None:
        """Display the evaluation of a run. When all runs are evaluated, print the mean of each arm in logs."""
        self.evals.setdefault(run.arm, {})[run.seed] = values
        self.evaluated[run.arm, run.seed] = step
        runs = self.pack.runs
        if run is runs[-1] and all(self.evaluated.get((other.arm, other.seed)) == step for other in runs):
            metric, arms = self.shown_metric(self.arms()), self.arms()
            means = "  ".join(f"{arm} {_mean(self.values(arm, metric))}" for arm in arms)
            pace = ", ".join(part for part in (self.rate(), self.use, self.left()) if part)
            self.log(f"  step {step}: {self.label(metric)} {means}" + (f"  ({pace})" if pace else ""))

    def on_stop(self, step: int, runs: Sequence[RunSpec], left: int) -> None:
        """Report runs that stopped, and subtract the steps that the pack does not take."""
        names = ", ".join(f"{run.arm} on seed {run.seed}" for run in runs)
        self.warn(f"  stopped after step {step}: {names}")
        self.add_work(-left * len(self.pack.runs))

    def shown_metric(self, arms: Sequence[str]) -> str:
        """Return the metric to display for the last evaluations of the given arms; see `progress_metric`."""
        return progress_metric(
            self.primary, (evaluation for arm in arms for evaluation in self.evals.get(arm, {}).values())
        )

    def values(self, arm: str, metric: str) -> dict[int, float]:
        """Return the value of a metric in an arm's last evaluations, by seed."""
        return {
            seed: evaluation[metric] for seed, evaluation in self.evals.get(arm, {}).items() if metric in evaluation
        }

    def on_sample(self, step: int, run: RunSpec, text: str) -> None:
        """Display a generated text."""
        self.text = f"{run.arm}: {escape_controls(' '.join(text.split()))}"
        if self.samples:
            self.log(f"  sample of {self.text}"[:WIDTH])

    def on_seeds_added(self, seeds: Sequence[int]) -> None:
        """Report that seeds were added for the next interim analysis."""
        self.warn(f"an arm is inconclusive, so {len(seeds)} seeds per arm are added for the next interim analysis")

    def on_replicate(self, runs: Sequence[RunSpec]) -> None:
        """Report the runs that are trained again."""
        self.warn(f"reused runs trained again to verify them: {len(runs)}")

    def on_remote_pack_end(self, number: int, total: int, runs: Sequence[RunSpec], run_steps: int) -> None:
        """Display a pack that was trained on another machine."""
        self.pack = PackInTraining(runs, number)
        self.log(f"pack {number} of {total} ended: {self.arm_names()}")
        self.bars.update(self.bar, description=f"packs {number}/{total}", rate="", left="")
        self.bars.advance(self.bar, run_steps)

    def on_wait(self, reason: str) -> None:
        """Display the reason why the study waits."""
        if reason:
            self.log(f"waiting: {reason}")
        self.bars.update(self.bar, description=f"waiting: {reason}" if reason else "preparing", rate="", left="")

    def on_pack_split(self, runs: Sequence[RunSpec], plans: Sequence[PackPlan], error: Exception | None) -> None:
        """Report a pack that ran out of memory, and add its steps to the remaining work."""
        self.add_work(self.pack.step * len(self.pack.runs))
        self.on_pack_end(runs)
        names = f"{len(plans)} packs of {plans[0].width}"
        self.warn(f"out of memory: the pack of {len(runs)} runs restarts as {names} ({error})")

    def on_pack_failed(self, runs: Sequence[RunSpec], error: Exception) -> None:
        """Print the error of a pack. A traceback is included unless the message explains the error."""
        self.on_pack_end(self.pack.runs)
        if isinstance(error, Failed):  # the message explains the error
            message = f"runs failed: {len(runs)}\n{error}"
        else:
            trace = "".join(traceback.format_exception(error)).rstrip()  # the error may be in a plug-in
            self.console.print(Text(trace), style="dim", soft_wrap=True)
            explained = error if isinstance(error, UserError) else explain_plugin_error(error)
            message = f"pack of {len(runs)} runs failed: {explained or f'{type(error).__name__}: {error}'}"
        self.console.print(Text(message), style="red", soft_wrap=True)

    def on_tables(self, done: int, total: int) -> None:
        """Display the progress of post-hoc ablation."""
        if not done:
            self.log(f"post-hoc ablation of trained models: {total} tables")
        self.bars.update(self.bar, description=f"post-hoc ablation {done}/{total}", rate="", left="")

    def on_table_failed(self, where: str, name: str, error: Exception) -> None:
        """Report a post-hoc ablation table that could not be computed."""
        kind = "" if isinstance(error, UserError) else f"{type(error).__name__}: "
        self.warn(f"post-hoc ablation {name} failed: {where}: {kind}{error}")

    def on_tracker_failed(self, tracker: str, problem: str) -> None:
        """Report a tracker that is switched off because it failed."""
        self.warn(f"tracker {tracker} is switched off: {problem}; training continues")

    def arms(self) -> list[str]:
        """Return the arms of the pack in training."""
        return list(dict.fromkeys(run.arm for run in self.pack.runs))

    def arm_names(self) -> str:
        """Return the arms and the number of runs of the pack in training, such as `baseline, low-lr (4 runs)`."""
        arms = self.arms()
        names = ", ".join(arms[:3]) + (f" and {len(arms) - 3} more" if len(arms) > 3 else "")
        return f"{names} ({len(self.pack.runs)} runs)"

    def rate(self) -> str:
        """Return the speed of all packs in training, such as `12,345 tokens/s`, or "" if it is unknown."""
        train, task = self.pack.runs[0].config.train, self.pack.runs[0].config.task
        speed = self.bars.tasks[0].speed
        return f"{speed * train.batch_size * task.seq_len:,.0f} tokens/s" if speed else ""

    def left(self) -> str:
        """Return the remaining time, such as `0:01:05 left`, or "" if it is unknown."""
        seconds = self.bars.tasks[0].time_remaining
        return "" if seconds is None else f"{timedelta(seconds=seconds)} left"

    def add_work(self, run_steps: int) -> None:
        """Add steps to the remaining work. A negative number removes steps."""
        self.bars.update(self.bar, total=(self.bars.tasks[0].total or 0) + run_steps)

    def log(self, line: str) -> None:
        """Print a line in logs, the first one below the header. A terminal shows the live table instead."""
        if not self.console.is_terminal:
            self.console.print(Text(self.header + line), soft_wrap=True)
            self.header = ""

    def warn(self, line: str) -> None:
        """Print a line in logs and on terminals."""
        self.console.print(Text(line), style="yellow", soft_wrap=True)

    def render(self) -> Group:
        """Return the live display: the bar, the device utilisation, the arms' last losses and the last sample."""
        arms = list(self.losses)[-ROWS:]
        metric = self.shown_metric(arms)
        table = Table(box=None, pad_edge=False, header_style="dim")
        table.add_column("arm", no_wrap=True)
        table.add_column(self.label("train/loss"), justify="right")
        table.add_column(self.label(metric), justify="right")
        for arm, name in zip(arms, shorten_names(arms, NAME), strict=True):
            table.add_row(Text(name), _mean(self.losses[arm]), _mean(self.values(arm, metric)))
        sample = Text(self.text[: 2 * WIDTH], style="dim italic")
        use = [Text(self.use, style="dim")] if self.use else []
        return Group(self.bars, *use, *([table] if arms else []), sample)


def _mean(values: dict[int, float]) -> str:
    return f"{np.mean(list(values.values())):.3f}" if values else "-"


@contextmanager
def parts_bar(console: Console, what: str) -> Iterator[Callable[[int, int], None]]:
    """Display a progress bar on a terminal from `SHOWN_AFTER` seconds on until the block ends.

    Yields:
        A function to call with the number of finished parts and the total number of parts.
    """
    if not console.is_terminal:
        yield lambda done, total: None
        return
    columns = (TextColumn("{task.description}"), BarColumn(bar_width=16), MofNCompleteColumn())
    bars = Progress(*columns, console=console, transient=True)
    bar, timer = bars.add_task(what, total=None), Timer(SHOWN_AFTER, bars.start)
    timer.daemon = True
    timer.start()
    try:
        yield lambda done, total: bars.update(bar, completed=done, total=total)
    finally:
        timer.cancel()
        timer.join()  # the bar may be starting
        bars.stop()

"""What a person sees while a study trains: a live table on a terminal, a line at each evaluation elsewhere."""

import time
from collections.abc import Sequence
from types import TracebackType

import numpy as np
from rich.console import Console, Group
from rich.live import Live
from rich.progress import BarColumn, Progress, TaskProgressColumn, TextColumn, TimeElapsedColumn
from rich.table import Table
from rich.text import Text

from taetpu.spec.design import RunSpec
from taetpu.train.watch import Watcher

ROWS = 12  # arms shown at once, the last that moved


class StudyProgress(Watcher):
    """Follows a study on `console`. Use as a context manager round the run."""

    def __init__(self, console: Console):
        self.console, self.tokens_per_step = console, 0
        self.bars = Progress(
            TextColumn("{task.description}"),
            BarColumn(bar_width=20),
            TaskProgressColumn(),
            TextColumn("{task.fields[rate]}"),
            TimeElapsedColumn(),
            TextColumn("{task.fields[left]}"),
            console=console,
        )
        self.task = self.bars.add_task("preparing", total=None, rate="", left="")
        self.losses: dict[str, dict[int, float]] = {}
        self.evals: dict[str, dict[int, float]] = {}
        self.text = ""
        self.runs: Sequence[RunSpec] = ()
        self.step = 0
        self.clock = 0.0
        self.live = Live(get_renderable=self.render, console=console, refresh_per_second=4, transient=True)

    def __enter__(self) -> "StudyProgress":
        if self.console.is_terminal:
            self.live.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None):
        if self.console.is_terminal:
            self.live.stop()

    def begun(self, run_steps: int, tokens_per_step: int) -> None:
        self.tokens_per_step = tokens_per_step
        self.bars.update(self.task, total=run_steps)

    def pack(self, number: int, of: int, runs: Sequence[RunSpec]) -> None:
        arms = list(dict.fromkeys(run.arm for run in runs))
        names = ", ".join(arms[:3]) + (f" and {len(arms) - 3} more" if len(arms) > 3 else "")
        self.runs, self.step, self.clock = runs, 0, time.monotonic()
        self.bars.update(self.task, description=f"pack {number}/{of}", rate="compiling")
        self.say(f"pack {number} of {of}: {names} ({len(runs)} runs)")

    def resumed(self, step: int) -> None:
        self.step = step
        self.bars.advance(self.task, step * len(self.runs))
        if step:
            self.say(f"  going on from step {step}")

    def advanced(self, step: int, loss: np.ndarray) -> None:
        taken = (step - self.step) * len(self.runs)
        now = time.monotonic()
        rate = taken * self.tokens_per_step / max(now - self.clock, 1e-6)
        self.step, self.clock = step, now
        for run, value in zip(self.runs, loss, strict=True):
            self.losses.setdefault(run.arm, {})[run.seed] = float(value)
        self.bars.update(self.task, advance=taken, rate=f"{rate:,.0f} tokens/s", left=self.left(rate))

    def left(self, rate: float) -> str:
        """Time that the rest would take at this rate."""
        bar = self.bars.tasks[0]
        seconds = ((bar.total or 0) - bar.completed) * self.tokens_per_step / max(rate, 1e-6)
        return f"{int(seconds // 60)}:{int(seconds % 60):02d} left"

    def evaluated(self, step: int, run: RunSpec, values: dict[str, float]) -> None:
        if "val/loss" in values:
            self.evals.setdefault(run.arm, {})[run.seed] = values["val/loss"]
        if run is self.runs[-1]:
            arms = list(dict.fromkeys(r.arm for r in self.runs))
            means = "  ".join(f"{arm} {_mean(self.evals.get(arm, {}))}" for arm in arms)
            self.say(f"  step {step}: val/loss {means}")

    def sampled(self, step: int, run: RunSpec, text: str) -> None:
        self.text = f"{run.arm}: {text}"

    def failed(self, runs: Sequence[RunSpec], error: Exception) -> None:
        self.console.print(Text(f"pack of {len(runs)} runs failed: {type(error).__name__}: {error}"), style="red")

    def say(self, line: str) -> None:
        """A line for logs; a terminal has the live table instead."""
        if not self.console.is_terminal:
            self.console.print(Text(line), soft_wrap=True)

    def render(self) -> Group:
        """The live display: the bar, the last losses of the arms, the last sample."""
        table = Table(box=None, pad_edge=False, header_style="dim")
        table.add_column("arm", max_width=36, no_wrap=True)
        table.add_column("train loss", justify="right")
        table.add_column("val loss", justify="right")
        for arm in list(self.losses)[-ROWS:]:
            table.add_row(Text(arm), _mean(self.losses[arm]), _mean(self.evals.get(arm, {})))
        sample = Text(" ".join(self.text.split())[:200], style="dim italic")
        return Group(self.bars, table, sample)


def _mean(values: dict[int, float]) -> str:
    return f"{np.mean(list(values.values())):.3f}" if values else "-"

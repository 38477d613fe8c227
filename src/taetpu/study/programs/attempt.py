"""Running the program of one run: its command is started, its metrics are stored while it runs, and its result."""

import math
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from taetpu.core.accelerators import CHOSEN
from taetpu.core.errors import UserError
from taetpu.programs.locks import hold_locks
from taetpu.programs.metric_sources import parse_sources
from taetpu.programs.metrics import MetricReader
from taetpu.programs.output import Stream
from taetpu.programs.process import Ending, Limits, Process, start_process
from taetpu.spec.programs.command import PLACES, parse_text
from taetpu.spec.programs.config_files import encode, file_format, merge, read_template
from taetpu.spec.programs.inputs import changed_inputs
from taetpu.spec.programs.settings import flatten_settings, nest_settings
from taetpu.spec.programs.study import ProgramRun, ProgramStudy
from taetpu.store.metrics import Series
from taetpu.store.runs import RunFolder
from taetpu.study.programs.run_files import RunFiles

FLUSH_SECONDS = 2.0
"""Seconds between two writes of the metrics of a running program."""


@dataclass(frozen=True)
class Slot:
    """The part of the machine that a run gets.

    Attributes:
        gpus: the GPUs, as in CUDA_VISIBLE_DEVICES; None if GPUs are not shared out.
        cpus: the cores; None if cores are not shared out.
        memory: bytes above which the program is killed; None for no limit.
        node: the name of the node of a cluster; empty for this machine.
        locks: files that are locked until all processes of the program have ended.
    """

    gpus: tuple[str, ...] | None = None
    cpus: tuple[int, ...] | None = None
    memory: int | None = None
    node: str = ""
    locks: tuple[Path, ...] = ()


@dataclass(frozen=True)
class Ended:
    """How an attempt ended.

    Attributes:
        outcome: `finished` or `diverged`; empty if the run has no result.
        how: how the program ended, such as `exit code 1`.
        problem: what is wrong although the program succeeded, such as a missing metric.
        lines: the last lines of its output.
        last: the last reported values.
        stopped: whether this process stopped the program.
    """

    outcome: str
    how: str
    problem: str = ""
    lines: tuple[str, ...] = ()
    last: Mapping[str, float] = field(default_factory=dict)
    stopped: bool = False


@dataclass
class LiveCurves:
    """Stores the metrics of a running program. It is a listener of the process, beside the reader.

    Attributes:
        run: the run.
        reader: reads the metrics of this attempt.
        earlier: the curves of earlier attempts that this one continues.
    """

    run: RunFolder
    reader: MetricReader
    earlier: Mapping[str, Series]
    stored: int = 0
    changes: int = 0
    written_at: float = field(default_factory=time.monotonic)

    def __post_init__(self) -> None:
        self.stored = last_step(self.earlier)

    def write(self, stream: Stream, data: bytes) -> None:
        """Ignore output, which the reader reads."""

    def poll(self) -> None:
        """Store new metrics, at most once in `FLUSH_SECONDS`."""
        if self.reader.changes != self.changes and time.monotonic() - self.written_at >= FLUSH_SECONDS:
            self.flush()

    def flush(self) -> None:
        """Append the values after the last stored step. Others are stored by `settle`."""
        self.changes, self.written_at = self.reader.changes, time.monotonic()
        new = {name: _after(series, self.stored) for name, series in self.reader.curves.items()}
        new = {name: series for name, series in new.items() if len(series.step)}
        if new:
            end = last_step(new)
            self.run.append(self.stored, end, new)
            self.stored = end

    def settle(self) -> dict[str, Series]:
        """Return all curves, and store them as they are if what was appended differs from them."""
        curves = join_curves(self.earlier, self.reader.curves)
        self.flush()
        if not _equal(self.run.metrics(), curves):
            self.run.store.delete(f"{self.run.key}/metrics")
            if curves:
                self.run.append(0, last_step(curves), curves)
        return curves


def join_curves(earlier: Mapping[str, Series], later: Mapping[str, Series]) -> dict[str, Series]:
    """Return curves of an interrupted attempt and of the one that continues it, which may repeat steps."""
    joined = dict(earlier)
    for name, series in later.items():
        if name in earlier and len(series.step):
            kept = int(np.searchsorted(earlier[name].step, series.step[0]))
            before = earlier[name]
            series = Series(
                np.concatenate([before.step[:kept], series.step]), np.concatenate([before.value[:kept], series.value])
            )
        joined[name] = series
    return joined


def last_step(curves: Mapping[str, Series]) -> int:
    """Return the last step of all curves; 0 without values."""
    return max((int(series.step[-1]) for series in curves.values() if len(series.step)), default=0)


def _after(series: Series, step: int) -> Series:
    first = int(np.searchsorted(series.step, step, side="right"))
    return Series(series.step[first:], series.value[first:])


def _equal(first: Mapping[str, Series], second: Mapping[str, Series]) -> bool:
    return first.keys() == second.keys() and all(
        np.array_equal(first[name].step, second[name].step)
        and np.array_equal(first[name].value, second[name].value, equal_nan=True)
        for name in first
    )


# --- one attempt ------------------------------------------------------------------------------------------------------


def run_attempt(
    study: ProgramStudy, run: ProgramRun, files: RunFiles, slot: Slot, started: Callable[[Process, Sequence[str]], None]
) -> Ended:
    """Run the program of a run to its end, and store its result if it succeeded.

    Args:
        study: the study.
        run: the run, which has no result.
        files: its files.
        slot: the part of the machine that the program gets.
        started: called with the process and the words of its command.

    Raises:
        UserError: If an input has changed since the study was loaded, the command cannot be started, a file cannot be
            written, or the program of an earlier attempt does not end.
    """
    if changed := changed_inputs(study.cwd, study.inputs):
        problem = f"{changed[0]} has changed while the study runs, before the start of {run.title}"
        remedy = "Undo the change and repeat the command, or use another name for the study."
        raise study.document.locate(UserError(problem, path=("program", "inputs"), remedy=remedy))
    with hold_locks([files.place / "lock", *slot.locks]) as locks:
        number = files.begin(study.program.resume)
        filled = fill_command(study, run, files.path)
        filled.write()
        files.run.start(run.record({"cwd": str(study.cwd), "variables": filled.variables}))
        earlier = files.run.metrics() if study.program.resume else {}
        reader = MetricReader(parse_sources(study.program.metrics), files.path, required=[study.measure.primary])
        live = LiveCurves(files.run, reader, earlier)
        limits = Limits(seconds=study.program.time_limit, memory=slot.memory, output=study.program.output)
        problem, ending = "", None
        process = start(study, filled, files.output(number), slot, limits, locks)
        with process:
            started(process, filled.words)
            try:
                ending = process.wait(reader, live)
                reader.finish(ending.succeeded)
            except UserError as error:
                problem = error.message
        curves = live.settle()
        ended = _judge(study, ending, problem, reader, curves)
        about = {"how": ended.how, "problem": ended.problem, "lines": list(ended.lines), "outcome": ended.outcome}
        files.write(number, {**files.read(number), **about, **_usage(ending)})
        if ended.outcome:
            last = {name: float(series.value[-1]) for name, series in curves.items() if len(series.value)}
            kept = {
                name: value for name, value in last.items() if math.isfinite(value) or name == study.measure.primary
            }
            files.run.finish({"outcome": ended.outcome, "steps": last_step(curves), "metrics": kept})
        return ended


def start(
    study: ProgramStudy, filled: "Filled", output: Path, slot: Slot, limits: Limits, locks: Sequence[int] = ()
) -> Process:
    """Start a program in a slot of the machine.

    Raises:
        UserError: If it cannot be started. The error is located in the study file.
    """
    try:
        return start_process(
            filled.words, cwd=study.cwd, output=output, limits=limits, cpus=slot.cpus,
            variables={**environment(slot), **filled.variables}, keep=locks,
        )  # fmt: skip
    except UserError as error:
        command = ("program", "command", *error.path) if error.path == (0,) else ("program", "command")
        raise study.document.locate(UserError(error.problem, path=command, remedy=error.remedy)) from None


def _judge(
    study: ProgramStudy, ending: Ending | None, problem: str, reader: MetricReader, curves: Mapping[str, Series]
) -> Ended:
    """Return how an attempt ended. Its last values count only if the program succeeded."""
    primary = study.measure.primary
    if ending is None:  # the reader refused a value, and the program was stopped
        return Ended("", "stopped early", problem, last=dict(reader.last))
    if ending.succeeded and not problem and primary not in curves:
        problem = f"the program ended without a value of {primary!r}"
    if problem or not ending.succeeded:
        return Ended("", ending.describe(), problem, ending.lines, dict(reader.last), ending.cause == "stopped")
    outcome = "finished" if math.isfinite(float(curves[primary].value[-1])) else "diverged"
    return Ended(outcome, ending.describe(), "", ending.lines, dict(reader.last))


def _usage(ending: Ending | None) -> dict[str, Any]:
    if ending is None:
        return {}
    return {"seconds": ending.seconds, "peak_memory": ending.peak_memory, "output_bytes": ending.output_bytes}


# --- what the program gets --------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Filled:
    """What the program of a run gets.

    Attributes:
        words: the words of its command.
        variables: its environment variables.
        file: its config file; None without one.
        content: the content of the config file.
    """

    words: list[str]
    variables: dict[str, str]
    file: Path | None = None
    content: bytes = b""

    def write(self) -> None:
        """Write the config file, if there is one. Raises `UserError` if it cannot be written."""
        if self.file is None:
            return
        try:
            self.file.parent.mkdir(parents=True, exist_ok=True)
            self.file.write_bytes(self.content)
        except OSError as error:
            problem, place = f"cannot write the config file: {error.strerror}", ("program", "config", "path")
            raise UserError(problem, path=place, file=self.file, remedy="Use another path.") from None


def fill_command(study: ProgramStudy, run: ProgramRun, folder: Path) -> Filled:
    """Return the command, the environment and the config file of a run.

    Args:
        study: the study.
        run: the run.
        folder: the folder of the run's program.
    """
    places = {"seed": str(run.seed), "folder": str(folder), "arm": run.arm, "study": study.name}
    config, file, content = study.program.config, None, b""
    if config is not None:
        known = {**places, **{path: str(value) for path, value in run.settings.items()}}
        names = [*PLACES, *run.settings]
        file = study.cwd / parse_text(config.path, names, ("program", "config", "path")).fill(known)
        entries = flatten_settings(config.add).items()
        added = {path: fill_entry(value, known, run.seed, names) for path, value in entries}
        merged = merge(read_template(config, study.cwd), nest_settings({**run.settings, **added}))
        content = encode(merged, file_format(config))
        places["config"] = str(file)
    words, command = study.command.fill_words(run.settings, places), study.command
    return Filled(words, command.fill_environment(run.settings, places), file, content)


def fill_entry(value: Any, known: Mapping[str, str], seed: int, names: Collection[str]) -> Any:
    """Return an entry of `config.add` with names replaced. The seed alone is a number."""
    if not isinstance(value, str):
        return value
    return seed if value == "{seed}" else parse_text(value, [*names], ("program", "config", "add")).fill(known)


def environment(slot: Slot) -> dict[str, str | None]:
    """Return the environment variables that a slot of the machine sets or removes."""
    gpus = {} if slot.gpus is None else {"CUDA_VISIBLE_DEVICES": ",".join(slot.gpus)}
    return {**dict.fromkeys(CHOSEN), **gpus}

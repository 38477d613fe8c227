"""`taetpu run --check`: the baseline's program, run for a few seconds in a temporary folder."""

import os
import shutil
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from taetpu.core.errors import UserError
from taetpu.programs.metric_sources import parse_sources
from taetpu.programs.metrics import MetricReader
from taetpu.programs.process import Ending, Limits
from taetpu.spec.programs.study import ProgramStudy
from taetpu.study.programs.attempt import Filled, fill_command, start
from taetpu.study.programs.machine import machine_slots

CHECK_SECONDS = 20.0
"""Seconds after which a program that is checked is stopped."""


@dataclass(frozen=True)
class Trial:
    """What a program did in a few seconds.

    Attributes:
        words: the words of its command.
        program: the path of its program, as found on `PATH`.
        how: how it ended, such as `exit code 0`.
        reported: the number of values of each metric.
        last: the last value of each metric.
        problem: what is wrong; empty if the primary metric was read.
        lines: the last lines of its output.
        files: the files that it wrote to its folder.
    """

    words: Sequence[str]
    program: str
    how: str
    reported: Mapping[str, int]
    last: Mapping[str, float]
    problem: str
    lines: Sequence[str]
    files: Sequence[str]


def try_baseline(study: ProgramStudy, seconds: float = CHECK_SECONDS) -> Trial:
    """Run the baseline's program on the first seed for a few seconds. Nothing of it is stored.

    Raises:
        UserError: If the command cannot be started.
    """
    run, slot = study.run(study.arms[0], study.seeds[0]), machine_slots(study.program.each, 1)[0]
    primary = study.measure.primary
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as place:
        folder = Path(place).resolve() / "folder"
        folder.mkdir()
        filled = fill_command(study, run, folder)
        filled.write()
        reader = MetricReader(parse_sources(study.program.metrics), folder, required=[primary])
        problem, ending = "", None
        limits = Limits(seconds=seconds, memory=slot.memory, grace=2.0)
        process = start(study, filled, Path(place) / "1.log.gz", slot, limits)
        with process:
            try:
                ending = process.wait(reader)
                reader.finish(ending.succeeded)
            except UserError as error:
                problem = error.message
        files = sorted(str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file())
    program = _find_program(filled)
    problem = problem or _problem(ending, primary, reader, program, seconds)
    how = "stopped early" if ending is None else ending.describe()
    counts = {name: len(series.step) for name, series in reader.curves.items()}
    lines = ending.lines if ending is not None else ()
    return Trial(filled.words, program, how, counts, dict(reader.last), problem, lines, files)


def _find_program(filled: Filled) -> str:
    """Return the path of the program, which is searched on `PATH` if its name has no slash."""
    path = filled.variables.get("PATH", os.environ.get("PATH", os.defpath))
    return shutil.which(filled.words[0], path=path) or filled.words[0]


def _problem(ending: Ending | None, primary: str, reader: MetricReader, program: str, seconds: float) -> str:
    """Return what is wrong with a program that was run for a few seconds, or an empty text."""
    if ending is not None and ending.cause not in ("exit", "time"):
        return f"the program ended: {ending.describe()}"
    if ending is not None and ending.cause == "exit" and ending.code:
        problem = f"the program ended with {ending.describe()}"
        if not any(line.startswith("ModuleNotFoundError") for line in ending.lines):
            return problem
        return (
            f"{problem}: {program} lacks a module. Install it there, or begin `command` with the path of another "
            "environment's interpreter, such as ../env/bin/python"
        )
    if primary in reader.last:
        return ""
    known = ", ".join(sorted(reader.last)) or "none"
    if ending is not None and ending.cause == "time":
        when = f"in {seconds:g} s, which may be too short for a program that starts slowly"
    else:
        when = "when the program ended" if ending is not None else "so far"
    return f"no value of {primary!r} was read {when}; metrics that were read: {known}"

"""Where a program reports its metrics, as the section `metrics` of a study file says it."""

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from taetpu.core.errors import ErrorList, UserError, check_known, suggest
from taetpu.programs.folders import KINDS
from taetpu.programs.output import Stream

STREAMS: tuple[Stream, ...] = ("stdout", "stderr")
FOLDERS = tuple(kind for kind in KINDS if kind != "lm-eval")
"""The formats of folders. A folder of lm-eval has the results of several tasks, so it is not that of one run."""
KEYS = (*STREAMS, "jsonl", "csv", "json", *FOLDERS, "step")
STEP = "step"
"""The group, key or column that contains the step."""
FOLDER = "{folder}"
"""What a path may begin with: paths are relative to the run's folder in any case."""


@dataclass(frozen=True)
class Pattern:
    """A regular expression that is searched in each line of a stream; its named groups are the metrics."""

    regex: re.Pattern[str]
    stream: Stream

    @property
    def names(self) -> set[str]:
        """The names of the metrics."""
        return {*self.regex.groupindex} - {STEP}


@dataclass(frozen=True)
class MetricFile:
    """A file with a JSON object in each line (`jsonl`), or a CSV file whose first row has the names of the columns."""

    file: str
    step: str
    kind: str


@dataclass(frozen=True)
class LastLine:
    """The last line of a stream, a JSON object."""

    stream: Stream
    step: str


@dataclass(frozen=True)
class ResultFolder:
    """A folder in a format of `folders`; several runs in it are read in their order as one that was resumed."""

    folder: str
    kind: str


Source = Pattern | MetricFile | LastLine | ResultFolder


def parse_sources(metrics: Mapping[str, Any]) -> tuple[Source, ...]:
    """Return the sources that a section `metrics` names.

    Args:
        metrics: The section: a pattern or several by `stdout` or `stderr`; a file or several by `jsonl` or `csv`; the
            stream whose last line is read by `json`; a folder by the name of its format; by `step`, the name of the
            steps in files. Files and folders are in the run's folder.

    Raises:
        UserError: If a key or value is not one of these; its path begins below `metrics`.
    """
    errors, sources = ErrorList(), []
    step = metrics.get(STEP, STEP)
    if not isinstance(step, str) or not step:
        raise UserError(f"expected a name, got {step!r}", path=(STEP,), remedy="Write the name of a key or column.")
    for key, value in metrics.items():
        with errors.collect():
            check_known(key, KEYS, f"unknown source of metrics {key!r}", path=(key,))
            for index, item in enumerate(value if isinstance(value, list) else [value] if key != STEP else []):
                path = (key, index) if isinstance(value, list) else (key,)
                if not isinstance(item, str) or not item:
                    raise UserError(f"expected text, got {item!r}", path=path, remedy=_describe_value(key))
                sources.append(_parse_source(key, item, step, path))
    errors.raise_all()
    if not sources:
        remedy = r"Write for example `stdout: 'loss (?P<loss>\S+)'` or `jsonl: metrics.jsonl`."
        raise UserError("no source of metrics", remedy=remedy)
    return tuple(sources)


def _describe_value(key: str) -> str:
    if key in STREAMS:
        return "Write a regular expression with named groups, or a list of them."
    return "Write `stdout` or `stderr`." if key == "json" else "Write a path in the run's folder."


def _parse_source(key: str, value: str, step: str, path: tuple[str | int, ...]) -> Source:
    if key in STREAMS:
        return Pattern(_compile(value, path), key)
    if key == "json":
        check_known(value, STREAMS, f"unknown stream {value!r}", path=path)
        return LastLine("stderr" if value == "stderr" else "stdout", step)
    place = value.removeprefix(FOLDER).lstrip("/") if value.startswith(FOLDER) else value
    if place.startswith("/") or ".." in place.split("/"):
        remedy = f"Let the program write into its folder, {FOLDER}: runs that share a file would mix their values."
        raise UserError(f"{value!r} is not in the run's folder", path=path, remedy=remedy)
    if key in FOLDERS:
        return ResultFolder(place, key)
    return MetricFile(place, step, key)


def _compile(text: str, path: tuple[str | int, ...]) -> re.Pattern[str]:
    try:
        pattern = re.compile(text)
    except (re.error, OverflowError, RecursionError) as error:
        remedy = "Escape characters with a meaning, such as `(`, by a backslash."
        raise UserError(f"not a regular expression: {error}", path=path, remedy=remedy) from None
    if not {*pattern.groupindex} - {STEP}:
        remedy = r"Write a named group for each metric, such as `loss (?P<loss>\S+)`."
        raise UserError(f"the pattern {text!r} has no group with a metric's name", path=path, remedy=remedy)
    return pattern


def check_names(sources: Iterable[Source], names: Iterable[str]) -> None:
    """Raise `UserError` if all sources are patterns, and a metric is none of their groups.

    The names in files are known only when a program has written them (see `metrics.MetricReader.finish`).
    """
    patterns = list(sources)
    if not all(isinstance(source, Pattern) for source in patterns):
        return
    known = {name for source in patterns if isinstance(source, Pattern) for name in source.names}
    for name in names:
        if name not in known:
            remedy = f"{suggest(name, known)} Or add a pattern with a group `(?P<{name}>...)`."
            raise UserError(f"no pattern has a group {name!r}", remedy=remedy)

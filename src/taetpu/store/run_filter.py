"""Finished and started runs, filtered by the values of their settings and by dates."""

import operator
import re
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, date, datetime, time
from pathlib import Path
from typing import Any

from taetpu.core.errors import UserError, suggest
from taetpu.core.number_parsing import parse_float
from taetpu.store.errors import NotStored
from taetpu.store.flat_config import format_value, read_settings
from taetpu.store.index import find_studies
from taetpu.store.runs import RESULT, RunFolder, Status

OPERATORS: dict[str, Callable[[Any, Any], bool]] = {
    "<=": operator.le, ">=": operator.ge, "!=": operator.ne, "<": operator.lt, ">": operator.gt, "=": operator.eq,
}  # fmt: skip
CONDITION = re.compile(r"(?P<path>[\w.@-]+)\s*(?P<operator><=|>=|!=|<|>|=)\s*(?P<value>.+)")


@dataclass(frozen=True)
class Condition:
    """A condition on a setting, such as `model.dim>=64` or `model.mixer.kind=gated-delta`.

    A setting that differs between layers satisfies the condition if one of the layers does.
    """

    path: str
    operator: str
    value: str

    def holds(self, settings: dict[str, Any]) -> bool:
        """Return whether a run with these settings satisfies the condition."""
        return any(self._compare(value) for value in self.values(settings))

    def values(self, settings: dict[str, Any]) -> list[Any]:
        """Return the values of the setting: one, those of all layers, or none."""
        head, _, rest = self.path.partition(".")
        layers = re.compile(rf"{re.escape(head)}\.layers\.\d+\.{re.escape(rest)}(\.kind)?")
        exact = [settings[path] for path in (self.path, f"{self.path}.kind") if path in settings]
        return exact or [value for path, value in settings.items() if layers.fullmatch(path)]

    def _compare(self, value: Any) -> bool:
        number = _number(self.value)
        if isinstance(value, int | float) and not isinstance(value, bool) and number is not None:
            return OPERATORS[self.operator](value, number)
        if self.operator not in ("=", "!="):
            return False
        return OPERATORS[self.operator](format_value(value), self.value)


def _number(text: str) -> float | None:
    try:
        return parse_float(text)
    except ValueError:
        return None


def parse_condition(text: str) -> Condition:
    """Return a condition written as `PATH=VALUE`, or with `!=`, `<`, `<=`, `>` or `>=`.

    Raises:
        UserError: if the text is not a condition.
    """
    match = CONDITION.fullmatch(text.strip())
    if match is None:
        remedy = "Write e.g. model.dim=64, train.optimizer.lr>=1e-3 or model.mixer.kind!=attention."
        raise UserError(f"{text!r} is not a condition", path=("--where",), remedy=remedy)
    condition = Condition(**match.groupdict())
    if condition.operator not in ("=", "!=") and _number(condition.value) is None:
        problem = f"{condition.operator} compares numbers, and {condition.value!r} is not a number"
        raise UserError(problem, path=("--where",), remedy="Use = or != for text.")
    return condition


def parse_date(text: str) -> datetime:
    """Return a date such as `2026-11-25` (its start, in UTC), or a date with a time.

    Raises:
        UserError: if the text is not a date.
    """
    with suppress(ValueError):
        return datetime.combine(date.fromisoformat(text), time(), UTC)
    with suppress(ValueError):
        moment = datetime.fromisoformat(text)
        return moment if moment.tzinfo else moment.replace(tzinfo=UTC)
    raise UserError(f"{text!r} is not a date", remedy="Write e.g. 2026-11-25, or 2026-11-25T14:30.")


@dataclass(frozen=True)
class FoundRun:
    """A run that satisfies all conditions.

    Attributes:
        folder: The folder of the run.
        status: Whether the run is done.
        changed: The time when its result was written, or its config if it is not done, in UTC.
        settings: Its settings by path.
    """

    folder: RunFolder
    status: Status
    changed: datetime
    settings: dict[str, Any]


def find_runs(
    place: str | Path,
    conditions: Iterable[Condition] = (),
    since: datetime | None = None,
    until: datetime | None = None,
) -> list[FoundRun]:
    """Return the runs that satisfy all conditions, the latest first.

    Args:
        place: a study's folder, or a root of studies.
        conditions: conditions on settings.
        since: the earliest time of the last write.
        until: the time before which the last write must be.

    Raises:
        UserError: if no run has one of the settings; nearest names are suggested.
    """
    runs, conditions = list(_all_runs(place)), list(conditions)
    for condition in conditions:
        if runs and not any(condition.values(run.settings) for run in runs):
            known = {path for run in runs for path in run.settings}
            raise UserError(
                f"no run has a setting {condition.path!r}", path=("--where",), remedy=suggest(condition.path, known)
            )
    chosen = [
        run
        for run in runs
        if all(condition.holds(run.settings) for condition in conditions)
        and (since is None or run.changed >= since)
        and (until is None or run.changed < until)
    ]
    return sorted(chosen, key=lambda run: run.changed, reverse=True)


def _all_runs(place: str | Path) -> Iterator[FoundRun]:
    for study in find_studies(place):
        for folder in study.runs():
            status = folder.status()
            file = RESULT if status == "done" else "config.json"
            with suppress(NotStored):  # another process may have deleted the run
                changed = datetime.fromtimestamp(folder.store.modified(f"{folder.key}/{file}"), UTC)
                yield FoundRun(folder, status, changed, read_settings(folder))

"""The roles of a table's columns, and the runs that its rows describe under these roles."""

import math
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Literal

import numpy as np

from taetpu.core.errors import ErrorList, UserError, suggest
from taetpu.judging.cells import (
    check_range,
    format_cell,
    is_blank,
    is_empty,
    parse_metric,
    parse_seed,
    parse_setting,
    place,
    shown,
)
from taetpu.judging.selection import select_records
from taetpu.programs.records import Items, Record
from taetpu.store.metrics import Series

ARM, SEED = "arm", "seed"
"""The names of the columns that a wide table is turned into."""
NUMBERED = re.compile(r"(?P<word>.*?)(?P<number>\d+)")


@dataclass(frozen=True, kw_only=True)
class Columns:
    """The roles of columns.

    Attributes:
        metrics: the metrics that are judged.
        arm: the columns whose values name an arm. Without any, all runs are of one arm.
        seed: the column of seeds; empty if there is none.
        block: the columns of further blocks, such as the dataset.
        step: the column of steps, if a run has several rows; otherwise empty.
        wide: `arms` if every column without another role holds the values of an arm, `seeds` if it holds those of a
            seed, and empty for a table with a column for each metric.
        ignore: the columns of a wide table that are neither an arm nor a seed.
        unpaired: whether runs with equal seeds share nothing, so that seeds only tell runs apart.
        where: conditions on columns that runs must satisfy, such as `experiment=first`.
    """

    metrics: tuple[str, ...]
    arm: tuple[str, ...] = ()
    seed: str = ""
    block: tuple[str, ...] = ()
    step: str = ""
    wide: Literal["", "arms", "seeds"] = ""
    ignore: tuple[str, ...] = ()
    where: tuple[str, ...] = ()
    unpaired: bool = False

    @property
    def fields(self) -> tuple[str, ...]:
        """The columns that identify a run."""
        return (*self.arm, *([self.seed] if self.seed else []), *self.block)


@dataclass(frozen=True)
class Run:
    """A run with the values of its columns.

    Attributes:
        where: the place of the run, for messages.
        arm: the values of the arm's columns, as text.
        settings: the values of the arm's columns by name.
        block: the values of the block's columns, as text.
        seed: the seed; None without a column of seeds.
        metrics: the last value of each metric, NaN if the run diverged. A metric that is missing has no entry.
        curves: the steps and values of metrics that were reported during training.
        items: the scores of single items, by metric.
    """

    where: str
    arm: tuple[str, ...]
    settings: Mapping[str, Any]
    block: tuple[str, ...]
    seed: int | str | None
    metrics: Mapping[str, float]
    curves: Mapping[str, Series] = field(default_factory=dict)
    items: Mapping[str, Items] = field(default_factory=dict)

    @property
    def key(self) -> tuple[Any, ...]:
        """What distinguishes the run from the others."""
        return self.arm, self.block, self.seed


def read_runs(records: Sequence[Record], columns: Columns, source: str) -> list[Run]:
    """Return the runs that the rows of a table, or the folders of a source, describe.

    Args:
        records: the rows or folders.
        columns: the roles of the columns.
        source: the name of the table or folder, for messages.

    Raises:
        UserError: If a column does not exist or has two roles, no run satisfies the conditions, a cell has no valid
            value, or two rows are of the same run.
    """
    records = select_records(records, columns.where, source)
    if columns.ignore and not columns.wide:
        problem = "only columns of a wide table can be left out, because other tables name the columns that count"
        raise UserError(problem, path=("--ignore",), remedy="Leave out --ignore, or add --wide arms or --wide seeds.")
    if columns.wide:
        records, columns = _melt(records, columns, source)
    _check_columns(records, columns, source)
    runs, mistakes = list[tuple[Run, int | None]](), ErrorList()
    for record in records:
        with mistakes.collect():
            runs.append(_read_run(record, columns))
    mistakes.raise_all()
    return _join_steps(runs, records, columns)


# --- columns ----------------------------------------------------------------------------------------------------------


def _check_columns(records: Sequence[Record], columns: Columns, source: str) -> None:
    mistakes = ErrorList()
    fields = list(dict.fromkeys(name for record in records for name in record.fields))
    metrics = list(dict.fromkeys([*(name for record in records for name in record.metrics), *fields]))
    roles = {
        "--arm": (columns.arm, fields),
        "--seed": ([columns.seed] if columns.seed else [], fields),
        "--block": (columns.block, fields),
        "--step": ([columns.step] if columns.step else [], fields),
        "--metric": (columns.metrics, metrics),
    }
    named: dict[str, str] = {}
    for option, (names, known) in roles.items():
        for name in names:
            if name not in known:
                problem = f"there is no column {name!r}"
                mistakes.append(UserError(problem, path=(option,), file=source, remedy=suggest(name, known)))
            elif name in named:
                problem = f"column {name!r} cannot be both {named[name]} and {option}"
                remedy = "Name a column once." if named[name] == option else "Give each role another column."
                mistakes.append(UserError(problem, path=(option,), file=source, remedy=remedy))
            named[name] = option
    mistakes.raise_all()


def _melt(records: Sequence[Record], columns: Columns, source: str) -> tuple[list[Record], Columns]:
    """Return the cells of a wide table as the rows of a long one, and the roles of its columns."""
    if len(columns.metrics) != 1:
        problem = f"a wide table has one metric, got {len(columns.metrics)}"
        raise UserError(problem, path=("--metric",), file=source, remedy="Name the metric that the cells hold.")
    taken, noun = (columns.arm, ARM) if columns.wide == "arms" else ([columns.seed] if columns.seed else [], SEED)
    if taken:
        problem = f"--{noun} names a column, but with --wide {columns.wide} each column is of one {noun}"
        raise UserError(problem, path=(f"--{noun}",), file=source, remedy=f"Leave out --{noun}, or --wide.")
    kept, metric = columns.fields, next(iter(columns.metrics), "")
    known = list(dict.fromkeys(name for record in records for name in record.fields))
    mistakes = ErrorList()
    for name in (*kept, *columns.ignore):
        if name not in known:
            mistakes.append(UserError(f"there is no column {name!r}", file=source, remedy=suggest(name, known)))
    values = [name for name in known if name not in kept and name not in columns.ignore]
    mistakes += [_unnamed_seed(name, source) for name in values if noun == ARM and name.lower() == SEED]
    mistakes.raise_all()
    if not values:
        raise UserError(f"no column holds the values of one {noun}", file=source)
    names = dict(zip(values, values if noun == ARM else _seed_names(values), strict=True))
    melted = [
        Record(
            place(record.where, name),
            {**{column: record.fields.get(column) for column in kept}, noun: names[name], metric: record.fields[name]},
            {},
        )
        for record in records
        for name in values
        if name in record.fields
    ]
    return melted, replace(columns, arm=(ARM,)) if noun == ARM else replace(columns, seed=SEED)


def _unnamed_seed(name: str, source: str) -> UserError:
    remedy = f"Name it with `--seed {name}`, or leave it out with `--ignore {name}`."
    return UserError(f"column {name!r} would be an arm", path=("--wide",), file=source, remedy=remedy)


def _seed_names(columns: Sequence[str]) -> list[str]:
    """Return the seeds of columns such as `seed_0` and `seed_1`: their numbers, if they differ in nothing else."""
    parts = [NUMBERED.fullmatch(column) for column in columns]
    matches = [part for part in parts if part]
    if len(matches) == len(columns) and len({match["word"] for match in matches}) == 1:
        return [match["number"] for match in matches]
    return list(columns)


# --- rows -------------------------------------------------------------------------------------------------------------


def _read_run(record: Record, columns: Columns) -> tuple[Run, int | None]:
    """Return the run of a row, and its step if the table has a column of steps."""
    mistakes = ErrorList()
    fields = record.fields
    named = columns.arm if len(columns.arm) == 1 else ()  # of several settings, a run may lack some
    for name in (*named, *([columns.seed] if columns.seed else []), *columns.block):
        if is_empty(fields.get(name)):
            mistakes.append(UserError("this cell is empty", file=place(record.where, name)))
    metrics: dict[str, float] = {}
    for name in columns.metrics:
        if name in record.metrics:
            value = record.metrics[name]
            with mistakes.collect():
                metrics[name] = math.nan if value is None else check_range(value, place(record.where, name))
        elif not is_blank(value := fields.get(name)):
            with mistakes.collect():
                metrics[name] = parse_metric(value, record.where if columns.wide else place(record.where, name))
    step = None
    if columns.step:
        with mistakes.collect():
            step = _parse_step(fields.get(columns.step), place(record.where, columns.step))
    mistakes.raise_all()
    run = Run(
        record.where,
        arm=tuple(format_cell(None if is_empty(fields.get(name)) else fields.get(name)) for name in columns.arm),
        settings={name: parse_setting(fields.get(name)) for name in columns.arm},
        block=tuple(format_cell(fields[name]) for name in columns.block),
        seed=parse_seed(fields[columns.seed]) if columns.seed else None,
        metrics=metrics,
        curves={name: series for name, series in record.curves.items() if name in metrics},
        items={name: scores for name, scores in record.items.items() if name in metrics},
    )
    return run, step


def _parse_step(value: Any, where: str) -> int:
    step = None if is_empty(value) else parse_seed(value)
    if isinstance(step, int) and 0 <= step < 2**63:
        return step
    problem = "this cell is empty" if step is None else f"{shown(value)} is not a step"
    raise UserError(problem, file=where, remedy="Write the number of steps before the value was measured.")


def _join_steps(rows: Iterable[tuple[Run, int | None]], records: Sequence[Record], columns: Columns) -> list[Run]:
    """Return the runs in order of appearance, each joined from its rows, of which there is one without steps."""
    if columns.unpaired and not columns.seed and not columns.step:  # each row is a run
        return [run for run, _ in rows]
    groups: dict[tuple[Any, ...], list[tuple[Run, int | None]]] = {}
    for run, step in rows:
        groups.setdefault(run.key, []).append((run, step))
    mistakes = ErrorList()
    for group in groups.values():
        first: dict[int | None, Run] = {}
        for run, step in group:
            if (other := first.setdefault(step, run)) is not run:
                mistakes.append(_duplicate(run, other, step, records, columns))
    mistakes.raise_all()
    return [_join(sorted(group, key=lambda row: row[1] or 0)) for group in groups.values()]


def _join(rows: Sequence[tuple[Run, int | None]]) -> Run:
    """Return a run with its curves and last values, from its rows in the order of their steps."""
    run, step = rows[0]
    if step is None:
        return run
    curves = {}
    for name in dict.fromkeys(name for row, _ in rows for name in row.metrics):
        points = [(step, row.metrics[name]) for row, step in rows if name in row.metrics]
        steps, values = zip(*points, strict=True)
        curves[name] = Series(np.array(steps, dtype=np.int64), np.array(values))
    return replace(run, metrics={name: float(series.value[-1]) for name, series in curves.items()}, curves=curves)


def _duplicate(run: Run, other: Run, step: int | None, records: Sequence[Record], columns: Columns) -> UserError:
    """Return the error of two rows of one run, with the columns that may tell them apart."""
    what = [f"{name} {text}" for name, text in zip(columns.arm, run.arm, strict=True)]
    what += [f"{name} {text}" for name, text in zip(columns.block, run.block, strict=True)]
    what += [f"{columns.seed} {run.seed}"] if columns.seed else []
    what += [f"{columns.step} {step}"] if columns.step else []
    problem = f"this run is also that of {other.where}" + (f": {', '.join(what)}" if what else "")
    rows = {record.where: record.fields for record in records}
    ours, theirs = rows.get(run.where, {}), rows.get(other.where, {})
    taken = {*columns.fields, *columns.metrics, columns.step}
    apart = [name for name in ours if name not in taken and ours[name] != theirs.get(name)]
    hint = f" They differ in {', '.join(apart[:6])}." if apart else ""
    options = "--block" if columns.seed else "--seed, --block"
    remedy = f"Remove a row, or name the column that tells them apart with {options} or, for a log of steps, --step."
    remedy += "" if columns.seed or columns.step else " Or compare the runs of each arm as they are with --unpaired."
    return UserError(problem, file=run.where, remedy=remedy + hint)

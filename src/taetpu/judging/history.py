"""Earlier verdicts in a folder: which table they were on, by which rules, at how many seeds, and on which values."""

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from taetpu.core.errors import UserError
from taetpu.core.metric_spec import Direction, MetricSpec
from taetpu.judging.arrangement import Arrangement
from taetpu.judging.columns import Columns
from taetpu.programs.records import Record
from taetpu.stats.analyse import has_verdicts
from taetpu.stats.load import read_result, read_study
from taetpu.stats.plan import MIN_SEEDS, RULES, Plan, read_plan
from taetpu.store.frozen_study import Asked, EarlierQuestion, FrozenStudy
from taetpu.store.study import StudyFolder

ELSEWHERE = "Choose another folder with `--name` or `--out`, or from Python with `out`."
"""The remedy if a folder holds anything but verdicts on the table."""

Judged = Counter[tuple[str, tuple[str, ...], float | None]]
"""How often each arm, name of a seed or block, and value occurs; the value is None for a run that diverged."""


@dataclass(frozen=True)
class Question:
    """What is asked of a table.

    Attributes:
        metric: the primary metric.
        direction: whether lower (`min`) or higher (`max`) values are better.
        equivalence: the margin below which a difference does not matter; None if equivalence is not tested.
        alpha: the error rate of all verdicts on this metric.
    """

    metric: str
    direction: Direction
    equivalence: float | None
    alpha: float


@dataclass(frozen=True)
class Source:
    """Where runs come from.

    Attributes:
        name: the name of the file or folder.
        path: its absolute path; empty for a table in memory.
        sha256: the digest of its content.
    """

    name: str
    path: str
    sha256: str


@dataclass(frozen=True)
class Earlier:
    """The study that a folder holds.

    Attributes:
        study: its `study.yaml`.
        plan: its plan.
        values: the values that were judged. Those of damaged runs are left out.
    """

    study: FrozenStudy
    plan: Plan
    values: Judged


@dataclass(frozen=True)
class Planned:
    """How a table is judged, given what was judged before.

    Attributes:
        plan: the frozen plan.
        judged_at: the numbers of seeds at earlier verdicts.
        history: earlier rules and changes of values, in their order.
    """

    plan: dict[str, Any]
    judged_at: list[int]
    history: list[EarlierQuestion]


def read_earlier(folder: StudyFolder, source: Source, records: Sequence[Record]) -> Earlier | None:
    """Return the study that was made from the same table before, or None if the folder is empty.

    A table in memory has no place. It is the one that was judged before if it contains any of the judged values.

    Args:
        folder: the folder.
        source: the table.
        records: its rows.

    Raises:
        UserError: If the folder holds anything else.
    """
    if not folder.exists():
        if names := sorted({key.split("/")[1] for key in folder.store.list(folder.name, depth=2)}):
            problem = f"this folder holds other files: {', '.join(names[:3])}"
            raise UserError(problem, file=folder.where, remedy=ELSEWHERE)
        return None
    study = read_study(folder)
    before = study.get("judged")
    if not isinstance(before, Mapping):
        raise UserError("this folder holds a study that taetpu trained", file=folder.where, remedy=ELSEWHERE)
    plan = read_plan(study, folder.where)
    values = _stored_values(folder, study, plan.primary)
    at_place = source.path == before.get("path", "") and (bool(source.path) or _contains_any(records, values))
    if source.sha256 != before.get("sha256") and not at_place:
        problem = f"this folder holds verdicts on another table: {before.get('path') or before.get('source')}"
        raise UserError(problem, file=folder.where, remedy=ELSEWHERE)
    return Earlier(study, plan, values)


def _stored_values(folder: StudyFolder, study: FrozenStudy, metric: str) -> Judged:
    about, values = study.get("judged"), Judged()
    titles, labels = (about.get("titles", {}), about.get("labels", {})) if about else ({}, {})
    paired = "blocks" not in study
    for run in folder.runs():
        try:
            value = (read_result(run) or {"metrics": {}})["metrics"].get(metric)
        except UserError:  # the run is written again
            continue
        values[titles.get(run.arm, run.arm), _seed_name(labels, run.seed, paired), _value(value)] += 1
    return values


def _arranged_values(arranged: Arrangement, metric: str) -> Judged:
    labels = {str(number): label for number, label in arranged.labels.items()}
    return Judged(
        (arranged.titles.get(arm, arm), _seed_name(labels, seed, arranged.blocks is None), _value(run.metrics[metric]))
        for (arm, seed), run in arranged.runs.items()
        if metric in run.metrics
    )


def _seed_name(labels: Mapping[str, Sequence[str]], seed: int, paired: bool) -> tuple[str, ...]:
    """Return a name of a seed or block that does not depend on the others; empty for runs that are only numbered."""
    return tuple(labels.get(str(seed), (str(seed),))) if paired else ()


def _value(value: float | None) -> float | None:
    return value if value is not None and math.isfinite(value) else None


def _contains_any(records: Sequence[Record], values: Judged) -> bool:
    """Return whether any cell of a table has one of these values."""
    judged = {value for _, _, value in values if value is not None}
    cells = (cell for record in records for cell in record.fields.values())
    return not judged or any(_as_number(cell) in judged for cell in cells)


def _as_number(cell: Any) -> float | None:
    try:
        return float(cell)
    except (TypeError, ValueError, OverflowError):
        return None


# --- plans ------------------------------------------------------------------------------------------------------------


def plan_verdicts(arranged: Arrangement, columns: Columns, question: Question, earlier: Earlier | None) -> Planned:
    """Return the plan of a table, which is that of earlier verdicts while rules and judged values stay the same.

    Verdicts at more and more seeds count as repeated looks. A change of rules does not undo earlier looks.
    """
    plan = Plan(
        primary=question.metric,
        direction=question.direction,
        arms=tuple(arranged.arms),
        seeds=tuple(arranged.seeds),
        looks=(len(arranged.seeds),),
        equivalence=question.equivalence,
        alpha=question.alpha,
        rules=RULES,
        noise="moderated",
        metrics={question.metric: MetricSpec(question.direction).to_data()},
        table=_table_rules(columns),
    )
    if earlier is None:
        return Planned(plan.frozen(), [], [])
    before, seeds = earlier.plan, len(earlier.study["seeds"])
    about, judged_at = earlier.study.get("judged"), list(earlier.study.get("judged_at", ()))
    history = list(about.get("history", ())) if about else []
    changed = _count_changed(arranged, plan, earlier)
    same = asked(before) == asked(plan)
    if changed or not same:
        history.append({**asked(before), "seeds": seeds})
        if changed:
            history[-1]["changed"] = changed
    several = len(earlier.study["arms"]) > 1 and seeds >= MIN_SEEDS and has_verdicts(before, seeds)
    if several and len(arranged.seeds) != seeds and seeds not in judged_at:
        judged_at.append(seeds)
    if same and set(before.seeds) <= set(plan.seeds) and set(before.arms) <= set(plan.arms):
        return Planned(before.frozen(), judged_at, history)
    first = min(before.looks[-1], len(arranged.seeds)) if several or judged_at else len(arranged.seeds)
    return Planned(Plan(**{**vars(plan), "looks": (first,)}).frozen(), judged_at, history)


def _table_rules(columns: Columns) -> dict[str, Any]:
    """Return the options that decide which runs are compared with which."""
    options = {name: value for name, value in asdict(columns).items() if name != "metrics" and value}
    return {name: list(value) if isinstance(value, tuple) else value for name, value in options.items()}


def asked(plan: Plan) -> Asked:
    """Return the parts of a plan that the user chooses."""
    return {
        "baseline": plan.arms[0], "primary": plan.primary, "direction": plan.direction,
        "equivalence": plan.equivalence, "alpha": plan.alpha, "table": dict(plan.table),
    }  # fmt: skip


def _count_changed(arranged: Arrangement, plan: Plan, earlier: Earlier) -> dict[str, int]:
    """Return how many judged values of each arm are no longer in the table, if the same columns and rows are asked."""
    if (plan.primary, plan.table) != (earlier.plan.primary, earlier.plan.table):
        return {}
    before, now = earlier.values, _arranged_values(arranged, plan.primary)
    if ("blocks" in earlier.study) != (arranged.blocks is not None):
        before, now = (Judged((arm, (), value) for arm, _, value in values.elements()) for values in (before, now))
    changed: Counter[str] = Counter()
    for (arm, _, _), number in (before - now).items():
        changed[arm] += number
    return dict(changed)

"""A study's folder with the runs of a table, which all commands for stored studies read.

The folder has no packs, models or checkpoints. The plan is not frozen before the first run, as it is where taetpu
trains: `judged` in study.yaml says from which table the study was made, and reports label it exploratory.
"""

import hashlib
import math
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from taetpu.core.errors import UserError
from taetpu.core.identity import SCHEMA, identity
from taetpu.judging.arrangement import Arrangement
from taetpu.judging.columns import Columns, Run
from taetpu.stats.analyse import has_verdicts
from taetpu.stats.load import read_study
from taetpu.stats.plan import MIN_SEEDS, RULES, Direction, Plan, read_plan
from taetpu.stats.secondary_analyses import sum_names
from taetpu.store.documents import to_json
from taetpu.store.flat_config import COLUMNS
from taetpu.store.metrics import Series
from taetpu.store.study import JUDGED, StudyFolder


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


def write_study(
    folder: StudyFolder,
    arranged: Arrangement,
    columns: Columns,
    question: Question,
    source: Source,
    earlier: Mapping[str, Any] | None = None,
) -> None:
    """Write a study with the runs of a table to an empty folder.

    Args:
        folder: the folder.
        arranged: the runs.
        columns: the roles of the table's columns.
        question: what is asked.
        source: where the runs come from.
        earlier: the study that was made from the table before, whose plan is kept if the same is asked.
    """
    plan, judged_at, history = _plan(arranged, question, earlier, folder.where)
    labels = {str(number): label for number, label in arranged.labels.items()}
    empty = Counter(arm for (arm, _), run in arranged.runs.items() if question.metric not in run.metrics)
    more = {
        "where": list(columns.where),
        "labels": labels,
        "titles": dict(arranged.titles),
        "history": history,
        "empty": dict(empty) if arranged.blocks is not None else {},
        "disjoint": arranged.disjoint,
        "ends": _ends(arranged, question.metric),
    }
    about = {
        "source": source.name,
        "path": source.path,
        "sha256": source.sha256,
        "arm": list(columns.arm),
        "seed": columns.seed,
        "block": list(columns.block),
        **{name: value for name, value in more.items() if value},
    }
    folder.write_study(
        {
            "study": folder.name,
            "schema": SCHEMA,
            JUDGED: about,
            "baseline": arranged.baseline,
            "base": {COLUMNS: dict(arranged.arms[arranged.baseline])},
            "seeds": list(arranged.seeds),
            **({"blocks": list(arranged.blocks)} if arranged.blocks is not None else {}),
            "arms": {arm: arranged.overrides(arm) for arm in arranged.arms},
            "idle": {},
            "roles": {},
            "design": {},
            "plan": plan,
            "judged_at": judged_at,
        }
    )
    measured = {place: run for place, run in arranged.runs.items() if question.metric in run.metrics}
    # The noise of an evaluation set is that of all runs only if all were evaluated on the same items.
    sets = {frozenset(run.items.get(question.metric, ())) for run in measured.values()}
    for (arm, seed), run in sorted(measured.items(), key=lambda item: item[0]):
        _write_run(folder, arm, seed, run, question.metric, with_items=len(sets) == 1)


def _plan(
    arranged: Arrangement, question: Question, earlier: Mapping[str, Any] | None, where: str
) -> tuple[dict[str, Any], list[int], list[dict[str, Any]]]:
    """Return the frozen plan, the numbers of seeds at earlier verdicts, and the questions asked of the table before.

    A plan is kept while the same is asked, so that verdicts at more and more seeds count as repeated looks.
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
        known_metric=False,
    )
    if earlier is None:
        return plan.frozen(), [], []
    before, seeds = read_plan(earlier, where), len(earlier["seeds"])
    history = list(earlier[JUDGED].get("history", ()))
    if _asked(before) == _asked(plan):
        judged_at = list(earlier.get("judged_at", ()))
        several = len(earlier["arms"]) > 1 and seeds >= MIN_SEEDS and has_verdicts(before, seeds)
        if several and len(arranged.seeds) > seeds and seeds not in judged_at:
            judged_at.append(seeds)
        return before.frozen(), judged_at, history
    return plan.frozen(), [], [*history, {**_asked(before), "seeds": seeds}]


def _asked(plan: Plan) -> dict[str, Any]:
    """Return the parts of a plan that are asked by the user."""
    names = ("primary", "direction", "equivalence", "alpha")
    return {"baseline": plan.arms[0], **{name: getattr(plan, name) for name in names}}


def _ends(arranged: Arrangement, metric: str) -> dict[str, list[int]]:
    """Return the first and last step at which finished runs of each arm ended; empty if all ended at one step."""
    steps: dict[str, list[int]] = {}
    for (arm, _), run in arranged.runs.items():
        if math.isfinite(run.metrics.get(metric, math.nan)):
            steps.setdefault(arm, []).append(_series(run, metric)[1])
    ends = {arm: [min(of_arm), max(of_arm)] for arm, of_arm in steps.items()}
    return ends if len({end for pair in ends.values() for end in pair}) > 1 else {}


# --- runs -------------------------------------------------------------------------------------------------------------


def _write_run(folder: StudyFolder, arm: str, seed: int, run: Run, metric: str, with_items: bool) -> None:
    """Write a run, whose identity is that of its settings and values."""
    series, steps = _series(run, metric)
    config = {COLUMNS: dict(run.settings)}
    values = {name: [each.step.tolist(), [*map(repr, each.value.tolist())]] for name, each in series.items()}
    data = hashlib.sha256(to_json(values)).hexdigest()
    number = identity(config, seed, data, [])
    stored = folder.run(arm, seed, number)
    about = {"arm": arm, "seed": seed, "id": number, "schema": SCHEMA, "config": config, "data": data}
    stored.start({**about, "source": run.where})
    stored.append(0, steps, dict(series))
    scores = run.items.get(metric) if with_items else None
    if scores and math.isclose(math.fsum(scores.values()) / len(scores), run.metrics[metric], rel_tol=1e-9):
        total, weight = sum_names(metric)
        stored.write_evaluation({total: [scores[item] for item in sorted(scores)], weight: np.ones(len(scores))})
    last = {name: float(each.value[-1]) for name, each in series.items()}
    outcome = "finished" if math.isfinite(last[metric]) else "diverged"
    stored.finish({"outcome": outcome, "steps": steps, "metrics": last})


def _series(run: Run, metric: str) -> tuple[dict[str, Series], int]:
    """Return the steps and values of each metric, and the last step. Other metrics that diverged are left out.

    A curve that does not end with the run's value, or whose steps do not increase, is left out.
    """
    kept = {name: value for name, value in run.metrics.items() if name == metric or math.isfinite(value)}
    curves = {name: run.curves[name] for name in kept if name in run.curves and _fits(run.curves[name], kept[name])}
    steps = max((int(curve.step[-1]) for curve in curves.values()), default=0)
    last = {name: Series(np.array([steps]), np.array([value])) for name, value in kept.items()}
    return {name: curves.get(name, last[name]) for name in kept}, steps


def _fits(curve: Series, value: float) -> bool:
    """Return whether a curve has increasing steps from 0 and ends with this value."""
    if not len(curve.step) or curve.step[0] < 0 or (np.diff(curve.step) <= 0).any():
        return False
    end = float(curve.value[-1])
    return end == value or not (math.isfinite(end) or math.isfinite(value))


# --- folders ----------------------------------------------------------------------------------------------------------


def read_earlier(folder: StudyFolder, source: Source, remedy: str) -> dict[str, Any] | None:
    """Return the study that was made from the same table before, or None if the folder is empty.

    Args:
        folder: the folder.
        source: the table.
        remedy: how to choose another folder.

    Raises:
        UserError: If the folder holds anything else.
    """
    if not folder.exists():
        if names := sorted({key.split("/")[1] for key in folder.store.list(folder.name, depth=2)}):
            problem = f"this folder holds other files: {', '.join(names[:3])}"
            raise UserError(problem, file=folder.where, remedy=remedy)
        return None
    study = read_study(folder)
    if not isinstance(study.get(JUDGED), Mapping):
        raise UserError("this folder holds a study that taetpu trained", file=folder.where, remedy=remedy)
    before = study[JUDGED]
    if source.sha256 != before.get("sha256") and (not source.path or source.path != before.get("path")):
        problem = f"this folder holds verdicts on another table: {before.get('path') or before.get('source')}"
        raise UserError(problem, file=folder.where, remedy=remedy)
    return study


def replace_study(made: StudyFolder, folder: StudyFolder) -> None:
    """Replace the files of a folder by those of a study that was made in memory. Equal files are not written again.

    Of other files, only runs and figures are deleted. `study.yaml` is written first, so that the folder of an
    interrupted replacement is still that of a table.

    Args:
        made: the study in memory.
        folder: the folder, which is empty or holds a study that was made from a table.
    """
    source, target = made.store, folder.store
    with folder.claim():
        wanted = {key.removeprefix(f"{made.name}/"): key for key in source.list(made.name)}
        first, *others = sorted(wanted, key=lambda name: name != "study.yaml")
        _copy(source.read(wanted[first]), f"{folder.name}/{first}", folder)
        stored = (key.removeprefix(f"{folder.name}/") for key in target.list(folder.name))
        kept = {_derived(name) for name in wanted}
        for name in sorted({part for name in stored if (part := _derived(name))} - kept):
            target.delete(f"{folder.name}/{name}")
        for name in others:
            _copy(source.read(wanted[name]), f"{folder.name}/{name}", folder)


def _derived(name: str) -> str:
    """Return the folder with a file that may be deleted: that of a run, or that of figures; otherwise empty."""
    parts = name.split("/")
    return "/".join(parts[:3] if parts[0] == "runs" else parts[:2] if parts[:2] == ["report", "figures"] else [])


def _copy(data: bytes, key: str, folder: StudyFolder) -> None:
    store = folder.store
    if not store.exists(key) or store.read(key) != data:
        store.write(key, data, replace=True)

"""A study's folder with the runs of a table, which all commands for stored studies read.

The folder has no packs, models or checkpoints. The plan is not frozen before the first run, as it is where taetpu
trains: `judged` in study.yaml says from which table the study was made, and reports label it exploratory.
"""

import hashlib
import math
from collections import Counter
from collections.abc import Mapping
from typing import Any

import numpy as np

from taetpu.core.identity import SCHEMA, identity
from taetpu.judging.arrangement import Arrangement
from taetpu.judging.columns import Columns, Run
from taetpu.judging.history import Earlier, Question, Source, plan_verdicts
from taetpu.stats.secondary_analyses import sum_names
from taetpu.store.documents import to_json
from taetpu.store.flat_config import COLUMNS
from taetpu.store.metrics import Series
from taetpu.store.study import StudyFolder


def write_study(
    folder: StudyFolder,
    arranged: Arrangement,
    columns: Columns,
    question: Question,
    source: Source,
    earlier: Earlier | None = None,
) -> None:
    """Write a study with the runs of a table to an empty folder.

    Args:
        folder: the folder.
        arranged: the runs.
        columns: the roles of the table's columns.
        question: what is asked.
        source: where the runs come from.
        earlier: the study that was made from the table before.
    """
    planned = plan_verdicts(arranged, columns, question, earlier)
    labels = {str(number): list(label) for number, label in arranged.labels.items()}
    strata = list(dict.fromkeys(map(tuple, arranged.strata or ())))
    empty = Counter(arm for (arm, _), run in arranged.runs.items() if question.metric not in run.metrics)
    more = {
        "where": list(columns.where),
        "labels": labels,
        "titles": dict(arranged.titles),
        "history": planned.history,
        "empty": dict(empty) if arranged.blocks is not None else {},
        "disjoint": arranged.disjoint,
        "ends": _ends(arranged, question.metric),
        "strata": [", ".join(values) for values in strata],
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
            "judged": about,
            "baseline": arranged.baseline,
            "base": {COLUMNS: dict(arranged.arms[arranged.baseline])},
            "seeds": list(arranged.seeds),
            **({"blocks": list(arranged.blocks)} if arranged.blocks is not None else {}),
            **({"strata": [strata.index(tuple(values)) for values in arranged.strata]} if arranged.strata else {}),
            "arms": {arm: arranged.overrides(arm) for arm in arranged.arms},
            "idle": {},
            "roles": {},
            "design": {},
            "plan": planned.plan,
            "judged_at": planned.judged_at,
        }
    )
    measured = {place: run for place, run in arranged.runs.items() if question.metric in run.metrics}
    # The noise of an evaluation set is that of all runs only if all were evaluated on the same items.
    sets = {frozenset(run.items.get(question.metric, ())) for run in measured.values()}
    for (arm, seed), run in sorted(measured.items(), key=lambda item: item[0]):
        _write_run(folder, arm, seed, run, planned.plan, with_items=len(sets) == 1)


def _ends(arranged: Arrangement, metric: str) -> dict[str, list[int]]:
    """Return the first and last step at which finished runs of each arm ended; empty if all ended at one step."""
    steps: dict[str, list[int]] = {}
    for (arm, _), run in arranged.runs.items():
        if math.isfinite(run.metrics.get(metric, math.nan)):
            steps.setdefault(arm, []).append(_series(run, metric)[1])
    ends = {arm: [min(of_arm), max(of_arm)] for arm, of_arm in steps.items()}
    return ends if len({end for pair in ends.values() for end in pair}) > 1 else {}


# --- runs -------------------------------------------------------------------------------------------------------------


def _write_run(folder: StudyFolder, arm: str, seed: int, run: Run, plan: Mapping[str, Any], with_items: bool) -> None:
    """Write a run, whose identity is that of its settings and values."""
    metric = plan["primary"]
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
        total, weight = sum_names(plan, metric)
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


def replace_study(made: StudyFolder, folder: StudyFolder) -> None:
    """Replace the files of a folder by those of a study that was made elsewhere. Equal files are not written again.

    Of other files, only runs and figures are deleted. `study.yaml` is written first, so that the folder of an
    interrupted replacement is still that of a table.

    Args:
        made: the study.
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

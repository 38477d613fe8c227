"""Tuning: every arm tries the same values on the same seeds, keeps the best, and is trained anew on the study's seeds."""

import math
from collections.abc import Iterator, Mapping
from typing import Any

from taetpu.spec.candidates import Candidate, bounded
from taetpu.spec.design import Arm, Study
from taetpu.spec.loading import derived
from taetpu.store.study import StudyFolder


def trials(study: Study) -> Study:
    """The runs that decide: each arm with each combination of values, as a study of its own in the same folder."""
    assert study.tune is not None  # otherwise nobody asks
    arms = [arm for arms in _cells(study).values() for arm in arms.values()]
    return study.changed(arms=tuple(arms), seeds=study.tune.seeds, match=(), tune=None, design={})


def _cells(study: Study) -> dict[str, dict[str, Arm]]:
    """`{arm: {combination: that arm with it}}`."""
    assert study.tune is not None
    return {
        arm.name: {
            cell: _changed(study, arm, f"{arm.name}~{cell}", values) for cell, values in study.tune.cells.items()
        }
        for arm in study.arms
    }


def _changed(
    study: Study, arm: Arm, name: str, values: Mapping[str, Any], role: Mapping[str, Any] | None = None
) -> Arm:
    overrides = {**{path: value for path, value in arm.overrides.items() if path not in values}, **values}
    origins = {**arm.origins.places, **{path: ("tune", path) for path in values}}
    return derived(study, Candidate(bounded(name), overrides, origins, crossed=True, role=role or {}))


def choose(study: Study, folder: StudyFolder) -> dict[str, Any] | None:
    """What each arm found best; None while trials have not ended. Stored nowhere: it follows from the runs.

    Returns:
        `values` (what was tried, by path), `seeds`, and for each of `arms`: `trials` (combination: `values`, the `mean` of
        the primary metric over tuning seeds, and its values by seed; null where a run diverged), the `best` combination,
        and the paths at whose `edge` it lies.
    """
    assert study.tune is not None
    ids = {(run.arm, run.seed): run.id for run in trials(study).runs()}
    found: dict[str, Any] = {}
    for arm, cells in _cells(study).items():
        tried = {}
        for cell, values in study.tune.cells.items():
            name = cells[cell].name
            runs = [folder.run(name, seed, ids[name, seed]).result() for seed in study.tune.seeds]
            if any(run is None for run in runs):
                return None
            tried[cell] = {"values": values, **_outcome(runs, study)}
        best = _best(tried, study.measure.direction)
        entry = {"trials": tried, "best": best, "edge": [] if best is None else study.tune.edges(tried[best]["values"])}
        found[arm] = entry
    return {
        "values": {p: list(v) for p, v in study.tune.values.items()},
        "seeds": list(study.tune.seeds),
        "arms": found,
    }


def _outcome(runs: list[dict[str, Any] | None], study: Study) -> dict[str, Any]:
    values = [
        run["metrics"].get(study.measure.primary) if run and run["outcome"] == "finished" else None for run in runs
    ]
    known = [value for value in values if value is not None and math.isfinite(value)]
    return {"mean": sum(known) / len(known) if len(known) == len(values) else None, "by_seed": values}


def _best(tried: Mapping[str, Mapping[str, Any]], direction: str) -> str | None:
    """The combination with the best mean, the first of equals; None where each lost a run."""
    finished = {cell: entry["mean"] for cell, entry in tried.items() if entry["mean"] is not None}
    pick = min if direction == "min" else max
    return pick(finished, key=lambda cell: finished[cell], default=None)


def tuned(study: Study, chosen: Mapping[str, Any]) -> list[Arm]:
    """Every arm at what it found best, the baselines included; compared among each other."""
    arms = {arm.name: arm for arm in study.arms}
    return list(_tuned(study, arms, chosen))


def tuned_name(arm: str) -> str:
    """What an arm is called at what it found best."""
    return bounded(f"{arm}@tuned")


def _tuned(study: Study, arms: Mapping[str, Arm], chosen: Mapping[str, Any]) -> Iterator[Arm]:
    for arm in study.arms:
        entry = chosen["arms"][arm.name]
        baseline = arm.role.get("against", study.arms[0].name)
        if entry["best"] is None or chosen["arms"][baseline]["best"] is None:
            continue
        values = entry["trials"][entry["best"]]["values"]
        role = {**arm.role, "against": tuned_name(baseline), "family": "tuned", "tuned": {"of": arm.name, **values}}
        yield _changed(study, arm, tuned_name(arm.name), values, role)

"""Tuning: every arm tries the same values on the same seeds, keeps the best, and is trained anew on the study's."""

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from taetpu.spec.candidates import bounded
from taetpu.spec.loading import derived
from taetpu.spec.resolved_study import Arm, Study
from taetpu.spec.tuning import Tuning
from taetpu.stats.load import read_result
from taetpu.train.pack_plan import Run


def trials(study: Study) -> Study:
    """The runs that decide: each arm with each combination of values, as a study of its own in the same folder.

    An arm that sets one of the values itself keeps it, and tries the others.

    Raises:
        UserError: an arm cannot have one of the values.
    """
    arms = [
        _trial(study, arm, cell, values)
        for arm in study.arms
        for cell, values in _tuning(study).left_by(arm.overrides).cells.items()
    ]
    return study.changed(arms=tuple(arms), seeds=_tuning(study).seeds, match=(), tune=None, design={})


def _tuning(study: Study) -> Tuning:
    assert study.tune is not None  # otherwise nobody asks
    return study.tune


def _trial(study: Study, arm: Arm, cell: str, values: Mapping[str, Any]) -> Arm:
    name = _trial_name(arm, cell)
    return derived(study, arm, name, values, "tune", {"against": name})  # compared with no other


def _trial_name(arm: Arm, cell: str) -> str:
    return bounded(f"{arm.name}~{cell}")


def choose(study: Study, trial_runs: Iterable[Run]) -> dict[str, Any] | None:
    """What each arm found best; None while trials have not ended. It follows from the stored runs alone.

    Args:
        trial_runs: the runs of `trials`.

    Returns:
        `values` (what was tried, by path), `seeds`, the `metric` that decided, and for each of `arms` that had
        something to try: `trials` (combination: the `arm` that tried it, its `values`, the metric `by_seed`, null where
        a run diverged, and the `mean`, null where any did), the `best` combination, and the paths at whose `edge` it
        lies.
    """
    results: dict[str, list[dict[str, Any]]] = {}
    for run in trial_runs:
        result = read_result(run.folder)
        if result is None:
            return None
        results.setdefault(run.arm, []).append(result)
    tuning = _tuning(study)
    arms = {}
    for arm in study.arms:
        own = tuning.left_by(arm.overrides)
        outcomes = {
            cell: {"arm": name, "values": values, **_outcome(results[name], tuning.metric)}
            for cell, values in own.cells.items()
            for name in [_trial_name(arm, cell)]
        }
        best = _best(outcomes, study.measure.direction)
        if outcomes:
            edge = own.edges(outcomes[best]["values"]) if best else []
            arms[arm.name] = {"trials": outcomes, "best": best, "edge": edge}
    values = {path: list(tried) for path, tried in tuning.values.items()}
    return {"values": values, "seeds": list(tuning.seeds), "metric": tuning.metric, "arms": arms}


def _outcome(results: Sequence[Mapping[str, Any]], metric: str) -> dict[str, Any]:
    found = [result["metrics"].get(metric) if result["outcome"] == "finished" else None for result in results]
    values = [value if value is not None and math.isfinite(value) else None for value in found]
    known = [value for value in values if value is not None]
    return {"mean": sum(known) / len(known) if len(known) == len(values) else None, "by_seed": values}


def _best(outcomes: Mapping[str, Mapping[str, Any]], direction: str) -> str | None:
    """The combination with the best mean, the first of equals; None where each lost a run."""
    finished = {cell: entry["mean"] for cell, entry in outcomes.items() if entry["mean"] is not None}
    pick = min if direction == "min" else max
    return pick(finished, key=lambda cell: finished[cell], default=None)


def tuned(study: Study, chosen: Mapping[str, Any]) -> Iterator[Arm]:
    """Every arm at what it found best, the baselines included; compared among each other.

    An arm that had nothing to try, or lost a run at each of the values, has none; nor has one whose baseline did.
    """
    best = {name: entry["trials"][entry["best"]]["values"] for name, entry in chosen["arms"].items() if entry["best"]}
    for arm in study.arms:
        baseline = study.against(arm)
        if arm.name in best and baseline.name in best:
            role = {"against": tuned_name(baseline), "tuned": {"of": arm.name, **best[arm.name]}}
            yield derived(study, arm, tuned_name(arm), best[arm.name], "tune", {**arm.role, **role})


def tuned_name(arm: Arm) -> str:
    """What an arm is called at what it found best."""
    return bounded(f"{arm.name}@tuned")

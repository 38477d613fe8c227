"""Tuning: every arm tries the same values on separate seeds, and is trained with the best on the study's seeds."""

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from taetpu.spec.candidates import bounded
from taetpu.spec.loading import derive_arm
from taetpu.spec.resolved_study import Arm, Study
from taetpu.spec.tuning import Tuning
from taetpu.stats.load import read_result
from taetpu.train.pack_plan import Run


def trial_study(study: Study) -> Study:
    """Return the study of the trials: each arm with each combination of values, in the same folder.

    An arm that sets one of the values itself keeps it, and tries the others.

    Raises:
        UserError: an arm cannot have one of the values.
    """
    arms = []
    for arm in study.arms:
        for cell, values in _tuning(study).left_by(arm.overrides).cells.items():
            name = _trial_name(arm, cell)
            arms.append(derive_arm(study, arm, name, values, "trial", {"against": name}))  # compared with no other
    return study.changed(arms=tuple(arms), seeds=_tuning(study).seeds, match=(), tune=None, design={})


def _tuning(study: Study) -> Tuning:
    assert study.tune is not None  # callers check this
    return study.tune


def _trial_name(arm: Arm, cell: str) -> str:
    return bounded(f"{arm.name}~{cell}")


def choose_values(study: Study, trial_runs: Iterable[Run]) -> dict[str, Any] | None:
    """Return the best values of each arm, from the stored results of its trials; None while trials are unfinished.

    Args:
        trial_runs: the runs of `trial_study`.

    Returns:
        `values` (the values tried, by path), `seeds`, the `metric` that decides, and for each of `arms` with something
        to try: its `trials` (by combination: the trial's `arm`, its `values`, the metric `by_seed`, null where a run
        diverged, and the `mean`, null where any did), the `best` combination, and the paths where the best value is at
        the `edge` of those tried.
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
    """Return the combination with the best mean, the first of equals; None where each has a diverged run."""
    finished = {cell: entry["mean"] for cell, entry in outcomes.items() if entry["mean"] is not None}
    pick = min if direction == "min" else max
    return pick(finished, key=lambda cell: finished[cell], default=None)


def tuned_arms(study: Study, chosen: Mapping[str, Any]) -> Iterator[Arm]:
    """Yield every arm with its best values, baselines included; tuned arms are compared with each other.

    Arms that had nothing to try, or a diverged run at every value, have no tuned arm, nor do those compared with them.
    """
    best = {name: entry["trials"][entry["best"]]["values"] for name, entry in chosen["arms"].items() if entry["best"]}
    for arm in study.arms:
        baseline = study.against(arm)
        if arm.name in best and baseline.name in best:
            role = {"against": tuned_name(baseline), "tuned": {"of": arm.name, **best[arm.name]}}
            yield derive_arm(study, arm, tuned_name(arm), best[arm.name], "tuned", {**arm.role, **role})


def tuned_name(arm: Arm) -> str:
    """Return the name of an arm with its best values."""
    return bounded(f"{arm.name}@tuned")

"""Tuning: every arm tries the same values on separate seeds, and is then trained with its best values."""

import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any

from taetpu.spec.loaded_study import LoadedStudy
from taetpu.spec.tuning import Tuning
from taetpu.spec.unresolved_arms import bounded
from taetpu.stats.deviations import best_trial, mean_over_seeds
from taetpu.stats.load import COMPLETED, read_result
from taetpu.store.frozen_study import Role, TunedRole
from taetpu.store.frozen_study import Tuning as TuningRecord
from taetpu.store.runs import RunFolder

Derive = Callable[..., Any]
"""`derive(study, arm, name, values, stage, role)` returns an arm with further values."""


def trial_study(study: LoadedStudy[Any], derive: Derive) -> Any:
    """Return a study of the tuning trials: each arm with each combination of values.

    Args:
        study: the study with its arms.
        derive: see `Derive`.

    If an arm overrides a tuned field, its value is kept and only the other fields are tried.

    Raises:
        UserError: if an arm cannot use one of the values.
    """
    arms = []
    for arm in study.arms:
        for cell, values in _tuning(study).left_by(arm.overrides).cells.items():
            name = _trial_name(arm.name, cell)
            arms.append(derive(study, arm, name, values, "trial", {"against": name}))  # a trial is its own baseline
    return study.changed(arms=tuple(arms), seeds=_tuning(study).seeds, tune=None, design={})


def _tuning(study: LoadedStudy[Any]) -> Tuning:
    assert study.tune is not None  # callers check this
    return study.tune


def _trial_name(arm: str, cell: str) -> str:
    return bounded(f"{arm}~{cell}")


def choose_values(study: LoadedStudy[Any], trial_runs: Iterable[tuple[str, RunFolder]]) -> TuningRecord | None:
    """Return the best values of each arm, or None if some trials are unfinished.

    Args:
        study: the study with its arms.
        trial_runs: the trial and the folder of each run of `trial_study`.

    Returns:
        `values` (the values tried, by path), `seeds`, the deciding `metric`, and an entry of `arms` for each arm that
        tries values. The entry contains the `trials` by combination, the `best` combination, and in `edge` the paths
        whose best value is the smallest or largest value tried. A trial has the name of its `arm`, its `values`, the
        metric's value `by_seed` (None for a run that diverged), and the `mean` (None if any run diverged).
    """
    results: dict[str, list[dict[str, Any]]] = {}
    for trial, folder in trial_runs:
        result = read_result(folder)
        if result is None:
            return None
        results.setdefault(trial, []).append(result)
    tuning = _tuning(study)
    arms = {}
    for arm in study.arms:
        grid = tuning.left_by(arm.overrides)
        outcomes = {
            cell: {"arm": name, "values": values, **_outcome(results[name], tuning.metric)}
            for cell, values in grid.cells.items()
            for name in [_trial_name(arm.name, cell)]
        }
        best = best_trial({cell: entry["mean"] for cell, entry in outcomes.items()}, study.measure.direction)
        if outcomes:
            edge = grid.edges(outcomes[best]["values"]) if best else []
            arms[arm.name] = {"trials": outcomes, "best": best, "edge": edge}
    values = {path: list(tried) for path, tried in tuning.values.items()}
    return {"values": values, "seeds": list(tuning.seeds), "metric": tuning.metric, "arms": arms}


def _outcome(results: Sequence[Mapping[str, Any]], metric: str) -> dict[str, Any]:
    measured = [result["metrics"].get(metric) if result["outcome"] in COMPLETED else None for result in results]
    values = [value if value is not None and math.isfinite(value) else None for value in measured]
    return {"mean": mean_over_seeds(values), "by_seed": values}


def tuned_arms(study: LoadedStudy[Any], chosen: TuningRecord, derive: Derive) -> Iterator[Any]:
    """Yield each arm, including baselines, with its best values. Tuned arms are compared with tuned baselines.

    An arm is omitted if the arm or its baseline tried no values, or if every combination of either had a diverged run.
    """
    best = {name: entry["trials"][entry["best"]]["values"] for name, entry in chosen["arms"].items() if entry["best"]}
    for arm in study.arms:
        baseline = study.against(arm)
        if arm.name in best and baseline.name in best:
            tuned = TunedRole(of=arm.name, **best[arm.name])
            before: Role = arm.role
            role: Role = {**before, "against": tuned_name(baseline.name), "tuned": tuned}
            yield derive(study, arm, tuned_name(arm.name), best[arm.name], "tuned", role)


def tuned_name(arm: str) -> str:
    """Return the name of the tuned variant of an arm."""
    return bounded(f"{arm}@tuned")

"""Was the study carried out as it was planned? The frozen plan against the study and the runs that are there now."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from taetpu.stats.plan import Plan
from taetpu.store.runs import RunFolder

JUDGED_BY = ("primary", "direction", "equivalence", "alpha")
TUNED_SUFFIX = "@tuned"  # how the arms are called that tuning adds; cut off where a name was too long
TRIAL_MARK = "~"  # stands in the names of the arms that tuning tries


def find_departures(study: Mapping[str, Any], plan: Plan) -> list[str]:
    """What of a frozen study is not what its plan says, a sentence each; empty while all is.

    More arms and more seeds than were planned are no departure: the one is told of each arm (`planned`), and the other
    is counted in the plan's `error_rate`.
    """
    found = []
    if ended := study.get("planned_after", 0):
        runs = f"{ended} run{'s' if ended > 1 else ''}"
        found.append(f"the plan was written after {runs} had ended: an earlier study.yaml was deleted or moved away")
    seeds = study["seeds"]
    if not set(plan.seeds) <= set(seeds):
        found.append(f"seeds are {list(seeds)}, and the plan says {list(plan.seeds)}")
    elif len(seeds) != len(set(seeds)):
        found.append(f"seeds are {list(seeds)}, and one of them is there twice")
    found += [
        f"arm {arm!r} is planned, and study.yaml does not have it"
        for arm in dict.fromkeys(plan.arms)
        if arm not in study["arms"] and not _may_be_missing(arm, study)
    ]
    measure = study.get("measure")
    if isinstance(measure, Mapping):
        found += [
            f"measure.{name} is {measure[name]!r}, and the plan says {getattr(plan, name)!r}"
            for name in JUDGED_BY
            if name in measure and measure[name] != getattr(plan, name)
        ]
        looks = tuple(measure.get("looks") or ())
        if looks and looks != plan.looks:
            found.append(f"measure.looks is {list(looks)}, and the plan says {list(plan.looks)}")
    return found


def tuning_metric(tuning: Mapping[str, Any], primary: str) -> str:
    """The metric that tuning chose by. Earlier versions chose by the primary metric, and did not record it."""
    return tuning.get("metric", primary)


def _may_be_missing(arm: str, study: Mapping[str, Any]) -> bool:
    """An arm at what tuning found best is not there before tuning has ended, nor where all that was tried diverged."""
    if not arm.endswith(TUNED_SUFFIX):
        return False
    tuning = study.get("tuning")
    return not tuning or any(not entry["best"] for entry in tuning["arms"].values())


def find_unplanned_runs(study: Mapping[str, Any], plan: Plan, runs: Sequence[RunFolder]) -> Iterator[str]:
    """Runs that the study does not name: their results are in nothing that is reported."""
    tuning = study.get("tuning") or {"seeds": (), "arms": {}}
    tried = {trial["arm"] for entry in tuning["arms"].values() for trial in entry["trials"].values()}
    tuning_goes_on = not tuning["arms"] and any(arm.endswith(TUNED_SUFFIX) for arm in plan.arms)
    for run in runs:
        if run.arm in study["arms"] or run.arm in tried:
            seeds = study["seeds"] if run.arm in study["arms"] else tuning["seeds"]
            if run.seed not in seeds:
                yield f"{run.where}: a run of seed {run.seed}, and the study's seeds are {list(seeds)}"
        elif not (tuning_goes_on and TRIAL_MARK in run.arm):
            yield f"{run.where}: a run of arm {run.arm!r}, and study.yaml does not have it"

"""Departures of a study and its stored runs from the frozen analysis plan."""

from collections.abc import Iterator, Mapping, Sequence

from taetpu.stats.load import read_study
from taetpu.stats.plan import Plan, read_plan
from taetpu.store.frozen_study import FrozenStudy, Tuning
from taetpu.store.runs import RunFolder
from taetpu.store.study import StudyFolder

JUDGED_BY = ("primary", "direction", "equivalence", "alpha", "solved", "reach", "by", "worth")
TUNED_SUFFIX = "@tuned"  # suffix in the name of an arm that tuning adds
TRIAL_MARK = "~"  # part of the name of every tuning trial's arm


def study_departures(folder: StudyFolder) -> list[str]:
    """Return the departures of a stored study from its plan (see `find_departures`)."""
    study = read_study(folder)
    return find_departures(study, read_plan(study, folder.where))


def find_departures(study: FrozenStudy, plan: Plan) -> list[str]:
    """Return the departures of a frozen study from its plan, one sentence per departure.

    Additional arms, seeds and post-hoc tables are not departures. In `results.json`, an additional arm or table has
    `planned: false`, and additional seeds increase the plan's `error_rate`.

    Args:
        study: the frozen study.
        plan: the study's analysis plan.
    """
    departures = []
    if ended := study.get("planned_after", 0):
        runs = f"{ended} run{'s' if ended > 1 else ''}"
        departures.append(
            f"the plan was written after {runs} had ended: an earlier study.yaml was deleted or moved away"
        )
    seeds = study["seeds"]
    if not set(plan.seeds) <= set(seeds):
        departures.append(f"seeds are {list(seeds)}, and the plan says {list(plan.seeds)}")
    elif len(seeds) != len(set(seeds)):
        departures.append(f"seeds are {list(seeds)}, and one of them is there twice")
    departures += [
        f"arm {arm!r} is planned, and study.yaml does not have it"
        for arm in dict.fromkeys(plan.arms)
        if arm not in study["arms"] and not _may_be_missing(arm, study)
    ]
    departures += [
        f"post-hoc table {name!r} is planned, and study.yaml does not have it"
        for name in plan.post_hoc
        if name not in study.get("post_hoc", {})
    ]
    measure = study.get("measure")
    if isinstance(measure, Mapping):
        departures += [
            f"measure.{name} is {measure[name]!r}, and the plan says {getattr(plan, name)!r}"
            for name in JUDGED_BY
            if name in measure and measure[name] != getattr(plan, name)
        ]
        planned = {name.partition("=")[0] for name in plan.contrasts} | set(plan.contrasts)
        departures += [
            f"contrast {name!r} is in measure.contrasts, and the plan does not have it"
            for name in measure.get("contrasts") or ()
            if name not in planned
        ]
        looks = tuple(measure.get("looks") or ())
        if looks and looks != plan.looks:
            departures.append(f"measure.looks is {list(looks)}, and the plan says {list(plan.looks)}")
    return departures


def tuning_metric(tuning: Tuning, primary: str) -> str:
    """Return the metric by which tuning selected the best trial. If no metric is recorded, return `primary`."""
    return tuning.get("metric", primary)


def mean_over_seeds(values: Sequence[float | None]) -> float | None:
    """Return the mean of a tuning trial; None if a seed is missing or diverged."""
    known = [value for value in values if value is not None]
    return sum(known) / len(known) if len(known) == len(values) else None


def best_trial(means: Mapping[str, float | None], direction: str) -> str | None:
    """Return the trial with the best mean, the first one among equals; None if no trial finished on every seed."""
    known = {cell: mean for cell, mean in means.items() if mean is not None}
    return (min if direction == "min" else max)(known, key=lambda cell: known[cell], default=None)


def awaits_tuned_arms(study: FrozenStudy) -> bool:
    """Return whether tuning is unfinished, so that the study lacks the tuned arms of its plan."""
    return not study.get("tuning") and any(arm.endswith(TUNED_SUFFIX) for arm in study["plan"]["arms"])


def _may_be_missing(arm: str, study: FrozenStudy) -> bool:
    """Return whether tuning adds this arm, and tuning is unfinished or found no best trial for at least one arm."""
    if not arm.endswith(TUNED_SUFFIX):
        return False
    tuning = study.get("tuning")
    return not tuning or any(not entry["best"] for entry in tuning["arms"].values())


def find_unplanned_runs(study: FrozenStudy, runs: Sequence[RunFolder]) -> Iterator[str]:
    """Yield a sentence for each run whose arm or seed is not in the study. Results do not include such runs."""
    tuning = study.get("tuning")
    tuned, tuning_seeds = (tuning["arms"], tuning["seeds"]) if tuning else ({}, [])
    tried = {trial["arm"] for entry in tuned.values() for trial in entry["trials"].values()}
    for run in runs:
        if run.arm in study["arms"] or run.arm in tried:
            seeds = study["seeds"] if run.arm in study["arms"] else tuning_seeds
            if run.seed not in seeds:
                yield f"{run.where}: the run's seed {run.seed} is not among the study's seeds {list(seeds)}"
        elif not (awaits_tuned_arms(study) and TRIAL_MARK in run.arm):
            yield f"{run.where}: the run's arm {run.arm!r} is not in study.yaml"

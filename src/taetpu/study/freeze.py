"""Freezing a study: recording it in its folder before the first run. Afterwards, only arms and seeds can be added."""

import math
from collections.abc import Mapping, Sequence
from typing import Any

from taetpu.core.errors import UserError
from taetpu.spec.frozen import changed_files, check_frozen, frozen_data
from taetpu.spec.resolved_study import Arm, Study
from taetpu.spec.run_ids import plugin_sources
from taetpu.stats.load import read_study
from taetpu.stats.plan import Plan
from taetpu.store.frozen_study import PlannedTask
from taetpu.store.runs import RunFolder
from taetpu.store.study import StudyFolder
from taetpu.study.frozen_arms import common_plan, refuse_tuned_seeds, without_removed


def freeze(study: Study, folder: StudyFolder, **more: Mapping[str, Any]) -> None:
    """Record a study. Arms, seeds and post-hoc tables may be added later, but the rest may not change.

    Arms and seeds that were removed from the study file stay recorded if they have finished runs. A post-hoc table that
    was removed stays recorded if a run has it.

    Args:
        study: the study with all arms that are known so far.
        folder: the study's folder.
        more: measurements to record: the steps of time-matched arms (`matching`) and the best values (`tuning`).

    Raises:
        UserError: if the folder contains another study, if arms would be compared on seeds that they were tuned on, or
            if the data or a plug-in of a finished run has changed.
    """
    asked = {**frozen_data(study), "plan": analysis_plan(study).frozen(), "judged_at": []}
    if not folder.exists() and (ended := sum(run.status() == "done" for run in folder.runs())):
        asked["planned_after"] = ended
    if folder.exists():
        stored = read_study(folder)
        refuse_tuned_seeds(study, stored)
        asked = check_frozen(stored, study)
        done = [run for run in folder.runs() if run.status() == "done"]
        _refuse_other_data(study, done, changed_files(stored, study))
        asked = without_removed(asked, stored, [arm.name for arm in study.arms], study.seeds, done)
        if removed := {*asked.get("post_hoc", ())} - {*study.post_hoc}:
            removed -= {name for run in done for name in run.post_hoc_tables()}
            asked["post_hoc"] = {name: table for name, table in asked["post_hoc"].items() if name not in removed}
    for plugin in study.plugins:
        folder.write_plugin(f"{plugin.file.stem}-{plugin.sha256[:8]}.py", plugin.source)
    folder.write_study({**asked, **more}, replace=True)


def analysis_plan(study: Study) -> Plan:
    """Return the analysis plan, which is frozen before the first run."""
    train = study.arms[0].config.train
    timed = study.measure.reach is not None
    return common_plan(
        study,
        post_hoc=study.post_hoc,
        metrics=_metrics(study.arms[0]),
        tasks=_tasks(study),
        pool=study.pool,
        eval_every=train.eval_every if timed else None,
        eval_windows=train.eval_windows if timed else None,
        worth=study.measure.worth,
    )


def _metrics(arm: Arm) -> dict[str, Any]:
    return {name: spec.to_data() for name, spec in arm.config.metric_specs.items()}


def _tasks(study: Study) -> dict[str, PlannedTask]:
    """Return how arms are compared on each task, with the values that count as 0 and 1 in pooled effects."""
    planned: dict[str, PlannedTask] = {}
    for name, task in study.tasks.items():
        arm = next(arm for arm in study.arms if arm.role.get("ladder", {"rung": ""})["rung"] == name)
        facts, metric = study.source(arm).facts, arm.config.metric_spec(task.primary)
        what, (_, most) = task.primary.partition("/")[2], metric.bounds
        # A loss of 0 is a bound that most data do not allow, so the lowest possible loss must be known.
        bound = most if metric.better == "max" and math.isfinite(most) else None
        lowest = facts.get(f"bayes_{what}")
        chance, best = facts.get(f"chance_{what}"), bound if lowest is None else lowest
        planned[name] = {
            "primary": task.primary,
            "direction": metric.better,
            "equivalence": task.equivalence,
            "chance": task.chance if task.chance is not None else chance,
            "best": task.best if task.best is not None else best,
            "metrics": _metrics(arm),
        }
        low, high = planned[name]["chance"], planned[name]["best"]
        sign, side = (1, "above") if metric.better == "max" else (-1, "below")
        # Otherwise, scores and pooled effects would have the wrong sign.
        if low is not None and high is not None and sign * (high - low) <= 0:
            problem = f"best={high:g} is not {side} chance={low:g}, and pooled effects on {task.primary} need it to be"
            field = "chance" if task.best is None and task.chance is not None else "best"
            remedy = f"Use a value of best {side} that of chance."
            raise study.document.locate(UserError(problem, path=("tasks", name, "measure", field), remedy=remedy))
    return planned


def _refuse_other_data(study: Study, done: Sequence[RunFolder], files: str) -> None:
    """Raise `UserError` if the data or a plug-in of a finished run has changed since the run was trained."""
    now = {(run.arm, run.seed): run for run in study.runs()}
    for run in done:
        new = now.get((run.arm, run.seed))
        if new is not None and new.id[:8] != run.id:
            edited = run.config().get("plugins", []) != plugin_sources(new.config)
            data = "on data that differs from its task's current data" + (f": {files}" if files else "")
            what = "with another version of its plug-in" if edited else data
            earlier = f"plug-in (a copy is in {study.name}/plugins)" if edited else "data"
            remedy = f"Give the arm another name, or restore the earlier {earlier}. The stored run was not changed."
            raise UserError(f"arm {run.arm!r} was trained {what}", file=run.where, remedy=remedy)

"""What a study's folder keeps of its study: frozen before the first run, then only added to."""

from collections.abc import Sequence
from typing import Any

from taetpu.core.errors import UserError
from taetpu.spec.design import Study, check_frozen, frozen
from taetpu.spec.identity import plugin_sources
from taetpu.stats.plan import Plan
from taetpu.store.runs import RunFolder
from taetpu.store.study import StudyFolder
from taetpu.study.tuning import tuned_name


def freeze(study: Study, folder: StudyFolder, tuning: dict[str, Any] | None = None) -> None:
    """Record what the study is, and what its arms found best. Arms and seeds may be added later; the baseline and the
    measure may not change.

    Arms and seeds that the file no longer names stay recorded as far as they were trained.
    """
    asked = {**frozen(study), "plan": analysis_plan(study).frozen()}
    if folder.exists():
        asked = check_frozen(folder.read_study(), study)
        done = [run for run in folder.runs() if run.status() == "done"]
        _refuse_other_data(study, done)
        arms, seeds = {arm.name for arm in study.arms} | {run.arm for run in done}, {run.seed for run in done}
        asked["arms"] = {name: change for name, change in asked["arms"].items() if name in arms}
        asked["seeds"] = [seed for seed in asked["seeds"] if seed in {*study.seeds, *seeds}]
    if tuning is not None:
        asked["tuning"] = tuning
    timed = {arm.name: arm.role["match"] for arm in study.arms if arm.role.get("match", {}).get("by") == "time"}
    asked["matching"] = {**asked.get("matching", {}), **{name: match["train.steps"] for name, match in timed.items()}}
    for plugin in study.plugins:
        folder.write_plugin(f"{plugin.file.stem}-{plugin.sha256[:8]}.py", plugin.source)
    folder.write_study(asked, replace=True)


def analysis_plan(study: Study) -> Plan:
    """How the study will be analysed, as decided before its first run."""
    measure, seeds, names = study.measure, study.seeds, [arm.name for arm in study.arms]
    return Plan(
        primary=measure.primary,
        direction=measure.direction,
        arms=(*names, *(tuned_name(name) for name in names if study.tune is not None)),
        seeds=seeds,
        looks=measure.looks or (len(seeds),),
        equivalence=measure.equivalence,
        alpha=measure.alpha,
    )


def _refuse_other_data(study: Study, done: Sequence[RunFolder]) -> None:
    """A trained run of an arm and seed that would now be another one: the arm's data or plug-in has changed."""
    now = {(run.arm, run.seed): run for run in study.runs()}
    for run in done:
        new = now.get((run.arm, run.seed))
        if new is not None and new.id[:8] != run.id:
            edited = run.config().get("plugins", []) != plugin_sources(new.config)
            what = "with another version of its plug-in" if edited else "on other data than its task has now"
            back = f"the plug-in back (a copy is in {study.name}/plugins)" if edited else "the data back"
            raise UserError(
                f"arm {run.arm!r} was trained {what}",
                file=run.where,
                remedy=f"nothing was changed there: give the arm another name, or bring {back}",
            )

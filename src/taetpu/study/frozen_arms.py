"""What frozen studies of models and of programs share: the plan, and the arms and seeds that are kept."""

from collections.abc import Mapping, Sequence
from typing import Any

from taetpu.core.errors import UserError
from taetpu.spec.loaded_study import LoadedStudy
from taetpu.stats.plan import MIN_SEEDS, RULES, Plan
from taetpu.store.runs import RunFolder
from taetpu.study.tuning import tuned_name


def without_removed(
    asked: Mapping[str, Any],
    stored: Mapping[str, Any],
    arms: Sequence[str],
    seeds: Sequence[int],
    done: Sequence[RunFolder],
) -> dict[str, Any]:
    """Return the data of a study without arms and seeds that were removed from its file and have no finished run.

    If the stored study had verdicts and seeds are added, the number of its seeds is added to `judged_at`.

    Args:
        asked: the stored data extended by new arms and seeds.
        stored: the stored data.
        arms: the arms of the study file.
        seeds: the seeds of the study file.
        done: the finished runs.
    """
    data = dict(asked)
    kept = {*arms, *(run.arm for run in done)}
    kept |= {role["against"] for name, role in data["roles"].items() if name in kept and "against" in role}
    data["arms"] = {name: change for name, change in data["arms"].items() if name in kept}
    data["roles"] = {name: role for name, role in data["roles"].items() if name in data["arms"]}
    known = {*seeds, *(run.seed for run in done)}
    data["seeds"] = [seed for seed in data["seeds"] if seed in known]
    wanted = {(arm, seed) for arm in stored["arms"] for seed in stored["seeds"]}
    # Verdicts were possible if the stored study had several arms and seeds, and all their runs were done.
    several = len(stored["arms"]) > 1 and len(stored["seeds"]) >= MIN_SEEDS
    judged = several and wanted <= {(run.arm, run.seed) for run in done}
    if "judged_at" in stored and judged and len(data["seeds"]) > len(stored["seeds"]):
        data["judged_at"] = [*stored["judged_at"], len(stored["seeds"])]
    return data


def common_plan(study: LoadedStudy[Any], **more: Any) -> Plan:
    """Return the analysis plan of a study of models or of a program, with the fields that only one of them has."""
    measure, tune = study.measure, study.tune
    tried = [arm.name for arm in study.arms if tune is not None and tune.left_by(arm.overrides).values]
    return Plan(
        primary=measure.primary,
        direction=measure.direction,
        arms=(*(arm.name for arm in study.arms), *map(tuned_name, tried)),
        seeds=study.seeds,
        looks=measure.looks or (len(study.seeds),),
        equivalence=measure.equivalence,
        alpha=measure.alpha,
        contrasts=study.contrasts,
        rules=RULES,
        noise="moderated",
        goal=study.goal or {},
        across=study.across,
        solved=measure.solved,
        reach=measure.reach,
        by=measure.by,
        **more,
    )


def refuse_tuned_seeds(study: LoadedStudy[Any], stored: Mapping[str, Any]) -> None:
    """Raise `UserError` if arms would be compared on seeds that they were tuned on."""
    if shared := set(study.seeds) & set(stored.get("tuning", {}).get("seeds", ())):
        problem = f"seed {min(shared)} was used for tuning, so arms cannot be compared on it"
        raise study.document.locate(UserError(problem, path=("seeds",), remedy="Use other seeds."))

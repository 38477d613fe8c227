"""The costs by which a goal orders its candidates."""

from collections.abc import Callable, Mapping
from statistics import fmean
from typing import Any

from taetpu.core.errors import UserError
from taetpu.report.goal import describe_planned_goal
from taetpu.spec.goal import TIMED, path_costs
from taetpu.spec.resolved_study import Arm, Study
from taetpu.stats.load import read_study
from taetpu.store.study import StudyFolder
from taetpu.study.matching import flops_per_step, num_arm_params, steps_of
from taetpu.train.memory import kv_bytes, run_bytes


def goal_costs(
    study: Study, known: Mapping[str, float], seconds: Callable[[str], float] | None = None
) -> dict[str, float]:
    """Return the cost of each candidate of a goal; with tasks, the mean over its arms on the tasks.

    Args:
        study: a study with a goal.
        known: costs that an earlier run of the study stored. They are not computed or measured again.
        seconds: a function that measures the seconds per step of an arm; None if measured costs are left out.

    Raises:
        UserError: if a candidate has no such cost.
    """
    assert study.goal is not None, "the study has no goal"
    minimise = study.goal["minimise"]
    asked = {name: arms for name, arms in candidate_arms(study).items() if name not in known}
    arms = [arm for group in asked.values() for arm in group]
    if minimise == TIMED:
        costs = {arm.name: seconds(arm.name) for arm in arms} if seconds else {}
    elif minimise not in COMPUTE:
        costs = path_costs(minimise, [(arm.name, arm.config) for arm in arms])
    else:
        costs = {arm.name: float(COMPUTE[minimise](study, arm)) for arm in arms}
    groups = asked.items() if costs else ()
    return {**known, **{name: fmean(costs[arm.name] for arm in group) for name, group in groups}}


def candidate_arms(study: Study) -> dict[str, list[Arm]]:
    """Return the arms of each candidate of a goal: those on all tasks, or one."""
    groups: dict[str, list[Arm]] = {}
    for arm in study.arms:
        name = arm.role["ladder"]["arm"] if study.tasks and "ladder" in arm.role else arm.name
        groups.setdefault(name, []).append(arm)
    return groups


def _flops(study: Study, arm: Arm) -> float:
    return flops_per_step(study, arm) * steps_of(study, arm)


def _memory(study: Study, arm: Arm) -> float:
    return run_bytes(arm.config, study.source(arm))


def _cache_bytes(study: Study, arm: Arm) -> float:
    size = kv_bytes(arm.config, study.source(arm))
    if size is None:
        problem = f"the size of the cache of candidate {arm.name!r} is not known"
        error = UserError(problem, path=("goal", "minimise"), remedy="Use another cost, e.g. params.")
        raise study.document.locate(error)
    return size


def preview_goal(study: Study, folder: StudyFolder) -> dict[str, Any] | None:
    """Return the question of the goal and the costs of its candidates, cheapest first; None without a goal."""
    if study.goal is None:
        return None
    stored = read_study(folder).get("goal_costs", {}) if folder.exists() else {}
    costs = goal_costs(study, stored)
    searched = {arm for step in folder.read_search() for arm in step["arms"]}
    return {
        **study.goal,
        "question": describe_planned_goal(study.goal),
        "cost": dict(sorted(costs.items(), key=lambda entry: entry[1])),
        "untrained": sum(arms[0].name not in searched for arms in candidate_arms(study).values()) if searched else 0,
    }


COMPUTE: Mapping[str, Callable[[Study, Arm], float]] = {
    "params": num_arm_params, "flops": _flops, "memory": _memory, "cache_bytes": _cache_bytes,
}  # fmt: skip

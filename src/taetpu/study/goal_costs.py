"""The costs by which a goal orders its candidates."""

from collections.abc import Callable, Mapping

from taetpu.core.errors import UserError
from taetpu.spec.goal import TIMED, path_costs
from taetpu.spec.resolved_study import Arm, Study
from taetpu.study.matching import flops_per_step, num_arm_params, steps_of
from taetpu.train.memory import kv_bytes, state_bytes, step_bytes


def goal_costs(
    study: Study, known: Mapping[str, float], seconds: Callable[[str], float] | None = None
) -> dict[str, float]:
    """Return the cost of each candidate of a goal.

    Args:
        study: a study with a goal.
        known: costs that an earlier run of the study stored. They are not computed or measured again.
        seconds: a function that measures the seconds per step of an arm; None if measured costs are left out.

    Raises:
        UserError: if a candidate has no such cost.
    """
    assert study.goal is not None, "the study has no goal"
    minimise = study.goal["minimise"]
    arms = [arm for arm in study.arms if arm.name not in known]
    if minimise == TIMED:
        return {**known, **({arm.name: seconds(arm.name) for arm in arms} if seconds else {})}
    if minimise not in COMPUTE:
        return {**known, **path_costs(minimise, [(arm.name, arm.config) for arm in arms])}
    return {**known, **{arm.name: float(COMPUTE[minimise](study, arm)) for arm in arms}}


def _flops(study: Study, arm: Arm) -> float:
    return flops_per_step(study, arm) * steps_of(study, arm)


def _memory(study: Study, arm: Arm) -> float:
    source = study.source(arm)
    return state_bytes(arm.config, source) + step_bytes(arm.config, source)


def _cache_bytes(study: Study, arm: Arm) -> float:
    size = kv_bytes(arm.config, study.source(arm))
    if size is None:
        problem = f"the size of the cache of candidate {arm.name!r} is not known"
        error = UserError(problem, path=("goal", "minimise"), remedy="Use another cost, e.g. params.")
        raise study.document.locate(error)
    return size


COMPUTE: Mapping[str, Callable[[Study, Arm], float]] = {
    "params": num_arm_params, "flops": _flops, "memory": _memory, "cache_bytes": _cache_bytes,
}  # fmt: skip

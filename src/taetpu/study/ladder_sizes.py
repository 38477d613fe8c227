"""The sizes of the rungs of a ladder."""

from typing import Any

from taetpu.spec.resolved_study import Study
from taetpu.study.matching import flops_per_step, num_arm_params, steps_of


def ladder_sizes(study: Study) -> dict[str, dict[str, Any]]:
    """Return `params`, `steps`, `tokens` and `flops` of a run of the baseline at each rung; empty without a ladder."""
    if "ladder" not in study.design:
        return {}
    design, sizes = study.design["ladder"], dict[str, dict[str, Any]]()
    for rung in design["rungs"]:
        role = {"rung": rung, "arm": study.arms[0].name}
        arm = study.arms[0]
        if rung != design["own"]:
            arm = next(arm for arm in study.arms if arm.role.get("ladder") == role)
        steps = steps_of(study, arm)
        sizes[rung] = {
            "params": num_arm_params(study, arm),
            "steps": steps,
            "tokens": steps * arm.config.train.batch_size * study.source(arm).seq_len,
            "flops": steps * flops_per_step(study, arm),
        }
    return sizes

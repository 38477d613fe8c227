"""What a study can resolve, said before it is trained: from a noise level to an effect, and to seeds and their cost."""

import math
from typing import Any

from taetpu.core.errors import UserError
from taetpu.spec.resolved_study import Study
from taetpu.stats.plan import metric_bounds
from taetpu.stats.power import POWER, PowerAnalysis
from taetpu.store.study import StudyFolder
from taetpu.study.freeze import analysis_plan

LEAST = 2
"""The fewest seeds that show any noise."""


def resolution(
    study: Study, folder: StudyFolder, flops_a_seed: float, noise: float | None = None, effect: float | None = None
) -> dict[str, Any]:
    """How large a true effect this study finds four times in five.

    Args:
        flops_a_seed: training all arms on one seed.
        noise: the standard deviation of a run after its seed's effect is taken out, as the user states it; else that of
            the results that are stored, if there are any.
        effect: a true effect that the user wants to find.

    Returns:
        `noise` and where it is `noise_from`; `resolves` in the metric's unit, and `resolves_sd` in standard deviations,
        which needs no noise level; `most`, the largest effect that the metric allows (None: any); for the `effect`, the
        `seeds` that it takes and the `flops` of training them all.

    Raises:
        UserError: a noise or an effect that is no finite number above 0; an effect without any noise to compare it
            with.
    """
    for name, value in (("noise", noise), ("effect", effect)):
        if value is not None and not 0 < value < math.inf:
            remedy = "a finite number above 0, e.g. 0.01"
            raise UserError(f"{value:g} is no {name} to plan with", path=(name,), remedy=remedy)
    known, source = (noise, "stated") if noise else (_measured(folder), "measured")
    if effect is not None and known is None:
        remedy = "--noise 0.01, say; or run the study first"
        raise UserError("how many seeds an effect takes depends on the noise, which is not known yet", remedy=remedy)
    compared = [study.against(arm) for arm in study.arms if study.against(arm) is not arm]
    arms, together = len(compared), sum(baseline is study.arms[0] for baseline in compared)
    found = {"noise": known, "noise_from": source if known else None, "resolves": None, "resolves_sd": None}
    low, high = metric_bounds(study.measure.primary)
    found["most"] = high - low if math.isfinite(high) else None
    found |= {"power": POWER, "effect": effect, "seeds": None, "flops": None}
    if not arms:
        return found
    plan, seeds = analysis_plan(study), len(study.seeds)
    in_sd = PowerAnalysis(arms, plan.strictest_level(arms, seeds), df_a_seed=together or None).smallest_effect(
        1.0, seeds
    )
    design = PowerAnalysis(arms, plan.alpha, df_a_seed=together or None)
    found |= {"resolves_sd": in_sd, "resolves": in_sd * known if in_sd and known else None}
    if effect is not None and known is not None:
        least = design.smallest_effect(1.0, LEAST)  # what lies far beyond it has no power that could be computed
        needed = LEAST if least and effect >= least * known else design.seeds_needed(effect, known)
        found |= {"seeds": needed, "flops": None if needed is None else needed * flops_a_seed}
    return found


def _measured(folder: StudyFolder) -> float | None:
    results = folder.read_results() if folder.exists() else None
    return results["model"]["residual_sd"] if results else None

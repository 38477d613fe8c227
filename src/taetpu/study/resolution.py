"""The effects that a study can detect before it is run. JAX is not imported."""

from collections.abc import Sequence
from math import inf, isfinite
from typing import Any

from taetpu.core.errors import UserError
from taetpu.stats.outcomes import seeds_for_level, smallest_p
from taetpu.stats.plan import Plan
from taetpu.stats.power import POWER, PowerAnalysis
from taetpu.stats.results import read_results
from taetpu.store.study import StudyFolder

MIN_SEEDS = 2
"""Minimum number of seeds for which a variance can be estimated."""


def resolution(
    plan: Plan,
    baselines: Sequence[str],
    folder: StudyFolder,
    flops_a_seed: float | None = None,
    noise: float | None = None,
    effect: float | None = None,
) -> dict[str, Any]:
    """Return the smallest true effect that this study detects with a power of 80 %.

    Args:
        plan: the study's analysis plan.
        baselines: the baseline of each arm that is compared with one.
        folder: the study's folder.
        flops_a_seed: the FLOPs of training all arms on one seed, or None if they are not known.
        noise: the residual standard deviation of a run, given the effects of its arm and seed. By default, it is read
            from the stored results.
        effect: a true effect to detect.

    Returns:
        A dictionary with these entries:
        `noise`, `noise_from`: the noise and its source (`stated` or `measured`); None if the noise is unknown.
        `resolves`: the smallest detectable effect in the metric's unit, or None if the noise is unknown.
        `resolves_sd`: the smallest detectable effect in standard deviations of the noise.
        `most`: the largest effect that the metric's bounds allow, or None if there is no limit.
        `power`: the power of the test.
        `effect`, `seeds`, `flops`: the given effect, the number of seeds required to detect it, and the FLOPs of
        training them, or None if they are not known.
        `shares`: only if arms are compared by shares of solved runs: the numbers of `seeds` and of compared `arms`, the
        `level` of each test after the correction, the `smallest_p` that the exact test reaches with these seeds, and
        the number of seeds `needed` for the level.

    Raises:
        UserError: if the noise or the effect is not a finite number above 0, or if an effect is given and the noise is
            not known.
    """
    for name, value in (("noise", noise), ("effect", effect)):
        if value is not None and not 0 < value < inf:
            problem = f"`{name}` must be finite and above 0, got {value:g}"
            raise UserError(problem, path=(name,), remedy="Use e.g. 0.01.")
    seeds = len(plan.seeds)
    for name, value in (("noise", noise), ("effect", effect)) if plan.solved is not None else ():
        if value is not None:
            problem = f"`{name}` is {value:g}, and the exact test of shares of solved runs needs no noise"
            raise UserError(problem, path=(name,), remedy=f"Remove --{name}.")
    known, source = (noise, "stated") if noise else (_measured(folder), "measured")
    if effect is not None and known is None:
        remedy = "Use e.g. --noise 0.01, or run the study first."
        raise UserError("the number of seeds for an effect depends on the noise, which is not known yet", remedy=remedy)
    arms, together = len(baselines) + len(plan.contrasts), sum(name == plan.arms[0] for name in baselines)
    values = {"noise": known, "noise_from": source if known else None, "resolves": None, "resolves_sd": None}
    low, high = plan.bounds
    values["most"] = high - low if isfinite(high - low) else None
    values |= {"power": POWER, "effect": effect, "seeds": None, "flops": None}
    if not arms:
        return values
    level = plan.strictest_level(arms, seeds)
    if plan.solved is not None:
        needed = seeds_for_level(plan.alpha / arms)
        shares = {
            "seeds": seeds,
            "arms": arms,
            "level": level / arms,
            "smallest_p": smallest_p(seeds),
            "needed": needed,
        }
        return {**values, "shares": shares}
    in_sd = PowerAnalysis(arms, level, weighed=together or arms).smallest_effect(1.0, seeds)
    design = PowerAnalysis(arms, plan.alpha, weighed=together or arms)
    values |= {"resolves_sd": in_sd, "resolves": in_sd * known if in_sd and known else None}
    if effect is not None and known is not None:
        least = design.smallest_effect(1.0, MIN_SEEDS)  # the power cannot be computed at much larger effects
        needed = MIN_SEEDS if least and effect >= least * known else design.seeds_needed(effect, known)
        values |= {"seeds": needed, "flops": needed * flops_a_seed if needed and flops_a_seed is not None else None}
    return values


def _measured(folder: StudyFolder) -> float | None:
    results = read_results(folder) if folder.exists() else None
    return results["model"]["residual_sd"] if results else None

"""Verdicts on effects: better, worse, equivalent or inconclusive, with the evidence in one sentence.

Absence of evidence is not evidence of absence, so an effect that is neither significant nor equivalent is inconclusive.
"""

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from types import MappingProxyType
from typing import TypeVar

from taetpu.stats import divergence, formatting
from taetpu.stats.divergence import Count
from taetpu.stats.linear_model import CONFIDENCE, Effect, ExactTests
from taetpu.stats.outcomes import ShareEffect
from taetpu.stats.plan import Direction, Plan
from taetpu.stats.power import PowerAnalysis
from taetpu.stats.results import Verdict

K = TypeVar("K")


@dataclass(frozen=True)
class Evidence:
    """Evidence for the verdict on one arm.

    Attributes:
        effect: the effect estimated from the finished runs.
        imputed: the effect if each diverged run counts with the worst value; None if no run of either arm diverged.
        count: outcomes of the arm's runs.
        baseline: outcomes of the baseline's runs.
        p: uncorrected p-value of the effect, or of the divergence test if all ended runs of the arm diverged.
        p_holm: p-value corrected for planned analyses and the number of arms.
        p_equivalent: p-value of equivalence for both `effect` and `imputed`, corrected for planned analyses; None
            without an equivalence margin or an estimate.
        divergence_p: p-value of equal divergence rates; see `divergence.boschloo_p`.
        all_diverged: whether all ended runs of the arm diverged.
    """

    effect: Effect
    imputed: Effect | None
    count: Count
    baseline: Count
    p: float | None
    p_holm: float | None
    p_equivalent: float | None
    divergence_p: float | None
    all_diverged: bool


def collect_evidence(
    effects: Mapping[str, Effect],
    imputed: Mapping[str, Effect],
    counts: Mapping[str, Count],
    against: Mapping[str, str],
    plan: Plan,
    seeds: int,
    margins: Mapping[str, float | None] = MappingProxyType({}),
) -> dict[str, Evidence]:
    """Collect each arm's effect, outcomes and corrected p-values.

    Args:
        effects: the effect of each arm that is not a baseline.
        imputed: the effects if each diverged run counts with the worst value.
        counts: number of runs with each outcome by arm, including the baselines.
        against: the baseline of each arm.
        plan: the analysis plan.
        seeds: number of seeds per arm at this analysis.
        margins: the equivalence margins of arms whose margin is not that of the plan.
    """
    tests = {arm: divergence.boschloo_p(counts[arm], counts[against[arm]]) for arm in effects}
    lost = {arm for arm in effects if counts[arm].diverged and not counts[arm].finished}
    p = {arm: tests[arm] if arm in lost else _p(effects[arm], plan) for arm in effects}
    corrected = holm({arm: None if value is None else plan.overall_p(value, seeds) for arm, value in p.items()})
    worst = {arm for arm in effects if counts[arm].diverged or counts[against[arm]].diverged}
    return {
        arm: Evidence(
            effect=effects[arm],
            imputed=imputed[arm] if arm in worst else None,
            count=counts[arm],
            baseline=counts[against[arm]],
            p=p[arm],
            p_holm=corrected[arm],
            p_equivalent=_equivalence_p(
                [effects[arm], *([imputed[arm]] if arm in worst else [])],
                replace(plan, equivalence=margins.get(arm, plan.equivalence)),
                seeds,
            ),
            divergence_p=tests[arm],
            all_diverged=arm in lost,
        )
        for arm in effects
    }


def _equivalence_p(effects: Sequence[Effect], plan: Plan, seeds: int) -> float | None:
    """Return the p-value for the claim that all given effects are within the equivalence margin."""
    if plan.equivalence is None:
        return None
    inside = [
        exact.p_inside(plan.equivalence) if (exact := _exact(effect, plan)) else effect.p_inside(plan.equivalence)
        for effect in effects
    ]
    known = [plan.overall_one_sided_p(p, seeds) for p in inside if p is not None]
    return max(known) if len(known) == len(inside) else None


def _exact(effect: Effect, plan: Plan) -> ExactTests | None:
    """Return the tests of an effect without noise. Rules 1 have none, and leave such effects inconclusive."""
    return effect.exact if plan.rules > 1 else None


def _p(effect: Effect, plan: Plan) -> float | None:
    exact = _exact(effect, plan)
    return effect.p if exact is None else exact.p


def holm(p: Mapping[K, float | None]) -> dict[K, float | None]:
    """Apply Holm's step-down correction to the p-values; None stays None.

    Source: Holm (1979), A simple sequentially rejective multiple test procedure.
    """
    tested = sorted(((value, arm) for arm, value in p.items() if value is not None), key=lambda pair: pair[0])
    corrected, largest = dict(p), 0.0
    # statsmodels' implementation is not used because it runs the garbage collector, which takes 0.5 s per call.
    for i, (value, arm) in enumerate(tested):
        corrected[arm] = largest = max(largest, min(1.0, value * (len(tested) - i)))
    return corrected


def decide_verdict(evidence: Evidence, plan: Plan) -> Verdict:
    """Decide the verdict on an arm.

    The verdict is equivalent if the equivalence test rejects, better or worse if the corrected p-value is below alpha,
    and inconclusive otherwise. The verdict is also inconclusive if diverged runs may explain the direction of the
    effect, since the finished runs are then a biased sample. If all ended runs diverged, the verdict is worse or
    inconclusive.

    Args:
        evidence: the arm's evidence.
        plan: the analysis plan.
    """
    if evidence.all_diverged:
        return "worse" if _is_significant(evidence, plan) else "inconclusive"
    if _is_equivalent(evidence, plan):
        return "equivalent"
    if not _is_significant(evidence, plan) or _favoured_by_divergence(evidence, plan):
        return "inconclusive"
    return "better" if _is_better(evidence.effect, plan.better) else "worse"


@dataclass(frozen=True)
class Sides:
    """The two sides of a comparison in the sentence of `format_evidence`.

    Attributes:
        first: the name of the first side in a list of both.
        other: the name of the second side.
        runs: number of planned runs of each side.
        reached: number of runs of each side that solved their task or arrived (see `stats.outcomes`); None if arms are
            compared by the primary metric itself.
    """

    runs: tuple[int, int]
    first: str = "the arm"
    other: str = "the baseline"
    reached: tuple[int, int] | None = None


def format_evidence(evidence: Evidence, plan: Plan, sides: Sides, places: int = 0) -> str:
    """Format the evidence as a sentence.

    Args:
        evidence: the evidence on an arm or a contrast.
        plan: the analysis plan.
        sides: the compared sides.
        places: minimum number of decimal places for the effect, namely the number for the arms' means.
    """
    effect, count, base = evidence.effect, evidence.count, evidence.baseline
    if evidence.all_diverged:
        first, second = sides.runs
        text = f"No run finished: {count.diverged} of {first} diverged, {base.diverged} of {second} of {sides.other}"
        return (
            f"{text}." if evidence.p is None else f"{text} (exact test, Holm p {formatting.p_value(evidence.p_holm)})."
        )
    if effect.effect is None:
        return f"No effect can be estimated from {count.finished} of {sides.runs[0]} finished runs."
    text, notes = _format_difference(effect, plan, places, sides.other), []
    if sides.reached is not None:
        (ours, theirs), (first, second) = sides.reached, sides.runs
        did = "arrived" if plan.solved is None else "solved it"
        notes.append(f"{ours} of {first} runs {did}, {theirs} of {second} of {sides.other}")
    if effect.interval is None:
        notes.append(_why_no_interval(evidence, plan, sides))
    else:
        p = "" if evidence.p_holm is None else f", Holm p {formatting.p_value(evidence.p_holm)}"
        cut = ", clipped to the possible range" if effect.is_clipped else ""
        text += f" ({CONFIDENCE * 100:g} % interval {formatting.interval(effect.interval, places)}{cut}{p})"
    if _is_equivalent(evidence, plan):
        known = "there is a difference, but it is" if _is_significant(evidence, plan) else "any difference is"
        notes.append(f"{known} smaller than the margin of {plan.equivalence:g}")
    if effect.interval is not None:
        notes += _noise_notes(effect, plan, sides)
    return "; ".join([text, *notes, *_divergence_notes(evidence, plan, sides, places)]) + "."


def _noise_notes(effect: Effect, plan: Plan, sides: Sides) -> Iterator[str]:
    """Yield what is said of unequal or correlated noise, which widens an interval."""
    if effect.guarded:
        noisy = f"{sides.first} or {sides.other} is noisier than the rest"
        yield f"{noisy}, so the most conservative of its tests is used"
    elif effect.copies and plan.noise == "guard":
        yield ("noise is correlated between arms, so a test that does not pool it is used if it is more conservative")
    elif effect.copies:
        yield "noise is correlated between arms, so differences within seeds count where they vary more"
    if effect.noisier:
        yield f"runs of {formatting.list_names(effect.noisier)} seem noisier than those of most arms"


def seeds_still_needed(evidence: Evidence, arms: int, plan: Plan) -> int | None:
    """Return the number of additional seeds needed to detect the effect if the observed effect is the true effect.

    The observed effect is uncertain, so the result is only an order of magnitude. The result is None if the effect is
    zero, cannot be estimated or is based on a single seed, or if more than `power.MAX_SEEDS` seeds are needed.

    Args:
        evidence: the arm's evidence.
        arms: number of arms compared with the baseline.
        plan: the analysis plan.
    """
    effect, seeds = evidence.effect, min(evidence.count.finished, evidence.baseline.finished)
    if isinstance(effect, ShareEffect):
        needed = effect.seeds_needed(plan.alpha / arms)
        return None if needed is None else needed - seeds
    if not effect.effect or not effect.estimates or seeds < 2:
        return None
    widest = max(effect.estimates, key=lambda estimate: estimate.p)
    design = PowerAnalysis(arms, plan.alpha, df_a_seed=widest.df / (seeds - 1))
    wanted = design.seeds_needed(effect.effect, widest.standard_error * math.sqrt(seeds / 2), start=seeds + 1)
    return None if wanted is None else wanted - seeds


def _is_significant(evidence: Evidence, plan: Plan) -> bool:
    return evidence.p_holm is not None and evidence.p_holm < plan.alpha


def _is_equivalent(evidence: Evidence, plan: Plan) -> bool:
    """Return whether the effect is equivalent to zero, even if diverged runs count with the worst value."""
    return evidence.p_equivalent is not None and evidence.p_equivalent < plan.alpha


def _is_better(effect: Effect, direction: Direction) -> bool:
    return (effect.effect or 0.0) * (-1 if direction == "min" else 1) > 0


def _favoured_by_divergence(evidence: Evidence, plan: Plan) -> bool:
    """Return whether diverged runs may explain the direction of the effect."""
    if evidence.imputed is None:
        return False
    better = _is_better(evidence.effect, plan.better)
    lost, other = evidence.count.diverged, evidence.baseline.diverged
    more = lost > other if better else other > lost
    return more or _is_better(evidence.imputed, plan.better) != better


def _divergence_notes(evidence: Evidence, plan: Plan, sides: Sides, places: int) -> Iterator[str]:
    count, base, worst = evidence.count, evidence.baseline, evidence.imputed
    if worst is None:
        return
    p = "" if evidence.divergence_p is None else f" (exact test p {formatting.p_value(evidence.divergence_p)})"
    first, second = sides.runs
    yield f"{count.diverged} of {first} runs diverged, {base.diverged} of {second} of {sides.other}{p}"
    if worst.effect is not None:
        size = formatting.effect(worst.effect, worst.interval, places)
        yield f"counted as the worst value that finished, the effect is {size}"
    if _is_significant(evidence, plan) and _favoured_by_divergence(evidence, plan):
        yield "the runs that finished are not a fair sample"


def _format_difference(effect: Effect, plan: Plan, places: int, other: str) -> str:
    size, spec = effect.effect or 0.0, plan.metric()
    metric = spec.label
    if formatting.is_zero(size, places):
        return f"{metric} is exactly that of {other}"
    places = formatting.effect_places(size, effect.interval, places)
    text = formatting.number(abs(size), places)
    if not float(text):
        return f"{metric} is within {formatting.number(10.0**-places, places)} of {other}'s"
    if plan.reach is not None:
        return f"{metric} is {text} {spec.unit} {'longer' if size > 0 else 'shorter'} than {other}'s"
    return f"{metric} is {text} {'higher' if size > 0 else 'lower'} than {other}'s"


def _why_no_interval(evidence: Evidence, plan: Plan, sides: Sides) -> str:
    if min(evidence.count.finished, evidence.baseline.finished) < 2:
        return "a single seed shows no noise, so there is no interval and no p"
    if evidence.effect.guarded:
        return f"{sides.first} or {sides.other} is noisier than the rest and shares too few seeds for an interval"
    if _exact(evidence.effect, plan) is None:
        return "the runs show no noise at all, so there is nothing to judge the effect by"
    p = {"Holm p": evidence.p_holm, "p of equivalence": evidence.p_equivalent}
    shown = ", ".join(f"{name} {formatting.p_value(value)}" for name, value in p.items() if value is not None)
    tests = f"exact tests decide ({shown})" if shown else "there is no interval"
    return f"the runs show no noise at all, so {tests}"

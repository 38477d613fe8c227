"""What an effect amounts to: better, worse or inconclusive, with its evidence in one sentence.

Absence of evidence is never called absence of an effect: what is not shown to be better or worse is inconclusive.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

import numpy as np
from scipy import stats
from statsmodels.stats.multitest import multipletests

from taetpu.stats import numbers
from taetpu.stats.model import CONFIDENCE, Effect

Verdict = Literal["better", "worse", "inconclusive"]
Direction = Literal["min", "max"]

ALPHA = 0.05
"""Chance of calling any arm better or worse when none is (family-wise, by Holm's correction)."""
POWER = 0.8
MOST_SEEDS = 100
"""More than this is not worth counting."""


@dataclass(frozen=True)
class Count:
    """How an arm's runs ended."""

    finished: int
    diverged: int

    @property
    def ended(self) -> int:
        return self.finished + self.diverged


@dataclass(frozen=True)
class Evidence:
    """All that a verdict on one arm stands on."""

    effect: Effect
    count: Count
    baseline: Count
    p: float | None
    """Of this arm alone."""
    p_holm: float | None
    """Corrected for the number of arms."""
    by_divergence: bool
    """No run of the arm finished: `p` is that of the exact test on how many diverged."""


def weigh(
    effects: Mapping[str, Effect], counts: Mapping[str, Count], baseline: str = "baseline"
) -> dict[str, Evidence]:
    """Put an arm's effect, its divergences and the corrected p together.

    Args:
        effects: by arm, the baseline not among them.
        counts: by arm, the baseline among them.
    """
    lost = {arm for arm in effects if counts[arm].diverged and not counts[arm].finished}
    p = {arm: _divergence_p(counts[arm], counts[baseline]) if arm in lost else effects[arm].p for arm in effects}
    corrected = holm(p)
    return {
        arm: Evidence(effects[arm], counts[arm], counts[baseline], p[arm], corrected[arm], arm in lost)
        for arm in effects
    }


def holm(p: Mapping[str, float | None]) -> dict[str, float | None]:
    """Holm's step-down correction over the arms that have a p; the others stay without one.

    Source: Holm (1979), A simple sequentially rejective multiple test procedure.
    """
    tested = {arm: value for arm, value in p.items() if value is not None}
    if not tested:
        return dict(p)
    _, corrected, *_ = multipletests(list(tested.values()), method="holm")
    return {**p, **dict(zip(tested, np.asarray(corrected).tolist(), strict=True))}


def decide(evidence: Evidence, direction: Direction) -> Verdict:
    """Better or worse where the corrected p is below `ALPHA`, else inconclusive.

    An effect among runs that finished is no verdict when the arm that it favours lost more of its runs to divergence:
    the runs that finished are then not a fair sample.
    """
    if not _clear(evidence):
        return "inconclusive"
    if evidence.by_divergence:
        return "worse"
    better = _is_better(evidence, direction)
    return "inconclusive" if _unfair(evidence, better) else "better" if better else "worse"


def sentence(evidence: Evidence, direction: Direction, metric: str, seeds: int) -> str:
    """The evidence in words.

    Args:
        metric: what was compared, e.g. `val/loss`.
        seeds: how many runs each arm was to have.
    """
    effect, count, base = evidence.effect, evidence.count, evidence.baseline
    notes = []
    if evidence.by_divergence:
        text = f"No run finished: {count.diverged} of {seeds} diverged, {base.diverged} of {seeds} of the baseline"
        return f"{text}." if evidence.p is None else f"{text} (exact test, Holm p {numbers.p_value(evidence.p_holm)})."
    if effect.effect is None:
        return f"No effect can be estimated from {count.finished} of {seeds} finished runs."
    text = _difference(effect, metric)
    if effect.interval is None:
        notes.append(_why_no_interval(effect, count, base))
    else:
        p = numbers.p_value(evidence.p_holm)
        text += f" ({CONFIDENCE * 100:g} % interval {numbers.interval(effect.interval)}, Holm p {p})"
    if effect.guarded and effect.interval is not None:
        notes.append("the arm or the baseline is noisier than the rest, so the more cautious of two tests counts")
    if count.diverged or base.diverged:
        notes.append(f"{count.diverged} of {seeds} runs diverged, {base.diverged} of {seeds} of the baseline")
        if (
            evidence.p_holm is not None
            and evidence.p_holm < ALPHA
            and _unfair(evidence, _is_better(evidence, direction))
        ):
            notes.append("the runs that finished are not a fair sample")
    return "; ".join([text, *notes]) + "."


def more_seeds(evidence: Evidence, arms: int) -> int | None:
    """How many more seeds an inconclusive effect would need if it were truly as large as observed.

    The smallest number of seeds at which a t-test at level `ALPHA / arms` (the strictest that Holm's correction may
    ask for) reaches a power of 80 %, less the seeds there are. The observed effect is itself uncertain, so this is an
    order of magnitude. None: there is no noise to go by, or more than `MOST_SEEDS` would be needed.

    Args:
        arms: how many are compared with the baseline.
    """
    effect, seeds = evidence.effect, min(evidence.count.finished, evidence.baseline.finished)
    if not effect.effect or effect.standard_error is None or effect.df is None or seeds < 2:
        return None
    run_error, df_a_seed = effect.standard_error * math.sqrt(seeds), effect.df / (seeds - 1)
    for wanted in range(seeds + 1, seeds + MOST_SEEDS + 1):
        df, shift = df_a_seed * (wanted - 1), abs(effect.effect) / run_error * math.sqrt(wanted)
        if stats.nct.sf(stats.t.isf(ALPHA / arms / 2, df), df, shift) >= POWER:
            return wanted - seeds
    return None


def _divergence_p(arm: Count, baseline: Count) -> float | None:
    """Boschloo's exact test of equal chances to diverge, two-sided.

    Source: Boschloo (1970), Raised conditional level of significance for the 2x2-table.
    """
    if min(arm.ended, baseline.ended) < 2 or baseline.diverged == baseline.ended:
        return None  # one run each can show nothing; if all of both diverged there is nothing to compare
    table = [[arm.diverged, baseline.diverged], [arm.finished, baseline.finished]]
    return float(stats.boschloo_exact(table).pvalue)


def _clear(evidence: Evidence) -> bool:
    return evidence.p_holm is not None and evidence.p_holm < ALPHA


def _is_better(evidence: Evidence, direction: Direction) -> bool:
    return (evidence.effect.effect or 0.0) * (-1 if direction == "min" else 1) > 0


def _unfair(evidence: Evidence, better: bool) -> bool:
    arm, baseline = evidence.count.diverged, evidence.baseline.diverged
    return arm > baseline if better else baseline > arm


def _difference(effect: Effect, metric: str) -> str:
    size = effect.effect or 0.0
    if not size:
        return f"{metric} is exactly that of the baseline"
    text = numbers.number(abs(size), numbers.decimals(numbers.half_width(effect.interval), size))
    return f"{metric} is {text} {'higher' if size > 0 else 'lower'} than the baseline's"


def _why_no_interval(effect: Effect, count: Count, baseline: Count) -> str:
    if min(count.finished, baseline.finished) < 2:
        return "a single seed shows no noise, so there is no interval and no p"
    if effect.guarded:
        return "the arm or the baseline is noisier than the rest and shares too few seeds for an interval"
    return "the runs show no noise at all, so there is nothing to judge the effect by"

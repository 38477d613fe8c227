"""Analysis of the trend in an arm's effect over the rungs (model scales) of a ladder."""

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
import scipy
from typing_extensions import TypedDict

from taetpu.stats.ladder_results import ArmTrend, Extrapolated, Fate, Trend
from taetpu.stats.linear_model import CONFIDENCE, ROUNDING, clip
from taetpu.stats.load import is_number
from taetpu.stats.plan import Plan

Measure = Literal["params", "flops"]
MEASURES: tuple[Measure, ...] = ("params", "flops")
EXTRAPOLATION = 4
"""Size to which the trend is extrapolated, relative to the largest trained size."""


@dataclass(frozen=True)
class Rung:
    """Arm at one scale.

    Attributes:
        name: the scale's name.
        size: size of the rung's baseline by the ladder's measure (see `trend_measure`).
        differences: the arm's value minus the baseline's value, for each seed on which both runs finished.
        effect: the effect at this rung.
        verdict: the verdict at this rung.
    """

    name: str
    size: float
    differences: Sequence[float]
    effect: float | None
    verdict: str | None


class Size(TypedDict):
    """The size of a rung, as in the entry of its baseline in `results.json`."""

    params: float | None
    flops: float | None
    diff: dict[str, Any]  # the changes to the study's baseline


def size_measure(baselines: Sequence[Size]) -> Measure | None:
    """Return the measure by which the rungs of a ladder are ordered; None if they keep the order of the study file.

    This is the number of parameters if it differs between all rungs, else the training FLOPs if they do.

    Args:
        baselines: the baseline of each rung.
    """
    for measure in MEASURES:
        sizes = [base[measure] for base in baselines]
        if None not in sizes and len(set(sizes)) == len(sizes):
            return measure
    return None


def trend_measure(baselines: Sequence[Size]) -> Measure | None:
    """Return the measure over which effects have a trend: `size_measure`, or None if rungs differ in more than size.

    No rung is the largest if rungs differ in their data, since losses on different data are not on one scale, or in a
    value that is not a number, such as the kind of a component.

    Args:
        baselines: the baseline of each rung.
    """
    changes = [change for base in baselines for change in base["diff"].items()]
    other = changes_data(path for path, _ in changes) or not all(is_number(value) for _, value in changes)
    return None if other else size_measure(baselines)


def changes_data(paths: Iterable[str]) -> bool:
    """Return whether changes at these paths change the data of a study."""
    return any(path.partition(".")[0] == "task" for path in paths)


def analyse_ladder(rungs: Sequence[Rung], plan: Plan, measure: Measure | None = "params") -> ArmTrend:
    """Analyse one arm over all scales.

    The trend is a linear regression of the differences on the logarithm of the baseline's size. Welch's analysis of
    variance tests whether effects differ between rungs, whether linearly or not.

    Args:
        rungs: the arm at each scale.
        plan: the analysis plan.
        measure: the measure of the rungs' sizes; None without a trend (see `trend_measure`).

    Returns:
        The fate of the effect (see `classify_trend`), its trend, Welch's p-value, and the effect at a larger scale if
        the trend stays linear. All but the fate are None without noise, without a measure or with fewer than two
        scales.
    """
    unclear: ArmTrend = {"fate": "unclear", "trend": None, "p_differs": None, "extrapolated": None}
    if measure is None:
        return {**unclear, "fate": classify_unordered(rungs)}
    usable = [rung for rung in sorted(rungs, key=lambda rung: rung.size) if len(rung.differences) > 1]
    scales = sorted({rung.size for rung in usable})
    y = np.concatenate([np.asarray(rung.differences, float) for rung in usable]) if usable else np.zeros(0)
    x = np.concatenate([np.full(len(rung.differences), math.log2(rung.size)) for rung in usable]) if usable else y
    if len(scales) < 2 or np.std(y) <= ROUNDING * max(np.abs(y).max(), 1e-300):
        return {**unclear, "fate": classify_trend(usable, None, None)}
    # Imported here because the import takes 0.5 s and most studies have no ladder.
    from statsmodels.regression.linear_model import OLS

    line = OLS(y, np.column_stack([np.ones_like(x), x])).fit()
    most = plan.bounds[1] - plan.bounds[0]  # largest possible effect
    steepest = 2 * most / (x.max() - x.min())
    ends = [clip(float(end), (-steepest, steepest)) for end in line.conf_int(alpha=1 - CONFIDENCE)[1]]
    slope, p = float(line.params[1]), float(line.pvalues[1])
    trend: Trend = {"per_doubling": slope, "ci95": ends, "p": p}
    ahead = math.log2(scales[-1] * EXTRAPOLATION)
    there = line.get_prediction(np.array([[1.0, ahead]])).summary_frame(alpha=1 - CONFIDENCE).iloc[0]
    extrapolated: Extrapolated = {
        "effect": clip(float(there["mean"]), (-most, most)),
        "ci95": [clip(float(there[end]), (-most, most)) for end in ("mean_ci_lower", "mean_ci_upper")],
    }
    extrapolated[measure] = scales[-1] * EXTRAPOLATION
    differs = _welch_p([np.asarray(rung.differences, float) for rung in usable])
    fate = classify_trend(usable, slope, p < plan.alpha)
    return {"fate": fate, "trend": trend, "p_differs": differs, "extrapolated": extrapolated}


def classify_trend(rungs: Sequence[Rung], slope: float | None, significant: bool | None) -> Fate:
    """Classify the change of the effect from the first (smallest) to the last (largest) rung.

    An effect is clear if its verdict is better or worse. The first matching class applies:

    - reverses: the effect is better at one end of the ladder and worse at the other end.
    - vanishes: the effect is clear at the smallest rung. At the largest rung, the effect is equivalent, or inconclusive
      with a significant trend towards zero.
    - shrinks, grows: the effect is clear at the largest rung, with a significant trend towards or away from zero.
    - holds: the effect has the same clear verdict at both ends, without a significant trend.
    - unclear: no other class matches.
    """
    if len(rungs) < 2:
        return "unclear"
    first, last = rungs[0], rungs[-1]
    clear = ("better", "worse")
    toward_zero = bool(significant) and slope is not None and slope * (first.effect or 0.0) < 0
    if first.verdict in clear and last.verdict in clear and first.verdict != last.verdict:
        return "reverses"
    if first.verdict in clear and (last.verdict == "equivalent" or (last.verdict == "inconclusive" and toward_zero)):
        return "vanishes"
    if last.verdict in clear and significant and slope is not None:
        return "grows" if slope * (last.effect or 0.0) > 0 else "shrinks"
    if first.verdict in clear and first.verdict == last.verdict:
        return "holds"
    return "unclear"


def classify_unordered(rungs: Sequence[Rung]) -> Fate:
    """Classify the effects at rungs without an order: holds, reverses or unclear.

    An effect holds if all rungs have the same clear verdict. It reverses if it is better at one rung and worse at
    another.
    """
    verdicts = {rung.verdict for rung in rungs}
    if {"better", "worse"} <= verdicts:
        return "reverses"
    return "holds" if len(rungs) > 1 and verdicts in ({"better"}, {"worse"}) else "unclear"


def _welch_p(groups: Sequence[np.ndarray]) -> float | None:
    """Return the p-value of Welch's test of equal effects at all rungs; None if a rung shows no noise."""
    if any(np.std(group) == 0 for group in groups):
        return None
    return float(scipy.stats.f_oneway(*groups, equal_var=False).pvalue)


def tokens_per_parameter(result: Mapping[str, Any]) -> float | None:
    """Return the number of training tokens per parameter. About 20 is compute-optimal (Hoffmann et al. 2022)."""
    return result["tokens"] / result["params"] if result.get("params") else None

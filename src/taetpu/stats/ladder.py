"""Analysis of the trend in an arm's effect over the rungs (model scales) of a ladder."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
from scipy import stats

from taetpu.stats.linear_model import CONFIDENCE, ROUNDING, clip
from taetpu.stats.plan import Plan

Fate = Literal["holds", "grows", "shrinks", "vanishes", "reverses", "unclear"]
EXTRAPOLATION = 4
"""Size of the model to which the trend is extrapolated, relative to the largest trained model."""


@dataclass(frozen=True)
class Rung:
    """Arm at one scale.

    Attributes:
        name: the scale's name.
        params: number of parameters in the rung's baseline.
        differences: the arm's value minus the baseline's value, for each seed on which both runs finished.
        effect: the effect at this rung.
        verdict: the verdict at this rung.
    """

    name: str
    params: int
    differences: Sequence[float]
    effect: float | None
    verdict: str | None


def analyse_ladder(rungs: Sequence[Rung], plan: Plan) -> dict[str, Any]:
    """Analyse one arm over all scales.

    The trend is a linear regression of the differences on the logarithm of the baseline's number of parameters. Welch's
    analysis of variance tests whether effects differ between rungs, whether linearly or not.

    Args:
        rungs: the arm at each scale.
        plan: the analysis plan.

    Returns:
        `fate` (see `classify_trend`), `trend` (`{"per_doubling", "ci95", "p"}`), `p_differs` (Welch's p-value), and
        `extrapolated` (`{"params", "effect", "ci95"}`). The interval of `extrapolated` assumes that the trend stays
        linear. All values except `fate` are None without noise or with fewer than two scales.
    """
    usable = [rung for rung in sorted(rungs, key=lambda rung: rung.params) if len(rung.differences) > 1]
    scales = sorted({rung.params for rung in usable})
    y = np.concatenate([np.asarray(rung.differences, float) for rung in usable]) if usable else np.zeros(0)
    x = np.concatenate([np.full(len(rung.differences), math.log2(rung.params)) for rung in usable]) if usable else y
    empty = {"fate": "unclear", "trend": None, "p_differs": None, "extrapolated": None}
    if len(scales) < 2 or np.std(y) <= ROUNDING * max(np.abs(y).max(), 1e-300):
        return {**empty, "fate": classify_trend(usable, None, None)}
    # Imported here because the import takes 0.5 s and most studies have no ladder.
    from statsmodels.regression.linear_model import OLS

    line = OLS(y, np.column_stack([np.ones_like(x), x])).fit()
    most = plan.bounds[1] - plan.bounds[0]  # largest possible effect
    steepest = 2 * most / (x.max() - x.min())
    ends = [clip(float(end), (-steepest, steepest)) for end in line.conf_int(alpha=1 - CONFIDENCE)[1]]
    trend = {"per_doubling": float(line.params[1]), "ci95": ends, "p": float(line.pvalues[1])}
    ahead = math.log2(scales[-1] * EXTRAPOLATION)
    there = line.get_prediction(np.array([[1.0, ahead]])).summary_frame(alpha=1 - CONFIDENCE).iloc[0]
    extrapolated = {
        "params": scales[-1] * EXTRAPOLATION,
        "effect": clip(float(there["mean"]), (-most, most)),
        "ci95": [clip(float(there[end]), (-most, most)) for end in ("mean_ci_lower", "mean_ci_upper")],
    }
    differs = _welch_p([np.asarray(rung.differences, float) for rung in usable])
    significant = trend["p"] < plan.alpha
    return {
        "fate": classify_trend(usable, trend["per_doubling"], significant),
        "trend": trend,
        "p_differs": differs,
        "extrapolated": extrapolated,
    }


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


def _welch_p(groups: Sequence[np.ndarray]) -> float | None:
    """Return the p-value of Welch's test of equal effects at all rungs; None if a rung shows no noise."""
    if any(np.std(group) == 0 for group in groups):
        return None
    return float(stats.f_oneway(*groups, equal_var=False).pvalue)


def tokens_per_parameter(result: Mapping[str, Any]) -> float | None:
    """Return the number of training tokens per parameter. About 20 is compute-optimal (Hoffmann et al. 2022)."""
    return result["tokens"] / result["params"] if result.get("params") else None

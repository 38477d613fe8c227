"""Alternative analyses: paired t-test, exact sign-flip test, and leave-one-seed-out effects.

Verdicts do not use these analyses because the plan fixes a single analysis. The alternatives show how sensitive the
result is to the choice of the analysis.
"""

from collections.abc import Mapping
from typing import Any

import numpy as np
from scipy import stats

from taetpu.stats.blocked_anova import ROUNDING, Estimate
from taetpu.stats.model import CONFIDENCE, UNBOUNDED, clip, contrast_bounds

MIN_FLIPPED = 6
"""Minimum number of seeds for the sign-flip test, whose smallest possible p-value is 2 / 2^seeds."""
MAX_FLIPPED = 16
"""Maximum number of seeds for the sign-flip test.

With more seeds, there are too many flips to enumerate, and the t-test is as good.
"""


def alternative_analyses(
    arm: Mapping[int, float], baseline: Mapping[int, float], bounds: tuple[float, float] = UNBOUNDED
) -> dict[str, Any]:
    """Return alternative analyses of an effect, computed from the seeds on which both arms finished.

    Args:
        arm: the arm's values by seed.
        baseline: the baseline's values by seed.
        bounds: smallest and largest possible value.

    Returns:
        `paired` (effect, ci95 and p of the paired t-test), `sign_flip_p` (exact p-value), `correlation` (between arm
        and baseline over seeds) and `without_a_seed` (smallest and largest effect when one seed is left out). An entry
        is None if its analysis needs more seeds, more variation or, for `sign_flip_p`, at most `MAX_FLIPPED` seeds.
    """
    seeds = sorted(arm.keys() & baseline.keys())
    ours, theirs = np.array([arm[seed] for seed in seeds]), np.array([baseline[seed] for seed in seeds])
    difference = ours - theirs
    still = len(seeds) < 2 or np.std(difference) <= ROUNDING * max(np.abs(ours).max(), np.abs(theirs).max())
    return {
        "paired": None if still else _paired(ours, theirs, contrast_bounds({"arm": 1.0, "baseline": -1.0}, bounds)),
        "sign_flip_p": None if still or not MIN_FLIPPED <= len(seeds) <= MAX_FLIPPED else _sign_flip_p(difference),
        "correlation": _correlation(ours, theirs),
        "without_a_seed": _without_each(difference),
    }


def _paired(ours: np.ndarray, theirs: np.ndarray, possible: tuple[float, float]) -> dict[str, Any]:
    differences, df = ours - theirs, len(ours) - 1
    error = float(differences.std(ddof=1) / np.sqrt(len(differences)))
    found = Estimate(float(differences.mean()), error, df)
    ci95 = [clip(end, possible) for end in found.interval(float(stats.t.isf((1 - CONFIDENCE) / 2, df)))]
    return {"effect": found.value, "ci95": ci95, "p": found.p}


def _sign_flip_p(difference: np.ndarray) -> float:
    """Return the exact p-value of the sign-flip test.

    scipy enumerates all flips because `n_resamples` is their number.
    """
    flips = 2 ** len(difference)
    test = stats.permutation_test((difference,), np.mean, permutation_type="samples", n_resamples=flips)
    return float(test.pvalue)


def _correlation(ours: np.ndarray, theirs: np.ndarray) -> float | None:
    if len(ours) < 3 or min(np.std(ours), np.std(theirs)) <= ROUNDING * np.abs(ours).max():
        return None
    return float(np.corrcoef(ours, theirs)[0, 1])


def _without_each(difference: np.ndarray) -> list[float] | None:
    if len(difference) < 3:
        return None
    left = (difference.sum() - difference) / (len(difference) - 1)
    return [float(left.min()), float(left.max())]

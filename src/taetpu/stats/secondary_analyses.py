"""Analyses that verdicts do not use: simultaneous intervals, alternative tests, evaluation noise, and efficiency.

The plan fixes a single analysis for verdicts. The alternative tests (paired t-test, exact sign-flip test,
leave-one-seed-out effects) show how sensitive the result is to the choice of the analysis.

Evaluation noise is the variation of an effect between evaluation texts of the same size. Verdicts do not include it
because all arms share one evaluation set, and verdicts apply to this set. Evaluation noise shows to what extent a
verdict generalises to other texts.

Efficiency is the cost at which an arm reaches the baseline's final value. During training, curves are evaluated on a
sample of the validation split. The arm's curve is compared with the last point of the baseline's curve on the same
sample, never with a value from the whole split. If runs stop, or choose a model, by validation data, the primary metric
is one of the test split, which has no curve; its curve on the validation sample is compared instead. Interpret the
results with care if the learning rate decays, because the loss in the middle of a schedule is worse than the final loss
of a schedule that ends at the same step.
"""

import math
from collections.abc import Mapping, Sequence
from functools import cache, lru_cache
from typing import Any, cast

import numpy as np
import scipy

from taetpu.core.metric_spec import UNBOUNDED
from taetpu.stats.blocked_anova import ROUNDING, Estimate
from taetpu.stats.linear_model import CONFIDENCE, clip, contrast_bounds
from taetpu.stats.outcomes import first_reached
from taetpu.stats.plan import Plan, describe_metric
from taetpu.stats.results import Efficiency, EvaluationNoise, PairedTest, Ratio, Sensitivity
from taetpu.stats.results_table import Cell
from taetpu.store.metrics import SAMPLED, curve_metric, metric_on_split

MIN_FLIPPED = 6
"""Minimum number of seeds for the sign-flip test. The smallest possible p-value of this test is 2 / 2^seeds."""
MAX_FLIPPED = 16
"""Maximum number of seeds for the sign-flip test.

With more seeds, there are too many flips to enumerate, and the t-test is as good.
"""
RESAMPLES = 2000
NODES = 64  # number of nodes per integral; with twice as many, results agree to 1e-6

# --- simultaneous intervals -----------------------------------------------------------------------------------------


@lru_cache(maxsize=512)
def critical_value(arms: int, df: float, confidence: float = 0.95) -> float:
    """Return the critical value for simultaneous intervals of `arms` arms. With one arm, it equals that of Student's t.

    All effects share the baseline's error, so the correlation between the errors of two effects is one half. Given the
    baseline's error and the noise estimate, the effects are independent. The probability that none of the t statistics
    exceeds `c` is therefore a double integral over the baseline's error and the noise estimate. The integral is
    computed by quadrature.

    Source: Dunnett (1955), A multiple comparison procedure for comparing several treatments with a control.
    """
    lowest = float(scipy.stats.t.isf((1 - confidence) / 2, df))
    if arms == 1:
        return lowest
    highest = float(scipy.stats.t.isf((1 - confidence) / 2 / arms, df))  # Bonferroni's bound ignores the correlation
    return cast(
        float, scipy.optimize.brentq(lambda c: _all_below(c, arms, df) - confidence, lowest, highest, xtol=1e-6)
    )


@cache
def _quadrature() -> tuple[tuple[np.ndarray, np.ndarray], tuple[np.ndarray, np.ndarray]]:
    """Return the nodes and weights of the integrals over the baseline's error and over the noise estimate."""
    return np.polynomial.hermite_e.hermegauss(NODES), np.polynomial.legendre.leggauss(NODES)


def _all_below(c: float, arms: int, df: float) -> float:
    """Return P(max |t| <= c) for `arms` t statistics whose numerators have a pairwise correlation of one half."""
    (z, z_weight), (u, u_weight) = _quadrature()
    # Ratio of the estimated to the true standard deviation of the noise.
    scale = np.sqrt(scipy.stats.chi2.ppf((u + 1) / 2, df) / df)[:, None]
    inside = scipy.stats.norm.cdf(c * scale * np.sqrt(2) - z) - scipy.stats.norm.cdf(-c * scale * np.sqrt(2) - z)
    return float(u_weight / 2 @ inside**arms @ z_weight / np.sqrt(2 * np.pi))


# --- alternative tests ----------------------------------------------------------------------------------------------


def alternative_analyses(
    arm: Mapping[int, float], baseline: Mapping[int, float], bounds: tuple[float, float] = UNBOUNDED
) -> Sensitivity:
    """Return alternative analyses of an effect, computed from the seeds on which both arms finished.

    Args:
        arm: the arm's values by seed.
        baseline: the baseline's values by seed.
        bounds: smallest and largest possible value.

    Returns:
        The analyses. The exact p-value of the sign-flip test is also None with more than `MAX_FLIPPED` seeds.
    """
    seeds = sorted(arm.keys() & baseline.keys())
    ours, theirs = np.array([arm[seed] for seed in seeds]), np.array([baseline[seed] for seed in seeds])
    difference = ours - theirs
    still = len(seeds) < 2 or np.std(difference) <= ROUNDING * max(np.abs(ours).max(), np.abs(theirs).max())
    return {
        "paired": None if still else _paired(difference, contrast_bounds({"arm": 1.0, "baseline": -1.0}, bounds)),
        "sign_flip_p": None if still or not MIN_FLIPPED <= len(seeds) <= MAX_FLIPPED else _sign_flip_p(difference),
        "correlation": _correlation(ours, theirs),
        "without_a_seed": _without_each(difference),
    }


def _paired(differences: np.ndarray, possible: tuple[float, float]) -> PairedTest:
    df = len(differences) - 1
    estimate = Estimate(float(differences.mean()), float(differences.std(ddof=1) / np.sqrt(df + 1)), df)
    ci95 = [clip(end, possible) for end in estimate.interval(float(scipy.stats.t.isf((1 - CONFIDENCE) / 2, df)))]
    return {"effect": estimate.value, "ci95": ci95, "p": estimate.p}


def _sign_flip_p(difference: np.ndarray) -> float:
    """Return the exact p-value of the sign-flip test.

    scipy enumerates all flips because `n_resamples` equals the number of flips.
    """
    flips = 2 ** len(difference)
    test = scipy.stats.permutation_test((difference,), np.mean, permutation_type="samples", n_resamples=flips)
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


# --- evaluation noise -----------------------------------------------------------------------------------------------


def bootstrap_effect(arm: Sequence[Cell], baseline: Sequence[Cell], plan: Plan) -> EvaluationNoise | None:
    """Estimate the evaluation noise of an effect by a paired cluster bootstrap over blocks of the evaluation set.

    Args:
        arm: cells of the arm's finished runs.
        baseline: cells of the baseline's finished runs.
        plan: the analysis plan, with the compared metric.

    Returns:
        The noise with a percentile interval. None if the metric is not a mean over positions, the arms share no seeds,
        the stored blocks are missing or differ between the arms, or there are fewer than two blocks.

    Source: Efron and Tibshirani (1993), An introduction to the bootstrap, chapter 8.
    """
    pairs = _pair_by_seed(arm, baseline)
    if not pairs:
        return None
    name, weight = sum_names(vars(plan), plan.primary)
    differences, weights = [], None
    for cell, other in pairs:
        ours, base = cell.evaluation, other.evaluation
        if name not in ours or name not in base or not np.array_equal(ours[weight], base[weight]):
            return None
        differences.append(ours[name] - base[name])
        weights = ours[weight]
    assert weights is not None  # `pairs` is not empty
    kept = weights > 0
    sums, weights = np.mean(differences, axis=0)[kept], weights[kept]
    if len(sums) < 2:
        return None
    drawn = _drawn_blocks(len(sums))
    effects = (drawn @ sums) / (drawn @ weights)
    low, high = np.quantile(effects, (0.025, 0.975))
    return {"sd": float(effects.std(ddof=1)), "ci95": [float(low), float(high)], "blocks": len(sums)}


@lru_cache(maxsize=1)
def _drawn_blocks(number: int) -> np.ndarray:
    """Return how often each resample has each block, shape (RESAMPLES, number). Most arms of a study share it."""
    return np.random.default_rng(0).multinomial(number, np.full(number, 1 / number), RESAMPLES)


def sum_names(plan: Mapping[str, Any], metric: str) -> tuple[str, ...]:
    """Return the names of the sums and of the weights that an evaluation stores for a metric of a frozen plan.

    Metrics of a judged table, whose items were scored by other programs, are stored under names that no other has.
    """
    return describe_metric(plan, metric).mean_of or (f"{metric}.sum", f"{metric}.weight")


def _pair_by_seed(arm: Sequence[Cell], baseline: Sequence[Cell]) -> list[tuple[Cell, Cell]]:
    theirs = {cell.seed: cell for cell in baseline}
    return [(cell, theirs[cell.seed]) for cell in arm if cell.seed in theirs]


# --- efficiency -----------------------------------------------------------------------------------------------------


def compute_efficiency(arm: Sequence[Cell], baseline: Sequence[Cell], plan: Plan) -> Efficiency | None:
    """Return the cost at which the arm reaches the baseline's final value, relative to the baseline's total cost.

    Args:
        arm: cells of the arm's finished runs.
        baseline: cells of the baseline's finished runs.
        plan: the analysis plan.

    Returns:
        The ratios with t intervals of their logarithm. They are None unless the arm reached the value on all seeds, and
        that of FLOPs if costs are not known. The whole result is None if no seeds can be compared, the metric was not
        measured during training, or the runs used different validation samples.
    """
    pairs = _pair_by_seed(arm, baseline)
    reached = [_steps_to_baseline(ours, base, plan) for ours, base in pairs]
    if not pairs or any(steps is None for steps in reached):
        return None
    ratios = [steps for steps in reached if steps is not None and math.isfinite(steps)]
    row: Efficiency = {"seeds": len(pairs), "reached": len(ratios), "steps": None, "flops": None}
    if len(ratios) == len(pairs):
        row["steps"] = _mean_ratio(np.array(ratios))
        costs = [(_flops_a_step(ours), _flops_a_step(base)) for ours, base in pairs]
        known = [ours / base for ours, base in costs if ours and base]  # those of a judged table are not known
        row["flops"] = _mean_ratio(np.array(ratios) * np.array(known)) if len(known) == len(pairs) else None
    return row


def _steps_to_baseline(arm: Cell, baseline: Cell, plan: Plan) -> float | None:
    """Return the step at which the arm reaches the baseline's final value, divided by the baseline's number of steps.

    The result is inf if the arm never reaches the value, and None if the curves are missing or not comparable.
    """
    assert arm.result is not None  # both runs finished
    assert baseline.result is not None
    name = curve_metric(plan.primary, arm.curves)
    if name not in arm.curves and ("selection" in arm.result or "selection" in baseline.result):
        name = metric_on_split(plan.primary, SAMPLED)
    curve, theirs = arm.curves.get(name), baseline.curves.get(name)
    target = baseline.value if name == plan.primary else None if theirs is None else float(theirs.value[-1])
    if curve is None or target is None or (curve.step > 0).sum() < 2:
        return None
    # A run reused from another study may have used a different validation sample.
    if arm.result.get("val_sample") != baseline.result.get("val_sample"):
        return None
    sign = 1 if plan.direction == "min" else -1
    trained = curve.step > 0  # a metric may have that value before the first step
    step = first_crossing(curve.step[trained].astype(float), sign * curve.value[trained].astype(float), sign * target)
    return step / baseline.result["steps"]


def first_crossing(steps: np.ndarray, values: np.ndarray, target: float) -> float:
    """Return the first step (linearly interpolated) at which a curve reaches or falls below the target, else inf."""
    i = first_reached(values, target)
    if not i:
        return math.inf if i is None else float(steps[0])
    part = (values[i - 1] - target) / (values[i - 1] - values[i])
    return float(steps[i - 1] + part * (steps[i] - steps[i - 1]))


def _flops_a_step(cell: Cell) -> float | None:
    assert cell.result  # the run finished
    return cell.result["flops"] / cell.result["steps"] if "flops" in cell.result else None


def _mean_ratio(ratios: np.ndarray) -> Ratio:
    logs = np.log(ratios)
    mean, interval = float(logs.mean()), None
    if len(logs) > 1 and np.std(logs) > 0:
        interval = [
            math.exp(bound) for bound in scipy.stats.t.interval(CONFIDENCE, len(logs) - 1, mean, scipy.stats.sem(logs))
        ]
    return {"ratio": math.exp(mean), "ci95": interval}

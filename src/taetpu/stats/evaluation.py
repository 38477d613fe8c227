"""Evaluation noise, the variation of an effect between evaluation texts of the same size.

Verdicts do not include evaluation noise because all arms share one evaluation set, and verdicts apply to this set.
Evaluation noise shows to what extent a verdict generalises to other texts.
"""

from collections.abc import Sequence
from typing import Any

import numpy as np

from taetpu.stats.results_table import Cell

RESAMPLES = 2000
# Bits per byte is excluded because the number of tokens in a block may differ between arms.
SUMS = {"loss": "nll", "accuracy": "correct"}


def bootstrap_effect(arm: Sequence[Cell], baseline: Sequence[Cell], metric: str) -> dict[str, Any] | None:
    """Estimate the evaluation noise of an effect by a paired cluster bootstrap over blocks of the evaluation set.

    Args:
        arm: cells of the arm's finished runs.
        baseline: cells of the baseline's finished runs.
        metric: the compared metric as `split/name`.

    Returns:
        `sd` and percentile `ci95` of the effect, and the number of `blocks`. None if the metric is not a mean over
        positions, the arms share no seeds, the blocks of a run were not stored, or there are fewer than two blocks.

    Source: Efron and Tibshirani (1993), An introduction to the bootstrap, chapter 8.
    """
    split, _, what = metric.partition("/")
    theirs = {cell.seed: cell for cell in baseline}
    pairs = [(cell, theirs[cell.seed]) for cell in arm if cell.seed in theirs]
    if what not in SUMS or not pairs:
        return None
    differences, weights = [], None
    for one, other in pairs:
        ours, base = one.evaluation, other.evaluation
        name, weight = f"{split}/{SUMS[what]}", f"{split}/weight"
        if name not in ours or name not in base or not np.array_equal(ours[weight], base[weight]):
            return None
        differences.append(ours[name] - base[name])
        weights = ours[weight]
    assert weights is not None  # `pairs` is not empty
    kept = weights > 0
    sums, weights = np.mean(differences, axis=0)[kept], weights[kept]
    if len(sums) < 2:
        return None
    drawn = np.random.default_rng(0).multinomial(len(sums), np.full(len(sums), 1 / len(sums)), RESAMPLES)
    effects = (drawn @ sums) / (drawn @ weights)
    low, high = np.quantile(effects, (0.025, 0.975))
    return {"sd": float(effects.std(ddof=1)), "ci95": [float(low), float(high)], "blocks": len(sums)}

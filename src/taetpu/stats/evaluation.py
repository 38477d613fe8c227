"""Evaluation noise: how much an effect would vary had arms been evaluated on another text of the same size.

This is not the noise between seeds, and no verdict counts it: all arms see the same evaluation set, and a verdict is
about that set. It says how far the verdict may be carried beyond it.
"""

from collections.abc import Sequence
from typing import Any

import numpy as np

from taetpu.stats.results_table import Cell

RESAMPLES = 2000
SUMS = {"loss": "nll", "accuracy": "correct"}  # bits per byte may be of other tokens, so that blocks do not match


def bootstrap_effect(arm: Sequence[Cell], baseline: Sequence[Cell], metric: str) -> dict[str, Any] | None:
    """The effect over resampled blocks of the evaluation set, the same blocks for arm and baseline (a paired cluster
    bootstrap; Efron and Tibshirani 1993, chapter 8).

    Args:
        arm, baseline: cells of finished runs.
        metric: the one that is compared, `split/what`.

    Returns:
        `sd` and percentile `ci95` of the effect, and the number of `blocks`. None for a metric that is no mean over
        positions, and where a run's blocks were not kept.
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
    assert weights is not None  # there are pairs
    kept = weights > 0
    sums, weights = np.mean(differences, axis=0)[kept], weights[kept]
    if len(sums) < 2:
        return None
    drawn = np.random.default_rng(0).multinomial(len(sums), np.full(len(sums), 1 / len(sums)), RESAMPLES)
    effects = (drawn @ sums) / (drawn @ weights)
    low, high = np.quantile(effects, (0.025, 0.975))
    return {"sd": float(effects.std(ddof=1)), "ci95": [float(low), float(high)], "blocks": len(sums)}

"""Learning curves as data to draw: each arm's mean over its seeds, with the lowest and the highest seed."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from taetpu.store.metrics import Series
from taetpu.store.study import StudyFolder

POINTS = 300
"""At most this many a line: more than a chart has pixels for."""

EARLY = 0.2
"""Share of the training that may run off a chart's edge: the first steps would flatten all that follows."""

Points = list[dict[str, float]]
"""`{"step", "mean", "low", "high"}` in step order."""


@dataclass(frozen=True)
class Curves:
    """One metric over the training, for every arm that has any of it."""

    metric: str
    arms: dict[str, Points]
    ranges: dict[str, tuple[float, float]]
    """The vertical range in which to show each arm beside the baseline."""


def read_curves(folder: StudyFolder, results: Mapping[str, Any]) -> list[Curves]:
    """The primary metric, the validation loss and the training loss of all runs that have ended, as far as recorded.

    Raises:
        UserError: a file of metrics is damaged.
    """
    metrics = list(dict.fromkeys([results["primary"], "val/loss", "train/loss"]))
    found: dict[str, dict[str, list[Series]]] = {metric: {} for metric in metrics}
    for arm in results["arms"]:
        for run in arm["runs"]:
            if run["id"] is None:
                continue
            series = folder.run(arm["name"], run["seed"], run["id"]).metrics()
            for metric in metrics:
                if metric in series:
                    found[metric].setdefault(arm["name"], []).append(series[metric])
    against = {arm["name"]: arm["against"] or arm["name"] for arm in results["arms"]}
    return [_curves(metric, arms, against) for metric, arms in found.items() if arms]


def _curves(metric: str, arms: Mapping[str, Sequence[Series]], against: Mapping[str, str]) -> Curves:
    lines = {arm: over_seeds(runs) for arm, runs in arms.items()}
    both = {arm: [line, lines.get(against[arm], [])] for arm, line in lines.items()}
    return Curves(metric, lines, {arm: vertical_range(pair) for arm, pair in both.items()})


def over_seeds(runs: Sequence[Series]) -> Points:
    """Mean, lowest and highest over runs, at each step for which any has a finite value; thinned to `POINTS`."""
    steps = np.unique(np.concatenate([run.step[np.isfinite(run.value)] for run in runs]))
    steps = steps[thinned(len(steps))]
    points = []
    values = [dict(zip(run.step.tolist(), run.value.tolist(), strict=True)) for run in runs]
    for step in steps.tolist():
        here = [row[step] for row in values if np.isfinite(row.get(step, np.nan))]
        mean = sum(here) / len(here)
        points.append({"step": step, "mean": _short(mean), "low": _short(min(here)), "high": _short(max(here))})
    return points


def thinned(length: int, points: int = POINTS) -> NDArray[np.int64]:
    """Indices of at most `points` evenly spaced entries out of `length`, first and last among them."""
    return np.unique(np.linspace(0, length - 1, min(length, points)).round().astype(np.int64))


def vertical_range(lines: Sequence[Points]) -> tuple[float, float]:
    """From the lowest to the highest mean after the first `EARLY` share of the training, with a little room."""
    last = max((line[-1]["step"] for line in lines if line), default=0)
    late = [point["mean"] for line in lines for point in line if point["step"] >= EARLY * last] or [0.0]
    low, high = min(late), max(late)
    room = 0.06 * (high - low) or 0.01 * abs(high) or 1.0
    return _short(low - room), _short(high + room)


def _short(value: float) -> float:
    """Six digits: finer than any screen, and a third of the bytes."""
    return float(f"{value:.6g}")

"""Learning curves as chart data: mean over seeds, single seeds, and differences from the baseline."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from taetpu.core.metric_spec import MetricSpec
from taetpu.report.judged import is_paired
from taetpu.report.summary import is_untrained
from taetpu.stats.plan import describe_metric
from taetpu.stats.results import Results
from taetpu.store.metrics import Series, curve_metric
from taetpu.store.study import StudyFolder

POINTS = 300
"""Maximum number of points per line, which suffices for the width of a chart."""
SEED_POINTS = 100
"""Maximum number of points in the line for a single seed."""

EARLY = 0.2
"""Initial share of training that the vertical range may exclude, since the first values would flatten the curve."""

Columns = dict[str, list[float]]
"""Table stored by columns, in a third of the space that rows take.

The columns are `step`, `mean`, `low` and `high`, or `step`, `value` and `seed`.
"""
BySeed = Mapping[int, Series]


@dataclass(frozen=True)
class Curves:
    """Curves of one metric for every arm that has the metric.

    Attributes:
        metric: the metric's name.
        label: the metric's label.
        title: the label with the metric's unit.
        arms: mean, minimum and maximum over seeds, by arm.
        seeds: lines for single seeds, by arm.
        differences: mean, minimum and maximum of arm minus baseline, paired by seed, by arm.
        ranges: vertical range of each arm's chart.
        difference_ranges: vertical range of each arm's difference chart.
    """

    metric: str
    label: str
    title: str
    arms: dict[str, Columns]
    seeds: dict[str, Columns]
    differences: dict[str, Columns]
    ranges: dict[str, tuple[float, float]]
    difference_ranges: dict[str, tuple[float, float]]


def read_curves(folder: StudyFolder, results: Results) -> list[Curves]:
    """Read the curves of the primary metric, the validation loss and the training loss of all ended runs.

    If runs evaluated a validation metric on a sample of the split during training, the curve shows the sample's values.

    Args:
        folder: the study's folder.
        results: the content of `results.json`.

    Raises:
        UserError: If a metrics file is damaged.
    """
    wanted = list(dict.fromkeys([results["primary"], "val/loss", "train/loss"]))
    # Tables without steps, and models before training, have one value for each run.
    least = 2 if "judged" in results or is_untrained(results) else 1
    by_metric: dict[str, dict[str, dict[int, Series]]] = {}
    for arm in results["arms"]:
        for run in arm["runs"]:
            if run["id"] is None:
                continue
            series = folder.run(arm["name"], run["seed"], run["id"]).metrics()
            for metric in (curve_metric(name, series) for name in wanted):
                if metric in series and len(series[metric].step) >= least:
                    by_metric.setdefault(metric, {}).setdefault(arm["name"], {})[run["seed"]] = series[metric]
    against = {arm["name"]: arm["against"] for arm in results["arms"]}
    curves = [
        _curves(metric, describe_metric(results["plan"], metric), arms, against, is_paired(results))
        for metric, arms in by_metric.items()
    ]
    return [each for each in curves if each.arms]


def _curves(
    metric: str, spec: MetricSpec, arms: Mapping[str, BySeed], against: Mapping[str, str | None], paired_seeds: bool
) -> Curves:
    every = {arm: summarise_seeds(list(runs.values())) for arm, runs in arms.items()}
    lines = {arm: line for arm, line in every.items() if line["step"]}
    shown = {arm: [line, lines.get(against[arm] or arm, _NONE)] for arm, line in lines.items()}
    paired = {arm: paired_differences(runs, arms.get(against[arm] or "", {})) for arm, runs in arms.items()}
    differ = {arm: summarise_seeds(runs) for arm, runs in paired.items() if runs and paired_seeds}
    return Curves(
        metric,
        spec.label,
        spec.title,
        arms=lines,
        seeds={arm: seed_lines(arms[arm]) for arm in lines},
        differences=differ,
        ranges={arm: vertical_range(pair) for arm, pair in shown.items()},
        difference_ranges={arm: vertical_range([line], ("low", "high"), also=[0.0]) for arm, line in differ.items()},
    )


_NONE: Columns = {"step": [], "mean": []}


def summarise_seeds(runs: Sequence[Series]) -> Columns:
    """Return mean, minimum and maximum over runs, at up to `POINTS` steps at which any run has a finite value."""
    steps = np.unique(np.concatenate([run.step[np.isfinite(run.value)] for run in runs]))
    steps = steps[thin_indices(len(steps))]
    values = np.full((len(runs), len(steps)), np.nan)
    for row, run in zip(values, runs, strict=True):
        _, here, there = np.intersect1d(steps, run.step, return_indices=True)
        row[here] = np.where(np.isfinite(run.value[there]), run.value[there], np.nan)
    table = {"mean": np.nanmean(values, 0), "low": np.nanmin(values, 0), "high": np.nanmax(values, 0)}
    return {"step": steps.tolist(), **{name: list(map(_round, column.tolist())) for name, column in table.items()}}


def seed_lines(runs: BySeed) -> Columns:
    """Return the concatenated lines of all seeds, each thinned to at most `SEED_POINTS` points."""
    lines: Columns = {"step": [], "value": [], "seed": []}
    for seed, run in runs.items():
        finite = np.flatnonzero(np.isfinite(run.value))
        kept = finite[thin_indices(len(finite), SEED_POINTS)]
        lines["step"] += run.step[kept].tolist()
        lines["value"] += map(_round, run.value[kept].tolist())
        lines["seed"] += [seed] * len(kept)
    return lines


def paired_differences(runs: BySeed, base: BySeed) -> list[Series]:
    """Return the difference between each run and the baseline's run with the same seed, at their common steps."""
    differences = []
    for seed in runs.keys() & base.keys():
        steps, ours, theirs = np.intersect1d(runs[seed].step, base[seed].step, return_indices=True)
        difference = runs[seed].value[ours] - base[seed].value[theirs]
        if np.isfinite(difference).any():
            differences.append(Series(steps, difference))
    return differences


def as_rows(columns: Columns) -> list[dict[str, float]]:
    """Return the table as a list of rows, the form that Vega expects."""
    return [dict(zip(columns, row, strict=True)) for row in zip(*columns.values(), strict=True)]


def thin_indices(length: int, points: int = POINTS) -> NDArray[np.int64]:
    """Return at most `points` evenly spaced indices below `length`, including the first and the last."""
    return np.unique(np.linspace(0, length - 1, min(length, points)).round().astype(np.int64))


def vertical_range(
    lines: Sequence[Columns], columns: Sequence[str] = ("mean",), also: Sequence[float] = ()
) -> tuple[float, float]:
    """Return the range of the values after the initial share `EARLY` of training, with a margin.

    Args:
        lines: the lines in the chart.
        columns: the columns whose values must be in the range.
        also: additional values that must be in the range.
    """
    last = max((line["step"][-1] for line in lines if line["step"]), default=0)
    points = [point for line in lines for name in columns for point in zip(line["step"], line[name], strict=True)]
    late = [*also, *(value for step, value in points if step >= EARLY * last)] or [0.0]
    low, high = min(late), max(late)
    room = 0.06 * (high - low) or 0.01 * abs(high) or 1.0
    return _round(low - room), _round(high + room)


def _round(value: float) -> float:
    """Round to six significant digits, to save two thirds of the bytes."""
    return float(f"{value:.6g}")

"""The metric series of a pack's runs, computed from the values at each step."""

import math
from collections import defaultdict
from collections.abc import Mapping
from typing import Any

import numpy as np

from taetpu.data.base import Split
from taetpu.optim.eval_metrics import NO_METRICS, EvalMetric, metric_values

MOST_BLOCKS = 1000  # maximum number of blocks of an evaluation set whose sums are stored

Points = dict[str, tuple[list[int], list[float]]]  # metric -> steps, values


class MetricBuffer:
    """Collects the metrics of one pack between two flushes.

    Training metrics are means over windows of `every` steps. A window also ends at each flush. Windows depend only on
    step numbers, not on dispatch sizes.

    Args:
        width: the number of runs, including padding.
        every: the number of steps per window.
        start: the first step.
    """

    def __init__(self, width: int, every: int, start: int):
        self.every, self.width = every, width
        self.ended: set[int] = set()
        self.reset(start)

    def reset(self, start: int) -> None:
        """Discard all points and continue at step `start`."""
        self.start = self.end = start
        self.steps: list[int] = []
        self.sums: dict[str, np.ndarray] = {}
        self.count = 0
        self.points: list[Points] = [defaultdict(lambda: ([], [])) for _ in range(self.width)]

    def add_steps(self, metrics: Mapping[str, np.ndarray]) -> None:
        """Append the metrics of the next steps; each array has the shape `(width, steps)`."""
        for i in range(next(iter(metrics.values())).shape[1]):
            for name, values in metrics.items():
                column = values[:, i].astype(np.float64)
                self.sums[name] = column if self.count == 0 else self.sums[name] + column
            self.count, self.end = self.count + 1, self.end + 1
            if self.end % self.every == 0:
                self._close()

    def add_point(self, step: int, run: int, values: Mapping[str, float]) -> None:
        """Add the values measured for one run after `step` updates, unless the run has ended."""
        if run in self.ended:
            return
        for name, value in values.items():
            steps, series = self.points[run][name]
            steps.append(step)
            series.append(value)

    def end_run(self, run: int) -> None:
        """Close the window of a run that ended, and ignore all later values of the run."""
        if self.count:
            self._close_window(run)
        self.ended.add(run)

    def next_window_end(self, step: int) -> int:
        """Return the first step at or after `step` at which a window ends. A flush at this step splits no window."""
        return -(-step // self.every) * self.every

    def flush(self) -> tuple[int, int, list[Points]]:
        """Return the start step, the end step and each run's points since the previous flush."""
        if self.count:
            self._close()
        out = self.start, self.end, self.points
        self.reset(self.end)
        return out

    def _close(self) -> None:
        for run in range(self.width):
            self._close_window(run)
        self.count = 0

    def _close_window(self, run: int) -> None:
        means = {name: float(np.float32(sums[run] / self.count)) for name, sums in self.sums.items()}
        self.add_point(self.end, run, means)


def split_metrics(
    sequences: Mapping[str, np.ndarray], name: str, split: Split, metrics: Mapping[str, EvalMetric] = NO_METRICS
) -> list[dict[str, float]]:
    """Return each run's metrics on a split or a sample: mean loss in nats, accuracy, bits per byte of text and others.

    Args:
        sequences: sums over the positions of each sequence, `(width, sequences, ...)` (see `train.step.evaluate`).
        name: the prefix of the metric names.
        split: the whole split. For a sample, `split.num_bytes` and `split.unpredicted_bits` are scaled to the sample.
        metrics: the metrics other than loss, accuracy and bits per byte, by name.
    """
    kept = {entry for entry, metric in metrics.items() if metric.keeps_sequences}
    sums = {key: v if key.partition(".")[0] in kept else v.sum(1) for key, v in sequences.items()}
    share = sums["weight"][0] / max(split.weights.sum(dtype=np.float64), 1.0)
    runs = range(len(sums["nll"]))
    return [metrics_from_sums({key: v[i] for key, v in sums.items()}, name, split, metrics, share) for i in runs]


def metrics_from_sums(
    sums: Mapping[str, Any],
    name: str,
    split: Split,
    metrics: Mapping[str, EvalMetric] = NO_METRICS,
    share: float = 1.0,
) -> dict[str, float]:
    """Return the metrics of one run from the sums over a share of a split."""
    nll, weight = float(sums["nll"]), max(float(sums["weight"]), 1.0)
    results = {f"{name}/loss": nll / weight}
    if "correct" in sums:
        results[f"{name}/accuracy"] = float(sums["correct"]) / weight
    if split.num_bytes:
        bits = nll / math.log(2) + share * split.unpredicted_bits
        results[f"{name}/bits_per_byte"] = bits / (share * split.num_bytes)
    for entry, metric in metrics.items():
        results |= {f"{name}/{key}": value for key, value in metric_values(entry, metric, sums).items()}
    return results


def sum_blocks(values: np.ndarray) -> np.ndarray:
    """Return sums over at most `MOST_BLOCKS` blocks of neighbouring sequences; of arrays, over all sequences."""
    if values.ndim > 1:
        return values.sum(0).ravel()
    size = -(-len(values) // MOST_BLOCKS)
    return np.add.reduceat(values, np.arange(0, len(values), size))


def checkpoint_steps(steps: int, rule: int | str, evals: list[int]) -> list[int]:
    """Return the steps with a checkpoint according to a rule. The last step always has a checkpoint, unless it is 0.

    Args:
        steps: the number of steps of a run.
        rule: n for every n-th step, `eval` for every evaluation, `log` for powers of two, `end` for the last step only.
        evals: the steps with an evaluation.
    """
    if isinstance(rule, int):
        chosen = set(range(rule, steps, rule))
    elif rule == "log":
        chosen = {2**i for i in range(steps.bit_length()) if 2**i < steps}
    else:
        chosen = set(evals) if rule == "eval" else set()
    return sorted((chosen | {steps}) - {0})

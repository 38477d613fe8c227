"""The metric series of a pack's runs, from their values at each step."""

import math
from collections import defaultdict
from collections.abc import Mapping

import numpy as np

from taetpu.data.batches import Split

MOST_BLOCKS = 1000  # blocks of an evaluation set whose sums are stored

Points = dict[str, tuple[list[int], list[float]]]  # metric -> steps, values


class MetricBuffer:
    """Collects the metrics of one pack between two flushes.

    Training metrics are means over windows of `every` steps; a window also ends at each flush. Windows depend on step
    numbers only, not on the sizes of dispatches.

    Args:
        width: the number of runs, padding included.
        every: steps of a window.
        start: the first step.
    """

    def __init__(self, width: int, every: int, start: int):
        self.every, self.width = every, width
        self.reset(start)

    def reset(self, start: int) -> None:
        """Discard all points; the next step is `start`."""
        self.start = self.end = start
        self.steps: list[int] = []
        self.sums: dict[str, np.ndarray] = {}
        self.count = 0
        self.points: list[Points] = [defaultdict(lambda: ([], [])) for _ in range(self.width)]

    def add_steps(self, metrics: Mapping[str, np.ndarray]) -> None:
        """Append steps in order; each metric is `(width, steps)`."""
        for i in range(next(iter(metrics.values())).shape[1]):
            for name, values in metrics.items():
                column = values[:, i].astype(np.float64)
                self.sums[name] = column if self.count == 0 else self.sums[name] + column
            self.count, self.end = self.count + 1, self.end + 1
            if self.end % self.every == 0:
                self._close()

    def add_point(self, step: int, run: int, values: Mapping[str, float]) -> None:
        """Add the values of one run after `step` updates."""
        for name, value in values.items():
            steps, series = self.points[run][name]
            steps.append(step)
            series.append(value)

    def next_window_end(self, step: int) -> int:
        """Return the first step from `step` on at which a window ends, where a flush changes no point."""
        return -(-step // self.every) * self.every

    def flush(self) -> tuple[int, int, list[Points]]:
        """Return the start, the end and the points of each run since the last flush."""
        if self.count:
            self._close()
        out = self.start, self.end, self.points
        self.reset(self.end)
        return out

    def _close(self) -> None:
        for run in range(self.width):
            self.add_point(
                self.end, run, {name: float(np.float32(s[run] / self.count)) for name, s in self.sums.items()}
            )
        self.count = 0


def split_metrics(sequences: Mapping[str, np.ndarray], name: str, split: Split) -> list[dict[str, float]]:
    """Return each run's metrics on a split or a sample of it: mean loss in nats, accuracy, and bits per byte of a text.

    Args:
        sequences: sums over the positions of each sequence, `(width, sequences)` (see `optim.loss.position_losses`).
        name: prefix of the metrics' names.
        split: the whole split. A sample has its share of the bytes and of the bits that no target holds.
    """
    sums = {key: values.sum(1) for key, values in sequences.items()}
    share = sums["weight"][0] / max(split.weights.sum(dtype=np.float64), 1.0)
    runs = range(len(sums["nll"]))
    return [metrics_from_sums({key: float(v[i]) for key, v in sums.items()}, name, split, share) for i in runs]


def metrics_from_sums(sums: Mapping[str, float], name: str, split: Split, share: float = 1.0) -> dict[str, float]:
    """Return one run's metrics from its sums over `share` of a split."""
    weight = max(sums["weight"], 1.0)
    found = {f"{name}/loss": sums["nll"] / weight, f"{name}/accuracy": sums["correct"] / weight}
    if split.num_bytes:
        bits = sums["nll"] / math.log(2) + share * split.unpredicted_bits
        found[f"{name}/bits_per_byte"] = bits / (share * split.num_bytes)
    return found


def sum_blocks(values: np.ndarray) -> np.ndarray:
    """Return sums over blocks of neighbouring sequences, at most `MOST_BLOCKS` of them."""
    size = -(-len(values) // MOST_BLOCKS)
    return np.add.reduceat(values, np.arange(0, len(values), size))


def checkpoint_steps(steps: int, rule: int | str, evals: list[int]) -> list[int]:
    """Return the steps with a checkpoint: every n, at each evaluation, powers of two, or the last step only."""
    if isinstance(rule, int):
        found = set(range(rule, steps, rule))
    elif rule == "log":
        found = {2**i for i in range(steps.bit_length()) if 2**i < steps}
    else:
        found = set(evals) if rule == "eval" else set()
    return sorted(found | {steps})

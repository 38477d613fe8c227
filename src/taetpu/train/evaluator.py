"""Evaluation of a pack's models: on a sample of the validation split during training, on whole splits at the end."""

import math
import time
from collections.abc import Mapping, Sequence
from typing import Any

import jax
import numpy as np
from jaxtyping import Float

from taetpu.core.distributed import to_host
from taetpu.data.base import evaluation_order
from taetpu.data.items.item_set import ItemSet
from taetpu.nn.lm import LM
from taetpu.spec.eval_sample import Sample
from taetpu.spec.resolved_study import RunSpec
from taetpu.store.metrics import SAMPLED
from taetpu.train.item_evaluator import NO_ITEMS, ItemEvaluator
from taetpu.train.metric_series import split_metrics
from taetpu.train.program import Program

Sums = dict[str, Float[np.ndarray, "run sequence ..."]]
"""Sums over the positions of each sequence, by name: `nll`, `correct`, `weight`, and those of `train.eval_metrics`."""


class Evaluator:
    """Evaluates the runs of one pack.

    Args:
        program: the program of the pack.
        runs: the runs of the pack.
        sample: the part of the validation split that is evaluated during training.
        items: the items of scores in `train.eval_metrics`, by name.

    Attributes:
        items: the evaluator of the scores on items.
        sampled: the number of windows in the validation sample.
        val_windows: the number of windows in the validation split; 0 if the task has no validation split.
        windows: the evaluation sets as arrays on the pack's devices, by split.
        sums: the sums of each sequence in the latest evaluation of a whole split, by split. The sequences have the
            order of the split.
        whole: the metrics of each run in the latest evaluation of a whole split, by split.
        first_batch: the sums of each sequence in the first batch of `windows`, by split.
        seconds_per_token: the time per token in the latest evaluation; NaN until an evaluation ran without compiling.
    """

    def __init__(
        self, program: Program, runs: Sequence[RunSpec], sample: Sample, items: Mapping[str, ItemSet] = NO_ITEMS
    ):
        self.program, self.runs, self.sample = program, runs, sample
        self.items = ItemEvaluator(program, items)
        val = program.source.evaluation("val")
        self.val_windows = 0 if val is None else len(val.tokens)
        self.sampled = sample.size_within(self.val_windows) if val is not None else 0
        sets = program.structure.task.evaluation_sets
        self.windows = {name: program.evaluation_set(name, self.sampled) for name in sets}
        self.sums: dict[str, Sums] = {}
        self.whole: dict[str, list[dict[str, float]]] = {}
        self.first_batch: dict[str, Sums] = {}
        self.seconds_per_token = math.nan
        self.compiled: set[str] = set()

    def evaluate(self, models: LM, split: str, *, whole: bool = True) -> list[dict[str, float]]:
        """Return the metrics of each run in the pack, including padding; empty if the task does not have the split.

        Args:
            models: the models, with a leading run axis.
            split: the name of an evaluation set. For `val`, the metrics of the sample are always included.
            whole: whether to evaluate the whole split instead of the sample only.
        """
        width, windows, data = self.program.width, self.windows[split], self.program.source.evaluation(split)
        if windows is None or data is None:
            return [{}] * width
        began, (_, size, length) = time.monotonic(), windows.weights.shape
        order = evaluation_order(len(data.tokens))
        count = -(-(len(order) if whole else self.sampled) // size)
        sums = self.program.evaluate_on_host(models, windows, count)
        if split in self.compiled:
            self.seconds_per_token = (time.monotonic() - began) / (count * size * length * width)
        self.compiled.add(split)
        others = self.program.structure.train.eval_metrics
        sampled = {name: values[:, : self.sampled] for name, values in sums.items()}
        metrics = split_metrics(sampled, SAMPLED, data, others) if split == "val" else [{}] * width
        if whole:
            self.sums[split] = {name: values[:, np.argsort(order)] for name, values in sums.items()}
            self.first_batch[split] = {name: values[:, :size] for name, values in sums.items()}
            self.whole[split] = split_metrics(self.sums[split], split, data, others)
            metrics = [a | b for a, b in zip(self.whole[split], metrics, strict=True)]
        return metrics

    def evaluate_at_end(self, models: LM) -> list[dict[str, float]]:
        """Return the metrics of each run on items and on the evaluation sets that training does not evaluate."""
        metrics = self.items.evaluate(models)
        for split in self.windows:
            if split != "val":
                metrics = [a | b for a, b in zip(metrics, self.evaluate(models, split), strict=True)]
        return metrics

    def draw_texts(self, models: LM, seeds: jax.Array, step: int) -> dict[int, str]:
        """Return texts that the first run of each arm generates from the task's prompt, by index in the pack."""
        config = self.runs[0].config
        source: Any = self.program.source
        if config.train.sample is None or not config.task.causal or not source.interface.is_language_model:
            return {}
        tokens = to_host(self.program.sample(models, seeds, np.int32(step), source.prompt()))
        first = {run.arm: place for place, run in reversed(list(enumerate(self.runs)))}
        return {place: source.show(tokens[place]) for place in sorted(first.values())}

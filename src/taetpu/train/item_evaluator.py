"""Evaluation of a pack's models on items: as sequences of the evaluation program, or by generating answers."""

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any

import numpy as np
from jax.sharding import NamedSharding
from jaxtyping import Int

from taetpu.core.distributed import to_devices, to_host
from taetpu.data.base import Batch
from taetpu.data.items.item_set import ItemSet, pad_prompts, pad_rows
from taetpu.nn.lm import LM
from taetpu.optim.eval_metrics.item_scores import ItemScore, ItemValues, item_scores
from taetpu.train.program import Program
from taetpu.train.run_axis import DIVIDED, SHARED

NO_ITEMS: Mapping[str, ItemSet] = MappingProxyType({})


SHORTEST = 32
"""Rows of items are padded to this number of tokens, or to twice, four times ... as many, up to that of training."""


@dataclass(frozen=True)
class Bucket:
    """The rows of items of similar length, which one compiled program scores.

    Attributes:
        batches: the rows as sequences on the pack's devices, `(batches, batch, seq)`.
        places: for each score, the places of its rows in the batches, and their numbers among the rows of the score.
    """

    batches: Batch
    places: Mapping[str, tuple[Int[np.ndarray, " row"], Int[np.ndarray, " row"]]]


class ItemEvaluator:
    """Scores the runs of one pack on items.

    Args:
        program: the program of the pack.
        sets: the items of each score, by the name of the score in `train.eval_metrics`.

    Attributes:
        scores: the scores by name. Those that are measured most often come first.
        values: for each score and run of the pack, the values of all items in the latest evaluation.
    """

    def __init__(self, program: Program, sets: Mapping[str, ItemSet]):
        self.program, self.sets = program, sets
        scores = {n: s for n, s in item_scores(program.structure.train.eval_metrics).items() if n in sets}
        self.scores = dict(sorted(scores.items(), key=lambda item: item[1].every or math.inf))
        self.values: dict[str, list[ItemValues]] = {}
        self.buckets = self._buckets()
        self.prompts = {name: self._prompts(name, score) for name, score in self.scores.items() if score.generated}

    def steps(self, steps: int) -> dict[int, list[str]]:
        """Return the scores that are measured after each step of training, for runs of `steps` steps."""
        due: dict[int, list[str]] = {}
        for name, score in self.scores.items():
            for step in range(score.every, steps + 1, score.every) if score.every else ():
                due.setdefault(step, []).append(name)
        return due

    def evaluate(self, models: LM, names: Iterable[str] | None = None) -> list[dict[str, float]]:
        """Return the scores of each run as metrics `name/score`, and store the values of items in `values`.

        Args:
            models: the models, with a leading run axis.
            names: the scores to measure; all by default.
        """
        metrics: list[dict[str, float]] = [{} for _ in range(self.program.width)]
        names = [*self.scores] if names is None else [*names]
        chosen = [name for name in names if not self.scores[name].generated]
        self.values |= self._choices(models, chosen)
        self.values |= {name: self._answers(models, name) for name in names if name not in chosen}
        for name in names:
            for run, values in enumerate(self.values[name]):
                metrics[run] |= {f"{name}/{what}": value for what, value in self.scores[name].totals(values).items()}
        return metrics

    def stored(self, run: int) -> dict[str, np.ndarray]:
        """Return the values of all items of a run as `name/score`, with their weight and the number of their group."""
        arrays: dict[str, np.ndarray] = {}
        for name, values in self.values.items():
            items = self.sets[name]
            arrays |= {f"{name}/{what}": value for what, value in values[run].items()}
            arrays[f"{name}/weight"] = np.ones(len(items))
            if items.groups:
                arrays[f"{name}/group"] = items.group_numbers.astype(np.float64)
        return arrays

    @property
    def facts(self) -> dict[str, Any]:
        """The file, the number of items, the accuracy of a guess, the groups and the metrics of each score, by name."""
        return {
            name: {
                "kind": score.kind, "file": score.file, "sha256": self.sets[name].file.sha256,
                "items": len(self.sets[name]), "chance": score.chance(self.sets[name]),
                "groups": list(self.sets[name].groups),
                "scores": {what: spec.to_data() for what, spec in score.item_metrics.items()},
            }
            for name, score in self.scores.items()
        }  # fmt: skip

    def _buckets(self) -> list[Bucket]:
        """Return the rows of all scores, by length."""
        rows: dict[int, list[tuple[str, int]]] = {}
        longest = self.program.source.seq_len
        for name in (name for name, score in self.scores.items() if not score.generated):
            for row, ids in enumerate(self.sets[name].ids):
                length = SHORTEST
                while length < min(len(ids) - 1, longest):
                    length *= 2
                rows.setdefault(min(length, longest), []).append((name, row))
        buckets = []
        for length, entries in rows.items():
            tokens = [(self.sets[name].ids[row], int(self.sets[name].starts[row])) for name, row in entries]
            split = pad_rows(tokens, length, self.program.structure.task.batch)
            batches = self.program.batched(split, np.arange(len(entries)), fill=True)
            places = {}
            for name in dict.fromkeys(name for name, _ in entries):
                pairs = [(place, row) for place, (of, row) in enumerate(entries) if of == name]
                places[name] = np.array([place for place, _ in pairs]), np.array([row for _, row in pairs])
            buckets.append(Bucket(to_devices(batches, NamedSharding(self.program.mesh, DIVIDED)), places))
        return buckets

    def _prompts(self, name: str, score: ItemScore) -> Any:
        """Return the prompts of a score and their lengths, `(batches, batch, ...)`, on the pack's devices."""
        tokens, lengths = pad_prompts(self.sets[name].ids, score.generated)
        size = min(len(tokens), self.program.structure.train.batch_size)
        missing = -len(tokens) % size
        tokens = np.pad(tokens, ((0, missing), (0, 0))).reshape(-1, size, tokens.shape[1])
        lengths = np.pad(lengths, (0, missing), constant_values=1).reshape(-1, size)
        return to_devices((tokens, lengths), NamedSharding(self.program.mesh, SHARED))

    def _choices(self, models: LM, names: Sequence[str]) -> dict[str, list[ItemValues]]:
        """Return the values of the items of scores that compare choices, for each run."""
        width = self.program.width
        sums = {name: np.zeros((2, width, len(self.sets[name].ids))) for name in names}
        for bucket in self.buckets:
            due = [name for name in names if name in bucket.places]
            if not due:
                continue
            size = bucket.batches.weights.shape[1]
            count = max(int(bucket.places[name][0].max()) for name in due) // size + 1
            of_bucket = self.program.evaluate_on_host(models, bucket.batches, count, items=True)
            for name in due:
                places, rows = bucket.places[name]
                sums[name][0][:, rows], sums[name][1][:, rows] = (of_bucket[s][:, places] for s in ("nll", "correct"))
        return {
            name: [
                self.scores[name].score_rows(items, items.row_scores(sums[name][0, run], sums[name][1, run]))
                for run in range(width)
            ]
            for name in names
            if (items := self.sets[name])
        }

    def _answers(self, models: LM, name: str) -> list[ItemValues]:
        items, score = self.sets[name], self.scores[name]
        tokens = to_host(self.program.answer(score.generated)(models, *self.prompts[name]))
        tokens = tokens.reshape(self.program.width, -1, score.generated)[:, : len(items)]
        texts = [[items.decode_after(row, ids) for row, ids in enumerate(of_run)] for of_run in tokens]
        return [score.score_texts(items, of_run) for of_run in texts]

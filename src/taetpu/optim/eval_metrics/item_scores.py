"""Scores of models on items of a file: multiple choice, minimal pairs, last words, cloze, and generated answers.

A metric is named after the entry of `train.eval_metrics` and the score, such as `hellaswag/acc_norm`. The scores of
single items are stored with the run, so that arms are compared on the same items. Choices with equal log-probability
share the point, so that a model without knowledge scores the share of a guess.

Source: the scores of Gao et al. 2024, "The Language Model Evaluation Harness", https://zenodo.org/records/12608602.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Annotated, Any, ClassVar

import numpy as np
from jaxtyping import Float
from pydantic import Field, PositiveInt

from taetpu.core.config import Size
from taetpu.core.errors import UserError
from taetpu.core.metric_spec import MetricSpec
from taetpu.core.registry import register
from taetpu.data.base import Source, Task
from taetpu.data.items.formats import read_items
from taetpu.data.items.item_set import ItemSet, RowScores, encode_items
from taetpu.optim.eval_metrics.on_sets import EvalMetric, Evaluated, Sums

ItemValues = dict[str, Float[np.ndarray, " item"]]
"""The scores of each item, by name."""
SHARE = MetricSpec("max", (0.0, 1.0), "share of items")
NATS = MetricSpec("min", (0.0, math.inf), "nats per item")
MARGIN = MetricSpec("max", unit="nats per item")
REMEDY = "Remove the metric, or use a task that predicts the next token of a text."


class ItemScore(EvalMetric):
    """Base of scores on items.

    Attributes:
        scores: The scores by name.
        derived: The scores that are functions of other scores, not means over items.
        chosen: Whether an item has several choices, one of which is correct.
    """

    scores: ClassVar[Mapping[str, MetricSpec]] = {}
    derived: ClassVar[tuple[str, ...]] = ()
    chosen: ClassVar[bool] = False

    file: Annotated[str, Field(description="file with an item in each line, relative to the study file")]
    every: PositiveInt | None = None
    """Steps between measurements during training; `none`: only the trained model is scored."""
    by: str | None = None
    """Field of the rows that groups the items; `none`: BLiMP's phenomenon for minimal pairs, else no groups."""

    @property
    def generated(self) -> int:
        """The number of tokens that the model generates for an item; 0 if it scores choices."""
        return 0

    @property
    def item_metrics(self) -> dict[str, MetricSpec]:
        """What the scores are, by name."""
        means = {n: replace(s, mean_of=(n, "weight")) for n, s in self.scores.items() if n not in self.derived}
        return {**self.scores, **means}

    def sums(self, seen: Evaluated) -> Sums:
        """Return nothing, since items are not part of evaluation sets."""
        return {}

    def check_task(self, task: Task) -> None:
        """Raise `UserError` if models of a task do not predict the next token."""
        if not task.causal or task.batch.real_targets:
            problem = f"{self.kind!r} scores next tokens, which models of task {task.kind!r} do not predict"
            raise UserError(problem, remedy=REMEDY)

    def path(self, folder: Path) -> Path:
        """Return the file, given the folder of the study file.

        Raises:
            UserError: If there is no such file.
        """
        path = folder / Path(self.file).expanduser()
        if not path.is_file():
            remedy = "Use a path relative to the study file."
            raise UserError(f"there is no file {path}", path=("file",), remedy=remedy)
        return path

    def prepare(self, folder: Path, source: Source, special_tokens: Mapping[str, Any]) -> ItemSet:
        """Return the items as tokens of a prepared task.

        Args:
            folder: The folder of the study file.
            source: The prepared task.
            special_tokens: The tokens that begin and end texts.

        Raises:
            UserError: If the task has no tokenizer, or the file has an invalid item. The path is one of the component.
        """
        if source.tokenizer is None or not source.interface.is_language_model:
            what = "has no text tokenizer" if source.tokenizer is None else f"has {source.interface}"
            raise UserError(f"{self.kind!r} reads texts, and the task {what}", remedy=REMEDY)
        file = read_items(self.path(folder), self.kind, self.by)
        return encode_items(
            file, source.tokenizer, source.interface, source.seq_len, special_tokens, generated=self.generated
        )

    def score_rows(self, items: ItemSet, rows: RowScores) -> ItemValues:
        """Return the scores of each item, given those of its choices."""
        raise NotImplementedError

    def score_texts(self, items: ItemSet, texts: Sequence[str]) -> ItemValues:
        """Return the scores of each item, given the generated texts."""
        raise NotImplementedError

    def totals(self, values: ItemValues) -> dict[str, float]:
        """Return the scores over all items, given those of each item."""
        return {name: float(np.mean(item_values)) for name, item_values in values.items()}

    def chance(self, items: ItemSet) -> float | None:
        """Return the accuracy of a guess; None if it is not known."""
        return float((1 / items.counts).mean()) if self.chosen else None


def right(scores: Float[np.ndarray, "item choice"], items: ItemSet) -> Float[np.ndarray, " item"]:
    """Return 1 for each item whose correct choice has the largest score, 1 / n if n choices share it, and else 0."""
    best = scores >= scores.max(-1, keepdims=True)
    hit = best[np.arange(len(items)), items.labels] / np.maximum(best.sum(-1), 1)
    return np.where(np.isnan(scores).any(-1), np.nan, hit)


def log_probabilities(items: ItemSet, rows: RowScores) -> tuple[np.ndarray, np.ndarray]:
    """Return the log-probability of each correct choice, and the largest one of the other choices."""
    table, places = items.by_item(rows.logp), np.arange(len(items))
    correct = table[places, items.labels].copy()
    table[places, items.labels] = -np.inf
    return correct, table.max(-1)


@register("eval_metric", "multiple-choice")
class MultipleChoice(ItemScore):
    """Accuracy at questions with several endings, of which the most likely one is the model's answer.

    `acc` compares log-probabilities, `acc_norm` divides them by the number of characters, `acc_bytes` by that of UTF-8
    bytes and `acc_token` by that of tokens. `nll` is the negative log-probability of the correct ending. The file has
    rows of HellaSwag (`ctx`, `endings`, `label`) or of ARC (`question`, `choices`, `answerKey`).

    Source: Zellers et al. 2019, "HellaSwag", arXiv 1905.07830; Clark et al. 2018, "Think you have Solved Question
    Answering?", arXiv 1803.05457.
    """

    example: ClassVar[Mapping[str, Any]] = {"file": "hellaswag.jsonl"}
    scores: ClassVar = {**dict.fromkeys(("acc", "acc_norm", "acc_bytes", "acc_token"), SHARE), "nll": NATS}
    chosen = True

    def score_rows(self, items: ItemSet, rows: RowScores) -> ItemValues:
        """See `ItemScore.score_rows`."""
        sizes = {
            "acc": 1.0, "acc_norm": items.lengths(len), "acc_bytes": items.lengths(lambda text: len(text.encode())),
            "acc_token": items.num_tokens,
        }  # fmt: skip
        values = {name: right(items.by_item(rows.logp / size), items) for name, size in sizes.items()}
        return {**values, "nll": -log_probabilities(items, rows)[0]}


@register("eval_metric", "minimal-pairs")
class MinimalPairs(ItemScore):
    """Share of pairs of sentences in which the grammatical one is more likely.

    `margin` is the difference of the log-probabilities. The file has rows of BLiMP (`sentence_good`, `sentence_bad`),
    which are grouped by phenomenon (`linguistics_term`) or paradigm (`UID`).

    Source: Warstadt et al. 2020, "BLiMP: The Benchmark of Linguistic Minimal Pairs for English", arXiv 1912.00582.
    """

    example: ClassVar[Mapping[str, Any]] = {"file": "blimp.jsonl"}
    scores: ClassVar[Mapping[str, MetricSpec]] = {"acc": SHARE, "margin": MARGIN}
    chosen = True

    def score_rows(self, items: ItemSet, rows: RowScores) -> ItemValues:
        """See `ItemScore.score_rows`."""
        correct, other = log_probabilities(items, rows)
        return {"acc": right(items.by_item(rows.logp), items), "margin": correct - other}


@register("eval_metric", "cloze")
class Cloze(MinimalPairs):
    """Share of sentences with a blank in which the text after the correct option is more likely.

    `margin` is the difference of the log-probabilities. The file has rows of WinoGrande (`sentence` with a blank `_`,
    `option1`, `option2`, `answer`).

    Source: Sakaguchi et al. 2019, "WinoGrande", arXiv 1907.10641; Trinh and Le 2018, "A Simple Method for Commonsense
    Reasoning", arXiv 1806.02847 (scoring the text after the blank).
    """

    example: ClassVar[Mapping[str, Any]] = {"file": "winogrande.jsonl"}


@register("eval_metric", "last-word")
class LastWord(ItemScore):
    """Share of texts whose last word is the most likely continuation, and the perplexity of the last words.

    `nll` is the negative log-probability of the last word, and `perplexity` the exponential of its mean. The file has
    rows of LAMBADA (`text`).

    Source: Paperno et al. 2016, "The LAMBADA dataset: Word prediction requiring a broad discourse context", arXiv
    1606.06031.
    """

    example: ClassVar[Mapping[str, Any]] = {"file": "lambada.jsonl"}
    scores: ClassVar = {"acc": SHARE, "nll": NATS, "perplexity": MetricSpec("min", (1.0, math.inf))}
    derived = ("perplexity",)

    def score_rows(self, items: ItemSet, rows: RowScores) -> ItemValues:
        """See `ItemScore.score_rows`."""
        return {"acc": rows.greedy.astype(np.float64), "nll": -rows.logp}

    def totals(self, values: ItemValues) -> dict[str, float]:
        """See `ItemScore.totals`."""
        totals = super().totals(values)
        return {**totals, "perplexity": math.exp(min(totals["nll"], 700.0))}


@register("eval_metric", "generation")
class Generation(ItemScore):
    """Share of prompts after which the model generates the answer, with the most likely token at each position.

    The generated text ends before the first of the texts in `stop` and before a token that ends texts. Spaces around
    both texts are ignored. The file has rows with `prompt` and `answer`.
    """

    example: ClassVar[Mapping[str, Any]] = {"file": "prompts.jsonl"}
    scores: ClassVar[Mapping[str, MetricSpec]] = {"exact_match": SHARE}

    max_tokens: Size = 32
    """Number of tokens to generate."""
    stop: tuple[str, ...] = ("\n",)
    """Texts at which the generated text ends."""

    @property
    def generated(self) -> int:
        """See `ItemScore.generated`."""
        return self.max_tokens

    def score_texts(self, items: ItemSet, texts: Sequence[str]) -> ItemValues:
        """See `ItemScore.score_texts`."""
        answers = [item.pairs[0][1].strip() for item in items.file.items]
        exact = [self.cut(text) == answer for text, answer in zip(texts, answers, strict=True)]
        return {"exact_match": np.array(exact, np.float64)}

    def cut(self, text: str) -> str:
        """Return a generated text up to the first stop, without spaces around it."""
        ends = [place for stop in self.stop if stop and (place := text.find(stop)) >= 0]
        return text[: min(ends, default=len(text))].strip()


def item_scores(metrics: Mapping[str, Any]) -> dict[str, ItemScore]:
    """Return the entries of `train.eval_metrics` that are scores on items."""
    return {name: metric for name, metric in metrics.items() if isinstance(metric, ItemScore)}

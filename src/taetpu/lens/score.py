"""Scores of an opened model on items of a file, as `train.eval_metrics` measures them."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from taetpu.core.config_parsing import build_component
from taetpu.core.errors import UserError
from taetpu.core.short_repr import short_repr
from taetpu.data.items.formats import FORMATS, read_items
from taetpu.data.items.item_set import ItemSet, RowScores, encode_items
from taetpu.lens.generate import Generated, Sampling, generate
from taetpu.lens.losses import sequence_losses
from taetpu.lens.opened import OpenedModel
from taetpu.optim.eval_metrics.item_scores import ItemScore, ItemValues

PROMPTS = 32
"""Number of prompts that are continued at once."""


@dataclass(frozen=True)
class Scores:
    """The scores of a model on a file.

    Attributes:
        model: The name of the model.
        file: The file.
        kind: The kind of score.
        totals: The scores over all items, by name.
        values: The values of each item, by name. A score that is not a mean over items has none.
        chance: The accuracy of a guess; None if it is not known.
        items: The items as tokens.
        logp: The log-probability of each choice, item by item; empty if answers were generated.
        texts: The generated texts, in the order of the items; empty if choices were scored.
    """

    __repr__ = short_repr

    model: str
    file: str
    kind: str
    totals: Mapping[str, float]
    values: ItemValues
    chance: float | None
    items: ItemSet
    logp: list[list[float]]
    texts: list[str]

    def rows(self) -> list[dict[str, Any]]:
        """Return a row for each score: its value, its standard error over items, and the number of items.

        The error is the standard error of a mean over independent items; None for scores that are not means.
        """
        count = len(self.items)
        return [
            {"score": name, "value": value, "error": standard_error(self.values.get(name)), "items": count}
            for name, value in self.totals.items()
        ]

    def group_rows(self) -> list[dict[str, Any]]:
        """Return a row for each group: its first score, the standard error, and the number of items."""
        name = next(iter(self.values))
        numbers = self.items.group_numbers if self.items.groups else np.zeros(0)
        rows = []
        for number, group in enumerate(self.items.groups):
            values = self.values[name][numbers == number]
            error = standard_error(values)
            rows.append({"group": group, name: float(values.mean()), "error": error, "items": len(values)})
        return rows

    def item_rows(self) -> list[dict[str, Any]]:
        """Return a row for each item: its row in the file, its scores, and its log-probabilities or generated text."""
        rows = []
        for place, item in enumerate(self.items.file.items):
            row: dict[str, Any] = {"row": item.row, **({"group": item.group} if item.group else {})}
            row |= {name: float(values[place]) for name, values in self.values.items()}
            row |= {"text": self.texts[place]} if self.texts else {"logp": self.logp[place]}
            rows.append(row)
        return rows

    def to_dict(self) -> dict[str, Any]:
        """Return the scores and those of all items as plain data."""
        about = {"model": self.model, "file": self.file, "kind": self.kind, "chance": self.chance}
        return {**about, "sha256": self.items.file.sha256, "scores": self.rows(), "groups": self.group_rows(),
                "items": self.item_rows()}  # fmt: skip


def standard_error(values: np.ndarray | None) -> float | None:
    """Return the standard error of the mean of values; None for fewer than two."""
    return None if values is None or len(values) < 2 else float(np.std(values, ddof=1) / np.sqrt(len(values)))


def score(opened: OpenedModel, file: Path | str, kind: str | None = None, **settings: Any) -> Scores:
    """Return the scores of a model on the items of a file.

    Args:
        opened: The model.
        file: The file, with an item in each line, in a format of `data.items.formats`.
        kind: The kind of score; by default, that of the file's format.
        settings: The settings of the kind, such as `max_tokens`.

    Raises:
        UserError: if the model does not predict the next token of texts, or the file has an invalid item.
    """
    opened.check_predicts_next()
    if opened.tokenizer is None:
        raise UserError("this model has no tokenizer, so it cannot read texts", remedy="Use a model of texts.")
    path = Path(file).expanduser()
    if not path.is_file():
        raise UserError(f"no file {path}", path=("file",), remedy="Use the path of a file of items.")
    read = read_items(path, kind, settings.get("by"))
    kind = kind or FORMATS[read.format].kind
    component: Any = build_component("eval_metric", {"kind": kind, "file": str(path), **settings})
    sizes = opened.interface, opened.seq_len, opened.special_tokens
    items = encode_items(read, opened.tokenizer, *sizes, generated=component.generated)
    logp, texts = list[list[float]](), list[str]()
    if component.generated:
        texts = _generate(opened, items, component)
        values = component.score_texts(items, texts)
    else:
        rows = _row_scores(opened, items)
        ends = np.cumsum(items.counts)[:-1]
        logp = [part.tolist() for part in np.split(rows.logp, ends)]
        values = component.score_rows(items, rows)
    totals, chance = component.totals(values), component.chance(items)
    return Scores(opened.name, str(file), kind, totals, values, chance, items, logp, texts)


def _row_scores(opened: OpenedModel, items: ItemSet) -> RowScores:
    nll, correct = np.zeros(len(items.ids)), np.zeros(len(items.ids))
    several = [row for row, ids in enumerate(items.ids) if len(ids) > 1]
    losses = sequence_losses(opened, [items.ids[row] for row in several]) if several else []
    for row, (row_losses, row_correct) in zip(several, losses, strict=True):
        first = max(int(items.starts[row]), 1) - 1
        nll[row] = row_losses[first:].sum(dtype=np.float64)
        correct[row] = row_correct[first:].sum()
    return items.row_scores(nll, correct)


def _generate(opened: OpenedModel, items: ItemSet, component: ItemScore) -> list[str]:
    generated: list[Generated] = []
    for start in range(0, len(items), PROMPTS):
        prompts = list(items.ids[start : start + PROMPTS])
        generated += generate(opened, prompts, max_tokens=component.generated, sampling=Sampling(0.0))
    return [items.decode_after(row, text.tokens) for row, text in enumerate(generated)]

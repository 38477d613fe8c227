"""Scores that say how much each head is an induction, previous-token or duplicate-token head.

The model reads sequences of random tokens that are repeated once: x_0 ... x_(n-1) x_0 ... x_(n-1). With the attention
weight A(i, j) of query i and key j, the scores of a head are means over sequences and over these queries:

- `induction`: A(i, i - n + 1) for i = n ... 2n - 1, the weight of the token after the earlier occurrence of token i.
- `previous-token`: A(i, i - 1) for i = 1 ... 2n - 1.
- `duplicate-token`: A(i, i - n) for i = n ... 2n - 1, the weight of the earlier occurrence of token i.

All scores are between 0 and 1 for weights that sum to 1. A head with uniform attention over its visible keys has the
score `uniform`. The tokens of a sequence are different, so that each token has one earlier occurrence.

Source: Olsson et al. 2022, "In-context Learning and Induction Heads", arXiv 2209.11895; the diagonals are those of
    TransformerLens' demos and of `transformer_lens.head_detector`, whose scores are means over all queries of one text.
"""

from dataclasses import dataclass
from typing import Any

import numpy as np
from jaxtyping import Float

from taetpu.core.errors import UserError
from taetpu.core.short_repr import short_repr
from taetpu.lens.activations import PATTERN, by_layer
from taetpu.lens.attention import select_heads
from taetpu.lens.inputs import pad_left
from taetpu.lens.opened import OpenedModel

KINDS = ("induction", "previous-token", "duplicate-token")
LENGTH, SEQUENCES = 50, 10
"""Default number of different tokens, at most, and of sequences."""


@dataclass(frozen=True)
class HeadScores:
    """The scores of each head.

    Attributes:
        model: The name of the model.
        length: The number n of different tokens of a sequence.
        sequences: The number of sequences.
        scores: For each kind of score, the scores of a layer's heads, by layer.
        errors: The standard errors of the scores over sequences; NaN for one sequence.
        uniform: For each kind, the score of uniform attention: over the current and all earlier tokens, or over all
            tokens if the model sees later ones.
    """

    __repr__ = short_repr

    model: str
    length: int
    sequences: int
    scores: dict[str, dict[int, Float[np.ndarray, " head"]]]
    errors: dict[str, dict[int, Float[np.ndarray, " head"]]]
    uniform: dict[str, float]

    def rows(self) -> list[dict[str, Any]]:
        """Return a row for each head."""
        layers = self.scores[KINDS[0]]
        return [
            {"layer": layer, "head": head, **{kind: float(self.scores[kind][layer][head]) for kind in KINDS}}
            for layer in layers
            for head in range(len(layers[layer]))
        ]

    def best(self, kind: str) -> tuple[int, int, float]:
        """Return the layer, the head and the score of the head with the largest score of a kind."""
        heads = [(layer, int(scores.argmax()), float(scores.max())) for layer, scores in self.scores[kind].items()]
        return max(heads, key=lambda head: head[2])

    def to_dict(self) -> dict[str, Any]:
        """Return the scores as plain data."""
        heads = [
            {**row, "errors": {kind: float(self.errors[kind][row["layer"]][row["head"]]) for kind in KINDS}}
            for row in self.rows()
        ]
        about = {"model": self.model, "length": self.length, "sequences": self.sequences, "uniform": self.uniform}
        return {**about, "heads": heads}

    def chart(self) -> Any:
        """Return an Altair chart with a picture of layers and heads for each kind of score."""
        from taetpu.report.token_charts import head_chart

        return head_chart(
            {
                kind: {
                    (layer, head): float(score) for layer, values in scores.items() for head, score in enumerate(values)
                }
                for kind, scores in self.scores.items()
            }
        )


def head_scores(
    opened: OpenedModel, *, length: int | None = None, sequences: int = SEQUENCES, seed: int = 0
) -> HeadScores:
    """Return the scores of each head on repeated random tokens.

    Args:
        opened: The model.
        length: The number of different tokens; by default, as many as the sequence length and the vocabulary allow, but
            at most `LENGTH`.
        sequences: The number of sequences.
        seed: The seed of the tokens.

    Raises:
        UserError: if the model has no attention, or `length` or `sequences` is out of range.
    """
    heads = select_heads(opened)
    most = min(LENGTH, opened.seq_len // 2, opened.vocab_size)
    n = most if length is None else length
    if not 2 <= n <= opened.vocab_size:
        problem = f"{n} different tokens were requested from a vocabulary of {opened.vocab_size}"
        raise UserError(problem, path=("length",), remedy=f"Use a length from 2 to {opened.vocab_size}.")
    if sequences < 1:
        problem = f"{sequences} sequences were requested"
        raise UserError(problem, path=("sequences",), remedy="Request at least 1 sequence.")
    opened.check_length(2 * n)
    rng = np.random.default_rng(seed)
    rows = [np.tile(rng.permutation(opened.vocab_size)[:n], 2).astype(np.int32) for _ in range(sequences)]
    by_kind: dict[str, dict[int, list[np.ndarray]]] = {kind: {layer: [] for layer in heads} for kind in KINDS}
    for row in rows:
        batch = pad_left([row])
        patterns = by_layer(opened, PATTERN, opened(batch, [PATTERN]).sites[PATTERN])
        for layer in heads:
            pattern = batch.strip(0, batch.strip(0, patterns[layer][0], 1), 2)
            for kind, score in score_pattern(pattern, n).items():
                by_kind[kind][layer].append(score)
    scores = {
        kind: {layer: np.mean(samples, 0) for layer, samples in layers.items()} for kind, layers in by_kind.items()
    }
    errors = {kind: {layer: _standard_error(np.stack(samples)) for layer, samples in layers.items()}
              for kind, layers in by_kind.items()}  # fmt: skip
    seen = np.tril(np.ones((2 * n, 2 * n))) if opened.predicts_next else np.ones((2 * n, 2 * n))
    even = seen / seen.sum(-1, keepdims=True)
    uniform = {kind: float(score[0]) for kind, score in score_pattern(even[None], n).items()}
    return HeadScores(opened.name, n, sequences, scores, errors, uniform)


def score_pattern(pattern: Float[np.ndarray, "head query key"], n: int) -> dict[str, Float[np.ndarray, " head"]]:
    """Return the scores of attention weights on n tokens that are repeated once.

    Args:
        pattern: The weights of 2n queries and keys.
        n: The number of different tokens.
    """
    offsets = {"induction": n - 1, "previous-token": 1, "duplicate-token": n}
    diagonals = {kind: np.diagonal(pattern, -offset, 1, 2) for kind, offset in offsets.items()}
    # The diagonal of induction starts at query n - 1, which has no earlier occurrence.
    return {kind: values[:, 1:].mean(-1) if kind == "induction" else values.mean(-1)
            for kind, values in diagonals.items()}  # fmt: skip


def _standard_error(values: Float[np.ndarray, "sequence head"]) -> Float[np.ndarray, " head"]:
    if len(values) < 2:
        return np.full(values.shape[1], np.nan)
    return values.std(0, ddof=1) / len(values) ** 0.5

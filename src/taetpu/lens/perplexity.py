"""Losses of tokens and perplexity, of texts, files and evaluation sets.

The first token of a text is not predicted, because models have no token before it. A text that is longer than `window`
tokens is read in windows that start every `stride` tokens. Each target is scored once: the first window scores all of
its targets, and later windows score their last `stride` targets. With `stride` equal to `window`, the default, windows
do not overlap, as in the evaluation of training. A smaller stride gives each target more context and costs more time.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from jaxtyping import Float, Int

from taetpu.core.errors import UserError
from taetpu.core.short_repr import short_repr
from taetpu.lens.inputs import check_length
from taetpu.lens.losses import find_split, sequence_losses, split_losses
from taetpu.lens.opened import OpenedModel
from taetpu.lens.token_texts import visible


@dataclass(frozen=True)
class TextLosses:
    """The losses of one text.

    Attributes:
        name: The name of the text.
        targets: The predicted tokens, which are all but the first.
        texts: The text of each predicted token.
        losses: The loss of each predicted token, -log p, in nats.
        correct: Whether each predicted token is the most likely one; 1 / n if n tokens are equally likely.
    """

    __repr__ = short_repr

    name: str
    targets: Int[np.ndarray, " token"]
    texts: list[str]
    losses: Float[np.ndarray, " token"]
    correct: Float[np.ndarray, " token"]

    def row(self) -> dict[str, Any]:
        """Return the number of predicted tokens, the perplexity, and mean, minimum and maximum of the losses."""
        return {"text": self.name, **_statistics(self.losses, self.correct)}

    def token_rows(self) -> list[dict[str, Any]]:
        """Return the position in the text, from 0, the number and the loss of each predicted token."""
        columns = zip(self.texts, self.targets.tolist(), self.losses.tolist(), strict=True)
        return [{"position": i + 1, "token": text, "id": number, "loss": loss}
                for i, (text, number, loss) in enumerate(columns)]  # fmt: skip


@dataclass(frozen=True)
class Perplexity:
    """The losses of texts. Statistics are over all predicted tokens of all texts.

    Attributes:
        model: The name of the model.
        texts: The losses of each text.
        window: The maximum number of tokens in a window.
        stride: The number of tokens from the start of a window to the start of the next one.
        split: The name of the evaluation set; None for other texts.
        num_bytes: The number of UTF-8 bytes of all texts; None if tokens do not determine them.
        unpredicted_bits: The bits of first tokens and of characters without a token (see `data.base.Split`), without
            those of tokens that the tokenizer adds to every text, such as `<s>`, which the text does not contain.
    """

    __repr__ = short_repr

    model: str
    texts: list[TextLosses]
    window: int
    stride: int
    split: str | None = None
    num_bytes: int | None = None
    unpredicted_bits: float = 0.0

    @property
    def losses(self) -> Float[np.ndarray, " token"]:
        """The losses of all predicted tokens."""
        return np.concatenate([text.losses for text in self.texts])

    @property
    def mean(self) -> float:
        """The mean loss in nats per token, the cross entropy."""
        return float(self.losses.mean(dtype=np.float64))

    @property
    def perplexity(self) -> float:
        """The exponential of the mean loss."""
        return math.exp(min(self.mean, 700.0))

    @property
    def bits_per_byte(self) -> float | None:
        """The bits of the texts per UTF-8 byte, including those of first tokens; None if they are not defined."""
        bits = float(self.losses.sum(dtype=np.float64)) / math.log(2) + self.unpredicted_bits
        return None if self.num_bytes is None else bits / self.num_bytes

    @property
    def has_windows(self) -> bool:
        """Whether a text was longer than a window, or the texts are the windows of an evaluation set."""
        return self.split is not None or any(len(text.losses) > self.window for text in self.texts)

    def rows(self) -> list[dict[str, Any]]:
        """Return a row for each text, and a row for all texts if there are several."""
        rows = [text.row() for text in self.texts]
        correct = np.concatenate([text.correct for text in self.texts])
        return rows if len(rows) == 1 else [*rows, {"text": "all", **_statistics(self.losses, correct)}]

    def chart(self) -> Any:
        """Return an Altair chart of the loss of each token.

        Raises:
            UserError: if there are too many tokens.
        """
        from taetpu.report.token_charts import loss_chart

        rows = [{**row, "text": text.name, "token": visible(row["token"])}
                for text in self.texts for row in text.token_rows()]  # fmt: skip
        return loss_chart(rows, self.mean)

    def to_dict(self) -> dict[str, Any]:
        """Return the statistics and the losses of all tokens as plain data."""
        correct = np.concatenate([text.correct for text in self.texts])
        return {
            "model": self.model,
            "window": self.window,
            "stride": self.stride,
            **_statistics(self.losses, correct),
            "bits_per_byte": self.bits_per_byte,
            "texts": [{**text.row(), "targets": text.targets.tolist(), "tokens": text.texts,
                       "losses": text.losses.tolist()} for text in self.texts],
        }  # fmt: skip


def _statistics(losses: np.ndarray, correct: np.ndarray) -> dict[str, Any]:
    mean = float(losses.mean(dtype=np.float64))
    return {
        "predicted": len(losses),
        "perplexity": math.exp(min(mean, 700.0)),
        "mean": mean,
        "min": float(losses.min()),
        "max": float(losses.max()),
        "accuracy": float(correct.mean()),
    }


def perplexity(
    opened: OpenedModel,
    inputs: Any,
    *,
    names: Sequence[str] = (),
    window: int | None = None,
    stride: int | None = None,
) -> Perplexity:
    """Return the losses of texts or token numbers.

    Args:
        opened: The model.
        inputs: A text, token numbers, or a list of these, of any length; see `OpenedModel.encode`.
        names: The names of the inputs; by default, their numbers.
        window: The maximum number of tokens that are read at once; by default, the model's `seq_len`.
        stride: The number of tokens between the starts of windows; by default, `window`.

    Raises:
        UserError: if an input has less than two tokens or cannot be read, the model sees the tokens that it would have
            to predict, or `window` or `stride` is out of range.
    """
    opened.check_predicts_next()
    window, stride = _check_windows(opened, window, stride)
    rows = opened.as_sequences(inputs)
    opened.check_length(min(window, max(map(len, rows))))
    if short := [i for i, row in enumerate(rows) if len(row) < 2]:
        problem = f"input {short[0]} has one token, and the first token of a text is not predicted"
        raise UserError(problem, remedy="Use a text with at least two tokens.")
    cuts = [(number, *cut) for number, row in enumerate(rows) for cut in windows(len(row), window, stride)]
    scores = sequence_losses(opened, [rows[number][start : end + 1] for number, start, end, _ in cuts])
    texts = [inputs] if isinstance(inputs, str) else list(inputs)
    results = []
    for number, row in enumerate(rows):
        pairs = zip(scores, cuts, strict=True)
        scored_windows = [(score, scored) for score, (owner, *_, scored) in pairs if owner == number]
        losses, correct = (np.concatenate([score[i][-scored:] for score, scored in scored_windows]) for i in (0, 1))
        name = names[number] if names else str(number)
        results.append(TextLosses(name, row[1:], opened.token_texts(row[1:]), losses, correct))
    return Perplexity(opened.name, results, window, stride, None, *_count_bytes(opened, texts, results))


def _count_bytes(opened: OpenedModel, texts: Sequence[Any], scored: Sequence[TextLosses]) -> tuple[int | None, float]:
    """Return the number of bytes of texts and `Perplexity.unpredicted_bits`; None and 0 if they are not defined."""
    tokenizer = opened.tokenizer
    if tokenizer is None or not all(isinstance(text, str) for text in texts):
        return None, 0.0
    escaped = [tokenizer.escape_bits(text) for text in texts]
    if None in escaped:
        return None, 0.0
    start, closing = len(tokenizer.start_tokens), len(tokenizer.closing_tokens)
    first = 0.0 if start else math.log2(opened.vocab_size)
    bits = sum(first + (bits or 0.0) for bits in escaped)
    for text in scored:  # the first of the start tokens has no loss
        end = len(text.losses) - closing
        added = np.concatenate([text.losses[: max(0, start - 1)], text.losses[max(0, end) :]])
        bits -= float(added.sum(dtype=np.float64)) / math.log(2)
    return sum(len(text.encode("utf-8", "surrogatepass")) for text in texts), bits


def split_perplexity(opened: OpenedModel, name: str) -> Perplexity:
    """Return the losses of an evaluation set of a run, as training measures them: one text for each window.

    Args:
        opened: The model of a run.
        name: The name of the evaluation set, such as `val`.

    Raises:
        UserError: if the model is not that of a run, or its task has no such evaluation set.
    """
    opened.check_language_model()
    split, texts = find_split(opened, name), list[TextLosses]()
    for rows, values in split_losses(opened, split):
        for place, number in enumerate(range(rows.start, rows.stop)):
            scored = split.weights[number] > 0
            targets = split.targets[number][scored]
            losses, correct = (value[place][scored] for value in values)
            if len(losses):
                texts.append(TextLosses(f"window {number}", targets, opened.token_texts(targets), losses, correct))
    total = {"num_bytes": split.num_bytes, "unpredicted_bits": split.unpredicted_bits}
    return Perplexity(opened.name, texts, split.tokens.shape[1], split.tokens.shape[1], split=name, **total)


def windows(tokens: int, window: int, stride: int) -> list[tuple[int, int, int]]:
    """Return the windows of a text: the first input, the place after the last input, and the number of scored targets.

    Args:
        tokens: The number of tokens of the text, at least 2.
        window: The maximum number of inputs of a window.
        stride: The number of tokens from the start of a window to the start of the next one, at most `window`.
    """
    cuts, scored = [], 0
    for start in range(0, tokens - 1, stride):
        end = min(start + window, tokens - 1)
        cuts.append((start, end, end - scored))
        scored = end
        if end == tokens - 1:
            break
    return cuts


def _check_windows(opened: OpenedModel, window: int | None, stride: int | None) -> tuple[int, int]:
    window = opened.seq_len if window is None else window
    if window < 1:
        raise UserError(f"a window has {window} tokens", path=("window",), remedy="Use at least 1 token.")
    check_length(opened.config, opened.seq_len, window)
    stride = window if stride is None else stride
    if not 1 <= stride <= window:
        problem = f"the stride is {stride}, expected 1 to the window's {window} tokens"
        raise UserError(problem, path=("stride",), remedy=f"Use a stride from 1 to {window}.")
    return window, stride

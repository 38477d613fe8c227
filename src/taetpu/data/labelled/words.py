"""Task `token-classification`: predict the label of each word of a text."""

from collections.abc import Mapping
from typing import Any, Literal

import numpy as np

from taetpu.core.errors import UserError
from taetpu.core.model_interface import Interface
from taetpu.core.registry import register
from taetpu.data.base import Batch
from taetpu.data.labelled.base import Examples, LabelledSource, LabelledTask, Sequences
from taetpu.data.labelled.labels import ClassWeights, class_facts, name_classes, read_class, weigh_classes
from taetpu.data.labelled.rows import Example, read_text
from taetpu.data.labelled.sequences import Frame
from taetpu.data.tokenizers.base import Tokenizer


@register("task", "token-classification")
class TokenClassificationTask(LabelledTask):
    """Predict the label of each word, such as its part of speech.

    Words and labels are lists in JSON lines, parquet and Arrow files, or texts that are divided at white space. One
    token of each word is scored. Words are joined by a space before they are divided into tokens. Classes are the
    labels of the training split, in order. `model.embedding` has to be `untied`.
    """

    has_answers, one_target = True, False
    objective = "token-classification"
    scored_unit = "word"

    text: str = "tokens"
    """Column or key of the words."""
    label: str = "labels"
    """Column or key of the labels of the words."""
    scored: Literal["first", "last"] = "first"
    """Token of a word that is scored; `last` suits causal attention."""
    class_weights: ClassWeights = None
    """Weights of classes in training: `balanced` (n / (k n_c)) or a weight for each class; `none`: 1 for each."""

    @property
    def named(self) -> tuple[str, ...]:
        """See `LabelledTask.named`."""
        return ("text", "label")

    def parse(self, row: Mapping[str, Any], place: str) -> tuple[tuple[str, ...], Any, str]:
        """See `LabelledTask.parse`."""
        words, labels = (_listed(row[getattr(self, name)], name, place) for name in self.named)
        if len(words) != len(labels):
            problem = f"{place} has {len(words):,} words and {len(labels):,} labels"
            raise UserError(problem, path=("label",), remedy="Write a label for each word.")
        if not words:
            raise UserError(f"{place} has no words", path=("text",), remedy="Remove the row.")
        texts = tuple(read_text(word, "text", place) for word in words)
        return texts, tuple(read_class(label, "label", place) for label in labels), " ".join(texts)

    def whole_texts(self, example: Example) -> tuple[str, ...]:
        """See `LabelledTask.whole_texts`: the words, separated by spaces."""
        return (example.shared,)

    def build(self, rows: Examples, tokenizer: Tokenizer, frame: Frame) -> LabelledSource:
        """See `LabelledTask.build`."""
        labels = {name: [(label, e) for e in part for label in e.label] for name, part in rows.items()}
        classes = name_classes(labels, self.drawn_splits)
        numbers = {name: i for i, name in enumerate(classes)}
        targets = {name: np.array([numbers[label] for label, _ in part], np.int32) for name, part in labels.items()}
        counts, facts = class_facts(classes, targets, "words")
        weights = weigh_classes(self.class_weights, counts)
        parts, made, longest, cropped = dict[str, Batch](), dict[str, Sequences](), dict[str, int](), dict[str, int]()
        for name, part in rows.items():
            words = self._words(part, tokenizer)
            joined = [(example, (np.concatenate(tokens),)) for example, tokens in zip(part, words, strict=True)]
            made[name], about = self.encode(joined, frame)
            longest[name], cropped[name] = about["longest"], about["cropped"]
            parts[name] = self._batch(part, words, made[name], frame, numbers, weights if name == "train" else None)
        facts |= self.text_facts(rows, tokenizer, made, longest, cropped)
        interface = Interface(tokenizer.vocab_size, len(classes), types=self.types or 1, labels=classes)
        return LabelledSource(parts, facts, interface, tokenizer, rows, f"labels {' '.join(classes)}")

    def _words(self, part: list[Example], tokenizer: Tokenizer) -> list[list[np.ndarray]]:
        """Return the tokens of each word of each row; each word but the first has a space before it."""
        rows = []
        for example in part:
            words = [" " * (i > 0) + word for i, word in enumerate(example.texts)]
            tokens = [tokenizer.encode_part(word) for word in words]
            empty = next((word for word, ids in zip(words, tokens, strict=True) if not len(ids)), None)
            if empty is not None:
                problem = f"the word {empty.strip()!r} in {example.place} has no tokens"
                raise UserError(problem, path=("text",), remedy="Replace the word, or use another tokenizer.")
            rows.append(tokens)
        return rows

    def _batch(
        self, part: list[Example], words: list[list[np.ndarray]], sequences: Sequences, frame: Frame,
        numbers: Mapping[str, int], weights: np.ndarray | None,
    ) -> Batch:  # fmt: skip
        """Return sequences with the labels of their words. Words that are cropped are not scored."""
        tokens, types, lengths = sequences
        targets, scored = np.zeros_like(tokens), np.zeros(tokens.shape, np.float32)
        begin, end = len(frame.special[0]), len(frame.special[1])
        for i, (example, row) in enumerate(zip(part, words, strict=True)):
            sizes = np.array([*map(len, row)], np.int64)
            ends = begin + np.cumsum(sizes)
            places: Any = ends - 1 if self.scored == "last" else ends - sizes
            kept = places < lengths[i] - end
            classes = np.array([numbers[label] for label in example.label], np.int32)[kept]
            targets[i, places[kept]] = classes
            scored[i, places[kept]] = 1 if weights is None else weights[classes]
        return Batch(tokens, targets, scored, types=types if (self.types or 1) > 1 else None, lengths=lengths)  # pyright: ignore


def _listed(value: Any, setting: str, place: str) -> list[Any]:
    """Return a list, or the words of a text, or raise `UserError`."""
    if isinstance(value, str):
        return value.split()
    if not isinstance(value, list):
        problem = f"{place} has {str(value)[:40]!r} as {setting}, not a list or a text"
        raise UserError(problem, path=(setting,), remedy="Choose a column with lists, or remove the row.")
    return value

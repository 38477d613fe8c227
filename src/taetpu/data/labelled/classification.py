"""Tasks with one target for each row: a class or a number of a text, or of two."""

from abc import abstractmethod
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import numpy as np

from taetpu.core.metric_spec import LOSS, MetricSpec
from taetpu.core.model_interface import Interface
from taetpu.core.registry import register
from taetpu.data.base import BatchSpec
from taetpu.data.labelled.base import Examples, LabelledSource, LabelledTask
from taetpu.data.labelled.labels import (
    ClassWeights,
    Pooling,
    class_facts,
    name_classes,
    one_target_batch,
    read_class,
    read_number,
    weigh_classes,
)
from taetpu.data.labelled.rows import read_text
from taetpu.data.labelled.sequences import Frame
from taetpu.data.tokenizers.base import Tokenizer


class PooledTask(LabelledTask):
    """Base of the tasks whose sequences are a text, or two, and have one target."""

    second_text: str | None = None
    """Column or key of a second text, which follows the first in the sequence; `none`: one text."""
    label: str = "label"
    """Column or key of the label."""
    pooling: Pooling = "last"
    """Position whose outputs are scored: `first`, `last` before the padding, or the `mean` of all outputs."""

    @property
    def needs_later(self) -> bool:
        """See `Task.needs_later`."""
        return self.pooling == "first"

    @property
    def num_texts(self) -> int:
        """See `LabelledTask.num_texts`."""
        return 1 if self.second_text is None else 2

    @property
    def named(self) -> tuple[str, ...]:
        """See `LabelledTask.named`."""
        return ("text", *(["second_text"] if self.second_text is not None else []), "label")

    @property
    def num_types(self) -> int:
        """The number of types of tokens that the model tells apart."""
        return self.types or self.num_texts

    def parse(self, row: Mapping[str, Any], place: str) -> tuple[tuple[str, ...], Any, str]:
        """See `LabelledTask.parse`."""
        texts = tuple(read_text(row[getattr(self, name)], name, place) for name in self.named[:-1])
        return texts, self.read_label(row[self.label], place), texts[0]

    @abstractmethod
    def read_label(self, value: Any, place: str) -> Any:
        """Return the label of a row, or raise `UserError` if it is invalid."""


@register("task", "classification")
class ClassificationTask(PooledTask):
    """Predict the class of a text, or of two texts such as a premise and a hypothesis.

    Classes are the labels of the training split, in order. A row with another label is refused. Rows with the same
    first text are in one split, and a training row whose texts are those of an evaluation row is left out. The scored
    position has one output for each class, so `model.embedding` has to be `untied`. Attention may be causal, unless
    `pooling` is `first`.
    """

    has_answers = True
    objective = "sequence-classification"

    class_weights: ClassWeights = None
    """Weights of classes in training: `balanced` (n / (k n_c)) or a weight for each class; `none`: 1 for each."""

    def read_label(self, value: Any, place: str) -> str:
        """See `PooledTask.read_label`."""
        return read_class(value, "label", place)

    def build(self, rows: Examples, tokenizer: Tokenizer, frame: Frame) -> LabelledSource:
        """See `LabelledTask.build`."""
        labels = {name: [(example.label, example) for example in part] for name, part in rows.items()}
        classes = name_classes(labels, self.drawn_splits)
        numbers = {name: i for i, name in enumerate(classes)}
        targets = {name: np.array([numbers[e.label] for e in part], np.int32) for name, part in rows.items()}
        counts, facts = class_facts(classes, targets, "rows")
        weights = weigh_classes(self.class_weights, counts)
        sequences, about = self.encode_all(rows, tokenizer, frame)
        parts = {
            name: one_target_batch(
                part, targets[name], weights[targets[name]] if name == "train" else np.ones(len(part[0]), np.float32),
                self.pooling, self.num_types,
            )
            for name, part in sequences.items()
        }  # fmt: skip
        interface = Interface(tokenizer.vocab_size, len(classes), 0, self.num_types, classes, self.pooling)
        return LabelledSource(parts, {**facts, **about}, interface, tokenizer, rows, f"classes {' '.join(classes)}")


@register("task", "regression")
class RegressionTask(PooledTask):
    """Predict a real number for a text, or for two texts such as their similarity.

    The loss is the squared error. Rows with the same first text are in one split, and a training row whose texts are
    those of an evaluation row is left out. `model.embedding` has to be `untied`. Attention may be causal, unless
    `pooling` is `first`.
    """

    objective = "regression"

    @property
    def batch(self) -> BatchSpec:
        """See `Task.batch`."""
        return BatchSpec(lengths=True, real_targets=True)

    @property
    def metric_specs(self) -> dict[str, MetricSpec]:
        """See `Task.metric_specs`."""
        return {"loss": replace(LOSS, unit="squared error")}

    def read_label(self, value: Any, place: str) -> float:
        """See `PooledTask.read_label`."""
        return read_number(value, "label", place)

    def build(self, rows: Examples, tokenizer: Tokenizer, frame: Frame) -> LabelledSource:
        """See `LabelledTask.build`."""
        targets = {name: np.array([e.label for e in part], np.float32) for name, part in rows.items()}
        sequences, about = self.encode_all(rows, tokenizer, frame)
        parts = {
            name: one_target_batch(part, targets[name], np.ones(len(part[0])), self.pooling, self.num_types)
            for name, part in sequences.items()
        }
        trained = targets["train"].astype(np.float64)
        val = targets["val"].astype(np.float64) if len(targets["val"]) else trained
        facts = {
            "mean": float(trained.mean()),
            "variance": float(trained.var()),
            "constant_loss": float(((val - trained.mean()) ** 2).mean()),
            "constant": "the mean of the training rows",
            "bayes_loss": None,
            **about,
        }
        interface = Interface(tokenizer.vocab_size, 1, types=self.num_types, pooling=self.pooling)
        return LabelledSource(parts, facts, interface, tokenizer, rows, "number")

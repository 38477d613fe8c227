"""Labels of rows: classes by name and their weights, and the losses of predictions that read no text."""

import math
from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Annotated, Any, Literal

import numpy as np
from pydantic import BeforeValidator

from taetpu.core.errors import UserError
from taetpu.data.base import Batch
from taetpu.data.labelled.base import Sequences
from taetpu.data.labelled.rows import Example

Pooling = Literal["first", "last", "mean"]
LARGEST = float(np.finfo(np.float32).max)


def _named_weights(value: Any) -> Any:
    return {class_name(name): weight for name, weight in value.items()} if isinstance(value, Mapping) else value


ClassWeights = Annotated[Literal["balanced"] | dict[str, float] | None, BeforeValidator(_named_weights)]
"""`balanced`, or a weight for each class."""


def class_name(value: Any) -> str | None:
    """Return the name of a class, given its label in a file; None if the label is none of a class."""
    if isinstance(value, bool):
        return str(value).lower()
    return str(value) if isinstance(value, int) else value.strip() or None if isinstance(value, str) else None


def read_class(value: Any, setting: str, place: str) -> str:
    """Return the name of a class, or raise `UserError` if a row has none."""
    name = class_name(value)
    if name is None:
        problem = f"{place} has {str(value)[:40]!r} as {setting}, not a class"
        remedy = "Write a text or an integer, or remove the row."
        if isinstance(value, float):
            remedy += " The task `regression` reads real numbers."
        raise UserError(problem, path=(setting,), remedy=remedy)
    return name


def read_number(value: Any, setting: str, place: str) -> float:
    """Return a finite real number, or raise `UserError` if a row has none."""
    try:
        number = math.nan if isinstance(value, bool) else float(value)
    except (TypeError, ValueError):
        number = math.nan
    if not abs(number) <= LARGEST:
        problem = f"{place} has {str(value)[:40]!r} as {setting}, not a finite number"
        raise UserError(problem, path=(setting,), remedy="Repair the row, or remove it.")
    return number


def sort_names(names: Iterable[str]) -> Sequence[str]:
    """Return different names in order: as numbers if all are integers."""
    different = set(names)
    numbers = all(name.removeprefix("-").isdecimal() for name in different)
    return sorted(different, key=(lambda name: (int(name), name)) if numbers else None)


def name_classes(labels: Mapping[str, Sequence[tuple[str, Example]]], drawn: Collection[str]) -> tuple[str, ...]:
    """Return the classes of the training split, in order.

    Args:
        labels: The label and the row of each target, by split.
        drawn: The evaluation splits that are shares of the training rows.

    Raises:
        UserError: if there is one class, if a class has one row, or if a label of an evaluation split is none of a
            training row.
    """
    classes = sort_names([label for label, _ in labels["train"]])
    if len(classes) < 2:
        problem = f"all training rows have the label {classes[0]!r}, as {labels['train'][0][1].place}"
        raise UserError(problem, path=("label",), remedy="Use rows of at least two classes.")
    sizes = Counter(label for part in labels.values() for label, _ in part)
    for split, targets in labels.items():
        for label, example in targets:
            alone = sizes[label] == 1 and (split in drawn or split == "train")
            if label in classes and not alone:
                continue
            problem = f"{example.place} has the label {label!r}, which no training row has"
            remedy = f"Use one of {', '.join(map(repr, classes[:10]))}, or add training rows with it."
            if alone:
                problem = f"{example.place} is the only row of class {label!r}, and it is in {split}"
                remedy = "Remove the row or merge the class with another one, or name evaluation files."
            raise UserError(problem, path=("label",), remedy=remedy)
    return tuple(classes)


def weigh_classes(weights: ClassWeights, counts: Mapping[str, int]) -> np.ndarray:
    """Return the weight of each class, float32 `(classes,)`.

    With `balanced`, it is n / (k n_c) for n targets of k classes, n_c of them of the class.

    Args:
        weights: The setting of the task.
        counts: The number of training targets by class.

    Raises:
        UserError: if a mapping does not name each class, or has a weight that is not positive and finite.
    """
    if isinstance(weights, Mapping):
        other = next((name for name in weights if name not in counts), None)
        missing = next((name for name in counts if name not in weights), None)
        if other is not None or missing is not None:
            problem = f"class_weights has no class {missing!r}" if other is None else f"there is no class {other!r}"
            remedy = f"Write a weight for each of {', '.join(map(repr, counts))}."
            raise UserError(problem, path=("class_weights",), remedy=remedy)
        for name, weight in weights.items():
            if not 0 < weight <= LARGEST:
                problem = f"the weight of class {name!r} is {weight}, not a positive number"
                raise UserError(problem, path=("class_weights", name), remedy="Use e.g. 1 for every class.")
        return np.array([weights[name] for name in counts], np.float32)
    sizes = np.array([*counts.values()], np.float64)
    balanced = sizes.sum() / (len(sizes) * sizes)
    return (balanced if weights == "balanced" else np.ones(len(sizes))).astype(np.float32)


def class_facts(
    classes: Sequence[str], targets: Mapping[str, np.ndarray], unit: str
) -> tuple[dict[str, int], dict[str, Any]]:
    """Return the number of training targets by class, and facts about the classes.

    Args:
        classes: The names of the classes.
        targets: The classes of all targets by split, int `(n,)`.
        unit: What has a class.
    """
    counts = np.bincount(targets["train"], minlength=len(classes))
    val = targets["val"] if len(targets["val"]) else targets["train"]
    frequencies = counts / counts.sum()
    by_name = dict(zip(classes, counts.tolist(), strict=True))
    return by_name, {
        "classes": by_name,
        "chance_loss": math.log(len(classes)),
        "chance_accuracy": 1 / len(classes),
        "constant_loss": float(-np.log(frequencies[val]).mean()),
        "constant_accuracy": float((val == counts.argmax()).mean()),
        "constant": f"the frequencies of the classes among training {unit}",
        "bayes_loss": None,
    }


def scored_place(pooling: Pooling, lengths: np.ndarray) -> np.ndarray:
    """Return the position of each sequence that is scored, int `(rows,)`; with `mean`, the last one."""
    return np.zeros_like(lengths) if pooling == "first" else lengths - 1


def one_target_batch(
    sequences: Sequences, targets: np.ndarray, weights: np.ndarray, pooling: Pooling, types: int
) -> Batch:
    """Return sequences with one target each, on the host.

    Every position has the target, and one is scored, so that the loss of each position can be read.

    Args:
        sequences: The tokens, types and lengths.
        targets: The targets, int32 or float32 `(rows,)`.
        weights: The weight of each row, float32 `(rows,)`.
        pooling: The setting of the task.
        types: The number of types of the model.
    """
    tokens, of, lengths = sequences
    scored = np.arange(tokens.shape[1]) == scored_place(pooling, lengths)[:, None]
    every: Any = np.ascontiguousarray(np.broadcast_to(targets[:, None], tokens.shape))
    values: Any = (tokens, every, np.where(scored, weights[:, None], 0).astype(np.float32))
    return Batch(*values, types=of if types > 1 else None, lengths=lengths)  # pyright: ignore[reportArgumentType]

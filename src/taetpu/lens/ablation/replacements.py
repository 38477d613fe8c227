"""What takes the place of a removed activation A(x).

- `zero`: zeros.
- `mean`: the mean of A over documents, over all positions together or for each position.
- `resample`: A(x') of other documents x', at the same positions; effects are means over draws.
- `counterfactual`: A(x') of the document's own counterpart x', which has the same length.
- `noise`: A(x) plus independent normal noise with `sigma` standard deviations of A.
- `optimal`: the constant with the smallest loss (see `optimal`). Li and Janson 2024, arXiv 2409.09951.

The standard deviation of noise is that of ROME: 3 standard deviations, Meng et al. 2022, arXiv 2202.05262.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial
from typing import Any

import jax
import numpy as np

from taetpu.core.errors import UserError, check_known
from taetpu.lens.ablation.components import LAYERS, Components
from taetpu.lens.ablation.documents import Batch, Documents
from taetpu.lens.ablation.optimal import fit_constants
from taetpu.lens.ablation.sweep import Replacement, read_values
from taetpu.lens.activations import SiteShape
from taetpu.lens.opened import OpenedModel

METHODS = ("zero", "mean", "resample", "counterfactual", "noise", "optimal")
SIGMA, DRAWS, STEPS = 3.0, 3, 50


@dataclass(frozen=True)
class Method:
    """How activations are replaced.

    Attributes:
        how: One of `METHODS`. Means, constants and noise are those of the inputs of documents: all positions with a
            target, which the last position of a text lacks.
        by_position: For `mean`: whether each position has its own mean.
        reference: The documents of `mean`, `resample`, `noise` and `optimal`; by default, those of the effects.
        counterparts: For `counterfactual`: a document for each document.
        sigma: For `noise`: the standard deviation of the noise, in standard deviations of the activation.
        draws: For `resample` and `noise`: the number of draws.
        steps: For `optimal`: the number of steps of the optimizer.
        seed: The seed of the draws.
    """

    how: str = "mean"
    by_position: bool = False
    reference: Documents | None = None
    counterparts: Documents | None = None
    sigma: float = SIGMA
    draws: int = DRAWS
    steps: int = STEPS
    seed: int = 0


def default_how(what: str) -> str:
    """Return the method for a kind of components: `zero` for layers, which are skipped, and `mean` for all others."""
    return "zero" if what == LAYERS else "mean"


def check_method(method: Method, documents: Documents, components: Components) -> None:
    """Raise `UserError` if a method does not exist, or does not apply to the documents or components."""
    check_known(method.how, METHODS, f"unknown replacement {method.how!r}", path=("how",))
    if components.site is None and method.how != "zero":
        problem = f"layers are skipped, and a skipped layer has no {method.how} activation"
        raise UserError(problem, path=("how",), remedy="Use zero, or remove mixers or ffns.")
    if method.how == "noise" and not method.sigma > 0:
        problem = f"sigma is {method.sigma:g}, and noise of this size changes nothing"
        raise UserError(problem, path=("sigma",), remedy="Use a sigma above 0, such as 3.")
    if method.how == "optimal" and components.by_position:
        remedy = "Use --how mean."
        raise UserError("optimal constants are not defined for positions", path=("how",), remedy=remedy)
    reference = method.reference or documents
    if method.how == "resample" and len(reference) < 2:
        problem = "resample requires at least 2 documents, got 1"
        raise UserError(problem, path=("how",), remedy="Use more documents, or --how mean.")
    if method.how != "counterfactual":
        return
    others = method.counterparts
    if others is None:
        raise UserError("counterfactual needs other documents", path=("how",), remedy="Add --counterfactual FILE.")
    if len(others) != len(documents):
        problem = f"there are {len(others)} counterfactual documents for {len(documents)} documents"
        raise UserError(problem, path=("counterfactual",), remedy="Write one counterfactual for each document.")
    for number, (document, counterpart) in enumerate(zip(documents.inputs, others.inputs, strict=True)):
        if len(document) != len(counterpart):
            problem = f"document {number} has {len(document)} tokens, and its counterfactual has {len(counterpart)}"
            remedy = "Write counterfactuals with as many tokens as their documents."
            raise UserError(problem, path=("counterfactual", number), remedy=remedy)


def check_counterparts(method: Method, documents: Documents) -> None:
    """Raise `UserError` if all counterfactual documents are equal to their documents."""
    others = None if method.how != "counterfactual" else method.counterparts
    if others is not None and all(map(np.array_equal, documents.inputs, others.inputs)):
        problem = f"all {len(documents)} counterfactual documents are equal to their documents, which changes nothing"
        raise UserError(problem, path=("counterfactual",), remedy="Use counterfactuals that differ in some tokens.")


def make_replacements(
    opened: OpenedModel, components: Components, documents: Documents, method: Method
) -> "Replacements":
    """Return the replacements of a method, for all batches of the documents.

    Raises:
        UserError: see `check_method`.
    """
    check_method(method, documents, components)
    means = spread = None
    reference = method.reference or documents
    if method.how in ("mean", "optimal"):
        means = mean_activations(opened, components, reference, method.by_position and method.how == "mean")
    if method.how == "optimal":
        means = fit_constants(opened, components, reference, means, zeros(components), method.steps)
    if method.how == "noise":
        spread = _spread(opened, components, reference)
    return Replacements(opened, components, documents, method, means, spread)


@dataclass(frozen=True)
class Replacements:
    """The replacements of all batches; see `make_replacements`."""

    opened: OpenedModel
    components: Components
    documents: Documents
    method: Method
    means: Any = None
    spread: Any = None

    def draws(self, batch: Batch) -> Iterator[Replacement]:
        """Yield the replacements of a batch, one for each draw."""
        how, components = self.method.how, self.components
        if how in ("mean", "optimal"):
            yield Replacement(self._at_positions(batch) if how == "mean" and self.method.by_position else self.means)
        elif how == "zero":
            yield Replacement(zeros(components))
        elif how == "counterfactual":
            assert self.method.counterparts is not None
            yield Replacement(self._read(batch, self.method.counterparts, batch.filled))
        elif how == "noise":
            for draw in range(self.method.draws):
                yield Replacement(self._noise(batch, draw), adds=True)
        else:
            reference = self.method.reference or self.documents
            for draw in range(self.method.draws):
                yield Replacement(self._read(batch, reference, self._others(batch, reference, draw)))

    def _others(self, batch: Batch, reference: Documents, draw: int) -> list[int]:
        """Return another document for each document of a batch: a random shift of all documents."""
        rng = np.random.default_rng([self.method.seed, draw])
        shift = int(rng.integers(1, len(reference)))
        return [(number + shift) % len(reference) for number in batch.filled]

    def _read(self, batch: Batch, documents: Documents, numbers: list[int]) -> Any:
        """Return the activations of other documents at the positions of a batch's documents.

        Beyond the end of a document, its last activation is repeated.
        """
        assert self.components.site is not None
        length = batch.ids.shape[1]
        ids, padding = np.zeros_like(batch.ids), batch.padding
        segments = None if documents.segments is None else np.zeros_like(batch.ids)
        ends = []
        for row, number in enumerate(numbers):
            tokens, size = documents.inputs[number], int((~padding[row]).sum())
            kept = tokens[:size]
            ends.append(len(kept))
            place = slice(length - size, length - size + len(kept))
            ids[row, place] = kept
            if segments is not None and documents.segments is not None:
                segments[row, place] = documents.segments[number][:size]
        other = Batch(batch.numbers, numbers, ids, padding, batch.targets, batch.weights, segments)
        values = read_values(self.opened, self.components.site, other)
        if all(end == size for end, size in zip(ends, (~padding).sum(-1), strict=True)):
            return values
        start = padding.sum(-1)
        places = np.minimum(np.arange(length), (start + np.array(ends) - 1)[:, None])
        return _map_groups(self.components, values, lambda value, axis: _take(value, places, axis))

    def _at_positions(self, batch: Batch) -> Any:
        def spread(value: np.ndarray, axis: int) -> np.ndarray:
            most = value.shape[axis] - 1
            return _take(value, np.minimum(batch.positions, most), axis)

        return _map_groups(self.components, self.means, spread)

    def _noise(self, batch: Batch, draw: int) -> Any:
        rng = np.random.default_rng([self.method.seed, draw, *batch.numbers])
        shapes, (rows, length) = self.components.shapes, batch.ids.shape

        def drawn(spread: np.ndarray, shape: SiteShape, layers: tuple[int, ...]) -> np.ndarray:
            position = shape.position
            full = tuple(length if i == position else size or rows for i, size in enumerate(shape.shape))
            noise = rng.standard_normal((*layers, *full), dtype=np.float32)
            return self.method.sigma * np.asarray(spread, np.float32) * noise

        if not isinstance(self.spread, dict):
            return drawn(self.spread, shapes[None], ())
        return {first: drawn(sd, shapes[first], (len(sd),)) for first, sd in self.spread.items()}


def _take(value: np.ndarray, places: np.ndarray, axis: int) -> np.ndarray:
    """Return the values `(layer, batch, ...)` at other places `(batch, seq)` along an axis."""
    if value.shape[1] == 1 and len(places) > 1:
        value = np.broadcast_to(value, (len(value), len(places), *value.shape[2:]))
    shape = [1] * value.ndim
    shape[1], shape[axis] = places.shape
    return np.take_along_axis(value, places.reshape(shape), axis)


def zeros(components: Components) -> Any:
    """Return zeros as in `Replacement.values`."""
    if components.site is None:
        return None
    ranks = {first: len(shape.shape) for first, shape in components.shapes.items()}
    if not components.groups:
        return np.zeros([1] * ranks[None], np.float32)
    return {first: np.zeros((layers, *[1] * ranks[first]), np.float32)
            for first, (layers, _) in components.groups.items()}  # fmt: skip


# --- statistics of activations ----------------------------------------------------------------------------------------


def mean_activations(
    opened: OpenedModel, components: Components, documents: Documents, by_position: bool = False
) -> Any:
    """Return the means of the activations of the components' site, as in `Replacement.values`.

    Args:
        opened: The model.
        components: The components.
        documents: The documents over which means are taken, without padding. The last token of a text is not among
            their inputs, because it has no target.
        by_position: Whether each position has its own mean, `(layer, 1, ..., seq, ...)`, of the documents with it.
    """
    assert components.site is not None
    sums, counts = None, np.zeros(max(len(row) for row in documents.inputs))
    for batch in documents.batches():
        values, real = read_values(opened, components.site, batch), _counted(batch)
        counts[: int(batch.positions.max()) + 1] += np.bincount(batch.positions[real])
        add = partial(_sum_positions, batch=batch, real=real, length=len(counts))
        parts = _map_groups(components, values, add)
        sums = parts if sums is None else jax.tree.map(np.add, sums, parts)

    def divide(value: np.ndarray, axis: int) -> np.ndarray:
        shape = [1] * value.ndim
        shape[axis] = len(counts)
        if by_position:
            return (value / counts.reshape(shape)).astype(np.float32)
        return (value.sum(axis, keepdims=True) / counts.sum()).astype(np.float32)

    return _map_groups(components, sums, divide)


def _spread(opened: OpenedModel, components: Components, documents: Documents) -> Any:
    """Return the standard deviation of a site's activations: one number for each layer, over all of its axes."""
    assert components.site is not None
    sums: list[Any] = []
    for batch in documents.batches():
        values, real = read_values(opened, components.site, batch), _counted(batch)

        def moments(value: np.ndarray, axis: int, real: np.ndarray = real) -> np.ndarray:
            shape = [1] * value.ndim
            shape[1], shape[axis] = real.shape
            weight = np.broadcast_to(real.reshape(shape), value.shape)
            axes = tuple(range(1, value.ndim))
            return np.stack([(weight * value**power).sum(axes, dtype=np.float64) for power in (0, 1, 2)], -1)

        sums.append(_map_groups(components, values, moments, keep=False))

    def finish(parts: list[np.ndarray], ndim: int) -> np.ndarray:
        count, first, second = np.sum(parts, 0).T
        return np.sqrt(np.maximum(second / count - (first / count) ** 2, 0)).reshape(-1, *[1] * ndim)

    if not isinstance(sums[0], dict):
        return finish(sums, 0)[0]
    return {first: finish([part[first] for part in sums], len(components.shapes[first].shape)) for first in sums[0]}


def _counted(batch: Batch) -> np.ndarray:
    """Return the tokens of a batch without padding and copies."""
    real = ~batch.padding
    real[len(batch.numbers) :] = False
    return real


def _sum_positions(value: np.ndarray, axis: int, batch: Batch, real: np.ndarray, length: int) -> np.ndarray:
    """Return the sums over documents at each position: `(layer, 1, ..., position, ...)`."""
    moved = np.moveaxis(np.asarray(value, np.float64), axis, 2)  # (layer, batch, position, ...)
    sums = np.zeros((len(moved), length, *moved.shape[3:]))
    for row in range(len(batch.numbers)):
        sums[:, batch.positions[row][real[row]]] += moved[:, row, real[row]]
    return np.moveaxis(sums[:, None], 2, axis)


def _map_groups(components: Components, values: Any, fn: Any, keep: bool = True) -> Any:
    """Apply `fn(values, axis of positions)` to the arrays `(layer, batch, ...)` of each group of layers."""
    axes = components.position_axes()
    if not isinstance(values, dict):
        mapped = fn(values[None], axes[None] + 1)
        return mapped[0] if keep else mapped
    return {first: fn(value, axes[first] + 1) for first, value in values.items()}

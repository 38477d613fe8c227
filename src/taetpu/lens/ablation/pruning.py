"""Removing more and more of a model, and pairs of components.

- `greedy`: remove the component whose removal leaves the smallest loss, again and again.
- `importance`: remove a tenth of the components again and again, those with the smallest importance first:
  E|(A' - A) . dL/dA|, where A' takes the place of the activation A. With A' = 0, this is the importance of Michel et
  al. The importances of a layer are divided by their L2 norm, and recomputed after each step.
- `blocks`: remove neighbouring layers, for each number of layers those whose first input and last output have the
  smallest angle.
- pairs: the effect of removing two components together, minus the sum of their single effects.

Sources: Michel et al. 2019, "Are Sixteen Heads Really Better than One?", arXiv 1905.10650, sections 3 and 4 (greedy and
    importance); Gromov et al. 2024, arXiv 2403.17887, section 3 (blocks).
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import jax
import numpy as np
from jaxtyping import Float

from taetpu.core.errors import UserError, check_known
from taetpu.core.progress import Progress
from taetpu.core.short_repr import short_repr
from taetpu.lens.ablation.components import LAYERS, Components
from taetpu.lens.ablation.documents import Documents
from taetpu.lens.ablation.knockout import check_changes, effect_row, losses_of_sets, resolve_arguments, without_nan
from taetpu.lens.ablation.passes import GRADIENT, check_passes
from taetpu.lens.ablation.replacements import (
    Method,
    Replacements,
    make_replacements,
)
from taetpu.lens.ablation.sweep import mask_slopes, read_intact, read_values
from taetpu.lens.opened import OpenedModel
from taetpu.stats.document_effects import Effects, estimate_effects

ORDERS = ("greedy", "importance", "blocks")
SHARE = 0.1
"""The share of components that a step of `importance` removes."""


@dataclass(frozen=True)
class Curve:
    """The loss while more and more is removed.

    Attributes:
        model: The name of the model.
        components: The components.
        order: One of `ORDERS`.
        removed: The numbers of the components removed by each step, in addition to earlier steps; for `blocks`, all
            layers of the block.
        effects: The rise of the loss after each step.
        intact: The loss of the intact model.
        distances: For `blocks`: the angle between the block's input and output, divided by pi.
    """

    __repr__ = short_repr

    model: str
    components: Components
    order: str
    removed: list[tuple[int, ...]]
    effects: Effects
    intact: float
    distances: list[float] | None = None

    def rows(self) -> list[dict[str, Any]]:
        """Return a row for each step."""
        rows, count = [], 0
        for step, numbers in enumerate(self.removed):
            count = len(numbers) if self.order == "blocks" else count + len(numbers)
            names = [self.components.each[number].name for number in numbers]
            row = {"removed": count, "now": ", ".join(names), **effect_row(self.effects, step)}
            rows.append(row if self.distances is None else row | {"distance": self.distances[step]})
        return rows

    def to_dict(self) -> dict[str, Any]:
        """Return everything as plain data; missing intervals are null."""
        about = {"model": self.model, "what": self.components.what, "order": self.order, "loss": self.intact}
        return {**about, "documents": self.effects.documents, "steps": without_nan(self.rows())}

    def _repr_html_(self) -> str:
        """Return the HTML that a notebook displays."""
        from taetpu.report.notebook import effects_html

        about = (
            f"loss {self.intact:.4f} nats per target over {self.effects.documents:,} documents; effect: the rise of "
            f"the loss while {self.components.what} are removed ({self.order})"
        )
        return effects_html(self.model, about, self.rows(), self.chart)

    def chart(self) -> Any:
        """Return an Altair chart of the rise of the loss over the number of removed components."""
        from taetpu.report.token_charts import curve_chart

        rows = self.rows()
        return curve_chart(
            rows, f"removed {self.components.what}, of {len(self.components)}", "rise of the loss (nats)"
        )


def prune(
    opened: OpenedModel,
    documents: Documents,
    components: Components,
    method: Method,
    order: str = "importance",
    *,
    steps: int | None = None,
    progress: Progress | None = None,
    report: Callable[[str], None] | None = None,
) -> Curve:
    """Return the loss while more and more components are removed.

    Args:
        opened: The model.
        documents: The documents on which losses are measured.
        components: The components; layers for the order `blocks`.
        method: How activations are replaced.
        order: One of `ORDERS`.
        steps: The maximum number of steps; by default, until all components but one are removed.
        progress: A function that is called with the number of steps done and of all steps.
        report: A function that is called with a line about the time, before a long computation.

    Raises:
        UserError: if the order does not apply to the components, takes too many passes, or changes no loss.
    """
    _check_order(opened, components, order, steps)
    greedy, number = order == "greedy", _count_steps(components, steps, _step_size(components, order))
    passes = {
        "greedy": sum(len(components) - step for step in range(number)), "importance": GRADIENT * number, "blocks": 1
    }  # fmt: skip
    title = f"the order {order!r} of {len(components):,} {components.what}"
    check_passes(opened, documents, components, method, title, passes[order] + number + 1,
                 programs=number + 1 if greedy else 2, limited=greedy, report=report)  # fmt: skip
    replacements = make_replacements(opened, components, documents, method)
    distances = None
    if order == "blocks":
        removed, distances = _blocks(opened, documents, components, steps)
        sets: list[tuple[int, ...]] = removed
    else:
        choose = {"greedy": _greedy, "importance": _by_importance}[order]
        removed = choose(replacements, steps, progress)
        sets = [tuple(n for numbers in removed[: i + 1] for n in numbers) for i in range(len(removed))]
    losses = losses_of_sets(replacements, [(), *sets])
    check_changes(losses, components)
    effects = estimate_effects(losses[1:] - losses[0], documents.scored, seed=method.seed)
    intact = float(losses[0].sum() / documents.scored.sum())
    return Curve(opened.name, components, order, removed, effects, intact, distances)


def _check_order(opened: OpenedModel, components: Components, order: str, steps: int | None) -> None:
    """Raise `UserError` if an order does not exist, does not apply to the components, or has no step."""
    check_known(order, ORDERS, f"unknown order {order!r}", path=("order",))
    if order == "blocks" and (components.what != LAYERS or len(components) != len(opened.config.layers)):
        raise UserError("blocks consist of layers", path=("what",), remedy="Use --what layers, without --layer.")
    if order == "importance" and (components.site is None or components.by_position):
        remedy = "Use heads, mixers, ffns or neurons, or another order."
        raise UserError(f"{components.what} have no importance", path=("what",), remedy=remedy)
    if len(components) < 2:
        problem = f"there is one component of the kind {components.what}, and a curve ends before the last is removed"
        remedy = "Choose components with several members, or remove --layer."
        raise UserError(problem, path=("what",), remedy=remedy)
    if steps is not None and steps < 1:
        raise UserError(f"steps must be at least 1, got {steps}", path=("steps",), remedy="Use at least 1 step.")


def _step_size(components: Components, order: str) -> int:
    """Return the number of components that a step of an order removes."""
    return max(1, round(SHARE * len(components))) if order == "importance" else 1


def _count_steps(components: Components, steps: int | None, each: int = 1) -> int:
    """Return the number of steps that remove `each` components, and leave at least one."""
    most = (len(components) - 1) // each
    return most if steps is None else min(most, steps)


def _greedy(replacements: Replacements, steps: int | None, progress: Progress | None) -> list[tuple[int, ...]]:
    components = replacements.components
    left, gone = list(range(len(components))), list[int]()
    number = _count_steps(components, steps)
    for step in range(number):
        losses = losses_of_sets(replacements, [(*gone, candidate) for candidate in left])
        gone.append(left.pop(int(losses.sum(-1).argmin())))
        if progress is not None:
            progress(step + 1, number)
    return [(candidate,) for candidate in gone]


def _by_importance(replacements: Replacements, steps: int | None, progress: Progress | None) -> list[tuple[int, ...]]:
    each = _step_size(replacements.components, "importance")
    number = _count_steps(replacements.components, steps, each)
    gone: list[tuple[int, ...]] = []
    for step in range(number):
        before = {index for step_numbers in gone for index in step_numbers}
        values = importances(replacements, tuple(before))
        order = [index for index in np.argsort(values, kind="stable").tolist() if index not in before]
        gone.append(tuple(order[:each]))
        if progress is not None:
            progress(step + 1, number)
    return gone


def importances(replacements: Replacements, removed: Sequence[int] = ()) -> Float[np.ndarray, " component"]:
    """Return the importance E|(A' - A) . dL/dA| of each component, divided by the L2 norm of those of its layer.

    Args:
        replacements: What takes the place of removed components, which are those of a site, without positions.
        removed: The numbers of the components that are removed already.
    """
    opened, documents, components = replacements.opened, replacements.documents, replacements.components
    mask = jax.tree.map(lambda mask: mask[0].astype(np.float32), components.masks([tuple(removed)]))
    totals = np.zeros(len(components))
    for batch in documents.batches():
        size, (replacement, *_) = len(batch.ids), replacements.draws(batch)
        each = jax.tree.map(lambda mask, size=size: np.repeat(mask[..., None, :], size, -2), mask)
        slopes = mask_slopes(opened, components, batch, replacement.values, each)
        absolute = jax.tree.map(lambda mask, batch=batch: np.abs(mask[..., : len(batch.numbers), :]).sum(-2), slopes)
        totals += components.gather(absolute)
    values = totals / len(documents)
    layers = np.array([component.layer for component in components.each])
    for layer in set(layers.tolist()):
        in_layer = layers == layer
        values[in_layer] /= max(float(np.linalg.norm(values[in_layer])), 1e-12)
    return values


def _blocks(
    opened: OpenedModel, documents: Documents, components: Components, steps: int | None
) -> tuple[list[tuple[int, ...]], list[float]]:
    """Return for each number of layers the block with the smallest angle, and the angles divided by pi."""
    angles = angular_distances(opened, documents)
    number = _count_steps(components, steps)
    blocks, distances = [], []
    for size in range(1, number + 1):
        block_angles = np.array([angles[start, start + size] for start in range(len(components) - size + 1)])
        start = int(block_angles.argmin())
        blocks.append(tuple(range(start, start + size)))
        distances.append(float(block_angles[start]))
    return blocks, distances


def angular_distances(opened: OpenedModel, documents: Documents) -> Float[np.ndarray, "layers+1 layers+1"]:
    """Return the mean angles, divided by pi, between the residual streams before layers i and j at each token.

    Stream i is the input of layer i, and the last one is the output of the last layer. Several residual streams count
    as one long vector.
    """
    layers = len(opened.config.layers)
    sums, tokens = np.zeros((layers + 1, layers + 1)), 0
    for batch in documents.batches():
        streams = np.asarray(read_intact(opened, batch, "effect").streams, np.float64)
        last = np.asarray(read_values(opened, "residual", batch)[0], np.float64)[-1:]
        real = ~batch.padding
        real[len(batch.numbers) :] = False
        rows = np.concatenate([streams, last])[:, real].reshape(layers + 1, int(real.sum()), -1)
        rows = rows / np.maximum(np.linalg.norm(rows, axis=-1, keepdims=True), 1e-12)
        sums += np.arccos(np.clip(np.einsum("itd,jtd->ijt", rows, rows), -1, 1)).sum(-1) / np.pi
        tokens += int(real.sum())
    return sums / tokens


# --- pairs ------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class PairEffects:
    """The effects of removing two components together.

    Attributes:
        model: The name of the model.
        components: The components.
        pairs: The numbers of the components of each pair.
        joint: The effect of each pair.
        interaction: The effect of each pair, minus the sum of the effects of its components alone. Above 0, one
            compensates for the other.
    """

    __repr__ = short_repr

    model: str
    components: Components
    pairs: list[tuple[int, int]]
    joint: Effects
    interaction: Effects

    def rows(self) -> list[dict[str, Any]]:
        """Return a row for each pair, the largest interaction first."""
        rows = []
        for place in np.argsort(-np.abs(self.interaction.estimate), kind="stable").tolist():
            names = " + ".join(self.components.each[number].name for number in self.pairs[place])
            row = {"pair": names, "joint": float(self.joint.estimate[place])}
            rows.append(row | effect_row(self.interaction, place, "interaction"))
        return rows

    def to_dict(self) -> dict[str, Any]:
        """Return everything as plain data; missing intervals are null."""
        about = {"model": self.model, "what": self.components.what, "documents": self.joint.documents}
        return {**about, "pairs": without_nan(self.rows())}

    def _repr_html_(self) -> str:
        """Return the HTML that a notebook displays."""
        from taetpu.report.notebook import effects_html

        about = (
            f"{self.joint.documents:,} documents; joint: the rise of the loss without both, in nats per target; "
            "interaction: joint, minus the sum of both effects alone"
        )
        return effects_html(self.model, about, self.rows())


def pair_effects(
    opened: OpenedModel,
    inputs: Any,
    what: str | Components = "heads",
    how: str | Method | None = None,
    *,
    layer: int | None = None,
    progress: Progress | None = None,
    report: Callable[[str], None] | None = None,
) -> PairEffects:
    """Return the effects of removing each pair of components together.

    Args:
        opened: The model.
        inputs: Texts, token numbers or `Documents`; see `knockout`.
        what: The kind of the components, or the components; see `knockout`.
        how: How activations are replaced; see `knockout`.
        layer: The layer of the components; see `knockout`.
        progress: A function that is called with the number of batches done and of all batches.
        report: A function that is called with a line about the time, before a long computation.

    Raises:
        UserError: if the inputs cannot be read, the model has no such components or only one, there are too many pairs,
            or no loss changes.
    """
    documents, components, method = resolve_arguments(opened, inputs, what, how, layer)
    number = len(components)
    if number < 2:
        problem = f"there is one component of the kind {components.what}"
        raise UserError(problem, path=("what",), remedy="Choose components with several members, or remove --layer.")
    title, passes = f"each pair of {number:,} {components.what}", number * (number - 1) // 2 + number + 1
    check_passes(opened, documents, components, method, title, passes, report=report)
    pairs = [(i, j) for i in range(number) for j in range(i + 1, number)]
    replacements = make_replacements(opened, components, documents, method)
    sets = [(), *((i,) for i in range(number)), *pairs]
    losses = losses_of_sets(replacements, sets, progress=progress)
    check_changes(losses, components)
    single, joint = losses[1 : number + 1] - losses[0], losses[number + 1 :] - losses[0]
    sums = np.stack([single[i] + single[j] for i, j in pairs])
    scored = documents.scored
    return PairEffects(
        opened.name, components, pairs, estimate_effects(joint, scored), estimate_effects(joint - sums, scored)
    )

"""Knock-outs: how much the loss rises without each component of a model.

The effect of a component is the loss per target without it, minus the loss of the intact model. Intervals are
simultaneous over all components (see `stats.document_effects`).

Effects of single components are lower bounds of what the components do: later parts may compensate for a missing one
(Rushing and Nanda 2024, arXiv 2402.15390; McGrath et al. 2023, arXiv 2307.15771). Two controls are measured beside
them: `frozen norms` and `direct` (see `sweep.CONDITIONS`).
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from taetpu.core.errors import UserError
from taetpu.core.progress import Progress
from taetpu.core.short_repr import short_repr
from taetpu.lens.ablation.components import Components, column_name, find_components
from taetpu.lens.ablation.documents import Documents, read_documents
from taetpu.lens.ablation.passes import check_passes
from taetpu.lens.ablation.replacements import (
    Method,
    Replacements,
    default_how,
    make_replacements,
    zeros,
)
from taetpu.lens.ablation.sweep import CONDITIONS, losses_without, read_intact, sweep
from taetpu.lens.opened import OpenedModel
from taetpu.stats.document_effects import Effects, estimate_effects

ROUNDING = 1e-6
"""The largest change of a document's loss, relative to the loss, that may be an error of rounding."""


def effect_row(effects: Effects, number: int, name: str = "effect") -> dict[str, float]:
    """Return effect `number` as `name`, with its interval."""
    values = {name: effects.estimate, "low": effects.low, "high": effects.high}
    return {name: float(value[number]) for name, value in values.items()}


def without_nan(rows: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Return rows with None in place of NaN."""
    return [{name: None if value != value else value for name, value in row.items()} for row in rows]


@dataclass(frozen=True)
class Knockouts:
    """The effects of removing each component alone.

    Attributes:
        model: The name of the model.
        components: The components.
        method: How activations are replaced.
        intact: The loss of the intact model and its standard error, in nats per target.
        effects: The effects under each of `CONDITIONS` that was measured.
        over: What losses are measured over, such as `12 documents`.
    """

    __repr__ = short_repr

    model: str
    components: Components
    method: Method
    intact: tuple[float, float]
    effects: dict[str, Effects]
    over: str

    @property
    def effect(self) -> Effects:
        """The effects with all controls off."""
        return self.effects[CONDITIONS[0]]

    def order(self) -> list[int]:
        """Return the numbers of the components, the largest effect first."""
        return np.argsort(-self.effect.estimate, kind="stable").tolist()

    def rows(self) -> list[dict[str, Any]]:
        """Return a row for each component, the largest effect first."""
        return [self._row(number) for number in self.order()]

    def _row(self, number: int) -> dict[str, Any]:
        row = {"component": self.components.each[number].name, **effect_row(self.effect, number)}
        others = {name: controlled for name, controlled in self.effects.items() if name != CONDITIONS[0]}
        return row | {name: float(controlled.estimate[number]) for name, controlled in others.items()}

    def to_dict(self) -> dict[str, Any]:
        """Return everything as plain data; missing intervals are null."""
        about = {"model": self.model, "what": self.components.what, "how": self.method.how,
                 "documents": self.effect.documents}  # fmt: skip
        return {**about, "loss": self.intact[0], "loss_error": self.intact[1], "components": without_nan(self.rows())}

    def cells(self) -> dict[tuple[int, int], float]:
        """Return the effect by layer and head, or by layer and group of heads; empty for other components."""
        heads = self.components.what in ("heads", "kv-groups")
        return self.components.cells(self.effect.estimate) if heads else {}

    def _repr_html_(self) -> str:
        """Return the HTML that a notebook displays."""
        from taetpu.report.notebook import effects_html

        loss, error = self.intact
        noise = "" if error != error else f" ± {error:.4f}"
        about = (
            f"loss {loss:.4f}{noise} nats per target over {self.over}; effect: the rise of the "
            f"loss without each of the {self.components.what} ({self.method.how} ablation)"
        )
        return effects_html(self.model, about, self.rows(), self.chart)

    def chart(self) -> Any:
        """Return an Altair chart: a picture of layers and heads, or a bar with its interval for each component."""
        from taetpu.report.charts import themed
        from taetpu.report.token_charts import effect_chart, head_picture

        title = f"rise of the loss without each part (nats, {self.method.how} ablation)"
        effects = self.effect
        if cells := self.cells():
            return themed(head_picture(title, cells, signed=True, places=3, columns=column_name(self.components)))
        names = [component.name for component in self.components.each]
        return effect_chart(names, effects.estimate, effects.low, effects.high, title, self.components.what)


def knockout(
    opened: OpenedModel,
    inputs: Any,
    what: str | Components = "heads",
    how: str | Method | None = None,
    *,
    layer: int | None = None,
    controls: bool = True,
    progress: Progress | None = None,
    report: Callable[[str], None] | None = None,
) -> Knockouts:
    """Return the effects of removing each component alone.

    Args:
        opened: The model.
        inputs: Texts or token numbers (see `OpenedModel.encode`), each a document; or `Documents`.
        what: The kind of the components (see `components.find_components`), or the components.
        how: How activations are replaced: one of `replacements.METHODS`, or a `Method` with its settings. By default,
            layers are skipped and all others become their means.
        layer: The layer whose components of a kind are removed; by default, those of all layers.
        controls: Whether the effects with frozen norms and the direct effects are measured too.
        progress: A function that is called with the number of passes done and of all passes.
        report: A function that is called with a line about the time, before a long computation.

    Raises:
        UserError: if the inputs cannot be read, the model has no such components, the method does not apply, or no
            loss changes.
    """
    documents, components, method = resolve_arguments(opened, inputs, what, how, layer)
    sets = [(number,) for number in range(len(components))]
    conditions = CONDITIONS if controls else CONDITIONS[:1]
    passes, title = len(conditions) * (len(sets) + 1), f"removing each of {len(sets):,} {components.what}"
    check_passes(opened, documents, components, method, title, passes,
                 programs=len(conditions), limited=False, report=report)  # fmt: skip
    replacements = make_replacements(opened, components, documents, method)
    whole, intact = {}, np.zeros(len(documents))
    for place, condition in enumerate(conditions):

        def done(part: int, all_parts: int, place: int = place) -> None:
            if progress is not None:
                progress(place * all_parts + part, len(conditions) * all_parts)

        losses = losses_of_sets(replacements, [(), *sets], condition, done)
        if condition == CONDITIONS[0]:
            check_changes(losses, components)
            intact = losses[0]
        whole[condition] = losses[1:] - losses[0]
    scored = documents.scored
    effects = {condition: estimate_effects(changes, scored, seed=method.seed) for condition, changes in whole.items()}
    loss = estimate_effects(intact[None], scored, draws=1)
    intact_loss = float(loss.estimate[0]), float(loss.error[0])
    return Knockouts(opened.name, components, method, intact_loss, effects, documents.described)


def resolve_arguments(
    opened: OpenedModel, inputs: Any, what: str | Components, how: str | Method | None, layer: int | None
) -> tuple[Documents, Components, Method]:
    """Return documents, components and a method from the arguments of `knockout`.

    Raises:
        UserError: if the inputs cannot be read, the model has no such components, or `layer` is given with components.
    """
    if isinstance(what, Components) and layer is not None:
        problem = f"layer={layer} requires the name of a kind, and {len(what)} components are given"
        raise UserError(problem, path=("layer",), remedy="Remove `layer`, or pass a kind such as 'heads'.")
    documents = inputs if isinstance(inputs, Documents) else read_documents(opened, inputs)
    longest = max(map(len, documents.inputs))
    components = what if isinstance(what, Components) else find_components(opened, what, layer, longest)
    return documents, components, how if isinstance(how, Method) else Method(how or default_how(components.what))


def check_changes(losses: Float[np.ndarray, "set document"], components: Components) -> None:
    """Raise `UserError` if no loss differs from that of the intact model by more than rounding.

    Args:
        losses: The losses of the intact model, and without each set of components.
        components: The components.
    """
    if (np.abs(losses[1:] - losses[0]) <= ROUNDING * np.abs(losses[0])).all():
        names = f"{components.what} {components.each[0].name}" if len(components) == 1 else f"the {components.what}"
        problem = f"removing {names} changes no loss: the model does not use them, or already lacks them"
        raise UserError(problem, path=("what",), remedy="Choose other parts, or another replacement (--how).")


def mean_effects(
    opened: OpenedModel, documents: Documents, components: Components, method: Method
) -> tuple[float, Float[np.ndarray, " component"]]:
    """Return the loss of the intact model, and the effect of removing each component alone, without intervals.

    Args:
        opened: The model.
        documents: The documents.
        components: The components.
        method: How activations are replaced.

    Raises:
        UserError: if the method does not apply to the components.
    """
    replacements = make_replacements(opened, components, documents, method)
    sets = [(), *((number,) for number in range(len(components)))]
    losses = losses_of_sets(replacements, sets).sum(-1) / documents.scored.sum()
    return float(losses[0]), losses[1:] - losses[0]


def check_traceable(opened: OpenedModel, components: Components, segments: bool = False) -> None:
    """Raise `UserError` if losses without components cannot be computed, such as for a site that no loss reads.

    The losses are traced, not computed, so the arrays of the model may be tracers.

    Args:
        opened: The model.
        components: The components.
        segments: Whether documents have segments.
    """
    ids = jnp.zeros((1, min(opened.seq_len, 8)), jnp.int32)
    batch = {**dict.fromkeys(("ids", "positions", "targets"), ids), "padding": ids > 0, "weights": ids * 1.0,
             "segments": ids if segments else None, "others": None}  # fmt: skip
    mask = jax.tree.map(lambda mask: jnp.asarray(mask[0]), components.masks([(0,)]))
    values = jax.tree.map(jnp.asarray, zeros(components))
    first = jnp.int32(components.first_layers([(0,)])[0])

    def trace() -> Array:
        _, before = opened.model.start(ids, padding=batch["padding"], segments=batch["segments"])
        streams = jnp.stack([before] * len(opened.config.layers))
        return losses_without(opened, components)(opened.model, batch, streams, first, mask, {}, values, {})

    jax.eval_shape(trace)


def losses_of_sets(
    replacements: Replacements, sets: Sequence[Sequence[int]], condition: str = CONDITIONS[0],
    progress: Progress | None = None,
) -> Float[np.ndarray, "set document"]:  # fmt: skip
    """Return the sum of the weighted losses of each document without each set of components, averaged over draws."""
    opened, documents, components = replacements.opened, replacements.documents, replacements.components
    losses = np.zeros((len(sets), len(documents)))
    batches = list(documents.batches())
    for number, batch in enumerate(batches):
        intact = read_intact(opened, batch, condition)
        draws = [
            sweep(opened, batch, components, sets, replacement, intact) for replacement in replacements.draws(batch)
        ]
        losses[:, batch.numbers] = np.stack(draws, dtype=np.float64).mean(0)[:, : len(batch.numbers)]
        if progress is not None:
            progress(number + 1, len(batches))
    return losses

"""Models without some of their parts, for all views: the parts are replaced by constants in every call."""

from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import Any

import jax

from taetpu.core.errors import UserError, check_known, suggest
from taetpu.core.sites import Edit
from taetpu.lens.ablation.components import Components, find_components
from taetpu.lens.ablation.documents import Documents, read_documents, split_documents
from taetpu.lens.ablation.replacements import Method, make_replacements, zeros
from taetpu.lens.ablation.sweep import join_masks, remover, skip_layers
from taetpu.lens.losses import find_split
from taetpu.lens.opened import OpenedModel, Removal
from taetpu.nn.edited import edit_model

HOW = ("zero", "mean", "optimal")
"""The constants that may replace a part."""
MOST_DOCUMENTS = 64
"""The number of windows of the evaluation set over which means are taken by default."""
# Parts of a run that `OpenedModel` computes once, and that are the same without components.
SHARED = ("record", "run_config", "metrics", "result", "data", "site_layers")


def without(
    opened: OpenedModel, what: str, names: str | int | Iterable[str | int], how: str = "zero", reference: Any = None
) -> OpenedModel:
    """Return a model with components ablated in all calls and views, such as generation with a cache.

    Args:
        opened: The model.
        what: The kind of the components: `heads`, `kv-groups`, `mixers`, `ffns`, `layers`, `neurons`, `experts`,
            `states`, or a site (see `lens.ablation.components`).
        names: The names of the components, such as `3.1` for head 1 of layer 3, and `3` for the ffn of layer 3.
        how: What takes their place: `zero`, `mean` (the mean over all positions of the documents that have a target: of
            a text, all but the last) or `optimal` (the constant with the smallest loss on the documents). Layers are
            skipped.
        reference: The texts of means and optimal constants, or `Documents`. By default, windows of the run's evaluation
            set `val`.

    Raises:
        UserError: if the model has no such components, or a reference is missing or cannot be read.
    """
    return remove_components(opened, {what: names}, how, reference)


def remove_components(
    opened: OpenedModel,
    parts: Mapping[str, str | int | Iterable[str | int]],
    how: str = "zero",
    reference: Any = None,
) -> OpenedModel:
    """Return a model without components of several kinds; see `without`.

    Args:
        opened: The model.
        parts: The names of the components of each kind.
        how: What takes their place: one of `HOW`. All constants are those of the model with all components.
        reference: See `without`.

    Raises:
        UserError: see `without`.
    """
    check_known(how, HOW, f"removed parts must be replaced by a constant, and {how!r} is not one", path=("how",))
    chosen = {what: _choose(opened, what, names) for what, names in parts.items()}
    documents = None if how == "zero" else _read_reference(opened, how, reference)
    model, removers, values = opened.model, [], {}
    for components in chosen.values():
        constants = zeros(components)
        if documents is not None:
            constants = make_replacements(opened, components, documents, Method(how)).means
        mask = jax.tree.map(lambda masks: masks[0], components.masks([range(len(components))]))
        if components.site is None:
            model = skip_layers(model, mask[0][:, 0])
            continue
        name = f"removed {len(getattr(opened.model, 'values', ())) + len(removers)}"
        edit = Edit(components.site, remover(components.axis), value=name, by_layer=bool(components.groups))
        removers.append(edit)
        values[name] = join_masks(mask, constants)
    removal = Removal({what: tuple(part.name for part in kind.each) for what, kind in chosen.items()}, how, documents)
    edited = replace(
        opened,
        model=edit_model(model, removers, values, opened.site_layers),
        name=f"{opened.name} {'and' if opened.removals else 'without'} {removal}",
        removals=(*opened.removals, removal),
    )
    vars(edited).update({name: vars(opened)[name] for name in SHARED if name in vars(opened)})
    return edited


def remove_same(opened: OpenedModel, other: OpenedModel) -> OpenedModel:
    """Return a model without the components that another model of this architecture lacks."""
    for removal in other.removals:
        opened = remove_components(opened, removal.parts, removal.how, removal.reference)
    return opened


def _choose(opened: OpenedModel, what: str, names: str | int | Iterable[str | int]) -> Components:
    """Return the components of a kind with the given names, in their order in the model.

    Raises:
        UserError: if the model has no such component, or no name is given.
    """
    if what == "positions":
        problem = "positions belong to documents, so they cannot be removed from a model"
        raise UserError(problem, path=("what",), remedy="Use knockout, or remove the tokens from the text.")
    components = find_components(opened, what)
    wanted = {str(name) for name in ((names,) if isinstance(names, str | int) else names)}
    known = [component.name for component in components.each]
    if not wanted:
        raise UserError(f"no {what} are named", path=("names",), remedy=f"Use names such as {known[0]}.")
    for name in sorted(wanted.difference(known)):
        problem = f"this model has no component {name!r} among its {what}"
        raise UserError(problem, path=("names",), remedy=suggest(name, known))
    return replace(components, each=tuple(component for component in components.each if component.name in wanted))


def _read_reference(opened: OpenedModel, how: str, reference: Any) -> Documents:
    if reference is not None:
        return reference if isinstance(reference, Documents) else read_documents(opened, reference)
    if opened.run is None:
        problem = f"{opened.name} was not trained in a study, so it has no evaluation set for {how} activations"
        raise UserError(problem, path=("reference",), remedy="Pass texts as reference.")
    return split_documents(find_split(opened, "val"), MOST_DOCUMENTS)

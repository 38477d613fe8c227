"""The parts of a model that can be removed: heads, branches, layers, neurons, positions, or all of a site."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from jaxtyping import Bool, Float

from taetpu.core.errors import UserError, suggest
from taetpu.lens.activations import SiteShape, check_layer, site_shapes
from taetpu.lens.opened import OpenedModel

SITES = {
    "heads": ("mixer.z", 1), "kv-groups": ("mixer.z", 1), "mixers": ("mixer.out", None), "ffns": ("ffn.out", None),
    "neurons": ("ffn.hidden", -1), "experts": ("ffn.hidden", 2), "states": ("mixer.state", -1),
    "positions": ("embed", 1),
}  # fmt: skip
"""The site of each kind of component, and the axis of its activation along which components are counted."""
RANKS = {"heads": 4, "kv-groups": 4, "neurons": 3, "experts": 4}
"""The number of axes of an activation that has units of a kind."""
LAYERS = "layers"
"""The kind of component whose layers are skipped."""
UNREAD = ("final", "logits")
"""Sites that no loss reads."""


@dataclass(frozen=True)
class Component:
    """A part of a model that is removed as a whole.

    Attributes:
        name: The name within its kind, such as `3.1` for head 1 of layer 3.
        layer: The layer; None for a part outside the layers.
        units: The indices of the part along the axis of its kind; empty for the whole activation.
    """

    name: str
    layer: int | None
    units: tuple[int, ...] = ()


@dataclass(frozen=True)
class Components:
    """The components of one kind.

    Attributes:
        what: The kind: `heads`, `layers`, ..., or the name of a site.
        site: The site whose activation is replaced; None if layers are skipped.
        axis: The axis of components in an activation `(batch, ...)`; None if whole activations are replaced.
        shapes: The shape of the activation by the first layer of neighbouring layers with equal shapes; by None for a
            site outside the layers, and empty if layers are skipped.
        groups: Neighbouring layers whose activations have equal shapes: the first layer, and the number of layers and
            of units. Empty for a site outside the layers.
        units: The number of units of a site outside the layers.
        each: The components.
        by_position: Whether the units are positions of a document.
    """

    what: str
    site: str | None
    axis: int | None
    shapes: Mapping[int | None, SiteShape]
    groups: Mapping[int, tuple[int, int]]
    units: int
    each: tuple[Component, ...]
    by_position: bool = False

    def __len__(self) -> int:
        """Return the number of components."""
        return len(self.each)

    def masks(self, sets: Sequence[Iterable[int]]) -> Any:
        """Return what each set of components removes: True for removed units.

        Args:
            sets: Sets of numbers of components.

        Returns:
            For each group of layers, an array `(set, layer, unit)`; for a site outside the layers, `(set, unit)`.
        """
        if not self.groups:
            return np.stack([self._outside(numbers) for numbers in sets])
        masks = {first: np.zeros((len(sets), *shape), bool) for first, shape in self.groups.items()}
        for place, numbers in enumerate(sets):
            for component in (self.each[number] for number in numbers):
                assert component.layer is not None
                first = self.group_of(component.layer)
                masks[first][place, component.layer - first, list(component.units) or slice(None)] = True
        return masks

    def _outside(self, numbers: Iterable[int]) -> Bool[np.ndarray, " unit"]:
        mask = np.zeros(self.units, bool)
        for number in numbers:
            mask[list(self.each[number].units) or slice(None)] = True
        return mask

    def gather(self, units: Any) -> Float[np.ndarray, " component"]:
        """Return the sum of numbers of units over each component.

        Args:
            units: The numbers, for each group of layers `(layer, unit)`; for a site outside the layers, `(unit,)`.
        """
        totals = np.zeros(len(self))
        for number, component in enumerate(self.each):
            numbers = units
            if component.layer is not None:
                first = self.group_of(component.layer)
                numbers = units[first][component.layer - first]
            totals[number] = np.asarray(numbers)[list(component.units) or slice(None)].sum()
        return totals

    def group_of(self, layer: int) -> int:
        """Return the first layer of the group of a layer."""
        return max(first for first in self.groups if first <= layer)

    def cells(self, values: Float[np.ndarray, " component"]) -> dict[tuple[int, int], float]:
        """Return numbers of components with units by layer and number in the layer; empty for other components."""
        if self.axis is None or not self.groups:
            return {}
        places = [component.name.split(".") for component in self.each]
        return {(int(layer), int(unit)): float(value) for (layer, unit), value in zip(places, values, strict=True)}

    def position_axes(self) -> dict[int | None, int]:
        """Return the axis of positions in the activations of each group; see `shapes`.

        Raises:
            UserError: if activations have no such axis, or two.
        """
        known = {first: shape.position for first, shape in self.shapes.items() if shape.positions == 1}
        axes = {first: axis for first, axis in known.items() if axis is not None}
        if len(axes) < len(self.shapes):
            problem = f"site {self.site!r} has no single axis of positions, so only zeros can replace its activations"
            raise UserError(problem, path=("how",), remedy="Use zero, or remove other parts.")
        return axes

    def first_layers(self, sets: Sequence[Iterable[int]]) -> list[int]:
        """Return the first layer that each set changes; 0 for an empty set."""
        return [min((self.each[number].layer or 0 for number in numbers), default=0) for numbers in sets]


def find_components(opened: OpenedModel, what: str, layer: int | None = None, positions: int = 0) -> Components:
    """Return the components of a kind.

    Args:
        opened: The model.
        what: The kind: a key of `SITES`, `layers`, or the name of a site.
        layer: The layer whose components are returned; by default, all layers.
        positions: The number of positions of the documents; 0 without documents.

    Raises:
        UserError: if the model has no component of this kind, or no such layer.
    """
    layers = None if layer is None else check_layer(opened, layer)
    if what == LAYERS:
        components = _skipped_layers(opened)
    elif what == "positions":
        each = tuple(Component(str(i), None, (i,)) for i in range(positions))
        components = Components(what, "embed", 1, site_shapes(opened, "embed"), {}, positions, each, by_position=True)
    else:
        components = _of_site(opened, what, positions > 0)
    if layers is None:
        return components
    kept = tuple(component for component in components.each if component.layer == layers)
    if not kept:
        where = sorted({component.layer for component in components.each if component.layer is not None})
        remedy = f"Use one of the layers {', '.join(map(str, where))}." if where else "Remove the layer."
        raise UserError(f"layer {layers} has no {what}", path=("layer",), remedy=remedy)
    return replace(components, each=kept)


def column_name(components: Components) -> str:
    """Return what the columns of a picture of components are, whose rows are layers."""
    return "position" if components.by_position else components.what.removeprefix("kv-").removesuffix("s")


def find_positions(opened: OpenedModel, site: str, positions: int, layer: int | None = None) -> Components:
    """Return a component for each position at a site, in each of its layers: `3.7` is position 7 of layer 3.

    Args:
        opened: The model.
        site: The site.
        positions: The number of positions.
        layer: The layer; by default, all layers.

    Raises:
        UserError: if the model has no such site or layer, or the site's activations have no axis of positions.
    """
    if site in (LAYERS, *SITES):
        problem = f"`positions` requires a site, and {site!r} is not one"
        raise UserError(problem, path=("what",), remedy="Add --what residual, or --what embed.")
    whole = find_components(opened, site, layer)
    shape = next(iter(whole.shapes.values()))
    if shape.position is None or shape.positions != 1:
        remedy = "Use residual or embed."
        raise UserError(f"site {site!r} has no single axis of positions", path=("what",), remedy=remedy)
    axis, units = shape.position, range(positions)
    if not whole.groups:
        each = tuple(Component(str(i), None, (i,)) for i in units)
        return Components(site, site, axis, whole.shapes, {}, positions, each, by_position=True)
    each = tuple(Component(f"{component.layer}.{i}", component.layer, (i,)) for component in whole.each for i in units)
    groups = {first: (layers, positions) for first, (layers, _) in whole.groups.items()}
    return Components(site, site, axis, whole.shapes, groups, 1, each, by_position=True)


def _shares_layers(opened: OpenedModel) -> bool:
    return any(stack.source is not None or stack.places is not None for stack in opened.model.stacks)


def _skipped_layers(opened: OpenedModel) -> Components:
    number = len(opened.config.layers)
    if _shares_layers(opened):
        problem = "layers of this model share parameters, so a single layer cannot be skipped"
        raise UserError(problem, path=("what",), remedy="Remove mixers or ffns instead.")
    each = tuple(Component(str(i), i) for i in range(number))
    return Components(LAYERS, None, None, {}, {0: (number, 1)}, 1, each)


def _of_site(opened: OpenedModel, what: str, has_positions: bool) -> Components:
    site, axis = _find_site(opened, what, has_positions)
    shapes = site_shapes(opened, site)
    units = {layer: _count_units(shape, axis) for layer, shape in shapes.items()}
    if None in units:
        (number,) = units.values()
        return Components(what, site, axis, shapes, {}, number, (Component(site, None),))
    groups: dict[int, tuple[int, int]] = {}
    each: list[Component] = []
    for layer, shape in shapes.items():
        assert layer is not None
        first = max(groups, default=None)
        if first is not None and shapes[first].shape == shape.shape:
            groups[first] = layer - first + 1, units[layer]
        else:
            groups[layer] = 1, units[layer]
        each += _in_layer(opened, what, layer, units[layer] if axis is not None else None)
    of_groups: dict[int | None, SiteShape] = {first: shapes[first] for first in groups}
    return Components(what, site, axis, of_groups, groups, 1, tuple(each))


def _find_site(opened: OpenedModel, what: str, has_positions: bool) -> tuple[str, int | None]:
    """Return the site and the axis of a kind of components.

    Raises:
        UserError: if the kind is unknown, or the model lacks its site or units.
    """
    if what not in SITES:
        if what not in opened.site_layers:
            problem = f"this model has no components {what!r}"
            known = [*_list_kinds(opened, has_positions), *(site for site in opened.site_layers if site not in UNREAD)]
            raise UserError(problem, path=("what",), remedy=suggest(what, known))
        return what, None
    site, axis = SITES[what]
    if not _has_units(opened, what):
        slot = site.partition(".")[0]
        kinds = " and ".join(sorted({getattr(layer, slot).kind for layer in opened.config.layers}))
        problem = f"this model has no {what}: its {slot} is {kinds}"
        problem += "" if site in opened.site_layers else f", without the site {site!r}"
        raise UserError(problem, path=("what",), remedy=f"Use one of {', '.join(_list_kinds(opened, has_positions))}.")
    return site, axis


def _list_kinds(opened: OpenedModel, has_positions: bool) -> list[str]:
    """Return the kinds of components that a model has; positions only if there are documents."""
    layers = [] if _shares_layers(opened) else [LAYERS]
    known = [what for what in SITES if _has_units(opened, what)]
    return [*layers, *(what for what in known if what != "positions" or has_positions)]


def _has_units(opened: OpenedModel, what: str) -> bool:
    """Return whether a model has the site of a kind, with an axis of its units in all layers."""
    site = SITES[what][0]
    if site not in opened.site_layers:
        return False
    ranks = {len(shape.shape) for shape in site_shapes(opened, site).values()}
    return what not in RANKS or ranks == {RANKS[what]}


def _count_units(shape: SiteShape, axis: int | None) -> int:
    size = 1 if axis is None else shape.shape[axis]
    assert size is not None
    return size


def _in_layer(opened: OpenedModel, what: str, layer: int, units: int | None) -> list[Component]:
    if units is None:
        return [Component(str(layer), layer)]
    if what == "kv-groups":
        heads = opened.config.layers[layer].typed_mixer.heads(opened.config.dims(opened.interface, opened.seq_len))
        groups = units if heads is None else heads.num_kv_heads
        size = units // groups
        return [Component(f"{layer}.{i}", layer, tuple(range(i * size, (i + 1) * size))) for i in range(groups)]
    return [Component(f"{layer}.{i}", layer, (i,)) for i in range(units)]

"""Sites: named points of the forward pass where activations are read or edited.

`site("mixer.z", x)` marks a point, at no cost outside a capture. `capture` reads and edits sites, fixed before tracing:
a context manager around a function that is already jitted would silently have no effect.
"""

import traceback
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextvars import ContextVar
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
from jax.extend.core import get_opaque_trace_state
from jaxtyping import Array

from taetpu.core.errors import UserError, suggest


@dataclass(frozen=True)
class Edit:
    """The replacement of the activation at a site by `fn(x, value)`.

    Args:
        site: The name of the site.
        fn: A pure function of the activation and of `value`; it is part of the program.
        layer: The only layer to edit, counted from 0; None edits the site everywhere.
        value: The name of an array in `capture`'s `values`, which may change without recompilation.
    """

    site: str
    fn: Callable[[Array, Array | None], Array]
    layer: int | None = None
    value: str | None = None


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class Ragged:
    """The activations of a site whose shape differs between layers, e.g. patterns with different numbers of heads.

    Attributes:
        parts: Arrays `(layers, ...)` of neighbouring layers of one shape, in order.
    """

    parts: tuple[Array, ...]

    def over_layers(self, fn: Callable[[Array], Array]) -> Array:
        """Return one value for each layer: `fn`, `(layers, ...) -> (layers,)`, of each part, concatenated."""
        return jnp.concatenate([fn(part) for part in self.parts])

    def __jax_array__(self) -> Array:
        shapes = " and ".join(dict.fromkeys(str(part.shape[1:]) for part in self.parts))
        problem = f"layers have a site in different shapes, {shapes}, which are no single array"
        raise UserError(problem, remedy="a metric takes one value a layer by seen.over_layers(site, fn)")

    def __getitem__(self, index: Any) -> Array:
        return self.__jax_array__()

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_"):
            raise AttributeError(name)
        return self.__jax_array__()


Read = Array | Ragged
Reads = tuple[dict[str, Read], ...]
"""The activations that each of the nested captures has read, innermost first."""
MAX_FRAMES = 40  # stack frames that distinguish two sites of one name


def _joined(one: Read, other: Read) -> Read:
    """Concatenate the reads of consecutive layers."""
    parts = [part for read in (one, other) for part in (read.parts if isinstance(read, Ragged) else (read,))]
    if len({(part.shape[1:], part.dtype) for part in parts}) == 1:
        return jnp.concatenate(parts)
    return Ragged(tuple(parts))


@dataclass
class _Tape:
    """The state of one capture while a layer, or the code outside the layers, is traced."""

    sites: frozenset[str]
    edits: tuple[Edit, ...]
    values: Mapping[str, Array]
    seen: set[tuple[str, int | None]]  # the sites that the model has, with their layers; shared by a capture's tapes
    trace: Any  # the trace of this tape; a read in another one would leak a tracer
    reads: dict[str, Read]
    layer: Any = None  # the layer's number inside a stack (a tracer in a scan), else None
    layers: Sequence[int | None] = (None,)  # the values that `layer` takes
    places: dict[str, Sequence[str]] = field(default_factory=dict)  # the call stack of each site that was passed
    read_in: dict[str, set[int]] = field(default_factory=dict)  # the layers whose reads were recorded, by site

    def requests(self, name: str) -> bool:
        """Return whether the site is read or edited."""
        return name in self.sites or any(edit.site == name for edit in self.edits)


_TAPES: ContextVar[tuple[_Tape, ...]] = ContextVar(
    "tapes", default=()
)  # of captures inside each other, innermost first
_trace_now = partial(get_opaque_trace_state, convention="flax")


def is_requested(name: str) -> bool:
    """Return whether a capture that is being traced reads or edits a site, for code that is cheaper otherwise.

    The call also registers the site as present.
    """
    tapes = _TAPES.get()
    for tape in tapes:
        tape.seen.update((name, layer) for layer in tape.layers)
    return any(tape.requests(name) for tape in tapes)


def site(name: str, x: Array) -> Array:
    """Mark a site, and return its activation with the edits of all captures applied.

    Args:
        name: The name of the site.
        x: The activation.

    Raises:
        UserError: The site is read or edited, and another one of this name was passed in the same layer.
    """
    if not _TAPES.get() or not is_requested(name):
        return x
    requesting = [tape for tape in _TAPES.get() if tape.requests(name)]
    for tape in requesting:
        if tape.trace != _trace_now():
            raise RuntimeError(
                f"site {name!r} is inside a transform that owns no tape: wrap its body with sites.with_layer_tapes"
            )
        _check_single(tape, name)
        for edit in tape.edits:
            if edit.site == name:
                new = edit.fn(x, tape.values[edit.value] if edit.value else None).astype(x.dtype)
                x = new if edit.layer is None else jnp.where(tape.layer == edit.layer, new, x)
    for tape in requesting:  # every capture reads the activation after all edits
        if name in tape.sites:
            tape.reads[name] = x
    return x


def _check_single(tape: _Tape, name: str) -> None:
    """Raise `UserError` if a requested site was passed before: one read would hide the other.

    Outside the layers, edits apply to every pass, for example if a model is called twice.
    """
    if name not in tape.sites and tape.layer is None:
        return
    here = [f"{frame.filename}:{frame.lineno}" for frame in reversed(traceback.extract_stack(limit=MAX_FRAMES)[:-2])]
    before = tape.places.setdefault(name, here)
    if before is not here:
        one, other = next(((a, b) for a, b in zip(before, here, strict=False) if a != b), (before[0], here[0]))
        where = "" if tape.layer is None else f" in layer{'s' * (len(tape.layers) > 1)} {_listed(tape.layers)}"
        problem = f"site {name!r} is marked twice{where}: at {one} and at {other}"
        raise UserError(problem, remedy="give each of them a name of its own, or capture one call of the model")


def _listed(layers: Iterable[Any]) -> str:
    return ", ".join(map(str, layers))


def with_layer_tapes(body: Callable[..., Any], layers: Sequence[int]) -> Callable[..., tuple[Any, Reads]]:
    """Return the body of a scan over `layers` with new tapes: `wrapped(layer, *args) -> (body(*args), reads)`.

    Wrap the body in every call: jax caches traces by function identity, and a cached body would be replayed without
    tapes.
    """

    def wrapped(layer: Any, *args: Any) -> tuple[Any, Reads]:
        own = {"layer": layer, "layers": layers, "trace": _trace_now()}
        tapes = tuple(replace(tape, **own, reads={}, places={}) for tape in _TAPES.get())
        token = _TAPES.set(tapes)
        try:
            return body(*args), tuple(tape.reads for tape in tapes)
        finally:
            _TAPES.reset(token)

    return wrapped


def record_layers(reads: Reads, layers: Iterable[int] = ()) -> None:
    """Add a stack's reads to the enclosing tapes; several stacks are concatenated along the layer axis.

    Reads of layers with different shapes become `Ragged`.

    Args:
        reads: The reads of each capture, with arrays `(layers, ...)`.
        layers: The numbers of the stack's layers.

    Raises:
        UserError: A layer's site is read a second time, because the model is called twice.
    """
    for tape, found in zip(_TAPES.get(), reads, strict=True):
        for name, value in found.items():
            if twice := tape.read_in.setdefault(name, set()) & set(layers):
                problem = f"site {name!r} of layer {min(twice)} is passed twice in one capture"
                raise UserError(problem, remedy="capture one call of the model")
            tape.read_in[name] |= set(layers)
            old = tape.reads.get(name)
            tape.reads[name] = value if old is None else _joined(old, value)


def capture(fn: Callable[..., Any], sites: Iterable[str] = (), edits: Iterable[Edit] = ()) -> Callable[..., Any]:
    """Return `g(*args, values={}) -> (fn(*args), {site: activation})`, which reads and edits sites.

    Activations inside a stack have a leading layer axis. Write `jit(capture(f))` or `jit(vmap(capture(f)))`, never
    `capture(jit(f))`. Captures can be nested: inner edits are applied first, and all captures read the result of every
    edit.

    Args:
        fn: The function whose sites are read.
        sites: The names of the sites to read.
        edits: The edits to apply.

    Raises:
        UserError: The model has no such site, does not have it in the layer of an edit, or has two of one name in a
            layer. It is raised while tracing.
    """
    wanted_sites, all_edits = frozenset(sites), tuple(edits)
    asked = wanted_sites | {edit.site for edit in all_edits}

    def captured(*args: Any, values: Mapping[str, Array] | None = None) -> tuple[Any, dict[str, Read]]:
        tape = _Tape(wanted_sites, all_edits, values or {}, set(), _trace_now(), {})
        token = _TAPES.set((tape, *_TAPES.get()))
        try:
            out = fn(*args)
        finally:
            _TAPES.reset(token)
        _check(asked, all_edits, tape.seen)
        return out, tape.reads

    return captured


def find_sites(fn: Callable[..., Any], *args: Any) -> dict[str, tuple[int, ...]]:
    """Trace `fn(*args)` and return its sites, each with the numbers of its layers (empty: outside the layers)."""
    seen: set[tuple[str, int | None]] = set()

    def noted(*args: Any) -> Any:
        token = _TAPES.set((_Tape(frozenset(), (), {}, seen, _trace_now(), {}),))
        try:
            return fn(*args)
        finally:
            _TAPES.reset(token)

    jax.eval_shape(noted, *args)
    names = {name for name, _ in seen}
    return {
        name: tuple(sorted(layer for n, layer in seen if n == name and layer is not None)) for name in sorted(names)
    }


def _check(asked: frozenset[str], edits: Iterable[Edit], seen: set[tuple[str, int | None]]) -> None:
    known = {name for name, _ in seen}
    if missing := sorted(asked - known):
        raise UserError(f"no site {missing[0]!r} in this model", remedy=suggest(missing[0], known))
    for edit in edits:
        if edit.layer is not None and (edit.site, edit.layer) not in seen:
            layers = sorted(layer for name, layer in seen if name == edit.site and layer is not None)
            raise UserError(
                f"no site {edit.site!r} in layer {edit.layer}",
                remedy=f"it is in layers {', '.join(map(str, layers))}" if layers else "leave layer out",
            )

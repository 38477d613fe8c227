"""Sites: named points of the forward pass where activations are read or edited.

`site("mixer.z", x)` marks a point and costs nothing while nobody asks. Asking goes through `capture`, whose sites and
edits are fixed before tracing: a context manager round a function that is already jitted would silently see nothing.
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
    """Replace the activation at a site by `fn(x, value)`.

    Args:
        site: the site's name.
        fn: a pure function of the activation and of `value`; it is part of the program.
        layer: only in this layer (counted from 0); everywhere when None.
        value: name under which `capture`'s `values` hold an array for `fn`; it may change without a new compile.
    """

    site: str
    fn: Callable[[Array, Array | None], Array]
    layer: int | None = None
    value: str | None = None


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class Ragged:
    """What was read of a site that layers have in different shapes, e.g. a pattern with different numbers of heads.

    Attributes:
        parts: arrays `(layers, ...)` of neighbouring layers that agree, in order.
    """

    parts: tuple[Array, ...]

    def over_layers(self, fn: Callable[[Array], Array]) -> Array:
        """`fn` of each part, `(layers, ...) -> (layers,)`, joined: one value for each layer."""
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
"""What each of the captures inside each other has read, innermost first."""
MAX_FRAMES = 40  # calls by which two sites of one name are told apart


def _joined(one: Read, other: Read) -> Read:
    """Reads of layers one after another."""
    parts = [part for read in (one, other) for part in (read.parts if isinstance(read, Ragged) else (read,))]
    if len({(part.shape[1:], part.dtype) for part in parts}) == 1:
        return jnp.concatenate(parts)
    return Ragged(tuple(parts))


@dataclass
class _Tape:
    """What one capture reads and edits of the code that is being traced: of one layer, or of all that is in none."""

    sites: frozenset[str]
    edits: tuple[Edit, ...]
    values: Mapping[str, Array]
    seen: set[tuple[str, int | None]]  # shared by all tapes of one capture: which sites the model really has, and where
    trace: Any  # the trace that the tape belongs to; a read from another one would leak a tracer
    reads: dict[str, Read]
    layer: Any = None  # the layer's number inside a stack (a tracer in a scan), else None
    layers: Sequence[int | None] = (None,)  # the numbers that it will take
    places: dict[str, Sequence[str]] = field(default_factory=dict)  # the calls that led to each site that was passed
    read_in: dict[str, set[int]] = field(default_factory=dict)  # the layers whose reads were handed over, by site

    def asks(self, name: str) -> bool:
        """Is the site read or edited?"""
        return name in self.sites or any(edit.site == name for edit in self.edits)


_TAPES: ContextVar[tuple[_Tape, ...]] = ContextVar(
    "tapes", default=()
)  # of captures inside each other, innermost first
_trace_now = partial(get_opaque_trace_state, convention="flax")


def is_requested(name: str) -> bool:
    """Is the site read or edited in a capture that is being traced? For code that has a cheaper way when not.

    Asking says that the site is there.
    """
    tapes = _TAPES.get()
    for tape in tapes:
        tape.seen.update((name, layer) for layer in tape.layers)
    return any(tape.asks(name) for tape in tapes)


def site(name: str, x: Array) -> Array:
    """Mark a point: returns `x`, edited if an edit asks for it.

    Raises:
        UserError: the site is read or edited, and another one of this name was passed in the same layer.
    """
    if not _TAPES.get() or not is_requested(name):
        return x
    asking = [tape for tape in _TAPES.get() if tape.asks(name)]
    for tape in asking:
        if tape.trace != _trace_now():
            raise RuntimeError(
                f"site {name!r} is inside a transform that owns no tape: wrap its body with sites.with_layer_tapes"
            )
        _check_single(tape, name)
        for edit in tape.edits:
            if edit.site == name:
                new = edit.fn(x, tape.values[edit.value] if edit.value else None).astype(x.dtype)
                x = new if edit.layer is None else jnp.where(tape.layer == edit.layer, new, x)
    for tape in asking:  # after all edits: every capture reads what flows on
        if name in tape.sites:
            tape.reads[name] = x
    return x


def _check_single(tape: _Tape, name: str) -> None:
    """Raise `UserError` where a site that is asked for was passed before: one of them would be hidden.

    Outside the layers edits meet every pass, as where a model is called twice.
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
    """Give the body of a scan over `layers` tapes of its own: `wrapped(layer, *args) -> (body(*args), reads)`.

    Wrap anew at every call: jax caches traces by function identity, and a cached body would replay one without a tape.
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
    """Hand a stack's reads, each `(layers, ...)`, to the enclosing tapes; several stacks join along the layer axis.

    Where layers have the site in different shapes, as with different numbers of heads, they cannot be joined: see
    `Ragged`.

    Args:
        layers: the stack's layers, by number.

    Raises:
        UserError: a layer's site is read a second time, since the model is called twice.
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
    """`g(*args, values={}) -> (fn(*args), {site: activation})`.

    Sites inside a stack come back with a leading layer axis. Write `jit(capture(f))` or `jit(vmap(capture(f)))`, never
    `capture(jit(f))`.

    Captures may be inside each other. An inner one's edits come first, and all read what is left after every edit.

    Raises:
        UserError: the model has no such site, or not in the layer of an edit, or two of one name in a layer (raised
            while tracing).
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
    """The sites that `fn(*args)` passes, each with the layers it is in (none: outside them). Nothing is computed."""
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

"""Sites: named points of the forward pass where activations are read or edited.

`site("mixer.z", x)` marks a point, at no cost outside a capture. `capture` wraps a function to read and edit its sites.
`capture` is not a context manager, because a context manager would silently have no effect on a function that is
already compiled.
"""

import traceback
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
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
        fn: A pure function of the activation and the value. It is compiled into the program.
        layer: The layer to edit, counted from 0, or None to edit the site in all layers. Text names a number in the
            `values` given to the captured function, so that one program can edit any layer.
        value: The name of an array, or of a pytree of arrays, in the `values` given to the captured function. Changing
            the arrays does not cause recompilation.
        by_layer: Whether each layer has its own value. Then `values[value]` maps the first layer of each group of
            layers to arrays with a leading layer axis, so that the shapes of different groups may differ.
    """

    site: str
    fn: Callable[[Array, Any], Array]
    layer: int | str | None = None
    value: str | None = None
    by_layer: bool = False


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class Ragged:
    """The activations at a site whose shape differs between layers, e.g. attention with different numbers of heads.

    Attributes:
        parts: One array `(layers, ...)` for each group of consecutive layers, in order. The layers of a group have
            equal activation shapes.
    """

    parts: tuple[Array, ...]

    def over_layers(self, fn: Callable[[Array], Array]) -> Array:
        """Apply `fn`, `(layers, ...) -> (layers,)`, to each part, and return the concatenated values of all layers."""
        return jnp.concatenate([fn(part) for part in self.parts])

    def __jax_array__(self) -> Array:
        shapes = " and ".join(dict.fromkeys(str(part.shape[1:]) for part in self.parts))
        problem = f"a site has different shapes in different layers, {shapes}, which cannot form one array"
        raise UserError(problem, remedy="Reduce the site to one value per layer with seen.over_layers(site, fn).")

    def __getitem__(self, index: Any) -> Array:
        return self.__jax_array__()

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_"):
            raise AttributeError(name)
        return self.__jax_array__()


Read = Array | Ragged
Reads = tuple[dict[str, Read], ...]
"""The activations read by each of the nested captures, innermost first."""
MAX_FRAMES = 40  # stack frames to compare between two sites with the same name


def parts_of(read: Read) -> tuple[Array, ...]:
    """Return the arrays of a site, each of neighbouring layers with activations of one shape."""
    return read.parts if isinstance(read, Ragged) else (read,)


def _joined(first: Read, second: Read) -> Read:
    """Concatenate the reads of consecutive layers."""
    parts = [part for read in (first, second) for part in parts_of(read)]
    if len({(part.shape[1:], part.dtype) for part in parts}) == 1:
        return jnp.concatenate(parts)
    return Ragged(tuple(parts))


@dataclass
class _Tape:
    """The state of one capture while a layer, or the code outside the layers, is traced."""

    sites: frozenset[str]
    edits: tuple[Edit, ...]
    values: Mapping[str, Any]
    seen: set[tuple[str, int | None]]  # the sites that the model has, with their layers; shared by a capture's tapes
    trace: Any  # the trace of this tape; a read in another trace would leak a tracer
    reads: dict[str, Read]
    layer: Any = None  # the number of the layer inside a stack (a tracer in a scan), else None
    layers: Sequence[int | None] = (None,)  # the values that `layer` takes
    places: dict[str, Sequence[str]] = field(default_factory=dict)  # the call stack of each site that was marked
    read_in: dict[str, set[int]] = field(default_factory=dict)  # the layers whose reads were recorded, by site
    collects: Any = None  # the argument of the functions given to `record`; None if they are not called

    def requests(self, name: str) -> bool:
        """Return whether the site is read or edited."""
        return name in self.sites or any(edit.site == name for edit in self.edits)


_TAPES: ContextVar[tuple[_Tape, ...]] = ContextVar("tapes", default=())  # the tapes of nested captures, innermost first
_trace_now = partial(get_opaque_trace_state, convention="flax")


_RENAMED: ContextVar[tuple[tuple[str, str], ...]] = ContextVar("renamed", default=())  # innermost first


@contextmanager
def _set(variable: ContextVar[Any], value: Any) -> Iterator[None]:
    """Give a context variable a value in the block."""
    token = variable.set(value)
    try:
        yield
    finally:
        variable.reset(token)


def rename_sites(old: str, new: str) -> AbstractContextManager[None]:
    """Rename the sites `old` and `old.*` to `new` and `new.*`, for a second module of the same kind in a layer.

    If calls are nested, the inner call renames first.
    """
    return _set(_RENAMED, ((old, new), *_RENAMED.get()))


def _site_name(name: str) -> str:
    for old, new in _RENAMED.get():
        head, dot, rest = name.partition(".")
        name = f"{new}{dot}{rest}" if head == old else name
    return name


def is_requested(name: str) -> bool:
    """Return whether a current capture reads or edits a site. Code may take a cheaper path if no capture does.

    The call also registers the site as present.
    """
    tapes, name = _TAPES.get(), _site_name(name)
    for tape in tapes:
        tape.seen.update((name, layer) for layer in tape.layers)
    return any(tape.requests(name) for tape in tapes)


def site(name: str, x: Array) -> Array:
    """Mark a site, and return its activation with the edits of all captures applied.

    Args:
        name: The name of the site.
        x: The activation.

    Raises:
        UserError: if the site is read or edited, and a site with the same name was already marked in the same layer.
    """
    if not _TAPES.get() or not is_requested(name):
        return x
    name = _site_name(name)
    requesting = [tape for tape in _TAPES.get() if tape.requests(name)]
    for tape in requesting:
        if tape.trace != _trace_now():
            raise RuntimeError(
                f"site {name!r} is marked inside a JAX transform (such as scan), where captures cannot read it; wrap "
                "the transform's body with sites.with_layer_tapes"
            )
        _check_single(tape, name)
        for edit in tape.edits:
            if edit.site == name:
                new = edit.fn(x, _value_of(edit, tape)).astype(x.dtype)
                layer = tape.values[edit.layer] if isinstance(edit.layer, str) else edit.layer
                x = new if layer is None else jnp.where(tape.layer == layer, new, x)
    for tape in requesting:  # every capture reads the fully edited activation
        if name in tape.sites:
            tape.reads[name] = x
    return x


def _value_of(edit: Edit, tape: _Tape) -> Any:
    """Return the value with which an edit is applied to the layer of a tape."""
    value: Any = tape.values[edit.value] if edit.value else None
    if not edit.by_layer:
        return value
    first = max(start for start in value if start <= tape.layers[0])
    return jax.tree.map(lambda a: a[tape.layer - first], value[first])


def _check_single(tape: _Tape, name: str) -> None:
    """Raise `UserError` if a requested site was already marked, because one read would overwrite the other.

    Outside the layers, a site that is only edited may be marked several times, for example if a model is called twice.
    """
    if name not in tape.sites and tape.layer is None:
        return
    here = [f"{frame.filename}:{frame.lineno}" for frame in reversed(traceback.extract_stack(limit=MAX_FRAMES)[:-2])]
    before = tape.places.setdefault(name, here)
    if before is not here:
        first, second = next(((a, b) for a, b in zip(before, here, strict=False) if a != b), (before[0], here[0]))
        where = "" if tape.layer is None else f" in layer{'s' * (len(tape.layers) > 1)} {_listed(tape.layers)}"
        problem = f"site {name!r} is marked twice{where}: at {first} and at {second}"
        raise UserError(problem, remedy="Give each site a different name, or capture one call of the model.")


def _listed(layers: Iterable[Any]) -> str:
    return ", ".join(map(str, layers))


def with_layer_tapes(body: Callable[..., Any], layers: Sequence[int]) -> Callable[..., tuple[Any, Reads]]:
    """Wrap the body of a scan over `layers` so that it returns the captured reads.

    The result is a function `wrapped(layer, *args) -> (body(*args), reads)`.

    Wrap the body again for every scan, because jax caches traces by function identity, and a cached trace does not
    record reads for the current captures.
    """

    def wrapped(layer: Any, *args: Any) -> tuple[Any, Reads]:
        context = {"layer": layer, "layers": layers, "trace": _trace_now()}
        tapes = tuple(replace(tape, **context, reads={}, places={}) for tape in _TAPES.get())
        with _set(_TAPES, tapes):
            return body(*args), tuple(tape.reads for tape in tapes)

    return wrapped


def record_layers(reads: Reads, layers: Iterable[int] = ()) -> None:
    """Pass the activations that were read in a stack of layers to the enclosing captures.

    Reads of several stacks are concatenated along the layer axis. Reads whose shape differs between layers become
    `Ragged`.

    Args:
        reads: The reads of each capture, with arrays `(layers, ...)`.
        layers: The numbers of the stack's layers.

    Raises:
        UserError: if a site is read twice in the same layer, because the model is called twice.
    """
    for tape, by_name in zip(_TAPES.get(), reads, strict=True):
        for name, value in by_name.items():
            if twice := tape.read_in.setdefault(name, set()) & set(layers):
                problem = f"site {name!r} of layer {min(twice)} is read twice in one capture"
                raise UserError(problem, remedy="Capture one call of the model.")
            tape.read_in[name] |= set(layers)
            old = tape.reads.get(name)
            tape.reads[name] = value if old is None else _joined(old, value)


OUTSIDE = -1
"""The layer number of values that are recorded outside the layers."""


def record(name: str, compute: Callable[[Any], Array], *, once: bool = False) -> None:
    """Record `compute(argument)` for each current `collect_reads`. Values with one name in one layer are added.

    Args:
        name: The name of the value.
        compute: The function that computes the value.
        once: Whether a layer may record the name only once.

    Raises:
        UserError: if a layer records a value twice and `once` is set.
    """
    for tape in _TAPES.get():
        if tape.collects is None:
            continue
        if tape.trace != _trace_now():
            raise RuntimeError(f"{name!r} is recorded inside a JAX transform, such as scan; record it outside")
        value = compute(tape.collects)
        key, value = (f"{name}@", value[None]) if tape.layer is None else (name, value)
        if once and key in tape.reads:
            problem = f"{name!r} is recorded twice in one layer"
            raise UserError(problem, remedy="Use different names, or one module of this kind per layer.")
        tape.reads[key] = value + jnp.asarray(tape.reads[key]) if key in tape.reads else value


def collect_reads(fn: Callable[[], Any], argument: Any) -> tuple[Any, dict[str, dict[int, Array]]]:
    """Return `fn()` and the values that `record` computed in this call, by name and layer (`OUTSIDE` for no layer).

    Args:
        fn: The function to call.
        argument: The argument of the functions given to `record`; not None.
    """
    tape = _Tape(frozenset(), (), {}, set(), _trace_now(), {}, collects=argument)
    with _set(_TAPES, (tape, *_TAPES.get())):
        out = fn()
    by_layer: dict[str, dict[int, Array]] = {}
    for name, read in tape.reads.items():
        layers = sorted(tape.read_in[name]) if name in tape.read_in else [OUTSIDE]
        values = [value for part in parts_of(read) for value in part]
        by_layer.setdefault(name.removesuffix("@"), {}).update(zip(layers, values, strict=True))
    return out, by_layer


def capture(
    fn: Callable[..., Any],
    sites: Iterable[str] = (),
    edits: Iterable[Edit] = (),
    *,
    paths: Mapping[str, tuple[str, ...]] | None = None,
) -> Callable[..., Any]:
    """Return `g(*args, values={}, **options) -> (fn(*args, **options), {site: activation})`, to read and edit sites.

    Activations inside a stack have a leading layer axis. Write `jit(capture(f))` or `jit(vmap(capture(f)))`, never
    `capture(jit(f))`. Captures can be nested. The edits of inner captures are applied first, and all captures read the
    fully edited activation.

    Args:
        fn: The function whose sites are read.
        sites: The names of the sites to read.
        edits: The edits to apply.
        paths: For errors, the path of the setting that names a site, by site.

    Raises:
        UserError: if the model lacks one of the sites, if the layer of an edit does not contain the site, or if a layer
            marks one of the sites twice. The error is raised during tracing.
    """
    wanted_sites, all_edits = frozenset(sites), tuple(edits)
    asked = wanted_sites | {edit.site for edit in all_edits}

    def captured(*args: Any, values: Mapping[str, Any] | None = None, **options: Any) -> tuple[Any, dict[str, Read]]:
        tape = _Tape(wanted_sites, all_edits, values or {}, set(), _trace_now(), {})
        with _set(_TAPES, (tape, *_TAPES.get())):
            out = fn(*args, **options)
        _check(asked, all_edits, tape.seen, paths or {})
        return out, tape.reads

    return captured


def find_sites(fn: Callable[..., Any], *args: Any) -> dict[str, tuple[int, ...]]:
    """Trace `fn(*args)` and return its sites, each with its layer numbers (empty outside the layers)."""
    seen: set[tuple[str, int | None]] = set()

    def noted(*args: Any) -> Any:
        with _set(_TAPES, (_Tape(frozenset(), (), {}, seen, _trace_now(), {}),)):
            return fn(*args)

    jax.eval_shape(noted, *args)
    names = {name for name, _ in seen}
    return {
        name: tuple(sorted(layer for n, layer in seen if n == name and layer is not None)) for name in sorted(names)
    }


def _check(
    asked: frozenset[str],
    edits: Iterable[Edit],
    seen: set[tuple[str, int | None]],
    paths: Mapping[str, tuple[str, ...]],
) -> None:
    known = {name for name, _ in seen}
    if missing := sorted(asked - known):
        path = paths.get(missing[0], ())
        raise UserError(f"no site {missing[0]!r} in this model", path=path, remedy=suggest(missing[0], known))
    for edit in edits:
        if isinstance(edit.layer, int) and (edit.site, edit.layer) not in seen:
            layers = sorted(layer for name, layer in seen if name == edit.site and layer is not None)
            raise UserError(
                f"no site {edit.site!r} in layer {edit.layer}",
                remedy=f"Use one of the layers {_listed(layers)}." if layers else "Omit `layer`.",
            )

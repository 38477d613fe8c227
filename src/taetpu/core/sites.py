"""Sites: named points of the forward pass where activations are read or edited.

`site("mixer.z", x)` marks a point and costs nothing while nobody asks. Asking goes through `capture`, whose sites and
edits are fixed before tracing: a context manager round a function that is already jitted would silently see nothing.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from contextvars import ContextVar
from dataclasses import dataclass, replace
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


@dataclass
class _Tape:
    sites: frozenset[str]
    edits: tuple[Edit, ...]
    values: Mapping[str, Array]
    seen: set[tuple[str, int | None]]  # shared by all tapes of one capture: which sites the model really has, and where
    trace: Any  # the trace that the tape belongs to; a read from another one would leak a tracer
    reads: dict[str, Array]
    layer: Any = None  # the layer's number inside a stack (a tracer in a scan), else None
    layers: Sequence[int | None] = (None,)  # the numbers that it will take


_TAPE: ContextVar[_Tape | None] = ContextVar("tape", default=None)
_trace_now = partial(get_opaque_trace_state, convention="flax")


def wanted(name: str) -> bool:
    """Is the site read or edited in the capture that is being traced? For code that has a cheaper way when not.

    Asking says that the site is there.
    """
    tape = _TAPE.get()
    if tape is None:
        return False
    tape.seen.update((name, layer) for layer in tape.layers)
    return name in tape.sites or any(edit.site == name for edit in tape.edits)


def site(name: str, x: Array) -> Array:
    """Mark a point: returns `x`, edited if an edit asks for it."""
    tape = _TAPE.get()
    if tape is None or not wanted(name):
        return x
    if tape.trace != _trace_now():
        raise RuntimeError(f"site {name!r} is inside a transform that owns no tape: wrap its body with sites.owning")
    for edit in tape.edits:
        if edit.site == name:
            new = edit.fn(x, tape.values[edit.value] if edit.value else None).astype(x.dtype)
            x = new if edit.layer is None else jnp.where(tape.layer == edit.layer, new, x)
    if name in tape.sites:
        tape.reads[name] = x
    return x


def owning(body: Callable[..., Any], layers: Sequence[int]) -> Callable[..., tuple[Any, dict[str, Array]]]:
    """Give the body of a scan over `layers` a tape of its own: `wrapped(layer, *args) -> (body(*args), reads)`.

    Wrap anew at every call: jax caches traces by function identity, and a cached body would replay one without a tape.
    """

    def wrapped(layer: Any, *args: Any) -> tuple[Any, dict[str, Array]]:
        outer = _TAPE.get()
        if outer is None:
            return body(*args), {}
        tape = replace(outer, layer=layer, layers=layers, trace=_trace_now(), reads={})
        token = _TAPE.set(tape)
        try:
            return body(*args), tape.reads
        finally:
            _TAPE.reset(token)

    return wrapped


def note(reads: Mapping[str, Array]) -> None:
    """Hand a stack's reads, each `(layers, ...)`, to the enclosing tape; several stacks join along the layer axis."""
    tape = _TAPE.get()
    if tape is None:
        return
    for name, value in reads.items():
        old = tape.reads.get(name)
        tape.reads[name] = value if old is None else jnp.concatenate([old, value])


def capture(fn: Callable[..., Any], sites: Iterable[str] = (), edits: Iterable[Edit] = ()) -> Callable[..., Any]:
    """`g(*args, values={}) -> (fn(*args), {site: activation})`.

    Sites inside a stack come back with a leading layer axis. Write `jit(capture(f))` or `jit(vmap(capture(f)))`, never
    `capture(jit(f))`.

    Raises:
        UserError: the model has no such site, or not in the layer of an edit (raised while tracing).
    """
    wanted_sites, all_edits = frozenset(sites), tuple(edits)
    asked = wanted_sites | {edit.site for edit in all_edits}

    def captured(*args: Any, values: Mapping[str, Array] | None = None) -> tuple[Any, dict[str, Array]]:
        tape = _Tape(wanted_sites, all_edits, values or {}, set(), _trace_now(), {})
        token = _TAPE.set(tape)
        try:
            out = fn(*args)
        finally:
            _TAPE.reset(token)
        _check(asked, all_edits, tape.seen)
        return out, tape.reads

    return captured


def present(fn: Callable[..., Any], *args: Any) -> dict[str, tuple[int, ...]]:
    """The sites that `fn(*args)` passes, each with the layers it is in (none: outside them). Nothing is computed."""
    seen: set[tuple[str, int | None]] = set()

    def noted(*args: Any) -> Any:
        token = _TAPE.set(_Tape(frozenset(), (), {}, seen, _trace_now(), {}))
        try:
            return fn(*args)
        finally:
            _TAPE.reset(token)

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

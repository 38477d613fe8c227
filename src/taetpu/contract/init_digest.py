"""How each result of a traced function comes about, as a digest: the operations and the values behind it.

Two results of equal digest are computed alike, whatever else their functions compute. That is finer than the text of a
program, which is about all results at once, and sees what a jaxpr's text hides: the content of an array closed over.
"""

import hashlib
import re
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.extend.core import ClosedJaxpr, Jaxpr, Literal

ADDRESS = re.compile(r" at 0x[0-9a-f]+")


Known = dict[int, Any]
"""What does not depend on inputs, by the `id` of its part of the traced function: a deep model calls one part often."""


def digest_outputs(traced: ClosedJaxpr, inputs: Sequence[bytes], parts: Known | None = None) -> list[bytes]:
    """A digest for each result of a traced function, given one for each of its inputs."""
    parts = {} if parts is None else parts
    consts = _once(parts, traced, lambda: [digest_array(const) for const in traced.consts])
    return _results(traced.jaxpr, consts, inputs, parts)


def _once(parts: Known, of: Any, compute: Callable[[], Any]) -> Any:
    if id(of) not in parts:
        parts[id(of)] = compute()
    return parts[id(of)]


def digest_array(value: Any, dtype: Any = None) -> bytes:
    """The digest of an array by its content, also one of random keys."""
    if isinstance(value, jax.Array) and jnp.issubdtype(value.dtype, jax.dtypes.prng_key):
        value = jax.random.key_data(value)
    array = np.asarray(value, dtype)
    return _digest(array.dtype.str, array.shape, array.tobytes())


def _results(jaxpr: Jaxpr, consts: Sequence[bytes], inputs: Sequence[bytes], parts: Known) -> list[bytes]:
    known: dict[Any, bytes] = dict(zip([*jaxpr.constvars, *jaxpr.invars], [*consts, *inputs], strict=True))

    def of(atom: Any) -> bytes:
        if isinstance(atom, Literal):
            aval: Any = atom.aval
            return _once(parts, atom, lambda: digest_array(atom.val, aval.dtype))
        return known[atom]

    for eqn in jaxpr.eqns:
        operands = [of(atom) for atom in eqn.invars]
        if eqn.primitive.name == "jit":  # is what it does: neither its name nor where it was cut matters
            results = digest_outputs(eqn.params["jaxpr"], operands, parts)
        else:
            settings = _once(parts, eqn, lambda eqn=eqn: _settings(eqn.params, parts).encode())
            made = _digest(eqn.primitive.name, settings, *operands)
            results = [_digest(made, i) for i in range(len(eqn.outvars))]
        known |= zip(eqn.outvars, results, strict=True)
    return [of(atom) for atom in jaxpr.outvars]


def _settings(value: Any, parts: Known) -> str:
    """An operation's parameters as text: inner functions by their lineage, no addresses."""
    if isinstance(value, dict):
        return ";".join(f"{name}={_settings(setting, parts)}" for name, setting in sorted(value.items()))
    if isinstance(value, tuple | list):
        return f"({','.join(_settings(item, parts) for item in value)})"
    if isinstance(value, ClosedJaxpr):
        return ",".join(digest.hex() for digest in digest_outputs(value, _places(value.jaxpr), parts))
    if isinstance(value, Jaxpr):
        return ",".join(digest.hex() for digest in _results(value, [], _places(value), parts))
    if isinstance(value, np.ndarray | jax.Array):
        return digest_array(value).hex()
    if callable(value) and not isinstance(value, type):  # how to differentiate or batch it, not what it computes
        return ""
    return ADDRESS.sub("", repr(value))


def _places(jaxpr: Jaxpr) -> list[bytes]:
    return [_digest("input", i) for i in range(len(jaxpr.invars))]


def _digest(*parts: Any) -> bytes:
    told = hashlib.sha256()
    for part in parts:
        data = part if isinstance(part, bytes) else str(part).encode()
        told.update(len(data).to_bytes(8, "little") + data)
    return told.digest()

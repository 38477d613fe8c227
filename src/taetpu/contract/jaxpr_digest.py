"""Digests of the results of a traced function. Each digest covers the operations and values that the result depends on.

Results with equal digests are computed identically, even if their functions differ in other results. A hash of the
program text would not work, because the text covers all results together. A hash of the jaxpr's text would not work
either, because that text omits the content of closed-over arrays.
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

Cache = dict[int, Any]
"""Digests and texts of a jaxpr's constants and operation parameters, by `id`. They do not depend on the inputs.

The cache saves time because a deep model calls the same inner functions many times.
"""


def digest_outputs(traced: ClosedJaxpr, inputs: Sequence[bytes], cache: Cache | None = None) -> list[bytes]:
    """Return a digest for each result of a traced function.

    Args:
        traced: The traced function.
        inputs: The digest of each input.
        cache: The cache of an enclosing call; None for a new cache.
    """
    cache = {} if cache is None else cache
    consts = _cached(cache, traced, lambda: [digest_array(const) for const in traced.consts])
    return _digest_results(traced.jaxpr, consts, inputs, cache)


def _cached(cache: Cache, part: Any, compute: Callable[[], Any]) -> Any:
    if id(part) not in cache:
        cache[id(part)] = compute()
    return cache[id(part)]


def digest_array(value: Any, dtype: Any = None) -> bytes:
    """Return the digest of an array's dtype, shape and content. For a random key, the digest covers its key data."""
    if isinstance(value, jax.Array) and jnp.issubdtype(value.dtype, jax.dtypes.prng_key):
        value = jax.random.key_data(value)
    array = np.asarray(value, dtype)
    return _digest(array.dtype.str, array.shape, array.tobytes())


def _digest_results(jaxpr: Jaxpr, consts: Sequence[bytes], inputs: Sequence[bytes], cache: Cache) -> list[bytes]:
    known: dict[Any, bytes] = dict(zip([*jaxpr.constvars, *jaxpr.invars], [*consts, *inputs], strict=True))

    def digest(atom: Any) -> bytes:
        if isinstance(atom, Literal):
            aval: Any = atom.aval
            return _cached(cache, atom, lambda: digest_array(atom.val, aval.dtype))
        return known[atom]

    for eqn in jaxpr.eqns:
        operands = [digest(atom) for atom in eqn.invars]
        if eqn.primitive.name == "jit":  # inlined, so that neither the function's name nor its boundary affects digests
            results = digest_outputs(eqn.params["jaxpr"], operands, cache)
        else:
            settings = _cached(cache, eqn, lambda eqn=eqn: _format_params(eqn.params, cache).encode())
            made = _digest(eqn.primitive.name, settings, *operands)
            results = [_digest(made, i) for i in range(len(eqn.outvars))]
        known |= zip(eqn.outvars, results, strict=True)
    return [digest(atom) for atom in jaxpr.outvars]


def _format_params(value: Any, cache: Cache) -> str:
    """Return an operation's parameters as text, without addresses. Inner functions are represented by their digests."""
    if isinstance(value, dict):
        return ";".join(f"{name}={_format_params(setting, cache)}" for name, setting in sorted(value.items()))
    if isinstance(value, tuple | list):
        return f"({','.join(_format_params(item, cache) for item in value)})"
    if isinstance(value, ClosedJaxpr):
        return ",".join(digest.hex() for digest in digest_outputs(value, _input_digests(value.jaxpr), cache))
    if isinstance(value, Jaxpr):
        return ",".join(digest.hex() for digest in _digest_results(value, [], _input_digests(value), cache))
    if isinstance(value, np.ndarray | jax.Array):
        return digest_array(value).hex()
    if callable(value) and not isinstance(value, type):  # a rule for differentiation or batching, which is ignored
        return ""
    return ADDRESS.sub("", repr(value))


def _input_digests(jaxpr: Jaxpr) -> list[bytes]:
    return [_digest("input", i) for i in range(len(jaxpr.invars))]


def _digest(*parts: Any) -> bytes:
    hasher = hashlib.sha256()
    for part in parts:
        data = part if isinstance(part, bytes) else str(part).encode()
        hasher.update(len(data).to_bytes(8, "little") + data)
    return hasher.digest()

"""Random keys by name. The key of a parameter depends only on its logical path, not on the rest of the model.

Two arms with the same seed therefore share the data order and all initial parameters that their difference does not
affect.
"""

import zlib

import jax
from jaxtyping import Array, Int

Key = jax.Array


def root_key(seed: int | Int[Array, ""]) -> Key:
    """Return the key of a run. The generator is fixed, so that a change to jax's default has no effect."""
    return jax.random.key(seed, impl="threefry2x32")


def named(key: Key, *path: str | int | Int[Array, ""]) -> Key:
    """Return the key at `path` below `key`. Names are folded in as their CRC-32, and numbers unchanged."""
    for part in path:
        key = jax.random.fold_in(key, zlib.crc32(part.encode()) if isinstance(part, str) else part)
    return key

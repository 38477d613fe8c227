"""Randomness by name: the key of a parameter depends on its logical path, never on what else the model holds.

So two arms of one seed share every parameter that the change between them leaves alone, and the data order too.
"""

import zlib

import jax
from jaxtyping import Array, Int

Key = jax.Array


def root_key(seed: int | Int[Array, ""]) -> Key:
    """The key of a run. The generator is named, so that jax's default may change under us."""
    return jax.random.key(seed, impl="threefry2x32")


def named(key: Key, *path: str | int | Int[Array, ""]) -> Key:
    """The key at `path` below `key`. Names are hashed by crc32 (the same in every process), numbers folded in as is."""
    for part in path:
        key = jax.random.fold_in(key, zlib.crc32(part.encode()) if isinstance(part, str) else part)
    return key

"""Sharded arrays as safetensors files, one file per process.

A shard is stored under `<array>@<start>,<start>`, with the start index of the shard along each axis. Arrays can
therefore be read with any other sharding. They are read one at a time, and each process only holds the regions that are
on its devices.
"""

import os
import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any, TypeAlias

import jax
import jax.numpy as jnp
import numpy as np
from safetensors import SafetensorError, safe_open
from safetensors.numpy import save_file

from taetpu.store.digests import Damaged

ArrayLike: TypeAlias = jax.Array | jax.ShapeDtypeStruct
"""An array, or the shape, dtype and sharding of an array."""
StoredShard: TypeAlias = tuple[Any, list[int]]
"""An array in a safetensors file, which is read when indexed, and the start index of the array along each axis."""


def local_bytes(arrays: Mapping[str, jax.Array]) -> int:
    """Return the number of bytes that `write_shards` writes in this process."""
    return sum(shard.data.nbytes for _, shard in _own_shards(arrays))


def write_shards(file: Path, arrays: Mapping[str, jax.Array]) -> None:
    """Write the shards on this process's devices. Of a replicated shard, only the first replica is written.

    Raises:
        OSError: if the file cannot be written.
    """
    data = {}
    for name, shard in _own_shards(arrays):
        starts = (str(axis.start or 0) for axis in shard.index)
        data[f"{name}@{','.join(starts)}"] = np.asarray(shard.data)
    try:
        save_file(data, file)
    except SafetensorError as error:
        code = re.search(r"os error (\d+)", str(error))
        if code is None:
            raise
        raise OSError(int(code[1]), os.strerror(int(code[1]))) from error
    with open(file, "rb") as written:
        os.fsync(written.fileno())


def read_shards(files: Sequence[Path], like: Mapping[str, ArrayLike]) -> dict[str, jax.Array]:
    """Return arrays from the files that all processes wrote. Each process reads the regions on its devices.

    Args:
        files: the files of all processes.
        like: the shapes, dtypes and shardings of the arrays, by name.

    Raises:
        Damaged: if a file cannot be read as safetensors. The error names the folder of the checkpoint.
    """
    with ExitStack() as stack:
        shards: dict[str, list[StoredShard]] = {name: [] for name in like}
        try:
            for file in files:
                stored = stack.enter_context(safe_open(file, framework="np"))
                for key in stored.keys():  # noqa: SIM118 (not a mapping)
                    name, _, starts = key.rpartition("@")
                    shards[name].append((stored.get_slice(key), [int(start) for start in starts.split(",") if start]))
            return {name: _read_array(shards[name], leaf) for name, leaf in like.items()}
        except (SafetensorError, OSError, KeyError, ValueError) as error:
            raise Damaged(f"this part of a checkpoint cannot be read: {error}", file=files[0].parents[1]) from None


def _own_shards(arrays: Mapping[str, jax.Array]) -> Iterator[tuple[str, Any]]:
    """Yield the name and the shard for each shard that this process writes. Random keys are written as integers."""
    for name, array in arrays.items():
        for shard in (jax.random.key_data(array) if _is_key(array) else array).addressable_shards:
            if shard.replica_id == 0:
                yield name, shard


def _is_key(leaf: ArrayLike) -> bool:
    return jnp.issubdtype(leaf.dtype, jax.dtypes.prng_key)


def _read_array(shards: Sequence[StoredShard], like: ArrayLike) -> jax.Array:
    """Return an array with the shape, dtype and sharding of `like`."""
    if isinstance(like, jax.Array) and _is_key(like):
        data = _read_array(shards, jax.random.key_data(like))
        return jax.random.wrap_key_data(data, impl=jax.random.key_impl(like))
    return jax.make_array_from_callback(
        like.shape, like.sharding, lambda index: _read_region(shards, index or (), like)
    )


def _read_region(shards: Sequence[StoredShard], index: tuple[slice, ...], like: ArrayLike) -> np.ndarray:
    """Return the part of an array at `index`, copied from the stored shards that overlap this part."""
    first, last = (
        np.array([axis.indices(size)[:2] for axis, size in zip(index, like.shape, strict=True)]).reshape(-1, 2).T
    )
    region = np.empty(last - first, like.dtype)
    for shard, starts in shards:
        low, high = np.maximum(starts, first), np.minimum(np.add(starts, shard.get_shape()), last)
        if (low < high).all():
            region[_slices(low - first, high - first)] = shard[_slices(low - starts, high - starts)]
    return region


def _slices(begin: np.ndarray, end: np.ndarray) -> Any:
    """Return the index of a region; `...` for a scalar."""
    return tuple(slice(int(a), int(b)) for a, b in zip(begin, end, strict=True)) or ...

"""Sharded arrays as safetensors files, one file per process.

A shard is stored under `<array>@<start>,<start>`, with the start index of the shard along each axis. Arrays can
therefore be read with any other sharding. They are read one at a time, and each process only holds the regions that are
on its devices.
"""

import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any, Protocol

import jax
import numpy as np
from safetensors import SafetensorError, safe_open
from safetensors.numpy import save_file

from taetpu.store.digests import Damaged

Bounds = tuple[tuple[int, int], ...]
"""The start and stop index of a region along each axis."""


class ArrayLike(Protocol):
    """An array, or the shape, dtype and sharding of an array."""

    @property
    def shape(self) -> tuple[int, ...]:
        """The size of each axis."""
        ...

    @property
    def dtype(self) -> np.dtype:
        """The dtype."""
        ...

    @property
    def sharding(self) -> jax.sharding.Sharding:
        """The sharding."""
        ...


class StoredShard(Protocol):
    """An array in a safetensors file, which is read when it is indexed."""

    def get_shape(self) -> list[int]:
        """Return the size of each axis."""
        ...

    def __getitem__(self, index: Any, /) -> np.ndarray: ...


Regions = dict[Bounds, np.ndarray]
"""Buffers for the regions of one array."""


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
        starts = (start for start, _ in _bounds(shard.index, arrays[name].shape))
        data[f"{name}@{','.join(map(str, starts))}"] = np.asarray(shard.data)
    save_file(data, file)
    descriptor = os.open(file, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def read_shards(files: Sequence[Path], like: Mapping[str, ArrayLike]) -> dict[str, jax.Array]:
    """Return arrays from the files that all processes wrote. Each process reads the regions on its devices.

    Args:
        files: the files of all processes.
        like: the shapes, dtypes and shardings of the arrays, by name.

    Raises:
        Damaged: if a file cannot be read as safetensors. The error names the folder of the checkpoint.
    """
    with ExitStack() as stack:
        shards: dict[str, list[tuple[StoredShard, list[int]]]] = {name: [] for name in like}
        try:
            for file in files:
                stored = stack.enter_context(safe_open(file, framework="np"))
                for key in stored.keys():  # noqa: SIM118 (not a mapping)
                    name, _, starts = key.rpartition("@")
                    shards[name].append((stored.get_slice(key), [int(start) for start in starts.split(",") if start]))
            return {name: place(leaf, _read_regions(shards[name], leaf)) for name, leaf in like.items()}
        except (SafetensorError, OSError, KeyError, ValueError) as error:
            raise Damaged(f"this part of a checkpoint cannot be read: {error}", file=files[0].parents[1]) from None


def place(like: ArrayLike, regions: Regions) -> jax.Array:
    """Return an array with the shape and sharding of `like`, built from the regions on this process's devices."""
    return jax.make_array_from_callback(like.shape, like.sharding, lambda index: regions[_bounds(index, like.shape)])


def regions_of(array: np.ndarray, like: ArrayLike) -> Regions:
    """Return the regions of a whole array that are on this process's devices."""
    return {bounds: array[tuple(slice(*pair) for pair in bounds)] for bounds in _local_regions(like)}


def _own_shards(arrays: Mapping[str, jax.Array]) -> Iterator[tuple[str, Any]]:
    for name, array in arrays.items():
        for shard in array.addressable_shards:
            if shard.replica_id == 0:
                yield name, shard


def _bounds(index: Any, shape: tuple[int, ...]) -> Bounds:
    """Return the start and stop of each slice in an index. The slices may have open ends."""
    return tuple(axis.indices(size)[:2] for axis, size in zip(index, shape, strict=True))


def _local_regions(like: ArrayLike) -> Regions:
    """Return empty buffers for the regions of an array on this process's devices."""
    indices = like.sharding.addressable_devices_indices_map(like.shape).values()
    return {
        bounds: np.empty([stop - start for start, stop in bounds], like.dtype)
        for bounds in {_bounds(index, like.shape) for index in indices}
    }


def _read_regions(shards: Sequence[tuple[StoredShard, list[int]]], like: ArrayLike) -> Regions:
    regions = _local_regions(like)
    for shard, starts in shards:
        _copy_overlaps(regions, shard, starts)
    return regions


def _copy_overlaps(regions: Regions, shard: StoredShard, starts: Sequence[int]) -> None:
    """Copy the overlap between each region and a stored shard, which begins at `starts`."""
    ends = np.add(starts, shard.get_shape()).astype(int)
    for bounds, buffer in regions.items():
        if not bounds:
            buffer[...] = shard[...]
            continue
        origin = [start for start, _ in bounds]
        low, high = np.maximum(starts, origin), np.minimum(ends, [stop for _, stop in bounds])
        if (low < high).all():
            found = tuple(slice(int(a), int(b)) for a, b in np.transpose([low - starts, high - starts]))
            buffer[tuple(map(slice, low - origin, high - origin))] = shard[found]

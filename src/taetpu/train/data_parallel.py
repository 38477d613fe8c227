"""How the work on one run's batch is divided over devices: not at all, by hand, or by XLA's partitioner.

A step is written once; it asks its division which part of a batch it works on, and what to do with sums over one.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Protocol

import jax
from jax.flatten_util import ravel_pytree
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from taetpu.core.sites import Edit, capture
from taetpu.data.batches import Batch
from taetpu.train.sharding import DATA, shardings

Forward = Callable[..., Any]


class Division(Protocol):
    """What a step asks."""

    def own(self, batch: Batch) -> Batch:
        """The part of a batch, or of a microbatch, that this device works on."""
        ...

    def forward(self, compute: Forward) -> Forward:
        """What calls the model on such a part."""
        ...

    def total(self, tree: Any) -> Any:
        """Sums over a batch, of what each device has summed over its part; gradients are among them."""
        ...

    def joined(self, tree: Any) -> Any:
        """What was found for each sequence, `(batches, batch)`, of what each device found for its part."""
        ...


class Whole:
    """One device has all of a run."""

    def own(self, batch: Batch) -> Batch:
        return batch

    def forward(self, compute: Forward) -> Forward:
        return compute

    def total(self, tree: Any) -> Any:
        return tree

    def joined(self, tree: Any) -> Any:
        return tree


@dataclass(frozen=True)
class ByHand(Whole):
    """Devices of the mesh axis `DATA` each take a part of the batch and have all else: fast for small models.

    To be called under a `shard_map` that is manual over this axis.
    """

    devices: int

    def own(self, batch: Batch) -> Batch:
        size = len(batch.tokens) // self.devices
        start = jax.lax.axis_index(DATA) * size
        return jax.tree.map(lambda a: jax.lax.dynamic_slice_in_dim(a, start, size), batch)

    def total(self, tree: Any) -> Any:
        """One collective for all: one for each array took twice as long on a CPU."""
        flat, back = ravel_pytree(tree)
        return back(jax.lax.psum(flat, DATA))

    def joined(self, tree: Any) -> Any:
        return jax.lax.all_gather(tree, DATA, axis=1, tiled=True)


@dataclass(frozen=True)
class Partitioned(Whole):
    """XLA divides everything, parameters too, as `train.sharding` says where arrays lie.

    What a step computes is written as if one device had it all. The batch, and the stream of every layer, are pinned to
    `DATA`: left to itself XLA might follow the parameters instead, and add up parts of every product.
    """

    mesh: Mesh

    def own(self, batch: Batch) -> Batch:
        return jax.tree.map(self.by_sequence, batch)

    def forward(self, compute: Forward) -> Forward:
        def pinned(*args: Any, **options: Any) -> Any:
            edits = [Edit(site, lambda x, _: self.by_sequence(x)) for site in ("embed", "residual")]
            return capture(lambda: compute(*args, **options), edits=edits)()[0]

        return pinned

    def total(self, tree: Any) -> Any:
        return jax.lax.with_sharding_constraint(tree, shardings(tree, self.mesh))

    def by_sequence(self, x: jax.Array) -> jax.Array:
        """An array whose first axis counts sequences, divided along it."""
        return jax.lax.with_sharding_constraint(x, NamedSharding(self.mesh, PartitionSpec(DATA)))


WHOLE = Whole()

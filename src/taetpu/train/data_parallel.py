"""How devices share the batch of one run: not at all, under `shard_map`, or by XLA's partitioner.

The training step is written once; it asks its division for its part of a batch and for sums over the whole batch.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import jax
from jax.flatten_util import ravel_pytree
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from taetpu.data.batches import Batch
from taetpu.nn.lm import LM
from taetpu.train.sharding import DATA, shardings

Forward = Callable[..., Any]


class Whole:
    """A run on one device; also the interface of the other divisions."""

    def own(self, batch: Batch) -> Batch:
        """Return the part of a batch, or of a microbatch, that this device works on."""
        return batch

    def forward(self, compute: Forward) -> Forward:
        """Wrap a function whose first argument is the model and that works on such a part."""
        return compute

    def total(self, tree: Any) -> Any:
        """Sum over the batch what each device summed over its part; gradients are among it."""
        return tree

    def joined(self, tree: Any) -> Any:
        """Gather what each device computed for its sequences, `(batches, batch)`."""
        return tree


@dataclass(frozen=True)
class Manual(Whole):
    """Devices of the mesh axis `DATA` that each take a part of the batch and replicate the rest: fast for small models.

    Its methods are called under a `shard_map` that is manual over this axis.
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
    """Devices among which XLA divides a run, parameters too, by the shardings of `train.sharding`.

    The step is written as if one device held the run. The batch and the residual stream are constrained to `DATA`:
    otherwise XLA might follow the parameters' shardings and all-reduce parts of every product.
    """

    mesh: Mesh

    def own(self, batch: Batch) -> Batch:
        return jax.tree.map(self.by_sequence, batch)

    def forward(self, compute: Forward) -> Forward:
        def constrained(model: LM, *args: Any, **options: Any) -> Any:
            stacks = tuple(replace(stack, sharding=self.sequences) for stack in model.stacks)
            return compute(replace(model, stacks=stacks), *args, **options)

        return constrained

    def total(self, tree: Any) -> Any:
        return jax.lax.with_sharding_constraint(tree, shardings(tree, self.mesh))

    def by_sequence(self, x: jax.Array) -> jax.Array:
        """An array whose first axis counts sequences, divided along it."""
        return jax.lax.with_sharding_constraint(x, self.sequences)

    @property
    def sequences(self) -> NamedSharding:
        """The sharding of arrays whose first axis counts sequences."""
        return NamedSharding(self.mesh, PartitionSpec(DATA))


WHOLE = Whole()

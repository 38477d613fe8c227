"""How one run is divided over devices: shardings by parameter path, and the division of batches.

The mesh has three axes. Whole runs are distributed over `run`. The batch of one run is divided over `data`. The
parameters and moments of the run are also divided over `data`, and gathered layer by layer (FSDP; Rajbhandari et al.
2020, stage 3). Matrices are divided over `model`: of two successive matrix products, the first matrix is divided by
columns and the second by rows (Shoeybi et al. 2019). Sequences are not divided.

A `Division` is a sharding strategy. It provides the local part of a batch, and sums over the whole batch. All
strategies share one implementation of the training step.
"""

import re
from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from math import prod
from typing import TypeAlias

import jax
from jax.flatten_util import ravel_pytree
from jax.sharding import Mesh, NamedSharding, PartitionSpec
from jaxtyping import Array, PyTree

from taetpu.core.batch_statistics import Averages
from taetpu.core.errors import UserError
from taetpu.core.model_interface import Interface
from taetpu.core.tree import leaves_by_path
from taetpu.data.base import Batch
from taetpu.nn.lm import LM
from taetpu.spec.study_config import ResolvedConfig
from taetpu.train.model_cost import kept_shapes, parameter_shapes

RUN, DATA, MODEL = "run", "data", "model"
STACK = re.compile(r"(^|\.)stacks\.\d+\.")  # path of stacked layers, whose arrays have a leading layer axis

# The mesh axes that an array's axes are divided over, by the end of the array's path. The path of a moment ends like
# the path of its parameter. Vectors are replicated: they are small, and each divided array costs a collective.
RULES = (
    (r"mixer\.w[qkv]", (DATA, MODEL)),
    (r"mixer\.wo", (MODEL, DATA)),
    (r"ffn\.(gate|up)", (DATA, MODEL)),
    (r"ffn\.down", (MODEL, DATA)),
    (r"embedding\.weight", (MODEL, DATA)),
    (r"embedding\.unembed", (DATA, MODEL)),
)

Axes = tuple[str | None, ...]


def mesh_axes(path: str, shape: tuple[int, ...], sizes: Mapping[str, int]) -> Axes:
    """Return the mesh axis that each axis of a run's array is divided over; None for axes that are not divided.

    A mesh axis from the rules is only used if its size divides the array's axis. If a matrix has no rule, or is not
    divided over `data` by its rule, it is divided over `data` along its largest divisible axis.

    Args:
        path: the path of the array in a model, or in a tree with the structure of a model.
        shape: the shape of the array.
        sizes: the sizes of the mesh axes `data` and `model`.
    """
    layers = 1 if STACK.search(path) else 0
    shape_of_layer = shape[layers:]
    if len(shape_of_layer) < 2:
        return (None,) * len(shape)
    rule = next((to for end, to in RULES if re.search(rf"(^|\.)({end})$", path) and len(to) == len(shape_of_layer)), ())
    wanted = rule or (None,) * len(shape_of_layer)
    axes = [to if to and divides(sizes[to], size) else None for to, size in zip(wanted, shape_of_layer, strict=True)]
    if DATA not in axes:
        free = [i for i, to in enumerate(axes) if to is None and divides(sizes[DATA], shape_of_layer[i])]
        if free:
            axes[max(free, key=lambda i: shape_of_layer[i])] = DATA
    return (None,) * layers + tuple(axes)


def divides(count: int, size: int) -> bool:
    """Return whether an axis of `size` elements can be divided over `count` devices."""
    return size > 0 and size % count == 0


def tree_shardings(tree: PyTree, mesh: Mesh, *lead: str) -> PyTree:
    """Return the shardings of a tree with the structure of a model.

    Args:
        tree: the tree.
        mesh: the mesh.
        lead: the mesh axes over which the leading axes of every array are divided.
    """

    def placed(path: tuple[Hashable, ...], leaf: jax.Array) -> NamedSharding:
        name = jax.tree_util.keystr(path, simple=True, separator=".")
        return NamedSharding(mesh, PartitionSpec(*lead, *mesh_axes(name, leaf.shape[len(lead) :], mesh.shape)))

    return jax.tree_util.tree_map_with_path(placed, tree)


def device_bytes(config: ResolvedConfig, interface: Interface | int, seq_len: int, data: int, model: int) -> int:
    """Return the bytes per device that a run keeps between steps; see `kept_shapes`."""
    sizes, total = {DATA: data, MODEL: model}, 0
    for path, leaf in leaves_by_path(kept_shapes(config, interface, seq_len)).items():
        parts = prod(sizes[name] for name in mesh_axes(path, leaf.shape, sizes) if name)
        total += leaf.size * leaf.dtype.itemsize // parts
    return total


def check_mesh(config: ResolvedConfig, interface: Interface | int, data: int, model: int) -> None:
    """Raise `UserError` unless a run can be divided over a mesh with the given sizes.

    `data` must divide the size of a microbatch, and `model` must divide the numbers of heads and the hidden sizes.
    Sequences are not divided. A vocabulary that is not divisible is replicated.
    """
    train = config.train
    part = train.batch_size // train.accumulate
    if part % data:
        problem = f"data={data} does not divide a microbatch of {part} sequences"
        remedy = f"Change batch_size, or use data={_divisors([part])}."
        raise UserError(problem, path=("train", "batch_size"), remedy=remedy)
    if (group := config.task.eval_group) is not None and group % data:
        problem = f"data={data} does not divide the {group} sequences that are evaluated together"
        raise UserError(problem, path=("task",), remedy=f"Use data={_divisors([part, group])}.")
    sizes = list(_inner_sizes(config, interface)) if model > 1 else []
    for path, size in sizes:
        if size % model:
            remedy = f"Use model={_divisors([size for _, size in sizes])}, which divides every layer."
            raise UserError(f"{path[-1]}={size} is not divisible by model={model}", path=path, remedy=remedy)


def _inner_sizes(config: ResolvedConfig, interface: Interface | int) -> Iterator[tuple[tuple[str | int, ...], int]]:
    """Yield the path and value of each size that `model` must divide: numbers of heads and hidden sizes."""
    arrays = leaves_by_path(parameter_shapes(config.model, interface, config.task.seq_len))
    hidden = [leaf.shape[-1] for path, leaf in arrays.items() if path.endswith("ffn.up") for _ in range(leaf.shape[0])]
    with_ffn = [i for i, layer in enumerate(config.model.layers) if hasattr(layer.ffn, "hidden")]
    for i, layer in enumerate(config.model.layers):
        if heads := layer.typed_mixer.heads(config.model.dims(interface, config.task.seq_len)):
            yield ("model", "layers", i, "mixer", "num_heads"), heads.num_heads
    for i, size in zip(with_ffn, hidden, strict=False):
        yield ("model", "layers", i, "ffn", "hidden"), size


def _divisors(sizes: Sequence[int]) -> str:
    return ", ".join(str(n) for n in range(1, min(sizes) + 1) if all(size % n == 0 for size in sizes))


def possible_divisions(config: ResolvedConfig, interface: Interface | int, devices: int) -> Iterator[tuple[int, int]]:
    """Yield the meshes `(data, model)` over which a run can be divided: fewest devices first, then smallest `model`.

    The number of devices of each mesh, `data * model`, divides `devices`.
    """
    for share in (n for n in range(1, devices + 1) if devices % n == 0):
        for model in (n for n in range(1, share + 1) if share % n == 0):
            try:
                check_mesh(config, interface, share // model, model)
            except UserError:
                continue
            yield share // model, model


Forward: TypeAlias = Callable[..., PyTree]


class Division:
    """The strategy for a run that is not divided, and the base class of the other sharding strategies."""

    def local_batch(self, batch: Batch) -> Batch:
        """Return this device's part of a batch or microbatch."""
        return batch

    def wrap(self, compute: Forward) -> Forward:
        """Return a function of the model and a local batch, adapted to this strategy."""
        return compute

    def sum(self, tree: PyTree) -> PyTree:
        """Return sums over the batch, such as gradients, given each device's sums over its local batch."""
        return tree

    def gather(self, tree: PyTree) -> PyTree:
        """Return arrays `(batches, batch)` of all sequences, given each device's part."""
        return tree

    def gather_sequences(self, values: Array) -> tuple[Array, Array | int]:
        """Return values `(sequences, ...)` of the whole batch, and the place of this device's first sequence in it."""
        return values, 0

    def averages(self, microbatches: int) -> Averages:
        """Return how means over one device's part of a microbatch become means over the batch."""
        return Averages(microbatches)


@dataclass(frozen=True)
class ManualDivision(Division):
    """A sharding strategy for small models: the batch is divided over `DATA`, and the parameters are replicated.

    The methods are called under `shard_map`.
    """

    devices: int

    def local_batch(self, batch: Batch) -> Batch:
        """Return the slice of the batch that holds this device's sequences."""
        size = len(batch.tokens) // self.devices
        start = jax.lax.axis_index(DATA) * size
        return jax.tree.map(lambda a: jax.lax.dynamic_slice_in_dim(a, start, size), batch)

    def sum(self, tree: PyTree) -> PyTree:
        """Sum all arrays in one collective. One collective per array takes twice as long on a CPU."""
        flat, back = ravel_pytree(tree)
        return back(jax.lax.psum(flat, DATA))

    def gather(self, tree: PyTree) -> PyTree:
        """Gather the sequences of all devices over `DATA`."""
        return jax.lax.all_gather(tree, DATA, axis=1, tiled=True)

    def gather_sequences(self, values: Array) -> tuple[Array, Array | int]:
        """See `Division.gather_sequences`. Gradients flow back to the device of each sequence."""
        return jax.lax.all_gather(values, DATA, tiled=True), jax.lax.axis_index(DATA) * len(values)

    def averages(self, microbatches: int) -> Averages:
        """Return how means over one device's part of a microbatch become means over the batch."""
        return Averages(microbatches, self.devices, lambda partial_sums: jax.lax.psum(partial_sums, DATA))


@dataclass(frozen=True)
class PartitionedDivision(Division):
    """A sharding strategy in which XLA partitions a run and its parameters according to `tree_shardings`.

    The batch and the residual stream are constrained to be divided over `DATA`. Otherwise XLA might follow the
    shardings of the parameters and all-reduce partial results of every matrix product.
    """

    mesh: Mesh

    def local_batch(self, batch: Batch) -> Batch:
        """Return the whole batch, sharded by sequence."""
        return jax.lax.with_sharding_constraint(batch, self.sequences)

    def wrap(self, compute: Forward) -> Forward:
        """Return the function with its residual stream constrained to the sharding by sequence."""

        def constrained(model: LM, *args: PyTree, **options: PyTree) -> PyTree:
            stacks = tuple(replace(stack, sharding=self.sequences) for stack in model.stacks)
            return compute(replace(model, stacks=stacks), *args, **options)

        return constrained

    def sum(self, tree: PyTree) -> PyTree:
        """Return the sums, sharded like the parameters. XLA has already summed over devices."""
        return jax.lax.with_sharding_constraint(tree, tree_shardings(tree, self.mesh))

    @property
    def sequences(self) -> NamedSharding:
        """The sharding of arrays with a leading sequence axis."""
        return NamedSharding(self.mesh, PartitionSpec(DATA))


WHOLE = Division()

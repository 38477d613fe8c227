"""Where the arrays of a run lie that is divided over devices, parameters and all: rules by parameter path.

The mesh has three axes. Over `run` whole runs are spread. Over `data` one run's batch is divided, and with it its
parameters and moments, which each device fetches layer by layer as it needs them (FSDP; Rajbhandari et al. 2020, stage
3). Over `model` its matrices are divided so that the products of one layer are computed in parts, the first of two by
columns and the second by rows (Shoeybi et al. 2019). A sequence stays whole on its devices.
"""

import re
from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from math import prod
from typing import NamedTuple, TypeAlias

import jax
from jax.flatten_util import ravel_pytree
from jax.sharding import Mesh, NamedSharding, PartitionSpec
from jaxtyping import PyTree

from taetpu.core.errors import UserError
from taetpu.core.tree import leaves_by_path
from taetpu.data.batches import Batch
from taetpu.nn.lm import LM, LMConfig
from taetpu.spec.schema import ResolvedConfig
from taetpu.train.model_cost import parameter_shapes

RUN, DATA, MODEL = "run", "data", "model"
STACK = re.compile(r"(^|\.)stacks\.\d+\.")  # arrays of stacked layers, whose first axis counts layers

# The axes of the mesh over which those of an array are divided, by the end of its path. Moments are named like the
# parameters that they belong to. Vectors stay whole: they weigh nothing, and dividing them costs a message each.
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
    """Over which axis of the mesh each axis of one run's array is divided; None where it is not.

    A rule's axis that does not divide a size is left out. What is then not divided over `data`, and every matrix
    without a rule, is so over the largest of its axes that can be.

    Args:
        path: the array's, in a model or in what is shaped like one.
        sizes: those of `data` and `model`.
    """
    layers = 1 if STACK.search(path) else 0
    own = shape[layers:]
    if len(own) < 2:
        return (None,) * len(shape)
    rule = next((to for end, to in RULES if re.search(rf"(^|\.)({end})$", path) and len(to) == len(own)), ())
    wanted = rule or (None,) * len(own)
    found = [to if to and divides(sizes[to], size) else None for to, size in zip(wanted, own, strict=True)]
    if DATA not in found:
        free = [i for i, to in enumerate(found) if to is None and divides(sizes[DATA], own[i])]
        if free:
            found[max(free, key=lambda i: own[i])] = DATA
    return (None,) * layers + tuple(found)


def divides(count: int, size: int) -> bool:
    """Can an axis of so many numbers be divided over so many devices?"""
    return size > 0 and size % count == 0


def tree_shardings(tree: PyTree, mesh: Mesh, *lead: str) -> PyTree:
    """Where each array of a tree like a model lies on a mesh; its axes follow those that `lead` names."""

    def placed(path: tuple[Hashable, ...], leaf: jax.Array) -> NamedSharding:
        name = jax.tree_util.keystr(path, simple=True, separator=".")
        return NamedSharding(mesh, PartitionSpec(*lead, *mesh_axes(name, leaf.shape[len(lead) :], mesh.shape)))

    return jax.tree_util.tree_map_with_path(placed, tree)


class Placement(NamedTuple):
    """Where one array of the parameters lies, and the bytes of it that a device holds."""

    path: str
    shape: tuple[int, ...]
    mesh_axes: Axes
    bytes: int


def parameter_placements(config: LMConfig, vocab_size: int, seq_len: int, data: int, model: int) -> Iterator[Placement]:
    """Every trained array of a model on a mesh of these sizes."""
    sizes = {DATA: data, MODEL: model}
    for path, leaf in leaves_by_path(parameter_shapes(config, vocab_size, seq_len)).items():
        to = mesh_axes(path, leaf.shape, sizes)
        parts = prod(sizes[name] for name in to if name)
        yield Placement(path, leaf.shape, to, leaf.size * leaf.dtype.itemsize // parts)


def device_bytes(config: LMConfig, vocab_size: int, seq_len: int, data: int, model: int) -> int:
    """What each device holds of a run from step to step: parameters, two moments, and as much for gradients."""
    return 4 * sum(one.bytes for one in parameter_placements(config, vocab_size, seq_len, data, model))


def check_mesh(config: ResolvedConfig, vocab_size: int, data: int, model: int) -> None:
    """Raise `UserError` where a run cannot be divided over a mesh of these sizes; the path starts in its config.

    Of what is divided over `data` the batch has to be divisible; over `model`, heads and hidden layers. A sequence is
    not divided, so that its length may be anything, and a vocabulary that cannot be is left whole.
    """
    train = config.train
    part = train.batch_size // train.accumulate
    if part % data:
        problem = f"{part} sequences are worked on at once, which {data} devices cannot share evenly"
        remedy = f"another batch_size, or data of {_divisors([part])}"
        raise UserError(problem, path=("train", "batch_size"), remedy=remedy)
    sizes = list(_inner_sizes(config, vocab_size)) if model > 1 else []
    for path, size in sizes:
        if size % model:
            remedy = f"model of {_divisors([size for _, size in sizes])} fits every layer"
            raise UserError(f"{path[-1]}={size} is not divisible by model={model}", path=path, remedy=remedy)


def _inner_sizes(config: ResolvedConfig, vocab_size: int) -> Iterator[tuple[tuple[str | int, ...], int]]:
    """What `model` divides of each layer: heads, and the inner size of its feed-forward."""
    arrays = leaves_by_path(parameter_shapes(config.model, vocab_size, config.task.seq_len))
    hidden = [leaf.shape[-1] for path, leaf in arrays.items() if path.endswith("ffn.up") for _ in range(leaf.shape[0])]
    with_ffn = [i for i, layer in enumerate(config.model.layers) if hasattr(layer.ffn, "hidden")]
    for i, layer in enumerate(config.model.layers):
        if heads := getattr(layer.mixer, "num_heads", None):
            yield ("model", "layers", i, "mixer", "num_heads"), heads
    for i, size in zip(with_ffn, hidden, strict=False):
        yield ("model", "layers", i, "ffn", "hidden"), size


def _divisors(sizes: Sequence[int]) -> str:
    return ", ".join(str(n) for n in range(1, min(sizes) + 1) if all(size % n == 0 for size in sizes))


def possible_divisions(config: ResolvedConfig, vocab_size: int, devices: int) -> Iterator[tuple[int, int]]:
    """The ways `(data, model)` in which so many devices can share a run among them evenly: over few of them first, and
    of equally many over as many of `data` as can be.
    """
    for share in (n for n in range(1, devices + 1) if devices % n == 0):
        for model in (n for n in range(1, share + 1) if share % n == 0):
            try:
                check_mesh(config, vocab_size, share // model, model)
            except UserError:
                continue
            yield share // model, model


Forward: TypeAlias = Callable[..., PyTree]


class Division:
    """A run on one device; also the interface of the other divisions."""

    def local_batch(self, batch: Batch) -> Batch:
        """Return the part of a batch, or of a microbatch, that this device works on."""
        return batch

    def wrap(self, compute: Forward) -> Forward:
        """Wrap a function whose first argument is the model and that works on such a part."""
        return compute

    def sum(self, tree: PyTree) -> PyTree:
        """Sum over the batch what each device summed over its part; gradients are among it."""
        return tree

    def gather(self, tree: PyTree) -> PyTree:
        """Gather what each device computed for its sequences, `(batches, batch)`."""
        return tree


@dataclass(frozen=True)
class ManualDivision(Division):
    """Devices of the mesh axis `DATA` that each take a part of the batch and replicate the rest: fast for small models.

    Its methods are called under a `shard_map` that is manual over this axis.
    """

    devices: int

    def local_batch(self, batch: Batch) -> Batch:
        size = len(batch.tokens) // self.devices
        start = jax.lax.axis_index(DATA) * size
        return jax.tree.map(lambda a: jax.lax.dynamic_slice_in_dim(a, start, size), batch)

    def sum(self, tree: PyTree) -> PyTree:
        """One collective for all: one for each array took twice as long on a CPU."""
        flat, back = ravel_pytree(tree)
        return back(jax.lax.psum(flat, DATA))

    def gather(self, tree: PyTree) -> PyTree:
        return jax.lax.all_gather(tree, DATA, axis=1, tiled=True)


@dataclass(frozen=True)
class PartitionedDivision(Division):
    """Devices among which XLA divides a run, parameters too, by the shardings of `train.sharding`.

    The step is written as if one device held the run. The batch and the residual stream are constrained to `DATA`:
    otherwise XLA might follow the parameters' shardings and all-reduce parts of every product.
    """

    mesh: Mesh

    def local_batch(self, batch: Batch) -> Batch:
        return jax.tree.map(self.by_sequence, batch)

    def wrap(self, compute: Forward) -> Forward:
        def constrained(model: LM, *args: PyTree, **options: PyTree) -> PyTree:
            stacks = tuple(replace(stack, sharding=self.sequences) for stack in model.stacks)
            return compute(replace(model, stacks=stacks), *args, **options)

        return constrained

    def sum(self, tree: PyTree) -> PyTree:
        return jax.lax.with_sharding_constraint(tree, tree_shardings(tree, self.mesh))

    def by_sequence(self, x: jax.Array) -> jax.Array:
        """An array whose first axis counts sequences, divided along it."""
        return jax.lax.with_sharding_constraint(x, self.sequences)

    @property
    def sequences(self) -> NamedSharding:
        """The sharding of arrays whose first axis counts sequences."""
        return NamedSharding(self.mesh, PartitionSpec(DATA))


WHOLE = Division()

"""The matmuls of a train step without dependencies between them: a lower bound of the step's time.

They are computed as the trainer computes them, by `nn.matmul.product` and its gradients, on as many devices. Import
this after `prepare_jax`.
"""

import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh, PartitionSpec

from benchmarks.shapes import VOCAB, Shape
from taetpu.nn.matmul import matmul

Sizes = tuple[tuple[int, ...], tuple[int, ...]]
ITERATIONS = 20  # a dispatch


def factors(shape: Shape, batch: int) -> Iterator[Sizes]:
    """Yield the shapes of both factors of each matmul in a forward pass over a number of sequences."""
    rows, heads = batch * shape.seq, (batch, shape.heads)
    head = shape.dim // shape.heads
    for _ in range(shape.layers):
        yield from 4 * [((rows, shape.dim), (shape.dim, shape.dim))]  # to queries, keys, values; from heads
        yield (*heads, shape.seq, head), (*heads, head, shape.seq)
        yield (*heads, shape.seq, shape.seq), (*heads, shape.seq, head)
        yield (rows, shape.dim), (shape.dim, 4 * shape.dim)
        yield (rows, 4 * shape.dim), (4 * shape.dim, shape.dim)
    yield (rows, shape.dim), (shape.dim, VOCAB)


def flops(a: tuple[int, ...], b: tuple[int, ...]) -> int:
    """Return the operations of a matmul and its two gradients."""
    return 3 * 2 * int(np.prod(a)) * b[-1]


class Products:
    """A contestant: the products of runs that are laid out so, a step of one run on each device at a time, or of one
    run on all of them.
    """

    def __init__(self, shape: Shape, text: Path, layout: dict[str, int]):
        self.devices = layout["devices"]
        batch = shape.batch // max(1, self.devices // layout["width"])  # of one device
        sizes = list(factors(shape, batch))
        self.flops = sum(flops(a, b) for a, b in sizes) * self.devices
        rng = np.random.default_rng(0)

        def drawn(*size: int) -> jax.Array:
            return jnp.asarray(rng.standard_normal((self.devices, *size), np.float32))

        self.given = [(drawn(*a), drawn(*b), drawn(*a[:-1], b[-1])) for a, b in sizes]
        runs = PartitionSpec("run")
        mesh = Mesh(np.array(jax.devices()[: self.devices]), ("run",))
        self.work = jax.jit(jax.shard_map(many, mesh=mesh, in_specs=runs, out_specs=runs, check_vma=False))

    @property
    def about(self) -> dict[str, Any]:
        return {"way": f"on {self.devices} device{'s' * (self.devices > 1)}"}

    def window(self, seconds: float) -> dict[str, float]:
        steps, passed, began = 0, 0.0, time.perf_counter()
        while passed < seconds or not steps:
            jax.block_until_ready(self.work(self.given))
            steps, passed = steps + ITERATIONS, time.perf_counter() - began
        return {"steps": steps, "seconds": passed, "flops": self.flops * steps}


def step(given: list[Any]) -> list[Any]:
    """Compute each matmul of `(a, b)` and the gradients of both factors."""
    found = []
    for a, b, gradient in given:
        result, back = jax.vjp(matmul, a, b)
        found.append((result, *back(gradient)))
    return found


def many(given: list[Any]) -> list[Any]:
    """Compute the matmuls of one device's runs, `ITERATIONS` times."""
    own = jax.tree.map(lambda a: a[0], given)

    def again(_: Any, carry: Any) -> Any:
        # Without the barrier the compiler would compute identical passes only once.
        kept, _ = jax.lax.optimization_barrier(carry)
        return kept, step(kept)

    first = jax.tree.map(lambda s: jnp.zeros(s.shape, s.dtype), jax.eval_shape(step, own))
    _, found = jax.lax.fori_loop(0, ITERATIONS, again, (own, first))
    return jax.tree.map(lambda a: a.reshape(-1)[:1], found)

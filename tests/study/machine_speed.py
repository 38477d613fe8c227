"""Time what the quick study asks of a machine, in plain JAX: a small Transformer compiled and trained on two devices.

The rate of large matrix products does not tell it: small products, softmaxes and compilation are most of the study, and
they slow down otherwise than large products where virtual cores share a physical one.
"""

import time

import jax
import jax.numpy as jnp
from jax.sharding import Mesh, NamedSharding, PartitionSpec

RUNS, BATCH, LENGTH, DIM, LAYERS, STEPS = 4, 16, 64, 64, 3, 60


def block(x: jax.Array, weights: dict[str, jax.Array]) -> jax.Array:
    """Return attention with one head, then two linear maps, each added to its input; `x` is (batch, length, dim)."""
    q, k, v = (x @ weights[name] for name in "qkv")
    scores = q @ k.swapaxes(-1, -2) / DIM**0.5
    allowed = jnp.tril(jnp.ones((LENGTH, LENGTH), bool))
    x = x + jax.nn.softmax(jnp.where(allowed, scores, -1e9)) @ v
    return x + jax.nn.gelu(x @ weights["up"]) @ weights["down"]


def loss(weights: list[dict[str, jax.Array]], x: jax.Array) -> jax.Array:
    """Return the mean squared output of all layers."""
    for each in weights:
        x = block(x, each)
    return jnp.mean(x**2)


def train(weights: list[dict[str, jax.Array]], key: jax.Array) -> jax.Array:
    """Return the loss of each of STEPS steps of gradient descent on normal inputs."""

    def step(weights, key):
        value, grad = jax.value_and_grad(loss)(weights, jax.random.normal(key, (BATCH, LENGTH, DIM)))
        return jax.tree.map(lambda w, g: w - 1e-3 * g, weights, grad), value

    return jax.lax.scan(step, weights, jax.random.split(key, STEPS))[1]


def seconds() -> float:
    """Return how long RUNS packed runs take on all devices, compilation included."""
    shapes = {"q": (DIM, DIM), "k": (DIM, DIM), "v": (DIM, DIM), "up": (DIM, 4 * DIM), "down": (4 * DIM, DIM)}
    weights = [{name: jnp.full((RUNS, *shape), 0.01) for name, shape in shapes.items()} for _ in range(LAYERS)]
    runs = NamedSharding(Mesh(jax.devices(), "runs"), PartitionSpec("runs"))
    keys = jax.device_put(jax.random.split(jax.random.key(0), RUNS), runs)
    began = time.monotonic()
    jax.jit(jax.vmap(train))(jax.device_put(weights, runs), keys).block_until_ready()
    return time.monotonic() - began


if __name__ == "__main__":
    print(seconds())

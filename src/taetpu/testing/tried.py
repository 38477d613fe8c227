"""A tiny model with a component in it, and what its program computes: scanned layers, single ones, and gradients."""

from dataclasses import replace
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np

from taetpu.core.jit import jit_once
from taetpu.core.keys import named, root_key
from taetpu.core.sites import capture, record_layers, with_layer_tapes
from taetpu.nn.common import Context, combine_trainable, partition_trainable
from taetpu.nn.lm import LM, named_parameters, with_parameters
from taetpu.nn.stack import Stack
from taetpu.optim.loss import sum_losses
from taetpu.testing.tiny import Host, tokens

MODES = {"evaluation": "in evaluation", "training": "in training (ctx.key is given)"}


class OneLayer(eqx.Module):
    """A layer outside of any scan, its number a plain one."""

    block: Any
    number: int = eqx.field(static=True)

    def __call__(self, x: jax.Array, ctx: Context) -> jax.Array:
        key = None if ctx.key is None else named(ctx.key, "layers", self.number)
        layers = range(self.number, self.number + 1)
        x, reads = with_layer_tapes(lambda: self.block(x, replace(ctx, layer=self.number, key=key)), layers)(
            self.number
        )
        record_layers(jax.tree.map(lambda read: read[None], reads), layers)
        return x


class Rolled(Stack):
    """A stack that goes through its loop layer by layer, as deep ones do, however few its layers are."""

    @property
    def layers_a_pass(self) -> int:
        return 1


def one_by_one(model: LM) -> LM:
    """The model with its layers called one after another."""
    layers = (OneLayer(stack.layer(i), stack.start + i) for stack in model.stacks for i in range(stack.size))
    return eqx.tree_at(lambda m: m.stacks, model, tuple(layers))


def rolled(model: LM) -> LM:
    """The model with its layers in a loop that stays one in the program."""
    stacks = (Rolled(stack.block, stack.start, stack.size) for stack in model.stacks)
    return eqx.tree_at(lambda m: m.stacks, model, tuple(stacks))


def computed(model: LM, batch: jax.Array, key: jax.Array) -> dict[str, Any]:
    """Logits and the last layer's output, and the gradients of a step of training.

    Layers are unrolled in evaluation and rolled in training; `single` has them one by one. The output is compared
    because the final norm would hide a wrong scale.
    """
    params, rest = partition_trainable(rolled(model))

    def seen(model: LM, key: jax.Array | None) -> tuple[jax.Array, jax.Array]:
        logits, reads = capture(lambda: model(batch, key=key), ["residual"])()
        return logits, reads["residual"]

    def loss(params: LM) -> tuple[jax.Array, tuple[jax.Array, jax.Array]]:
        logits, outputs = seen(combine_trainable(params, rest), key)
        return sum_losses(logits, jnp.roll(batch, 3, 1), jnp.ones(batch.shape))["nll"], (logits, outputs[-1])

    gradients, trained = jax.grad(loss, has_aux=True)(params)
    logits, outputs = seen(model, None)
    single = one_by_one(model)
    return {
        "logits": {"evaluation": logits, "training": trained[0]},
        "scanned": {"evaluation": outputs[-1], "training": trained[1]},
        "single": {"evaluation": seen(single, None)[1][-1], "training": seen(single, key)[1][-1]},
        "gradients": gradients,
    }


class Tried:
    """The model with the component in it, built, and what its program computes."""

    def __init__(self, host: Host):
        self.host, self.start = host, host.model(0)
        self.models = [shaken(self.start, 0), shaken(host.model(1), 1)]
        self.run = jit_once(computed)
        self.batch, self.key = jnp.asarray(tokens()), root_key(5)
        self.first = self.run(self.models[0], self.batch, self.key)

    def changes(self, batch: np.ndarray) -> dict[str, np.ndarray]:
        """By how much the first model's logits differ when it reads another batch, in evaluation and in training."""
        found = self.run(self.models[0], jnp.asarray(batch), self.key)["logits"]
        return {mode: np.abs(np.asarray(found[mode]) - np.asarray(self.first["logits"][mode])) for mode in MODES}


def shaken(model: LM, seed: int) -> LM:
    """The model with every parameter moved a little: what starts at zero would hide what is behind it."""
    rng = np.random.default_rng(seed)

    def moved(array: Any) -> np.ndarray:
        array = np.asarray(array)
        noise = rng.standard_normal(array.shape).astype(array.dtype)
        return array + noise * (0.1 * np.abs(array).mean() + 0.02)

    return with_parameters(model, {name: moved(array) for name, array in sorted(named_parameters(model).items())})

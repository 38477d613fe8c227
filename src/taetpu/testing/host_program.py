"""Outputs of a tiny model that contains the component: logits, layer outputs with and without scans, and gradients."""

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
    """A layer that is called outside any scan, with its layer number as a Python int."""

    block: Any
    number: int = eqx.field(static=True)

    def __call__(self, x: jax.Array, ctx: Context) -> jax.Array:
        """Apply the layer."""
        key = None if ctx.key is None else named(ctx.key, "layers", self.number)
        layers = range(self.number, self.number + 1)
        x, reads = with_layer_tapes(lambda: self.block(x, replace(ctx, layer=self.number, key=key)), layers)(
            self.number
        )
        record_layers(jax.tree.map(lambda read: read[None], reads), layers)
        return x


class Rolled(Stack):
    """A stack that is never unrolled. By default, small stacks are unrolled, so rolled loops would remain untested."""

    @property
    def layers_per_pass(self) -> int:
        """The number of layers per loop iteration, which is always 1."""
        return 1


def with_single_layers(model: LM) -> LM:
    """Return the model with layers that are called one after another, outside any scan."""
    layers = (OneLayer(stack.layer(i), stack.start + i) for stack in model.stacks for i in range(stack.size))
    return eqx.tree_at(lambda m: m.stacks, model, tuple(layers))


def with_rolled_layers(model: LM) -> LM:
    """Return the model with layers in a scan that is not unrolled."""
    stacks = (Rolled(stack.block, stack.start, stack.size) for stack in model.stacks)
    return eqx.tree_at(lambda m: m.stacks, model, tuple(stacks))


def compute_outputs(model: LM, batch: jax.Array, key: jax.Array) -> dict[str, Any]:
    """Return the logits, the last layer's output and the gradients of one training step.

    Args:
        model: The host model.
        batch: Token ids `(batch, seq)`.
        key: The key of the training step.

    Returns:
        A dictionary with `logits`, `scanned`, `single` and `gradients`. The first three have an entry for each mode.
        `scanned` and `single` are the output of the last layer, with layers in a scan and with single layers. The scan
        is unrolled in evaluation and rolled in training. The last layer's output is used instead of the logits because
        the final norm would hide a wrong scale.
    """
    params, rest = partition_trainable(with_rolled_layers(model))

    def forward(model: LM, key: jax.Array | None) -> tuple[jax.Array, jax.Array]:
        logits, reads = capture(lambda: model(batch, key=key), ["residual"])()
        return logits, reads["residual"]

    def loss(params: LM) -> tuple[jax.Array, tuple[jax.Array, jax.Array]]:
        logits, outputs = forward(combine_trainable(params, rest), key)
        return sum_losses(logits, jnp.roll(batch, 3, 1), jnp.ones(batch.shape))["nll"], (logits, outputs[-1])

    gradients, trained = jax.grad(loss, has_aux=True)(params)
    logits, outputs = forward(model, None)
    single = with_single_layers(model)
    return {
        "logits": {"evaluation": logits, "training": trained[0]},
        "scanned": {"evaluation": outputs[-1], "training": trained[1]},
        "single": {"evaluation": forward(single, None)[1][-1], "training": forward(single, key)[1][-1]},
        "gradients": gradients,
    }


class HostProgram:
    """The host model for two seeds, and the compiled program that computes its outputs."""

    def __init__(self, host: Host):
        self.host, self.start = host, host.model(0)
        self.models = [perturb(self.start, 0), perturb(host.model(1), 1)]
        self.run = jit_once(compute_outputs)
        self.batch, self.key = jnp.asarray(tokens()), root_key(5)
        self.first = self.run(self.models[0], self.batch, self.key)

    def changes(self, batch: np.ndarray) -> dict[str, np.ndarray]:
        """Return the absolute change in the first model's logits when it reads another batch, for each mode."""
        found = self.run(self.models[0], jnp.asarray(batch), self.key)["logits"]
        return {mode: np.abs(np.asarray(found[mode]) - np.asarray(self.first["logits"][mode])) for mode in MODES}


def perturb(model: LM, seed: int) -> LM:
    """Return the model with noise added to every parameter.

    A parameter that is initialised to zero would otherwise hide errors in the values that it is multiplied with.
    """
    rng = np.random.default_rng(seed)

    def moved(array: Any) -> np.ndarray:
        array = np.asarray(array)
        noise = rng.standard_normal(array.shape).astype(array.dtype)
        return array + noise * (0.1 * np.abs(array).mean() + 0.02)

    return with_parameters(model, {name: moved(array) for name, array in sorted(named_parameters(model).items())})

"""Checks for heads."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from taetpu.core.jit import jit_once
from taetpu.core.sites import capture
from taetpu.core.static_dynamic import bind
from taetpu.data.base import Batch
from taetpu.nn.common import combine_trainable, partition_trainable
from taetpu.nn.lm import LM
from taetpu.nn.named_arrays import named_parameters
from taetpu.optim.loss import head_losses
from taetpu.testing.in_model import check_agreement
from taetpu.testing.report import CheckFailed, Checks, failing_at
from taetpu.testing.tiny import VOCAB, all_finite, build_host, split_numbers, stack_trees, tokens
from taetpu.testing.tiny_model import perturb


def check_head(checks: Checks) -> None:
    """Run the checks for a head in a tiny model."""
    component: Any = checks.component
    structure, numbers = split_numbers(component)

    def compute(model: LM, batch: Batch) -> tuple[LM, jax.Array]:
        """Return the gradients of the summed losses, and the losses."""
        params, rest = partition_trainable(model)

        def loss(params: LM) -> tuple[jax.Array, jax.Array]:
            model = combine_trainable(params, rest)
            _, sites = capture(model, component.sites())(batch.tokens)
            (head_loss,) = head_losses(model, {component.kind: bind(structure, numbers)}, sites, batch).values()
            return head_loss.sum(), head_loss

        return jax.grad(loss, has_aux=True)(params)

    computed: list[Any] = []
    checks.run("losses", check_losses, component, compute, computed)
    checks.run("packs", check_packs, component, compute, *computed, after="losses")


def check_losses(component: Any, compute: Any, computed: list[Any]) -> str:
    """Check that the losses are finite, respect the weights, and depend on every parameter of the head.

    Append the compiled function, two models and a batch to `computed`.
    """
    build, ids = build_host(component), jnp.asarray(tokens())
    models = [perturb(build(seed), seed) for seed in range(2)]
    batch = Batch(ids, jnp.roll(ids, 3, 1) % VOCAB, jnp.ones(ids.shape).at[0].set(0.0))
    run = jit_once(compute)
    with failing_at(component, "init"):
        gradients, losses = run(models[0], batch)
    if not all_finite(losses) or not all_finite(gradients):
        raise CheckFailed("a loss or a gradient is not finite", at=(component, "init"))
    if np.asarray(losses[0]).any():
        problem = "targets of weight 0 have a loss"
        raise CheckFailed(problem, at=(component, "init"), remedy="Multiply the losses by `weights`.")
    head_gradients = {name: array for name, array in named_parameters(gradients).items() if name.startswith("heads.")}
    if dead := [name for name, array in head_gradients.items() if not np.asarray(array).any()]:
        problem = f"the gradient of {', '.join(dead)} is zero everywhere"
        raise CheckFailed(problem, at=(component, "init"), remedy="Use the parameter in __call__, or remove it.")
    computed += [run, models, batch]
    return f"losses are finite, and the {len(head_gradients)} parameters of the head have nonzero gradients"


def check_packs(component: Any, compute: Any, run: Any, models: list[LM], batch: Batch) -> str:
    """Check that two packed runs agree with the same runs alone."""
    packed = jit_once(jax.vmap(compute, (0, None)))(stack_trees(*models), batch)
    return check_agreement(component, packed, stack_trees(*(run(model, batch) for model in models)))

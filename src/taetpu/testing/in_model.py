"""Checks for a component in a tiny model: finite numbers, causality, gradients and packs."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from taetpu.core.batch_statistics import Averages, collect
from taetpu.core.errors import UserError
from taetpu.core.jit_once import jit_once
from taetpu.core.keys import root_key
from taetpu.nn.attention import ATTENTION_SLOTS
from taetpu.nn.cache import empty_cache, extend
from taetpu.nn.common import combine_trainable, partition_trainable
from taetpu.nn.lm import LM
from taetpu.nn.named_arrays import named_parameters, with_parameters
from taetpu.optim.loss import sum_losses
from taetpu.testing.report import CheckFailed, Checks
from taetpu.testing.tiny import BATCH, SEQ, TOLERANCE, VOCAB, all_finite, build_host, distance, stack_trees, tokens

MODES = {"evaluation": "in evaluation", "training": "in training (ctx.key is given)"}
OWN = {
    **{slot: f".mixer.{slot}." for slot in ATTENTION_SLOTS},
    **{slot: f"{slot}." for slot in ("embedding", "stem", "logits", "norm")},
    "position": "position.", "residual": "_residual.", "init": "",
}  # fmt: skip
"""A substring of the names of a component's own parameters, by slot. For other slots, the substring is `.SLOT.`."""

CACHED = ("mixer", "short_conv", "mask", "position", "rope_scaling", "scores")
"""The slots whose components read earlier tokens, from a cache if a sequence is extended."""


def compute_outputs(model: LM, batch: jax.Array, key: jax.Array) -> dict[str, Any]:
    """Return the logits in evaluation and in training, and the gradients of one training step.

    Args:
        model: The tiny model.
        batch: Token ids `(batch, seq)`.
        key: The key of the training step.
    """
    params, rest = partition_trainable(model)

    def loss(params: LM) -> tuple[jax.Array, jax.Array]:
        logits, recorded = collect(combine_trainable(params, rest), Averages())(batch, key=key)
        nll = sum_losses(logits, jnp.roll(batch, 3, 1), jnp.ones(batch.shape))["nll"]
        return nll + recorded.total, logits

    gradients, trained = jax.grad(loss, has_aux=True)(params)
    return {"evaluation": model(batch, key=None), "training": trained, "gradients": gradients}


class TinyProgram:
    """The tiny model with the component for two seeds, and the compiled program that computes its outputs."""

    def __init__(self, component: Any):
        build = build_host(component)
        self.models = [perturb(build(seed), seed) for seed in range(2)]
        self.run = jit_once(compute_outputs)
        self.batch, self.key = jnp.asarray(tokens()), root_key(5)
        self.first = self.run(self.models[0], self.batch, self.key)

    def changes(self, batch: np.ndarray) -> dict[str, np.ndarray]:
        """Return the absolute change in the first model's logits when it reads another batch, for each mode."""
        found = self.run(self.models[0], jnp.asarray(batch), self.key)
        return {mode: np.abs(np.asarray(found[mode]) - np.asarray(self.first[mode])) for mode in MODES}


def perturb(model: LM, seed: int) -> LM:
    """Return the model with noise added to every parameter.

    Otherwise, a parameter that is initialised to zero would hide errors in the values that are multiplied by it.
    """
    rng = np.random.default_rng(seed)

    def moved(array: Any) -> np.ndarray:
        array = np.asarray(array)
        noise = rng.standard_normal(array.shape).astype(array.dtype)
        return array + noise * (0.1 * np.abs(array).mean() + 0.02)

    return with_parameters(model, {name: moved(array) for name, array in sorted(named_parameters(model).items())})


def check_model(checks: Checks) -> None:
    """Run all checks for a component in a tiny model."""
    component, built = checks.component, list[TinyProgram]()
    if not checks.run("model", check_finite, component, built):
        checks.skip("causality", "sequences", "gradients", "packs")
        return
    if getattr(component, "causal", True):
        checks.run("causality", check_causality, component, built[0])
    else:
        checks.note("causality", "causal is false, so positions may depend on later tokens")
    checks.run("sequences", check_sequences, component, built[0])
    checks.run("gradients", check_gradients, component, built[0])
    checks.run("packs", check_packs, component, built[0])
    if component.slot in CACHED:
        try:
            empty_cache(built[0].models[0], BATCH, SEQ)
        except UserError as error:
            checks.note("cache", error.problem)
        else:
            checks.run("cache", check_cache, component, built[0])


def check_finite(component: Any, built: list[TinyProgram]) -> str:
    """Check that the outputs and gradients of the tiny model are finite; append its program to `built`."""
    built.append(program := TinyProgram(component))
    for mode, when in MODES.items():
        if not all_finite(program.first[mode]):
            problem = f"a tiny model with the component returns non-finite numbers {when}"
            raise CheckFailed(problem, at=(component, "init"))
    wrong = [name for name, array in named_parameters(program.first["gradients"]).items() if not all_finite(array)]
    if wrong:
        raise CheckFailed(
            f"the gradient of {', '.join(wrong[:3])} is not finite",
            at=(component, "init"),
            remedy="Look for sqrt, log, a norm or a division at 0. Apply jnp.where to the input of the function, "
            "because jnp.where on the result leaves the gradient NaN.",
        )
    return "outputs and gradients are finite"


def check_causality(component: Any, program: TinyProgram) -> str:
    """Check that no logit depends on later tokens, in evaluation and in training."""
    batch = tokens()
    for t in range(SEQ - 1):
        later = batch.copy()
        later[:, t + 1 :] = (later[:, t + 1 :] + 1 + t) % VOCAB
        for mode, every in program.changes(later).items():
            change = every[:, : t + 1]
            if change.max() > 0:
                at = int(change.max((0, 2)).argmax())
                raise CheckFailed(
                    f"the logits at position {at} change by up to {change.max():.2g} {MODES[mode]} when only tokens "
                    f"after position {t} change",
                    at=(component, "init"),
                    remedy="Look for sums, means, maxima or shifts over the seq axis. Use e.g. jnp.cumsum.",
                )
    return "no logit depends on later tokens"


def check_sequences(component: Any, program: TinyProgram) -> str:
    """Check that no logit depends on other sequences in the batch, in evaluation and in training."""
    batch = tokens()
    batch[1:] = (batch[1:] + 4) % VOCAB
    for mode, change in program.changes(batch).items():
        if change[0].max() > 0:
            raise CheckFailed(
                f"a sequence's logits change by up to {change[0].max():.2g} {MODES[mode]} when another sequence of "
                "the batch changes",
                at=(component, "init"),
                remedy="Look for sums, means or maxima over the batch axis.",
            )
    return f"the {BATCH} sequences of a batch are independent"


def check_gradients(component: Any, program: TinyProgram) -> str:
    """Check that every parameter of the model has a nonzero gradient."""
    found = {name: np.asarray(array) for name, array in named_parameters(program.first["gradients"]).items()}
    own = [name for name in found if OWN.get(component.slot, f".{component.slot}.") in name]
    dead = [name for name, gradient in found.items() if not gradient.any()]
    # Parameters of other components are reported first: if the component blocks gradients, its own parameters in
    # earlier layers have zero gradients too.
    if others := [name for name in dead if name not in own]:
        raise CheckFailed(
            f"the gradient of {', '.join(others[:3])} is zero everywhere, because the component blocks it",
            at=(component, "init"),
            remedy="Look for stop_gradient, round, argmax, comparisons, or an unused input.",
        )
    if dead:
        raise CheckFailed(
            f"the gradient of {', '.join(dead)} is zero everywhere, because the loss does not depend on it",
            at=(component, "init"),
            remedy="Use the parameter in __call__, remove it, or wrap it in Fixed if it is not trained.",
        )
    passed = "the component passes gradients to all parameters of the model"
    return f"all {len(own)} of the component's parameters have nonzero gradients" if own else passed


def check_packs(component: Any, program: TinyProgram) -> str:
    """Check that two runs packed in one program agree with the same runs alone."""
    batches = jnp.stack([program.batch, (program.batch + 4) % VOCAB])
    keys = jnp.stack([program.key, root_key(6)])
    packed = jit_once(jax.vmap(compute_outputs))(stack_trees(*program.models), batches, keys)
    alone = stack_trees(*(program.run(*args) for args in zip(program.models, batches, keys, strict=True)))
    return check_agreement(component, packed, alone)


def check_cache(component: Any, program: TinyProgram) -> str:
    """Check that a sequence that is extended with a cache has the logits of the whole sequence."""

    def decode(model: LM, batch: jax.Array) -> jax.Array:
        cache, found = empty_cache(model, BATCH, SEQ), []
        for start, end in ((0, 3), (3, 4), (4, SEQ)):
            logits, cache = extend(model, batch[:, start:end], cache)
            found.append(logits)
        return jnp.concatenate(found, 1)

    apart = distance(jit_once(decode)(program.models[0], program.batch), program.first["evaluation"])
    if not apart < TOLERANCE:
        raise CheckFailed(
            f"the logits of a sequence that is extended with a cache differ from those of the whole sequence by up to "
            f"{apart:.2g} of the largest value, expected below {TOLERANCE:g}",
            at=(component, "init"),
            remedy="Store in ctx.cache what later tokens need. Read positions from ctx.position_pairs in masks and "
            "scores.",
        )
    return f"extended and whole sequences agree to {apart:.0e}"


def check_agreement(component: Any, packed: Any, alone: Any, method: str = "init") -> str:
    """Check that packed and single runs agree within `TOLERANCE`, and return a text with their largest difference.

    Args:
        component: The component to check.
        packed: The results of the packed runs.
        alone: The results of the single runs.
        method: The method of the component that a failure refers to.
    """
    apart = distance(packed, alone)
    if not apart < TOLERANCE:
        raise CheckFailed(
            f"two packed runs differ from the same runs alone by up to {apart:.2g} of the largest value, "
            f"expected below {TOLERANCE:g}",
            at=(component, method),
            remedy="Look for values shared between runs: numpy, globals, and shapes read before vmap.",
        )
    return f"packed and single runs agree to {apart:.0e}"

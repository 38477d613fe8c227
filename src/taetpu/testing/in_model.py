"""Checks for a component in a tiny model. Each computes the results of the model in two ways, which have to agree."""

from collections.abc import Callable
from functools import cache
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from taetpu.core.errors import UserError
from taetpu.core.jit import jit_once
from taetpu.core.sites import parts_of
from taetpu.nn.attention import ATTENTION_SLOTS
from taetpu.nn.cache import empty_cache
from taetpu.nn.named_arrays import named_parameters
from taetpu.testing.report import CheckFailed, CheckNote, Checks
from taetpu.testing.tiny import (
    BATCH,
    DIM,
    SEQ,
    TOLERANCE,
    VOCAB,
    all_finite,
    distance,
    host_config,
    refuse_distance,
    stack_trees,
    tokens,
)
from taetpu.testing.tiny_model import PADDED, Outputs, TinyModel, compute_outputs

Step = Callable[..., Outputs] | None
MODES = {"evaluation": "in evaluation", "training": "in training (ctx.key is given)"}
OWN = {
    **{slot: f".mixer.{slot}." for slot in ATTENTION_SLOTS},
    **{slot: f"{slot}." for slot in ("embedding", "stem", "readout", "logits", "norm")},
    "position": "position.", "residual": "_residual.", "init": "",
}  # fmt: skip
"""A substring of the names of a component's own parameters, by slot. For other slots, the substring is `.SLOT.`."""

SITES = {
    "embed": (BATCH, SEQ, DIM),
    "mixer.out": (BATCH, SEQ, DIM),
    "ffn.out": (BATCH, SEQ, DIM),
    "final": (BATCH, SEQ, DIM),
    "logits": (BATCH, SEQ, VOCAB),
}
"""The shapes of sites that every component keeps, without the layer axis."""


def check_model(checks: Checks) -> None:
    """Run all checks for a component in a tiny model."""
    component, built = checks.component, list[TinyModel]()
    if not checks.run("model", check_finite, component, built):
        checks.skip(*("bfloat16", "causality", "sequences", "gradients", "packs", "layers", "sites"))
        return
    (tiny,) = built
    checks.run("bfloat16", check_bfloat16, component, tiny)
    causal = all(layer.typed_mixer.is_causal for layer in tiny.config.layers)
    if not causal:
        checks.note("causality", "causal is false, so positions may depend on later tokens")
    else:
        causal = checks.run("causality", check_causality, component, tiny, tiny.step)
    checks.run("sequences", check_sequences, component, tiny, tiny.step)
    checks.run("gradients", check_gradients, component, tiny)
    checks.run("packs", check_packs, component, tiny)
    checks.run("layers", check_layers, component, tiny)
    checks.run("sites", check_sites, component, tiny)
    if causal:
        check_caches(checks, tiny, padding=checks.run("padding", check_padding, component, tiny))
    else:
        checks.skip("padding", "cache")
    checks.run("difference", check_difference, component, tiny)


# --- numbers ----------------------------------------------------------------------------------------------------------


def check_finite(component: Any, built: list[TinyModel]) -> str:
    """Check that the outputs and gradients of the tiny model are finite; append it to `built`."""
    built.append(tiny := TinyModel(host_config(component)))
    refuse_infinite(component, {"evaluation": tiny.logits, **tiny.outputs}, "a tiny model with the component")
    return "outputs and gradients are finite"


def check_bfloat16(component: Any, tiny: TinyModel) -> str:
    """Check that the outputs and gradients of a newly initialised model are finite in bfloat16."""
    for model in tiny.initial:
        refuse_infinite(component, tiny.take(tiny.half_step, model), "in bfloat16, a newly initialised tiny model")
    return "outputs and gradients of a newly initialised model are finite"


def refuse_infinite(component: Any, outputs: Outputs, subject: str) -> None:
    """Raise `CheckFailed` if logits or gradients are not finite."""
    for mode, when in MODES.items():
        if mode in outputs and not all_finite(outputs[mode]):
            raise CheckFailed(f"{subject} returns non-finite numbers {when}", at=(component, "init"))
    wrong = [name for name, array in named_parameters(outputs["gradients"]).items() if not all_finite(array)]
    if wrong:
        where = f"{subject}: " if "bfloat16" in subject else ""
        raise CheckFailed(
            f"{where}the gradient of {', '.join(wrong[:3])} is not finite",
            at=(component, "init"),
            remedy="Look for sqrt, log, a norm or a division at 0. Apply jnp.where to the input of the function, "
            "because jnp.where on the result leaves the gradient NaN.",
        )


# --- dependencies -----------------------------------------------------------------------------------------------------


def compute_changes(tiny: TinyModel, step: Step, batch: np.ndarray) -> dict[str, np.ndarray]:
    """Return the absolute change in the first model's logits when it reads another batch, for each mode.

    Args:
        tiny: The model.
        step: `tiny.step` or `tiny.half_step`; None for evaluation only.
        batch: The other batch.
    """
    changes = {"evaluation": np.abs(np.asarray(tiny.forward(tiny.models[0], jnp.asarray(batch))) - tiny.logits)}
    if step is not None:
        trained, other = (np.asarray(tiny.take(step, batch=b)["training"]) for b in (tiny.batch, batch))
        changes["training"] = np.abs(other - trained)
    return changes


def check_causality(component: Any, tiny: TinyModel, step: Step) -> str:
    """Check that no logit depends on later tokens, and that its gradient for later embeddings is exactly zero.

    Args:
        component: The component to check.
        tiny: The model.
        step: `tiny.step` or `tiny.half_step`; None for evaluation only.
    """
    remedy = "Look for sums, means, maxima or shifts over the seq axis. Use e.g. jnp.cumsum."
    for t in range(SEQ - 1):
        later = tokens()
        later[:, t + 1 :] = (later[:, t + 1 :] + 1 + t) % VOCAB
        for mode, every in compute_changes(tiny, step, later).items():
            change = every[:, : t + 1]
            if change.max() > 0:
                at = int(change.max((0, 2)).argmax())
                raise CheckFailed(
                    f"the logits at position {at} change by up to {change.max():.2g} {MODES[mode]} when only tokens "
                    f"after position {t} change",
                    at=(component, "init"),
                    remedy=remedy,
                )
        if step is None:
            continue
        weights = np.zeros((BATCH, SEQ), np.float32)
        weights[:, t] = 1.0
        gradient = np.abs(np.asarray(tiny.take(step, weights=weights, extra=0.0)["embed"], np.float32))[:, t + 1 :]
        if gradient.max() != 0:
            problem = f"the loss at position {t} has a gradient of up to {gradient.max():.2g} for later embeddings"
            raise CheckFailed(problem, at=(component, "init"), remedy=remedy)
    return "no logit depends on later tokens"


def check_sequences(component: Any, tiny: TinyModel, step: Step) -> str:
    """Check that no logit depends on other sequences in the batch, in evaluation and in training.

    Args:
        component: The component to check.
        tiny: The model.
        step: `tiny.step` or `tiny.half_step`; None for evaluation only.
    """
    batch = tokens()
    batch[1:] = (batch[1:] + 4) % VOCAB
    for mode, change in compute_changes(tiny, step, batch).items():
        if change[0].max() > 0:
            raise CheckFailed(
                f"a sequence's logits change by up to {change[0].max():.2g} {MODES[mode]} when another sequence of "
                "the batch changes",
                at=(component, "init"),
                remedy="Look for sums, means or maxima over the batch axis.",
            )
    return f"the {BATCH} sequences of a batch are independent"


def check_gradients(component: Any, tiny: TinyModel) -> str:
    """Check that every parameter of the model has a nonzero gradient."""
    gradients = {name: np.asarray(array) for name, array in named_parameters(tiny.outputs["gradients"]).items()}
    of_component = [name for name in gradients if OWN.get(component.slot, f".{component.slot}.") in name]
    dead = [name for name, gradient in gradients.items() if not gradient.any()]
    # Parameters of other components are reported first: if the component blocks gradients, its own parameters in
    # earlier layers have zero gradients too.
    if others := [name for name in dead if name not in of_component]:
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
    return f"all {len(of_component)} of the component's parameters have nonzero gradients" if of_component else passed


# --- equal results ----------------------------------------------------------------------------------------------------


def check_packs(component: Any, tiny: TinyModel) -> str:
    """Check that two runs packed in one program agree with the same runs alone."""
    batches = jnp.stack([tiny.batch, (tiny.batch + 4) % VOCAB])

    def compute(model: Any, batch: Any) -> Any:
        return model(batch), compute_outputs(model, batch, tiny.key, heads=tiny.config.heads)

    packed = jit_once(jax.vmap(compute))(stack_trees(*tiny.models), batches)
    pairs = list(zip(tiny.models, batches, strict=True))
    alone = stack_trees(*((tiny.forward(m, b), tiny.take(tiny.step, m, b)) for m, b in pairs))
    return check_agreement(component, packed, alone)


def check_layers(component: Any, tiny: TinyModel) -> str:
    """Check that layers computed in a loop have the logits of unrolled layers."""
    apart = distance(tiny.scanned, tiny.logits)
    remedy = "Read the number of the layer from ctx.layer, and keep no state between layers except ctx.carried."
    problem = "the logits of layers in a loop differ from those of unrolled layers"
    refuse_distance(apart, problem, (component, "init"), remedy)
    return f"layers in a loop and unrolled layers agree to {apart:.0e}"


def check_sites(component: Any, tiny: TinyModel) -> str:
    """Check that logits do not change if every site is replaced by itself, and that known sites have their shapes."""
    logits, sites = tiny.edited
    apart = distance(logits, tiny.logits)
    when = f", when every site is replaced by itself: {', '.join(sites)}"
    remedy = "Use the result of site(name, x) in place of x."
    refuse_distance(apart, "the logits change", (component, "init"), remedy, when)
    for name, shape in SITES.items():
        for part in parts_of(sites[name]) if name in sites else ():
            if part.shape[-len(shape) :] != shape:
                problem = f"site {name!r} has shape {part.shape[-len(shape) :]}, expected {shape}"
                raise CheckFailed(problem, at=(component, "init"), remedy="Use another name for the site.")
    return f"{len(sites)} sites, and replacing each by itself changes the logits by {apart:.0e}"


def compare_padded(tiny: TinyModel, logits: np.ndarray, sequence: int) -> float:
    """Return the largest difference of logits of a sequence of `TinyModel.shifted` from those without padding.

    Args:
        tiny: The model.
        logits: The logits of all sequences.
        sequence: The number of the sequence. The last has padding.
    """
    real, expected = logits[sequence], tiny.expected()[sequence]
    return distance(real[len(real) - len(expected) :], expected)


def check_padding(component: Any, tiny: TinyModel) -> str:
    """Check that padding on the left changes no logit of a causal model. Plug-ins may ignore it, which is a note."""
    apart = max(compare_padded(tiny, tiny.padded, sequence) for sequence in range(BATCH))
    if not apart < TOLERANCE:
        raise CheckNote(
            f"padding on the left of a sequence changes its logits by up to {apart:.2g} of the largest value, so "
            "samples of sequences with different lengths are wrong in a batch; ctx.real is False in padding"
        )
    return f"sequences with and without padding agree to {apart:.0e}"


def check_caches(checks: Checks, tiny: TinyModel, *, padding: bool) -> None:
    """Check extended sequences if all parts of the model offer a cache, with padding too if `padding` is set."""
    try:
        empty_cache(tiny.models[0], BATCH, SEQ)
    except UserError as error:
        checks.note("cache", error.problem)
        return
    if checks.run("cache", check_cache, checks.component, tiny) and padding:
        checks.run("cache padding", check_padded_cache, checks.component, tiny)


def check_cache(component: Any, tiny: TinyModel) -> str:
    """Check that a sequence that is extended with a cache has the logits of the whole sequence."""
    return compare_cache(component, tiny, 0, "a sequence")


def check_padded_cache(component: Any, tiny: TinyModel) -> str:
    """Check that a sequence with padding that is extended with a cache has the logits of the whole sequence."""
    return compare_cache(component, tiny, BATCH - 1, f"a sequence with {PADDED} tokens of padding on the left")


def compare_cache(component: Any, tiny: TinyModel, sequence: int, subject: str) -> str:
    """Check the logits of one sequence of `TinyModel.decoded`; `subject` describes the sequence."""
    apart = compare_padded(tiny, tiny.decoded, sequence)
    problem = f"the logits of {subject} that is extended with a cache differ from those of the whole sequence"
    remedy = "Store in ctx.cache what later tokens need. Read positions from ctx.position_pairs in masks and scores."
    refuse_distance(apart, problem, (component, "init"), remedy)
    return f"extended and whole sequences agree to {apart:.0e}"


@cache
def plain_tiny() -> TinyModel:
    """Return the tiny model without any component to check."""
    return TinyModel(host_config())


def check_difference(component: Any, tiny: TinyModel) -> str:
    """Check that the component changes the logits of the tiny model; otherwise, this is a note."""
    plain = plain_tiny()
    if tiny.config == plain.config:
        raise CheckNote("not checked, because the tiny model has this component by default")
    trained, other = (np.asarray(tiny_model.outputs["training"]) for tiny_model in (tiny, plain))
    if np.array_equal(tiny.logits, plain.logits) and np.array_equal(trained, other):
        raise CheckNote("the component changes no logit of the tiny model")
    return "the component changes the logits of the tiny model"


def check_agreement(component: Any, packed: Any, alone: Any, method: str = "init") -> str:
    """Check that packed and single runs agree within `TOLERANCE`, and return a text with their largest difference.

    Args:
        component: The component to check.
        packed: The results of the packed runs.
        alone: The results of the single runs.
        method: The method of the component that a failure refers to.
    """
    apart = distance(packed, alone)
    remedy = "Look for values shared between runs: numpy, globals, and shapes read before vmap."
    refuse_distance(apart, "two packed runs differ from the same runs alone", (component, method), remedy)
    return f"packed and single runs agree to {apart:.0e}"

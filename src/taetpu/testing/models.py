"""Checks for a component in a tiny model: causality, gradients, scans, packs and traced numbers."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.interpreters.partial_eval import dce_jaxpr

from taetpu.core.jit import jit_once
from taetpu.core.keys import root_key
from taetpu.core.static_dynamic import promoted_fields, split
from taetpu.nn.lm import LM, named_parameters
from taetpu.testing.host_program import MODES, HostProgram, compute_outputs
from taetpu.testing.report import CheckFailed, Checks
from taetpu.testing.tiny import (
    BATCH,
    SEQ,
    TOLERANCE,
    VOCAB,
    Host,
    all_finite,
    distance,
    identical,
    plain_model,
    stack_trees,
    tokens,
)

# Substrings that occur in the names of a component's own parameters, by slot.
OWN = {
    "mixer": (".mixer.",),
    "scores": (".mixer.scores.",),
    "ffn": (".ffn.",),
    "after": (".after.",),
    "residual": (".residual.",),
    "position": ("position.", ".mixer.position."),
    "norm": ("norm.", "_norm."),
    "embedding": ("embedding.",),
    "init": ("",),
}
PACKED = ("logits", "gradients")
AFTER_MODEL = ("same start", "causality", "sequences", "gradients", "layers", "packs")


def check_model(checks: Checks) -> None:
    """Run all checks for a component in a tiny model."""
    component, built = checks.component, {}

    def build() -> str:
        built["host"] = Host(component)
        return check_numbers(built["host"], checks)

    def run() -> str:
        built["program"] = HostProgram(built["host"])
        return check_finite(component, built["program"])

    if not checks.run("numbers", build):
        checks.skip("model", *AFTER_MODEL)
        return
    if not checks.run("model", run):
        checks.skip(*AFTER_MODEL)
        return
    program = built["program"]
    if component.slot != "init":
        checks.run("same start", check_same_start, component, program)
    if getattr(component, "causal", True):
        checks.run("causality", check_causality, component, program)
    else:
        checks.note("causality", "causal is false: positions may depend on later tokens")
    checks.run("sequences", check_sequences, component, program)
    checks.run("gradients", check_gradients, component, program)
    checks.run("layers", check_layers, component, program)
    checks.run("packs", check_packs, component, program)


# --- numbers ---------------------------------------------------------------------------------------------------------


def check_numbers(host: Host, checks: Checks) -> str:
    """Check that the component's traced fields are inputs of the program, and list the fields that it reads."""
    component = checks.component
    own = split(component, promoted_fields(component))[1]
    # Initialisation is included because initial values may depend on traced fields.
    read = find_read_numbers(lambda numbers: host.init(numbers, 0)(jnp.asarray(tokens())), host.numbers)
    own_read = {name for name in own if any(path.endswith(f"{component.slot}.{name}") for path in read)}
    return describe_numbers(own, own_read, checks)


def find_read_numbers(fn: Any, numbers: dict[str, Any], *args: Any) -> set[str]:
    """Return the paths of the numbers that the results of `fn(numbers, *args)` depend on."""
    traced = jax.make_jaxpr(fn)(numbers, *args)
    used = dce_jaxpr(traced.jaxpr, [True] * len(traced.jaxpr.outvars))[1]
    return {path for path, is_used in zip(sorted(numbers), used, strict=False) if is_used}


def describe_numbers(own: Any, read: set[str], checks: Checks) -> str:
    """Return a text that lists the traced fields that are read, and add a note on fields that are not read."""
    if unread := sorted(set(own) - read):
        message = f"nothing reads {', '.join(unread)} with these settings: arms that differ only there are identical"
        checks.note("idle numbers", message)
    return f"traced: {', '.join(sorted(read))}" if read else "no traced fields"


# --- in the model ----------------------------------------------------------------------------------------------------


def check_finite(component: Any, program: HostProgram) -> str:
    """Check that the outputs and gradients of the tiny model are finite."""
    for mode, when in MODES.items():
        if not all_finite([program.first[name][mode] for name in ("logits", "scanned", "single")]):
            raise CheckFailed(f"a tiny model with it returns non-finite numbers {when}", at=(component, "init"))
    wrong = [name for name, array in named_parameters(program.first["gradients"]).items() if not all_finite(array)]
    if wrong:
        raise CheckFailed(
            f"the gradient of {', '.join(wrong[:3])} is not finite",
            at=(component, "init"),
            remedy="Look for sqrt, log, a norm or a division at 0. Apply jnp.where to their input: applied to their "
            "result, it leaves the gradient NaN.",
        )
    return "outputs and gradients are finite"


def check_same_start(component: Any, program: HostProgram) -> str:
    """Check that the initial parameters of other components do not depend on this component."""
    without, with_it = named_parameters(plain_model(0)), named_parameters(program.start)
    shared = [name for name in with_it if name in without and not any(part in name for part in OWN[component.slot])]
    for name in shared:
        if not identical(with_it[name], without[name]):
            raise CheckFailed(
                f"{name} starts from different values than in a model without this component, so arms would differ in "
                "more than they declare",
                at=(component, "init"),
                remedy="Do not modify dims, globals or classes in init.",
            )
    return f"{len(shared)} parameters of other components start from the same bits"


def check_causality(component: Any, program: HostProgram) -> str:
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


def check_sequences(component: Any, program: HostProgram) -> str:
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


def check_gradients(component: Any, program: HostProgram) -> str:
    """Check that every parameter of the model has a nonzero gradient."""
    found = {name: np.asarray(array) for name, array in named_parameters(program.first["gradients"]).items()}
    own = [name for name in found if any(part in name for part in OWN[component.slot])]
    dead = [name for name, gradient in found.items() if not gradient.any()]
    # Report other parameters first: a blocked gradient also zeroes the component's own parameters in earlier layers.
    if others := [name for name in dead if name not in own]:
        raise CheckFailed(
            f"the gradient of {', '.join(others[:3])} is zero everywhere: the component blocks it",
            at=(component, "init"),
            remedy="Look for stop_gradient, round, argmax, comparisons, or an unused input.",
        )
    if dead:
        raise CheckFailed(
            f"the gradient of {', '.join(dead)} is zero everywhere: the loss does not depend on it",
            at=(component, "init"),
            remedy="Use it in __call__, remove it, or wrap it in Fixed if it is not trained.",
        )
    return f"all {len(own)} of its parameters have one" if own else "they pass through it"


def check_layers(component: Any, program: HostProgram) -> str:
    """Check that scanned layers agree with single layers. The scan is unrolled in evaluation and rolled in training."""
    found = {mode: distance(program.first["scanned"][mode], program.first["single"][mode]) for mode in MODES}
    for mode, apart in found.items():
        if not apart < TOLERANCE:
            raise CheckFailed(
                f"scanned layers differ from layers called one by one by up to {apart:.2g} of the largest value "
                f"{MODES[mode]}, expected below {TOLERANCE:g}",
                at=(component, "init"),
                remedy="A scan traces a layer once. Read the layer number from ctx.layer and keep no state in Python.",
            )
    return f"unrolled, rolled and single layers agree to {max(found.values()):.0e}"


def check_packs(component: Any, program: HostProgram) -> str:
    """Check that two runs packed in one program agree with the same runs alone."""
    batches = jnp.stack([program.batch, (program.batch + 4) % VOCAB])
    keys = jnp.stack([program.key, root_key(6)])
    packed = jit_once(jax.vmap(packed_outputs))(stack_trees(*program.models), batches, keys)
    outputs = [program.run(*args) for args in zip(program.models, batches, keys, strict=True)]
    alone = stack_trees(*({name: found[name] for name in PACKED} for found in outputs))
    return check_agreement(component, packed, alone)


def packed_outputs(model: LM, batch: jax.Array, key: jax.Array) -> dict[str, Any]:
    """Return the logits and gradients of `compute_outputs`."""
    found = compute_outputs(model, batch, key)
    return {name: found[name] for name in PACKED}


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
            remedy="Look for values shared between runs: numpy, globals, shapes read before vmap.",
        )
    return f"packed and single runs agree to {apart:.0e}"

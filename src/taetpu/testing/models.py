"""Checks of a component in a tiny model: causality, gradients, scans, packs, numbers."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.interpreters.partial_eval import dce_jaxpr

from taetpu.core.jit import jit_once
from taetpu.core.keys import root_key
from taetpu.core.static_dynamic import promoted_fields, split
from taetpu.nn.lm import LM, named_parameters
from taetpu.testing.report import Checks, Unmet
from taetpu.testing.tiny import BATCH, SEQ, TOLERANCE, VOCAB, Host, distance, finite, plain, same, stacked, tokens
from taetpu.testing.tried import MODES, Tried, computed

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
LATER = ("same start", "causality", "sequences", "gradients", "layers", "packs")


def check_model(checks: Checks) -> None:
    """Check a component in a tiny model."""
    component, built = checks.component, {}

    def build() -> str:
        built["host"] = Host(component)
        return told_numbers(built["host"], checks)

    def run() -> str:
        built["tried"] = Tried(built["host"])
        return all_finite(component, built["tried"])

    if not checks.make("numbers", build):
        checks.leave("model", *LATER)
        return
    if not checks.make("model", run):
        checks.leave(*LATER)
        return
    tried = built["tried"]
    if component.slot != "init":
        checks.make("same start", same_start, component, tried)
    if getattr(component, "causal", True):
        checks.make("causality", causality, component, tried)
    else:
        checks.note("causality", "causal is false: a position sees later ones, as it says")
    checks.make("sequences", sequences, component, tried)
    checks.make("gradients", gradients, component, tried)
    checks.make("layers", layers, component, tried)
    checks.make("packs", packs, component, tried)


# --- numbers ---------------------------------------------------------------------------------------------------------


def told_numbers(host: Host, checks: Checks) -> str:
    """The component's traced numbers enter the program as inputs; says which of them it reads."""
    component = checks.component
    own = split(component, promoted_fields(component))[1]
    traced = jax.make_jaxpr(lambda numbers: host.drawn(numbers, 0)(jnp.asarray(tokens())))(host.numbers)
    # What the model starts with counts too: initial values are drawn with numbers.
    used = dce_jaxpr(traced.jaxpr, [True] * len(traced.jaxpr.outvars))[1]
    read = {path for path, is_used in zip(sorted(host.numbers), used, strict=True) if is_used}
    mine = {name for name in own if any(path.endswith(f"{component.slot}.{name}") for path in read)}
    return numbers_read(own, mine, checks)


def numbers_read(own: Any, read: set[str], checks: Checks) -> str:
    """Says which numbers are inputs of the program; notes those that nothing reads."""
    if idle := sorted(set(own) - read):
        checks.note(
            "idle numbers",
            f"nothing reads {', '.join(idle)} with these settings: arms that differ in it alone would be the same",
        )
    return f"traced: {', '.join(sorted(read))}" if read else "none is traced"


# --- in the model ----------------------------------------------------------------------------------------------------


def all_finite(component: Any, tried: Tried) -> str:
    """A tiny model with it can be trained."""
    for mode, when in MODES.items():
        if not finite([tried.first[name][mode] for name in ("logits", "scanned", "single")]):
            raise Unmet(f"a tiny model with it gives numbers that are not finite {when}", at=(component, "init"))
    wrong = [name for name, array in named_parameters(tried.first["gradients"]).items() if not finite(array)]
    if wrong:
        raise Unmet(
            f"the gradient of {', '.join(wrong[:3])} is not finite",
            at=(component, "init"),
            remedy="look for sqrt, log, a norm or a division at 0; jnp.where hides it in the value alone: "
            "put the where round what is given to them",
        )
    return "it trains and evaluates, and every number is finite"


def same_start(component: Any, tried: Tried) -> str:
    """Parameters that are not the component's start as they do without it."""
    without, with_it = named_parameters(plain(0)), named_parameters(tried.start)
    shared = [name for name in with_it if name in without and not any(part in name for part in OWN[component.slot])]
    for name in shared:
        if not same(with_it[name], without[name]):
            raise Unmet(
                f"{name} starts from other numbers than in a model without it, so that arms would differ in more "
                "than they declare",
                at=(component, "init"),
                remedy="look for what init sets outside of the module that it returns: dims, a global, a class",
            )
    return f"{len(shared)} parameters of the rest start as without it, bit for bit"


def causality(component: Any, tried: Tried) -> str:
    """No logit changes when later tokens do, with a key and without."""
    batch = tokens()
    for t in range(SEQ - 1):
        later = batch.copy()
        later[:, t + 1 :] = (later[:, t + 1 :] + 1 + t) % VOCAB
        for mode, every in tried.changes(later).items():
            change = every[:, : t + 1]
            if change.max() > 0:
                at = int(change.max((0, 2)).argmax())
                raise Unmet(
                    f"the logits at position {at} change by up to {change.max():.2g} {MODES[mode]} when only tokens "
                    f"after position {t} do: a position sees tokens that it is to predict",
                    at=(component, "init"),
                    remedy="look for sums, means, maxima or shifts over the seq axis; jnp.cumsum looks back alone",
                )
    return "no logit changes when later tokens do"


def sequences(component: Any, tried: Tried) -> str:
    """No logit changes when other sequences of the batch do, with a key and without."""
    batch = tokens()
    batch[1:] = (batch[1:] + 4) % VOCAB
    for mode, change in tried.changes(batch).items():
        if change[0].max() > 0:
            raise Unmet(
                f"a sequence's logits change by up to {change[0].max():.2g} {MODES[mode]} when another one of its "
                "batch does",
                at=(component, "init"),
                remedy="look for sums, means or maxima over the batch axis",
            )
    return f"each of the {BATCH} sequences is computed by itself"


def gradients(component: Any, tried: Tried) -> str:
    """Every parameter of the component gets a gradient, and so does everything before and after it."""
    found = {name: np.asarray(array) for name, array in named_parameters(tried.first["gradients"]).items()}
    own = [name for name in found if any(part in name for part in OWN[component.slot])]
    dead = [name for name, gradient in found.items() if not gradient.any()]
    # First, because what does not get through a later layer does not reach the component's own in an earlier one.
    if others := [name for name in dead if name not in own]:
        raise Unmet(
            f"the gradient of {', '.join(others[:3])} is zero everywhere: nothing gets through the component",
            at=(component, "init"),
            remedy="look for stop_gradient, round, argmax, comparisons, or an input that is not read",
        )
    if dead:
        raise Unmet(
            f"the gradient of {', '.join(dead)} is zero everywhere: nothing that is trained depends on it",
            at=(component, "init"),
            remedy="read it in __call__, or leave it out; what is not to be trained is Fixed",
        )
    return f"all {len(own)} parameters of its own get one" if own else "they pass through it"


def layers(component: Any, tried: Tried) -> str:
    """Layers under a scan give what layers one by one do: unrolled in evaluation, rolled in training."""
    found = {mode: distance(tried.first["scanned"][mode], tried.first["single"][mode]) for mode in MODES}
    for mode, apart in found.items():
        if not apart < TOLERANCE:
            raise Unmet(
                f"layers under a scan differ from layers called one by one by up to {apart:.2g} of the largest value "
                f"{MODES[mode]}, expected below {TOLERANCE:g}",
                at=(component, "init"),
                remedy="a scan traces a layer once for all: take the layer's number from ctx.layer, keep nothing in "
                "Python",
            )
    return f"unrolled, rolled and single layers agree to {max(found.values()):.0e}"


def packs(component: Any, tried: Tried) -> str:
    """Two runs in one program compute what each does by itself."""
    batches = jnp.stack([tried.batch, (tried.batch + 4) % VOCAB])
    keys = jnp.stack([tried.key, root_key(6)])
    packed = jit_once(jax.vmap(together))(stacked(*tried.models), batches, keys)
    alone = stacked(*(_alone(tried, *args) for args in zip(tried.models, batches, keys, strict=True)))
    return agreed(component, packed, alone)


def together(model: LM, batch: jax.Array, key: jax.Array) -> dict[str, Any]:
    """What `computed` gives, less the layers one by one."""
    found = computed(model, batch, key)
    return {name: found[name] for name in ("logits", "gradients")}


def _alone(tried: Tried, *args: Any) -> dict[str, Any]:
    found = tried.run(*args)
    return {name: found[name] for name in ("logits", "gradients")}


def agreed(component: Any, packed: Any, alone: Any, method: str = "init") -> str:
    """Says how well packed runs agree with single ones."""
    apart = distance(packed, alone)
    if not apart < TOLERANCE:
        raise Unmet(
            f"two runs in one program differ from the same runs alone by up to {apart:.2g} of the largest value, "
            f"expected below {TOLERANCE:g}",
            at=(component, method),
            remedy="look for what depends on more than the run itself: numpy, globals, shapes read before vmap",
        )
    return f"packed and single runs agree to {apart:.0e}"

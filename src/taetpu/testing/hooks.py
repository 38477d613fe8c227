"""Checks of hooks."""

from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from taetpu.core.jit import jit_once
from taetpu.core.keys import root_key
from taetpu.core.static_dynamic import bind
from taetpu.data.batches import Batch
from taetpu.nn.common import partition_trainable
from taetpu.optim.hooks import METHODS, Moment, overrides_method
from taetpu.testing.models import agreed, numbers_read
from taetpu.testing.report import Checks, Unmet
from taetpu.testing.tiny import BATCH, SEQ, VOCAB, finite, form, plain, same, stacked, tokens
from taetpu.testing.training import STEPS, Numbers, changed, reads, taken


def check_hook(checks: Checks) -> None:
    """Each method that a hook has gives what it was given in form, from the key alone, packed or not."""
    component: Any = checks.component
    read: set[str] = set()
    whole = True
    structure, numbers = taken(component)
    for method in METHODS:
        if not overrides_method(component, method):
            continue

        def call(numbers: Numbers, value: Any, context: Any, step: Any, key: Any, method: str = method) -> Any:
            return getattr(bind(structure, numbers), method)(value, *context, Moment(step, STEPS, key))

        first, second = (_given(method, seed) for seed in (0, 1))
        if not checks.make(f"{method} form", hook_form, component, method, call, numbers, first):
            checks.leave(f"{method} repeats", f"{method} packs")
            whole = False
            continue
        found: list[Any] = []
        if checks.make(f"{method} repeats", hook_repeats, component, method, call, numbers, first, found):
            checks.make(f"{method} packs", hook_packs, component, method, call, numbers, (first, second), found[0])
        else:
            checks.leave(f"{method} packs")
        read |= reads(call, numbers, *first)
    if whole:
        checks.make("numbers", numbers_read, numbers, read, checks)
    else:  # what fails may be what reads them
        checks.leave("numbers")


def _given(method: str, seed: int) -> tuple[Any, ...]:
    """What a hook's method is called with: `(value, context, step, key)`."""
    ids = jnp.asarray((tokens() + 3 * seed) % VOCAB)
    batch = Batch(ids, jnp.roll(ids, -1, 1), jnp.ones(ids.shape).at[0, 0].set(0.0))
    when = (jnp.int32(3 + seed), root_key(seed))
    if method == "batch":
        return batch, (), *when
    model = plain(seed)
    params = partition_trainable(model)[0]
    if method in ("gradients", "updates"):
        return params, (params,), *when
    logits = jnp.asarray(np.random.default_rng(seed).standard_normal((BATCH, SEQ, VOCAB)), jnp.float32)
    return jnp.float32(2.5 + seed), (logits, batch, model), *when


def hook_form(component: Any, method: str, call: Any, numbers: Numbers, given: tuple[Any, ...]) -> str:
    """What a method gives has the shapes and types of what it is to replace."""
    expected, seen = form(given[0]), form(jax.eval_shape(call, numbers, *given))
    if seen != expected or jax.tree.structure(jax.eval_shape(call, numbers, *given)) != jax.tree.structure(given[0]):
        raise Unmet(f"{changed(f'what {method} gives', expected, seen)}, as it was given", at=(component, method))
    return "shapes and types as it was given"


def hook_repeats(component: Any, method: str, call: Any, numbers: Numbers, given: tuple[Any, ...], found: list) -> str:
    """The same key gives the same, compiled anew; tokens stay in the vocabulary."""
    first, again = (jit_once(partial(call))(numbers, *given) for _ in range(2))  # partial: jit would know `call` again
    if not same(first, again):
        remedy = "draw from now.key, and from named(now.key, 'NAME') where several things are drawn"
        raise Unmet(f"two calls of {method} with one key differ", at=(component, method), remedy=remedy)
    if not finite(first):
        raise Unmet(f"{method} gives numbers that are not finite", at=(component, method))
    if method == "batch":
        for name, ids in (("tokens", first.tokens), ("targets", first.targets)):
            if ids.min() < 0 or ids.max() >= VOCAB:
                problem = f"{name} run from {ids.min()} to {ids.max()}, expected numbers of the vocabulary: 0 to"
                raise Unmet(f"{problem} {VOCAB - 1}", at=(component, method))
        if first.weights.min() < 0:
            raise Unmet("weights are negative", at=(component, method))
    found.append(first)
    return "one key gives the same bits"


def hook_packs(component: Any, method: str, call: Any, numbers: Numbers, given: Any, first: Any) -> str:
    """Two runs in one program get what each gets by itself."""
    second = jit_once(call)(numbers, *given[1])
    packed = jit_once(jax.vmap(call, (None, 0, 0, 0, 0)))(numbers, *stacked(*given))
    return agreed(component, packed, stacked(first, second), method)

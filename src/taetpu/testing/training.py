"""Checks of what acts in training: optimizers, schedules, hooks, metrics."""

from functools import cache, partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
from jax.interpreters.partial_eval import dce_jaxpr

from taetpu.core.errors import UserError
from taetpu.core.keys import root_key
from taetpu.core.loading import load
from taetpu.core.traced import active, bind, split
from taetpu.data.batches import Batch
from taetpu.nn.lm import matrices
from taetpu.nn.parts import trainable
from taetpu.optim.hooks import METHODS, Moment, acts
from taetpu.spec.schema import ResolvedConfig, RunConfig
from taetpu.testing.models import agreed, numbers_read
from taetpu.testing.report import Checks, Unmet
from taetpu.testing.tiny import BATCH, HOST, SEQ, VOCAB, finite, form, jit, plain, same, stacked, tokens, told
from taetpu.train.step import init_state, observe

STEPS = 20
Numbers = dict[str, Any]


def taken(component: Any) -> tuple[Any, Numbers]:
    """A component as structure and numbers."""
    structure, numbers = split(component, active(component))
    return structure, {path: np.asarray(value, np.float32) for path, value in numbers.items()}


def reads(fn: Any, numbers: Numbers, *args: Any) -> set[str]:
    """The numbers that any result of `fn(numbers, *args)` depends on."""
    traced = jax.make_jaxpr(fn)(numbers, *args)
    used = dce_jaxpr(traced.jaxpr, [True] * len(traced.jaxpr.outvars))[1]
    return {path for path, is_used in zip(sorted(numbers), used, strict=False) if is_used}


# --- optimizers ------------------------------------------------------------------------------------------------------


class Rule:
    """An optimizer on the parameters of a tiny model."""

    def __init__(self, component: Any):
        self.structure, self.numbers = taken(component)
        self.params = trainable(plain(0))[0]
        self.goal = trainable(plain(1))[0]
        self.decayed = matrices(self.params)

    def init(self, numbers: Numbers, lr: Any) -> Any:
        return bind(self.structure, numbers).transform(lr, self.decayed).init(self.params)

    def update(self, numbers: Numbers, lr: Any, gradients: Any, state: Any, params: Any) -> Any:
        return bind(self.structure, numbers).transform(lr, self.decayed).update(gradients, state, params)

    def loss(self, params: Any) -> jax.Array:
        """Half the squared distance from the goal."""
        return optax.tree.norm(jax.tree.map(jnp.subtract, params, self.goal), squared=True) / 2

    def descend(self, numbers: Numbers, scale: Any) -> tuple[Any, jax.Array]:
        """Parameters and loss after some steps from `scale` times the start."""

        def step(_: Any, carry: Any) -> Any:
            params, state = carry
            updates, state = self.update(numbers, numbers.get("lr", 1e-3), jax.grad(self.loss)(params), state, params)
            return optax.apply_updates(params, updates), state

        params = jax.tree.map(lambda a: a * scale, self.params)
        params, _ = jax.lax.fori_loop(0, STEPS, step, (params, self.init(numbers, 0)))
        return params, self.loss(params)


def check_optimizer(checks: Checks) -> None:
    """State and updates have the form of the parameters, and a step goes downhill."""
    component = checks.component
    rule = Rule(component)
    if not checks.make("state", state, component, rule) or not checks.make("updates", updates, component, rule, checks):
        checks.leave("descends", "packs")
        return
    found: list[Any] = []
    checks.make("descends", descends, component, rule, found)
    checks.make("packs", packed_descent, component, rule, found) if found else checks.leave("packs")


def state(component: Any, rule: Rule) -> str:
    """The state that is begun with does not depend on the learning rate: it is built before there is one."""
    traced, shapes = jax.make_jaxpr(lambda lr: rule.init(rule.numbers, lr), return_shape=True)(0.0)
    if any(dce_jaxpr(traced.jaxpr, [True] * len(traced.jaxpr.outvars))[1]):
        problem = "the state to begin with depends on the learning rate, which is 0 when it is built"
        raise Unmet(problem, at=(component, "transform"), remedy="use the rate in updates alone")
    return f"{len(jax.tree.leaves(shapes))} arrays"


def updates(component: Any, rule: Rule, checks: Checks) -> str:
    """An update has the form of the parameters and leaves the state's as it was."""
    at = (component, "transform")
    begun = jax.eval_shape(rule.init, rule.numbers, 0)
    found, after = jax.eval_shape(rule.update, rule.numbers, 0.1, rule.params, begun, rule.params)
    if form(found) != form(rule.params):
        raise Unmet(_changed("updates", form(rule.params), form(found)), at=at)
    if jax.tree.structure(after) != jax.tree.structure(begun) or form(after) != form(begun):
        raise Unmet(_changed("the state after a step", form(begun), form(after)), at=at)
    given = (0.1, rule.params, begun, rule.params)
    read = reads(rule.update, rule.numbers, *given) | reads(rule.init, rule.numbers, 0)
    read |= {"lr"} & set(rule.numbers)  # read by the schedule
    return f"like the parameters; {numbers_read(rule.numbers, read, checks)}"


def _changed(what: str, expected: dict[str, str], seen: dict[str, str]) -> str:
    name = next((n for n in [*expected, *seen] if expected.get(n) != seen.get(n)), "")
    place = f" at {name}" if name else ""
    return f"{what}{place}: {seen.get(name, 'nothing')}, expected {expected.get(name, 'nothing')}"


def descends(component: Any, rule: Rule, found: list[Any]) -> str:
    """Some steps at its own learning rate bring a quadratic down."""
    run = jit(rule.descend)
    found += [run(rule.numbers, scale) for scale in (1.0, 0.5)]
    before, after = float(rule.loss(rule.params)), float(found[0][1])
    if not after < before:
        raise Unmet(
            f"{STEPS} steps on half a squared distance took it from {before:.4g} to {after:.4g}, expected less",
            at=(component, "transform"),
            remedy="updates are added to the parameters: a step down is -lr times the gradient",
        )
    if same(*(again[0] for again in (found[0], run(rule.numbers, 1.0)))):
        return f"{STEPS} steps take half a squared distance from {before:.4g} to {after:.4g}"
    raise Unmet("two descents from one start differ", at=(component, "transform"))


def packed_descent(component: Any, rule: Rule, found: list[Any]) -> str:
    """Two runs in one program descend as each does by itself."""
    numbers = {path: jnp.stack([jnp.asarray(value)] * 2) for path, value in rule.numbers.items()}
    return agreed(component, jit(jax.vmap(rule.descend))(numbers, jnp.array([1.0, 0.5])), stacked(*found), "transform")


# --- schedules -------------------------------------------------------------------------------------------------------


def check_schedule(checks: Checks) -> None:
    """A rate for every step: one number, finite, not negative."""
    checks.make("rates", rates, checks.component, checks)


def rates(component: Any, checks: Checks) -> str:
    """The rates of short and of longer runs."""
    at = (component, "lr")
    structure, numbers = taken(component)

    def rate(numbers: Numbers, peak: Any, step: Any, steps: int) -> Any:
        return bind(structure, numbers).lr(step, steps, peak)

    for steps in (STEPS, 1):
        seen = jax.eval_shape(lambda: rate(numbers, jnp.float32(0.1), jnp.int32(0), steps))  # noqa: B023
        if told(seen) != "() float32":
            raise Unmet(f"the rate of a step is {told(seen)}, expected () float32", at=at)
        every = jit(jax.vmap(lambda n, p, s: rate(n, p, s, steps), (None, None, 0)))  # noqa: B023
        found = np.asarray(every(numbers, jnp.float32(0.1), jnp.arange(steps)))
        wrong = np.flatnonzero(~(np.isfinite(found) & (found >= 0)))
        if len(wrong):
            problem = f"the rate of step {wrong[0]} of {steps} is {found[wrong[0]]:.3g} at a peak of 0.1"
            raise Unmet(f"{problem}, expected a number of at least 0", at=at)
    args = (jnp.float32(0.1), jnp.int32(3))
    if "peak" not in reads(lambda p, n, s: rate(n, p["peak"], s, STEPS), {"peak": args[0]}, numbers, args[1]):
        raise Unmet("the rate does not depend on the peak, which is the optimizer's lr", at=at)
    read = reads(lambda n, p, s: rate(n, p, s, STEPS), numbers, *args)
    return f"{STEPS} steps, and a run of one; {numbers_read(numbers, read, checks)}"


# --- hooks -----------------------------------------------------------------------------------------------------------


def check_hook(checks: Checks) -> None:
    """Each method that a hook has gives what it was given in form, from the key alone, packed or not."""
    component: Any = checks.component
    read: set[str] = set()
    structure, numbers = taken(component)
    for method in METHODS:
        if not acts(component, method):
            continue

        def call(numbers: Numbers, value: Any, context: Any, step: Any, key: Any, method: str = method) -> Any:
            return getattr(bind(structure, numbers), method)(value, *context, Moment(step, STEPS, key))

        first, second = (_given(method, seed) for seed in (0, 1))
        if not checks.make(f"{method} form", hook_form, component, method, call, numbers, first):
            checks.leave(f"{method} repeats", f"{method} packs")
            continue
        found: list[Any] = []
        if checks.make(f"{method} repeats", hook_repeats, component, method, call, numbers, first, found):
            checks.make(f"{method} packs", hook_packs, component, method, call, numbers, (first, second), found[0])
        else:
            checks.leave(f"{method} packs")
        read |= reads(call, numbers, *first)
    checks.make("numbers", numbers_read, numbers, read, checks)


def _given(method: str, seed: int) -> tuple[Any, ...]:
    """What a hook's method is called with: `(value, context, step, key)`."""
    ids = jnp.asarray((tokens() + 3 * seed) % VOCAB)
    batch = Batch(ids, jnp.roll(ids, -1, 1), jnp.ones(ids.shape).at[0, 0].set(0.0))
    when = (jnp.int32(3 + seed), root_key(seed))
    if method == "batch":
        return batch, (), *when
    model = plain(seed)
    params = trainable(model)[0]
    if method in ("gradients", "updates"):
        return params, (params,), *when
    logits = jnp.asarray(np.random.default_rng(seed).standard_normal((BATCH, SEQ, VOCAB)), jnp.float32)
    return jnp.float32(2.5 + seed), (logits, batch, model), *when


def hook_form(component: Any, method: str, call: Any, numbers: Numbers, given: tuple[Any, ...]) -> str:
    """What a method gives has the shapes and types of what it is to replace."""
    expected, seen = form(given[0]), form(jax.eval_shape(call, numbers, *given))
    if seen != expected or jax.tree.structure(jax.eval_shape(call, numbers, *given)) != jax.tree.structure(given[0]):
        raise Unmet(f"{_changed(f'what {method} gives', expected, seen)}, as it was given", at=(component, method))
    return "shapes and types as it was given"


def hook_repeats(component: Any, method: str, call: Any, numbers: Numbers, given: tuple[Any, ...], found: list) -> str:
    """The same key gives the same, compiled anew; tokens stay in the vocabulary."""
    first, again = (jit(partial(call))(numbers, *given) for _ in range(2))  # partial: jit would know `call` again
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
    second = jit(call)(numbers, *given[1])
    packed = jit(jax.vmap(call, (None, 0, 0, 0, 0)))(numbers, *stacked(*given))
    return agreed(component, packed, stacked(first, second), method)


# --- metrics ---------------------------------------------------------------------------------------------------------


@cache
def _tiny_run() -> tuple[ResolvedConfig, Any]:
    """A run to look into, and its task."""
    task = {"kind": "copy", "seq_len": SEQ, "symbols": 5, "min_length": 2, "max_length": 3, "eval_size": 2}
    data = {"task": task, "model": HOST, "train": {"steps": STEPS, "batch_size": BATCH}}
    config = load(RunConfig, data).resolve()
    return config, config.task.prepare(None)


def check_metric(checks: Checks) -> None:
    """A metric gives single numbers, by names that are always the same, packed or not."""
    component = checks.component
    _tiny_run()  # a task cannot be prepared while something is traced
    if checks.make("values", metric_form, component):
        checks.make("packs", metric_packs, component)
    else:
        checks.leave("packs")


def _look(component: Any, seed: Any) -> dict[str, jax.Array]:
    """What a metric measures of a seed's first step."""
    config, source = _tiny_run()
    rows = jnp.asarray(source.rows(0, 0, 1, BATCH)[0])
    return observe(
        init_state(config, source, seed), config, source, source.arrays, rows, seed,
        steps=STEPS, dtype=jnp.float32, metrics={component.kind: component},
    )  # fmt: skip


def metric_form(component: Any) -> str:
    """Single numbers by name."""
    try:
        found = jax.eval_shape(lambda seed: _look(component, seed), jnp.int32(0))
    except UserError as error:  # a site that is not there, a value that is no single number
        raise Unmet(error.problem, at=(component, "measure"), remedy=error.remedy or "") from None
    if not found:
        raise Unmet("it measures nothing", at=(component, "measure"))
    names = sorted(found)
    return f"{len(names)} values: {', '.join(names[:3])}{' ...' if len(names) > 3 else ''}"


def metric_packs(component: Any) -> str:
    """Runs in one program are measured as each is by itself."""
    seeds = jnp.arange(2)
    alone = [jit(lambda seed: _look(component, seed))(seed) for seed in seeds[:1]]
    packed = jit(jax.vmap(lambda seed: _look(component, seed)))(seeds)
    if wrong := [name for name, value in alone[0].items() if np.isnan(np.asarray(value))]:
        raise Unmet(f"{wrong[0]} is not a number on a fresh model", at=(component, "measure"))
    return agreed(component, {name: value[0] for name, value in packed.items()}, alone[0], "measure")

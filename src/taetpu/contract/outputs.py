"""Checks that the output of each component has the shape and dtype that its slot requires at the arm's sizes.

Components are traced, but nothing is computed. Those of a model without plug-ins are not traced: the tests of
`taetpu.testing` check the built-in kinds.
"""

import inspect
from collections.abc import Iterator
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from taetpu.core.config import Component, iter_components
from taetpu.core.errors import KeyPath, UserError, locate_errors
from taetpu.core.keys import named, root_key
from taetpu.core.plugins import attribute_errors
from taetpu.core.static_dynamic import bind, promoted_fields, split
from taetpu.core.tree import leaves_by_path
from taetpu.data.base import Source, array_shapes
from taetpu.nn.attention import ATTENTION_SLOTS
from taetpu.nn.block import SLOTS
from taetpu.nn.common import AttentionDims, Carried, Context
from taetpu.nn.init import ROLES, role_shape
from taetpu.nn.lm import LM, MODEL_SLOTS, LMConfig
from taetpu.nn.parameters import Parameters
from taetpu.nn.position.base import IN_ATTENTION
from taetpu.nn.residual.base import num_streams
from taetpu.nn.slot_calls import (
    PARTS,
    Part,
    Setup,
    acts_at,
    build_part,
    carried_shapes,
    describe_value,
    matches,
    suggest_cast,
    trace_result,
)
from taetpu.optim import parameter_groups
from taetpu.spec.study_config import ResolvedConfig
from taetpu.train.model_cost import model_shapes, parameter_shapes

BATCH = 2
CHECKED = 64  # evaluation windows in which masks are checked
MAX_KEPT = 4096

_PASSED: set[Any] = set()


def check_outputs(config: ResolvedConfig, source: Source) -> None:
    """Check the shape and dtype of every component's result if a plug-in is among them, and of the task's batches.

    With `precision: auto`, components are called in float32 and in bfloat16.

    Raises:
        UserError: If a result does not have the required shape and dtype. The error's path is a path in the config.
    """
    precision = config.train.precision
    check_batch(config, source)
    check_visible_targets(config, source)
    check_lengths(config, source)
    if all(component.is_built_in() for component in iter_components(config.model)):
        return
    for dtype in ("float32", "bfloat16") if precision == "auto" else (precision,):
        for path, component, part, at in _calls(config.model, source, jnp.dtype(dtype)):
            key = _key(component, part, at)
            if key in _PASSED:
                continue
            slot = f"{component.slot} {component.kind!r}"
            try:
                with attribute_errors(f"{slot} cannot be called", iter_components(component)):
                    _check_call(component, part, at)
            except UserError as error:
                raise error if error.path else error.within("model", *path) from None
            if len(_PASSED) >= MAX_KEPT:
                _PASSED.clear()
            _PASSED.add(key)


def check_groups(config: ResolvedConfig, source: Source) -> None:
    """Raise `UserError` if a parameter group matches nothing; see `optim.parameter_groups.check_groups`."""
    shapes = parameter_shapes(config.model, source.interface, source.seq_len)
    parameters = Parameters(shapes, config.model, source.interface, source.seq_len)
    with locate_errors("train", "optimizer"):
        parameter_groups.check_groups(getattr(config.train.optimizer, "groups", {}), parameters)


def _calls(model: LMConfig, source: Source, dtype: Any) -> Iterator[tuple[KeyPath, Component, Part | None, Setup]]:
    """Yield the calls of a model's components as tuples of path, component, part (None for `init`) and sizes."""
    dims = model.dims(source.interface, source.seq_len)

    def setup(layer: Any) -> Setup:
        heads = layer.typed_mixer.heads(dims) or AttentionDims(1, 1, dims.dim)
        sizes, rotated = (heads.num_heads, heads.num_kv_heads, heads.head_dim), layer.typed_mixer.position_heads(dims)
        streams = num_streams(layer.residual)
        return Setup(dims, BATCH, source.seq_len, *sizes, dtype, layer.position, streams, rotated)

    first = setup(model.layers[0])
    yield ("init",), model.init, None, first
    for slot in (slot for slot in MODEL_SLOTS if slot in PARTS):
        component = getattr(model, slot)
        for name, part in PARTS[slot].items():
            if name not in IN_ATTENTION and acts_at(component, name):
                yield (slot,), component, part, first
    seen: set[int] = set()  # most layers of a deep model are the same object
    for i, layer in enumerate(model.layers):
        if id(layer) in seen:
            continue
        seen.add(id(layer))
        at, mixer = setup(layer), layer.typed_mixer
        for slot in ATTENTION_SLOTS if mixer.heads(dims) else ():
            if component := mixer.slot_component(slot):
                for part in PARTS[slot].values():
                    yield ("layers", i, "mixer", slot), component, part, at
        for slot in sorted(SLOTS, key="mixer".__eq__):  # the mixer comes last, because it calls other components
            component = getattr(layer, slot)
            for name, part in PARTS[slot].items():
                outside = name == "at_input" or (name in IN_ATTENTION and name not in mixer.position_parts)
                if not outside and acts_at(component, name):
                    yield ("layers", i, slot), component, part, at


def _key(component: Component, part: Part | None, at: Setup) -> Any:
    """Return a hashable key of everything that the shape and dtype of a call's result depend on."""
    inner = [*iter_components(component), *iter_components(at.dims.init), *iter_components(at.position)]
    sources = tuple((type(nested).__module__, type(nested).__qualname__, nested.plugin) for nested in inner)
    return (
        sources,
        part and (part.builder, part.method),
        repr(split(component, promoted_fields(component))[0]),
        repr(at),
    )


def _check_call(component: Component, part: Part | None, at: Setup) -> None:
    structure, numbers = split(component, promoted_fields(component))
    shapes = {path: jax.ShapeDtypeStruct(np.shape(value), jnp.float32) for path, value in numbers.items()}

    def call(numbers: Any, seed: Any, tokens: Any, layer: Any) -> None:
        bound: Any = bind(structure, numbers)
        key = named(root_key(seed), "slot")
        if part is None:
            _check_draws(bound, at, key)
            return
        try:
            module = build_part(bound, part, at, key)
        except UserError as error:
            raise error.within(**_place(component, getattr(type(component), part.builder))) from None
        if module is not None:
            for noise in (key, None) if part.context else (None,):
                ctx = Context(tokens, jnp.arange(at.seq), layer, noise, **_handed_on(component, at, key))
                _check_result(bound, part, module, at, ctx)

    integer = jax.ShapeDtypeStruct((), jnp.int32)
    jax.eval_shape(call, shapes, integer, jax.ShapeDtypeStruct((at.batch, at.seq), jnp.int32), integer)


def _handed_on(component: Component, at: Setup, key: Any) -> dict[str, Any]:
    """Return the parts of a context that other components of the model provide."""
    x = jnp.zeros((at.batch, at.seq, at.dims.dim), at.dtype)
    shapes = carried_shapes(component, at.dims, at.attention)
    shared = at.position.on_scores(at.dims, at.attention, key=key) if at.position.shared else None
    return {
        "carried": Carried.zeros(shapes, at.batch, at.seq, at.dtype),
        "embedded": x,
        "x": x,
        "shared_scores": shared,
    }


def _check_result(component: Component, part: Part, module: Any, at: Setup, ctx: Context) -> None:
    returned, expected = trace_result(part, module, at, ctx), part.expected(at)
    if not matches(returned, expected):
        method = "" if part.method == "__call__" else f".{part.method}"
        mode = (" in training" if ctx.key is not None else " in evaluation") if part.context else ""
        problem = f"{component.slot} {component.kind!r}{method} returns {describe_value(returned)}{mode}"
        place = _place(component, getattr(type(module), part.method, None))
        remedy = _remedy(returned, expected)
        raise UserError(f"{problem}, expected {describe_value(expected)}", remedy=remedy, **place)


def _remedy(returned: Any, expected: Any) -> str:
    if isinstance(expected, tuple):
        return "Return queries and keys, each with the shape and dtype of its input."
    return suggest_cast(returned, expected) or "Return an array of the expected shape and dtype."


def _check_draws(component: Any, at: Setup, key: Any) -> None:
    dims = at.dims
    for role in ROLES:
        shape = role_shape(role, dims)
        drawn, expected = component.draw(dims, role, shape, key=key), jax.ShapeDtypeStruct(shape, jnp.float32)
        if not matches(drawn, expected):
            problem = f"init {component.kind!r}.draw returns {describe_value(drawn)} for role {role!r}"
            place = _place(component, type(component).draw)
            raise UserError(f"{problem}, expected {describe_value(expected)}", **place)


def _place(component: Component, target: Any) -> dict[str, Any]:
    """Return the `file` and `line` of a method or class in a plug-in; empty for built-in components."""
    try:
        target = inspect.unwrap(target)
        place = {"file": inspect.getsourcefile(target), "line": inspect.getsourcelines(target)[1]}
    except (OSError, TypeError):
        return {}
    return place if component.plugin else {}


def check_visible_targets(config: ResolvedConfig, source: Source) -> None:
    """Raise `UserError` if a mask lets a position that counts in the loss attend to its target."""
    by_layer = [(i, layer.typed_mixer.effective_mask) for i, layer in enumerate(config.model.layers)]
    masks = {(i, mask) for i, mask in by_layer if mask is not None}
    split = source.evaluation("val")
    for number, mask in sorted(masks, key=lambda item: item[0]) if split is not None else ():
        assert split is not None
        with locate_errors("model", "layers", number, "mixer", "mask"):
            if mask.needs_tokens and source.interface.features:
                problem = f"mask {mask.kind!r} reads a separator, but the inputs of the task are real numbers"
                raise UserError(problem, remedy="Use another mask.")
            mask.check_windows(split.tokens[:CHECKED], split.weights[:CHECKED])


def check_lengths(config: ResolvedConfig, source: Source) -> None:
    """Raise `UserError` if the model rejects sequences of a length in `task.eval_lengths`.

    A model also rejects longer sequences if the shape of a parameter depends on `task.seq_len`, as in a table of
    positions, because an index beyond an array silently reads its last element.
    """
    for i, length in enumerate(config.task.eval_lengths):
        tokens = config.task.batch.shapes(source.interface, BATCH, length).tokens
        model = model_shapes(config.model, source.interface, source.seq_len)
        try:
            if length > source.seq_len:
                longer = leaves_by_path(model_shapes(config.model, source.interface, length))
                for name, array in leaves_by_path(model).items():
                    if array.shape != longer[name].shape:
                        problem = f"{name} has shape {array.shape}, and needs {longer[name].shape} for {length} tokens"
                        raise UserError(problem, remedy=f"Remove lengths above {source.seq_len}.")
            with attribute_errors(f"sequences of {length} tokens cannot be evaluated", iter_components(config.model)):
                jax.eval_shape(LM.__call__, model, tokens)
        except UserError as error:
            raise error if error.path else error.within("task", "eval_lengths", i) from None


def check_batch(config: ResolvedConfig, source: Source) -> None:
    """Raise `UserError` if a task's batches do not have the shapes and dtypes of `data.base.Batch`."""
    key = type(source), source.fingerprint, source.seq_len, config.train.batch_size
    if key in _PASSED:
        return
    size = config.train.batch_size
    batch = jax.eval_shape(
        lambda arrays, rows, seed: source.batch(arrays, rows, named(root_key(seed), "data")),
        array_shapes(source), jax.ShapeDtypeStruct((size,), jnp.int32), jax.ShapeDtypeStruct((), jnp.int32),
    )  # fmt: skip
    expected = config.task.batch.shapes(source.interface, size, source.seq_len)
    for name, wanted in expected._asdict().items():
        seen = getattr(batch, name, None)
        if not (seen is None if wanted is None else matches(seen, wanted)):
            problem = f"task {config.task.kind!r}: {name} of a batch are {describe_value(seen)}"
            raise UserError(f"{problem}, expected {describe_value(wanted)}", path=("task",))
    _PASSED.add(key)

"""Checks that a mixer's module does what its config class declares (`nn.mixer_base.MixerConfig`)."""

from collections.abc import Mapping
from dataclasses import replace
from math import prod
from typing import Any

import equinox as eqx

from taetpu.core.errors import UserError
from taetpu.core.keys import root_key
from taetpu.nn.cache import cached_shapes
from taetpu.nn.mixer_base import MixerConfig
from taetpu.nn.position import IN_ATTENTION, PositionConfig
from taetpu.nn.slot_calls import PARTS, build_part, trace_result
from taetpu.testing.report import CheckFailed, CheckNote
from taetpu.testing.standalone import setup
from taetpu.testing.tiny import BATCH, SEQ, context, dims, host_config


class Calls:
    """The shapes with which a mixer called each part of its position; as a static field, equal only to itself."""

    def __init__(self) -> None:
        self.shapes: dict[str, list[tuple[int, ...]]] = {}


class ObservedPart(eqx.Module):
    """A part of a position that records the shapes of its arguments, and changes nothing."""

    part: str = eqx.field(static=True)
    calls: Calls = eqx.field(static=True)

    def __call__(self, *given: Any) -> Any:
        """Return the queries and keys, or the scores."""
        self.calls.shapes[self.part] = [array.shape for array in given[:-1]]
        return given[0] if self.part == "on_scores" else given[:2]


class ObservedPosition(PositionConfig):
    """A position whose parts record their calls."""

    calls: Calls

    def in_attention(self, head_dim: int) -> ObservedPart:
        """Build the module that receives queries and keys."""
        return ObservedPart("in_attention", self.calls)

    def on_scores(self, dims: Any, heads: Any, *, key: Any) -> ObservedPart:
        """Build the module that receives scores."""
        return ObservedPart("on_scores", self.calls)


def check_declared(component: Any) -> str:
    """Check that the module calls the declared parts of positions with the declared sizes, and caches what it says."""
    mixer, calls, part = host_config(component).layers[0].typed_mixer, Calls(), PARTS["mixer"][""]
    at = replace(setup(component), position=ObservedPosition(calls=calls))
    module = build_part(component, part, at, root_key(0))
    if module is None:
        return "the component builds None, so it calls no positions"
    trace_result(part, module, at, context(component))
    called = tuple(name for name in IN_ATTENTION if name in calls.shapes)
    if called != tuple(name for name in IN_ATTENTION if name in mixer.position_parts):
        problem = f"the module calls {called or 'no part'} of positions, and position_parts is {mixer.position_parts}"
        remedy = f"Set position_parts = {called} in a class that extends MixerConfig."
        if not isinstance(component, MixerConfig):
            raise CheckNote(f"{problem}, so positions that layers share are refused. {remedy}")
        raise CheckFailed(problem, at=(component, "init"), remedy=remedy)
    _check_shapes(component, mixer, calls.shapes)
    size, cached = mixer.cache_size(dims()), _cached_per_token(module)
    if size is not None and cached is not None and size != cached:
        problem = f"cache_size is {size} at dim={dims().dim}, and cache_shapes of the module has {cached} per token"
        raise CheckFailed(problem, at=(component, "cache_size"))
    return f"the module calls {' and '.join(called) or 'no part'} of positions, as declared"


def _check_shapes(component: Any, mixer: MixerConfig, shapes: Mapping[str, list[tuple[int, ...]]]) -> None:
    """Raise `CheckFailed` if positions receive arrays of other sizes than the config declares."""
    heads, rotated, expected = mixer.heads(dims()), mixer.position_heads(dims()), {}
    if rotated is not None:
        sizes = (rotated.num_heads, rotated.num_kv_heads)
        expected["in_attention"] = [(BATCH, number, SEQ, rotated.head_dim) for number in sizes]
    if heads is not None:
        expected["on_scores"] = [(BATCH, heads.num_heads, SEQ, SEQ)]
    for name, seen in shapes.items():
        wanted = expected.get(name, [])
        if seen[: len(wanted)] != wanted or not wanted:
            answers = "position_heads" if name == "in_attention" else "heads"
            problem = f"{name} of positions receives {seen}, and {answers}(dims) declares {wanted or 'no heads'}"
            raise CheckFailed(problem, at=(component, answers))


def _cached_per_token(module: Any) -> int | None:
    """Return the number of elements by which a module's cache grows with each token; None if it is not causal."""
    try:
        shapes = [cached_shapes(module, length) or {} for length in (SEQ, SEQ + 1)]
    except UserError:
        return None
    before, after = (sum(map(prod, arrays.values())) for arrays in shapes)
    return after - before

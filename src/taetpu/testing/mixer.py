"""The check that a mixer's module does what its config class declares (`nn.mixer_base.MixerConfig`)."""

from dataclasses import replace
from math import prod
from typing import Any

import equinox as eqx

from taetpu.core.errors import UserError
from taetpu.core.keys import root_key
from taetpu.nn.cache import cached_shapes
from taetpu.nn.common import AttentionDims
from taetpu.nn.mixer_base import MixerConfig
from taetpu.nn.position import PositionConfig
from taetpu.nn.slot_calls import PARTS, build_part, trace_result
from taetpu.testing.report import CheckFailed, CheckNote
from taetpu.testing.standalone import setup
from taetpu.testing.tiny import BATCH, SEQ, context, dims, host_config

GIVEN = {"in_attention": 2, "on_scores": 1}
"""The number of arrays that each part of a position changes."""


class Calls:
    """The shapes with which a mixer called the parts of its position, by name."""

    def __init__(self) -> None:
        self.shapes: dict[str, list[tuple[int, ...]]] = {}


class ObservedPart(eqx.Module):
    """A part of a position that records the shapes of the arrays that it could change, and changes none."""

    name: str = eqx.field(static=True)
    calls: Calls = eqx.field(static=True)

    def __call__(self, *given: Any) -> Any:
        """Return the queries and keys, or the scores."""
        arrays: Any = given[: GIVEN[self.name]]
        self.calls.shapes[self.name] = [array.shape for array in arrays]
        return arrays if len(arrays) > 1 else arrays[0]


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
        return "the component builds None"
    trace_result(part, module, at, context(component))
    if calls.shapes != (declared := _declared_shapes(mixer)):
        problem = f"the parts of positions receive {calls.shapes or 'nothing'}, declared: {declared or 'nothing'}"
        remedy = f"Extend MixerConfig, with position_parts = {tuple(calls.shapes)} and these sizes in position_heads."
        if not isinstance(component, MixerConfig):
            raise CheckNote(f"{problem}; positions that all layers share are refused. {remedy}")
        raise CheckFailed(problem, at=(component, "position_heads"), remedy=remedy)
    size, cached = mixer.cache_size(dims()), _cached_per_token(module)
    if size is not None and cached is not None and size != cached:
        problem = f"cache_size is {size} at dim={dims().dim}, and cache_shapes of the module has {cached} per token"
        raise CheckFailed(problem, at=(component, "cache_size"))
    return f"the module calls {' and '.join(declared) or 'no part'} of positions, as declared"


def _declared_shapes(mixer: MixerConfig) -> dict[str, list[tuple[int, ...]]]:
    """Return the shapes that the declared parts of positions receive, by name."""
    none = AttentionDims(0, 0, 0)
    heads, rotated = mixer.heads(dims()) or none, mixer.position_heads(dims()) or none
    shapes: dict[str, list[tuple[int, ...]]] = {
        "in_attention": [(BATCH, n, SEQ, rotated.head_dim) for n in (rotated.num_heads, rotated.num_kv_heads)],
        "on_scores": [(BATCH, heads.num_heads, SEQ, SEQ)],
    }
    return {name: shapes[name] for name in mixer.position_parts}


def _cached_per_token(module: Any) -> int | None:
    """Return the number of elements by which a module's cache grows with each token; None if it is not causal."""
    try:
        shapes = [cached_shapes(module, length) or {} for length in (SEQ, SEQ + 1)]
    except UserError:
        return None
    before, after = (sum(map(prod, arrays.values())) for arrays in shapes)
    return after - before

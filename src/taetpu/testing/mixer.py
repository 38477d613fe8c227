"""The check that a mixer's module does what its config class declares (`nn.mixer_base.MixerConfig`)."""

from dataclasses import replace
from math import prod
from typing import Any

from jax.tree_util import Partial

from taetpu.core.errors import UserError
from taetpu.core.keys import root_key
from taetpu.nn.cache import cached_shapes
from taetpu.nn.common import AttentionDims
from taetpu.nn.mixer_base import MixerConfig
from taetpu.nn.position.base import PositionConfig
from taetpu.nn.slot_calls import PARTS, build_part, trace_result
from taetpu.testing.report import CheckFailed, CheckNote
from taetpu.testing.standalone import setup
from taetpu.testing.tiny import BATCH, SEQ, context, dims, host_config


class ObservedPosition(PositionConfig):
    """A position whose parts store the shapes that they receive in `calls`, by name, and change nothing."""

    calls: Any

    def in_attention(self, head_dim: int) -> Any:
        """Build the function that receives queries and keys."""

        def call(q: Any, k: Any, ctx: Any) -> tuple[Any, Any]:
            self.calls["in_attention"] = [q.shape, k.shape]
            return q, k

        return Partial(call)

    def on_scores(self, dims: Any, heads: Any, *, key: Any) -> Any:
        """Build the function that receives scores."""

        def call(scores: Any, q: Any, k: Any, ctx: Any) -> Any:
            self.calls["on_scores"] = [scores.shape]
            return scores

        return Partial(call)


def check_declared(component: Any) -> str:
    """Check that the module calls the declared parts of positions with the declared sizes, and caches what it says."""
    mixer, part = host_config(component).layers[0].typed_mixer, PARTS["mixer"][""]
    calls: dict[str, list[tuple[int, ...]]] = {}
    at = replace(setup(component), position=ObservedPosition(calls=calls))
    module = build_part(component, part, at, root_key(0))
    if module is None:
        return "the component builds None"
    trace_result(part, module, at, context(component))
    if calls != (declared := _declared_shapes(mixer)):
        problem = f"the parts of positions receive {calls or 'nothing'}, declared: {declared or 'nothing'}"
        remedy = f"Extend MixerConfig, with position_parts = {tuple(calls)} and these sizes in position_heads."
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
    heads, rotated = (sizes or AttentionDims(0, 0, 0) for sizes in (mixer.heads(dims()), mixer.position_heads(dims())))
    turned = [(BATCH, number, SEQ, rotated.head_dim) for number in (rotated.num_heads, rotated.num_kv_heads)]
    shapes = {"in_attention": turned, "on_scores": [(BATCH, heads.num_heads, SEQ, SEQ)]}
    return {name: shapes.get(name, []) for name in mixer.position_parts}


def _cached_per_token(module: Any) -> int | None:
    """Return the number of elements by which a module's cache grows with each token; None if it is not causal."""
    try:
        shapes = [cached_shapes(module, length) or {} for length in (SEQ, SEQ + 1)]
    except UserError:
        return None
    before, after = (sum(map(prod, arrays.values())) for arrays in shapes)
    return after - before

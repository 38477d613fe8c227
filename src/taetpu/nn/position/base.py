"""Slot `position`: the encoding of token order.

A kind may act on the input embeddings (`at_input`), on queries and keys (`in_attention`) and on scores (`on_scores`). A
kind that is set for a single layer replaces only the model's actions in attention, so it must change one of them (see
`check_layer`).

In sequences of several documents (`Context.segments`), absolute positions restart in each document. Relative positions
are differences, which a restart would not change between tokens of one document.
"""

from typing import Any, ClassVar

import equinox as eqx
from jaxtyping import Array, Float
from pydantic import model_validator

from taetpu.core.config import Component
from taetpu.core.errors import UserError
from taetpu.core.keys import Key
from taetpu.core.registry import kinds, register
from taetpu.nn.common import AttentionDims, Context, Dims, Identity

Heads = Float[Array, "batch head seq head_dim"]
KVHeads = Float[Array, "batch kv_head seq head_dim"]
Keys = Float[Array, "batch head key head_dim"]
Scores = Float[Array, "batch head query key"]
IN_ATTENTION = ("in_attention", "on_scores")
"""The parts of positions that act in attention."""


class PositionConfig(Component):
    """Base of position kinds, which override `at_input`, `in_attention` or `on_scores`. The base class changes nothing.

    Attributes:
        shared: Whether all layers use one module, built once, for their scores.
        extrapolates: Whether the modules accept sequences that are longer than those of training.
    """

    shared: ClassVar[bool] = False
    extrapolates: ClassVar[bool] = True

    @model_validator(mode="after")
    def _acts(self) -> "PositionConfig":
        if self.kind != "none" and not any(map(self.acts, ("at_input", *IN_ATTENTION))):
            problem = f"position {self.kind!r} changes nothing"
            raise UserError(problem, remedy="Define at_input, in_attention or on_scores.")
        return self

    @classmethod
    def acts(cls, part: str) -> bool:
        """Return whether the kind overrides a method: `at_input`, `in_attention` or `on_scores`."""
        return getattr(cls, part) is not getattr(PositionConfig, part)

    @property
    def in_layer(self) -> "PositionConfig":
        """The position that a mixer receives. With `shared`, its `on_scores` returns a call of the shared module."""
        return SharedPosition(position=self) if self.shared else self

    def check_layer(self, position: "PositionConfig", number: int) -> None:
        """Raise `UserError` if `position`, that of layer `number`, cannot act in a single layer.

        `self` is the position of the model.
        """
        if position == self:
            return
        if position.acts("at_input"):
            known = kinds("position").items()
            usable = [kind for kind, cls in known
                      if issubclass(cls, PositionConfig) and not cls.acts("at_input") and not cls.shared]  # fmt: skip
            raise UserError(
                f"{position.kind!r} positions are added to the input embeddings, so a single layer cannot have them",
                path=("position",),
                remedy=f"Set model.position, or give the layer one of: {', '.join(sorted(usable))}.",
            )
        if position.shared:
            raise UserError(
                f"{position.kind!r} positions are shared by all layers, so a single layer cannot have them",
                path=("position",),
                remedy=f"Set model.position to {position.kind}, or remove the layer's position.",
            )
        if not any(kind.acts(part) for kind in (position, self) for part in IN_ATTENTION):
            raise UserError(
                f"{position.kind!r} changes nothing in layer {number}, because {self.kind} positions act on the input "
                "embeddings",
                path=("position",),
                remedy=f"Set model.position to {position.kind}, or remove the layer's position.",
            )

    def at_input(self, dims: Dims, *, key: Key) -> eqx.Module:
        """Build the module that acts on the input embeddings."""
        return Identity()

    def in_attention(self, head_dim: int) -> eqx.Module:
        """Build the module that acts on queries and keys."""
        return Untouched()

    def on_scores(self, dims: Dims, heads: AttentionDims, *, key: Key) -> Any:
        """Build the module `(scores, q, k, ctx) -> scores`; None if scores are unchanged.

        The module receives the scaled scores, the queries and keys after `in_attention`, with a key for each query
        head, and the mixer's input as `ctx.x`.
        """
        return None


class SharedScores(eqx.Module):
    """A call of the module that acts on the scores of all layers (`PositionConfig.shared`)."""

    def __call__(self, scores: Scores, q: Heads, k: Keys, ctx: Context) -> Scores:
        """Return the changed scores."""
        return ctx.shared_scores(scores, q, k, ctx)


SHARED = SharedScores()


class SharedPosition(PositionConfig):
    """A position whose module that acts on scores is built once for all layers; see `PositionConfig.in_layer`."""

    position: PositionConfig

    def in_attention(self, head_dim: int) -> eqx.Module:
        """Build the module that acts on queries and keys."""
        return self.position.in_attention(head_dim)

    def on_scores(self, dims: Dims, heads: AttentionDims, *, key: Key) -> SharedScores:
        """Return a call of the shared module."""
        return SHARED


class Untouched(eqx.Module):
    """The identity function for queries and keys."""

    def __call__(self, q: Heads, k: KVHeads, ctx: Context) -> tuple[Heads, KVHeads]:
        """Return queries and keys unchanged."""
        return q, k


@register("position", "none")
class NoPosition(PositionConfig):
    """No encoding, so that only the causal mask depends on order. Haviv et al. 2022 (NoPE).

    Source: Haviv et al. 2022, "Transformer Language Models without Positional Encodings Still Learn Positional
    Information", arXiv 2203.16634.
    """

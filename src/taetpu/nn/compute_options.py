"""How a model's numbers are computed: what changes them in their last bits, and never what they mean."""

from dataclasses import dataclass, replace
from typing import Any

import equinox as eqx
import jax

from taetpu.nn.attention import Attention
from taetpu.nn.kernels import PATHS, Kernel, MemoryStandIn, Plain
from taetpu.nn.lm import LM
from taetpu.nn.stack import Stack


@dataclass(frozen=True)
class ComputeOptions:
    """What nodes of a built model are replaced by. The defaults are how a model is built.

    Attributes:
        unroll: layers in each pass of a deep stack's loop.
        remat: what of a layer is kept for the backward pass (`nn.stack.REMAT`).
        attention: the path that built-in attention takes where it can (`nn.kernels.PATHS`). A component that brings
            its own path keeps it.
        loss_chunk: of how many tokens logits exist at once where only their loss is asked for; None for all.
    """

    unroll: int = 1
    remat: str = "none"
    attention: str = "plain"
    loss_chunk: int | None = None

    @property
    def non_default(self) -> dict[str, Any]:
        """What is not as a model is built, by name; how deep stacks are unrolled is told elsewhere."""
        kept = {"attention": self.attention, "remat": self.remat, "loss_chunk": self.loss_chunk}
        return {name: value for name, value in kept.items() if value != getattr(DEFAULT_OPTIONS, name)}

    def apply(self, tree: Any, *, counted: bool = False) -> Any:
        """A model, or what holds trees shaped like one (gradients, moments), computed this way.

        `counted`: only its memory is to be counted, on a machine that may not have the kernel.
        """
        path = PATHS[self.attention]
        path = MemoryStandIn(path) if counted and isinstance(path, Kernel) else path

        def attention(node: Any) -> Any:
            return eqx.tree_at(lambda a: a.path, node, path) if uses_plain_attention(node) else node

        def changed(node: Any) -> Any:
            if isinstance(node, LM):
                stacks = tuple(changed(stack) for stack in node.stacks)
                return replace(node, stacks=stacks, loss_chunk=self.loss_chunk)
            if isinstance(node, Stack):
                block = jax.tree.map(attention, node.block, is_leaf=lambda node: isinstance(node, Attention))
                return replace(node, block=block, unroll=self.unroll, remat=self.remat)
            return node

        return jax.tree.map(changed, tree, is_leaf=lambda node: isinstance(node, LM | Stack))


def uses_plain_attention(node: Any) -> bool:
    """Whether a node is attention on the built-in plain path, the only one that a kernel computes the same as.

    A subclass of `Plain` computes something else, so it is compared by its exact type.
    """
    return isinstance(node, Attention) and type(node.path) is Plain


DEFAULT_OPTIONS = ComputeOptions()

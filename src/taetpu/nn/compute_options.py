"""Options of how a model is computed: they change the last bits of its numbers, not their meaning."""

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
    """Options that replace nodes of a built model. The defaults leave a model as it is built.

    Attributes:
        unroll: Layers per iteration of a deep stack's loop.
        remat: The activations that the backward pass keeps (`nn.stack.REMAT`).
        attention: The path of built-in attention, where it is supported (`nn.kernels.PATHS`). A component with another
            path keeps it.
        loss_chunk: The number of tokens whose logits exist at once if only their loss is needed; None for all.
    """

    unroll: int = 1
    remat: str = "none"
    attention: str = "plain"
    loss_chunk: int | None = None

    @property
    def non_default(self) -> dict[str, Any]:
        """The options that are not at their default, without `unroll`."""
        options = {"attention": self.attention, "remat": self.remat, "loss_chunk": self.loss_chunk}
        return {name: value for name, value in options.items() if value != getattr(DEFAULT_OPTIONS, name)}

    def apply(self, tree: Any, *, counted: bool = False) -> Any:
        """Return a model, or trees of its structure such as gradients and moments, with these options.

        Args:
            tree: The model, or a tree that contains models.
            counted: Replace kernels by stand-ins that only occupy memory, on a machine that may not have the kernel.
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
    """Return whether a node is attention on the built-in plain path, which kernels can replace.

    The exact type is compared: a subclass of `Plain` computes something else.
    """
    return isinstance(node, Attention) and type(node.path) is Plain


DEFAULT_OPTIONS = ComputeOptions()

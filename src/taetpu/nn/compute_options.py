"""Options for the computation of a run. They can change the last bits of results, but not the computed function."""

from dataclasses import dataclass, replace
from typing import Any

import equinox as eqx
import jax

from taetpu.nn.attention import Attention
from taetpu.nn.attention_kernels import PATHS, Kernel, MemoryStandIn, Plain
from taetpu.nn.embedding import LogitForm
from taetpu.nn.lm import LM
from taetpu.nn.stack import Stack


@dataclass(frozen=True)
class ComputeOptions:
    """Options that replace nodes in a built model, and the feed. The default options leave the model unchanged.

    Attributes:
        unroll: The number of layers per iteration in the loop of a deep stack.
        remat: The activations that are kept for the backward pass, as a key of `nn.stack.REMAT`.
        attention: The implementation of built-in attention, as a key of `nn.attention_kernels.PATHS`. Calls that
            it does not support are computed by the plain implementation. Attention components that define their own
            path are left unchanged.
        loss_chunk: The number of tokens for which logits are computed at once if only the loss is needed. None means
            all tokens.
        feed: Where training data is during training, `resident` or `host` (see `train.data_feed`).
        logits: The dtype in which training steps hold logits (see `nn.embedding.LogitForm`).
        pad_vocab: The multiple to which training steps pad the number of logits of a token; None for no padding.
        cast: When weights are cast to the dtype of products: at each `use`, or once a `step` (see `nn.cast`).
    """

    unroll: int = 1
    remat: str = "none"
    attention: str = "plain"
    loss_chunk: int | None = None
    feed: str = "resident"
    logits: str = "float32"
    pad_vocab: int | None = None
    cast: str = "use"

    @property
    def non_default(self) -> dict[str, Any]:
        """The options that differ from their default, by name, except `unroll`."""
        options = {name: value for name, value in vars(self).items() if name != "unroll"}
        return {name: value for name, value in options.items() if value != getattr(DEFAULT_OPTIONS, name)}

    @property
    def data(self) -> dict[str, Any]:
        """The options as plain data. Options that earlier versions did not have are left out at their default."""
        return {name: getattr(self, name) for name in FIRST_OPTIONS} | self.non_default

    def apply(self, tree: Any, *, counted: bool = False) -> Any:
        """Return a model, or a tree with the same structure (such as its gradients), with the options applied.

        Args:
            tree: The model, or a tree that contains models.
            counted: Whether to replace kernels with placeholders, to estimate memory on a machine without the kernel.
        """
        path = PATHS[self.attention]
        path = MemoryStandIn(path) if counted and isinstance(path, Kernel) else path

        def attention(node: Any) -> Any:
            return eqx.tree_at(lambda a: a.path, node, path) if uses_plain_attention(node) else node

        def within(node: Any) -> Any:
            return jax.tree.map(attention, node, is_leaf=lambda node: isinstance(node, Attention))

        def changed(node: Any) -> Any:
            if isinstance(node, LM):
                stacks = tuple(changed(stack) for stack in node.stacks)
                form = LogitForm(self.logits, self.pad_vocab or 1)
                training = {"loss_chunk": self.loss_chunk, "logit_form": form, "cast": self.cast}
                return replace(node, stacks=stacks, heads=within(node.heads), **training)
            if isinstance(node, Stack):
                return replace(node, block=within(node.block), unroll=self.unroll, remat=self.remat)
            return node

        return jax.tree.map(changed, tree, is_leaf=lambda node: isinstance(node, LM | Stack))


def uses_plain_attention(node: Any) -> bool:
    """Return whether a node is an `Attention` module with the plain path, which a kernel can replace.

    The exact type is compared, because a subclass of `Plain` may compute another function.
    """
    return isinstance(node, Attention) and type(node.path) is Plain


DEFAULT_OPTIONS = ComputeOptions()
FIRST_OPTIONS = ("unroll", "remat", "attention", "loss_chunk", "feed")  # in the plans of all versions

"""Weights that are cast to the dtype of matrix products once a training step, in place of a cast at each use."""

from dataclasses import replace
from typing import Any

import equinox as eqx
import jax
from jaxtyping import DTypeLike

from taetpu.nn.lm import LM
from taetpu.nn.stack import Stack


def cast_weights(params: LM, dtype: DTypeLike) -> LM:
    """Return the trained part of a model, with the weights of its layers that occur only in products cast.

    These are the fields in `products` of a module's class. A product casts them in any case, so the forward pass is the
    same. Their gradients are rounded to `dtype`, where XLA may otherwise keep the product's float32. Layers with an
    adapter, and layers that share parameters, are left unchanged: sums over their uses would be in `dtype`. So is the
    embedding, which other parts of the model use too.
    """
    sources = {stack.source for stack in params.stacks}

    def cast_stack(number: int, stack: Stack) -> Stack:
        block = stack.block
        if block is None or block.adapter is not None or stack.places is not None or number in sources:
            return stack
        return replace(stack, block=jax.tree.map(cast_module, block, is_leaf=_has_products))

    def cast_module(node: Any) -> Any:
        if not _has_products(node):
            return node
        names = type(node).products
        return eqx.tree_at(
            lambda m: [getattr(m, n) for n in names], node, [getattr(node, n).astype(dtype) for n in names]
        )

    stacks = tuple(cast_stack(number, stack) for number, stack in enumerate(params.stacks))
    return eqx.tree_at(lambda tree: tree.stacks, params, stacks)


def _has_products(node: Any) -> bool:
    """Return whether a module's class has `products` itself: a subclass may use inherited weights in another way."""
    return "products" in vars(type(node))

"""Slot `adapter`: changes of a layer's weights by separate parameters, for fine-tuning."""

from dataclasses import replace
from functools import lru_cache
from typing import TYPE_CHECKING, Annotated, Any

import equinox as eqx
import jax
from jaxtyping import Array, Float
from pydantic import Field, PositiveFloat, PositiveInt

from taetpu.core.config import Component, Traced, iter_components
from taetpu.core.errors import UserError, suggest
from taetpu.core.keys import Key, named, root_key
from taetpu.core.registry import register
from taetpu.core.static_dynamic import bind, split
from taetpu.core.tree import leaves_by_path
from taetpu.nn.common import Dims, Fixed, partition_trainable

if TYPE_CHECKING:
    from taetpu.nn.block import Block, LayerConfig
    from taetpu.nn.lm import LM, LMConfig


class AdapterConfig(Component):
    """Base of adapters. `init` builds a module that maps a block to the block with changed weights."""

    def init(self, dims: Dims, block: "Block", *, key: Key) -> Any:
        """Build the module for a block, or return None for no adapter."""
        raise NotImplementedError

    def check_layer(self, layer: "LayerConfig", dims: Dims) -> None:
        """Raise `UserError` if the adapter cannot change the weights of a layer."""


@register("adapter", "none")
class NoAdapter(AdapterConfig):
    """No adapter: the weights are used as they are."""

    def init(self, dims: Dims, block: "Block", *, key: Key) -> None:
        """Return None for no adapter."""
        return


@register("adapter", "lora")
class LoRAConfig(AdapterConfig):
    """W + (alpha / rank) A B in place of each target matrix W; B is zero at first. Hu et al. 2021, section 4.1.

    A has the model's initial distribution. The paper has no dropout on the input of A either. To train only the
    adapters, use the hook `freeze` with `trained: ["*.adapter.*"]`.

    Source: Hu et al. 2021, "LoRA: Low-Rank Adaptation of Large Language Models", arXiv 2106.09685.
    """

    rank: PositiveInt = 8
    """Number of columns of A and rows of B."""
    alpha: Annotated[PositiveFloat, Traced()] = 16.0
    """Factor of A B, divided by `rank`."""
    targets: Annotated[tuple[str, ...], Field(min_length=1)] = ("mixer.wq", "mixer.wv")
    """Names of the matrices in a layer to which A B is added."""

    def check_layer(self, layer: "LayerConfig", dims: Dims) -> None:
        """Raise `UserError` if the layer has no matrix with the name of a target."""
        known = matrix_names(layer.model_copy(update={"adapter": NoAdapter()}), dims)  # pyright: ignore[reportArgumentType]
        for i, name in enumerate(self.targets):
            if name not in known:
                problem = f"a layer has no matrix {name!r} to which an adapter could be added"
                remedy = f"{suggest(name, known)} To adapt some layers only, set model.layers.N.adapter."
                raise UserError(problem, path=("adapter", "targets", i), remedy=remedy)

    def init(self, dims: Dims, block: "Block", *, key: Key) -> "LoRA":
        """Build the module for a block."""
        matrices = find_matrices(block)
        down, up = {}, {}
        for name in self.targets:
            inputs, outputs = matrices[name].shape
            down[name] = dims.weight(named(key, name), inputs, self.rank)
            up[name] = jax.numpy.zeros((self.rank, outputs))
        return LoRA(down, up, Fixed(self.alpha / self.rank))


def find_matrices(block: "Block") -> dict[str, Array]:
    """Return the trained matrices of a block by name."""
    arrays = leaves_by_path(partition_trainable(block)[0])
    return {name: array for name, array in arrays.items() if array.ndim == 2}


@lru_cache(maxsize=64)
def matrix_names(layer: Any, dims: Dims) -> frozenset[str]:
    """Return the names of the trained matrices of a layer (a `LayerConfig`), without building it."""
    fixed = any(component.static_layer for component in iter_components(layer))

    def build(number: Array) -> dict[str, Array]:
        sizes = replace(dims, layer=0 if fixed else number)
        return find_matrices(bind(*split(layer)).init(sizes, key=root_key(0)))

    return frozenset(jax.eval_shape(build, jax.ShapeDtypeStruct((), jax.numpy.int32)))


class LoRA(eqx.Module):
    """Products of two narrow matrices, by the name of the matrix to which they are added; see `LoRAConfig`."""

    down: dict[str, Float[Array, "inputs rank"]]
    up: dict[str, Float[Array, "rank outputs"]]
    scale: Fixed

    def __call__(self, block: "Block") -> "Block":
        """Return the block with the products added to its matrices."""

        def adapted(path: Any, leaf: Any) -> Any:
            name = jax.tree_util.keystr(path, simple=True, separator=".")
            return leaf + self.scale.value * (self.down[name] @ self.up[name]) if name in self.down else leaf

        return jax.tree_util.tree_map_with_path(adapted, block)


def merge_adapters(config: "LMConfig", model: "LM") -> tuple["LMConfig", "LM"]:
    """Return the config and a model without adapters, whose weights contain the changes of the adapters."""

    def merged(block: "Block") -> "Block":
        adapted = block if block.adapter is None else block.adapter(block)
        return eqx.tree_at(lambda b: b.adapter, adapted, None, is_leaf=lambda node: node is None)

    def merged_layer(layer: "LayerConfig") -> "LayerConfig":
        return layer.model_copy(update={"adapter": NoAdapter()})

    stacks = tuple(
        stack if stack.block is None else eqx.tree_at(lambda s: s.block, stack, eqx.filter_vmap(merged)(stack.block))
        for stack in model.stacks
    )
    plain = config.model_copy(update={"layers": tuple(map(merged_layer, config.layers))})
    return plain, eqx.tree_at(lambda m: m.stacks, model, stacks)

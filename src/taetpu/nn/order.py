"""Slot `order`: the order in which the branches of a block act on the residual stream, and the norms they share."""

from typing import TYPE_CHECKING, Any, ClassVar

import equinox as eqx
from jaxtyping import Array, Float

from taetpu.core.config import Component, iter_components
from taetpu.core.errors import UserError
from taetpu.core.keys import Key, named
from taetpu.core.registry import register
from taetpu.core.sites import rename_sites
from taetpu.nn.common import Context, Dims
from taetpu.nn.norm import name_sites
from taetpu.nn.residual.base import branch_input
from taetpu.nn.residual.single import NoResidualConfig

if TYPE_CHECKING:
    from taetpu.nn.block import Block, LayerConfig

Stream = Float[Array, "batch seq *streams dim"]


class OrderConfig(Component):
    """Base of all orders. `init` returns a module that is called as `(block, x, ctx) -> x` (see `nn.block.Block`).

    Attributes:
        norms: The branches that have separate norms.
        placements: The placements of norms that the order supports.
    """

    norms: ClassVar[tuple[str, ...]] = ("mixer", "ffn")
    placements: ClassVar[tuple[str, ...]] = ("pre", "post", "sandwich", "output")

    def init(self, dims: Dims, layer: "LayerConfig", *, key: Key) -> eqx.Module:
        """Build the module of a layer at the given sizes."""
        raise NotImplementedError

    def check_layer(self, layer: "LayerConfig") -> None:
        """Raise `UserError` if a layer's other components cannot be used in this order."""
        if layer.norm.placement not in self.placements:
            supported = " or ".join(self.placements)
            problem = f"order {self.kind!r} does not support norms with placement {layer.norm.placement!r}"
            raise UserError(problem, path=("order",), remedy=f"Use placement {supported}, or order sequential.")


@register("order", "sequential")
class SequentialConfig(OrderConfig):
    """The mixer, then the ffn on its result: y = x + mixer(N1(x)), y + ffn(N2(y)). Vaswani et al. 2017.

    Source: Vaswani et al. 2017, "Attention Is All You Need", arXiv 1706.03762.
    Reference: transformers.GPTNeoXForCausalLM.
    """

    def init(self, dims: Dims, layer: "LayerConfig", *, key: Key) -> "Sequential":
        """Build the module of a layer at the given sizes."""
        return Sequential()


class Sequential(eqx.Module):
    """The mixer branch, then the ffn branch."""

    def __call__(self, block: "Block", x: Stream, ctx: Context) -> Stream:
        """Return the residual stream after both branches."""
        return block.add("ffn", block.add("mixer", x, ctx), ctx)


@register("order", "sequential-one-norm")
class SequentialOneNormConfig(SequentialConfig):
    """The mixer without a norm, then the ffn: y = x + mixer(x), y + ffn(N(y)). Warner et al. 2024 (ModernBERT).

    It is the order of ModernBERT's first layer, where the norm of the mixer would repeat that of the embeddings.

    Source: Warner et al. 2024, "Smarter, Better, Faster, Longer: A Modern Bidirectional Encoder for Fast, Memory
    Efficient, and Long Context Finetuning and Inference", arXiv 2412.13663.
    Reference: transformers.ModernBertForMaskedLM.
    Excludes: norms with a placement other than `pre`, and layers without a mixer.
    """

    norms = ("ffn",)
    placements = ("pre",)

    def check_layer(self, layer: "LayerConfig") -> None:
        """Raise `UserError` if a layer's other components cannot be used in this order."""
        super().check_layer(layer)
        if layer.mixer.kind == "none":
            problem = f"order {self.kind!r} removes the norm of the mixer, but this layer has no mixer"
            raise UserError(problem, path=("order",), remedy="Use order sequential, which has the same result.")


@register("order", "parallel")
class ParallelConfig(OrderConfig):
    """x + mixer(N(x)) + ffn(N(x)), with one norm for both branches. Wang and Komatsuzaki 2021 (GPT-J).

    Source: Wang and Komatsuzaki 2021, "GPT-J-6B: A 6 Billion Parameter Autoregressive Language Model",
    github.com/kingoflolz/mesh-transformer-jax.
    Reference: transformers.GPTJForCausalLM.
    Excludes: norms with a placement other than `pre`, and layers without a mixer or an ffn.
    """

    norms = ("mixer",)
    placements = ("pre",)

    def check_layer(self, layer: "LayerConfig") -> None:
        """Raise `UserError` if a layer's other components cannot be used in this order."""
        super().check_layer(layer)
        for branch in ("mixer", "ffn"):
            if getattr(layer, branch).kind == "none":
                problem = f"order {self.kind!r} computes two branches at once, but this layer has no {branch}"
                raise UserError(problem, path=("order",), remedy="Use order sequential, which has the same result.")
        if isinstance(layer.residual, NoResidualConfig) and layer.residual.branch != "both":
            problem = (
                f"order {self.kind!r} has one skip connection for both branches, so residual 'none' cannot remove that "
                f"of the {layer.residual.branch} alone"
            )
            raise UserError(problem, path=("residual", "branch"), remedy="Use branch both, or order sequential.")

    def init(self, dims: Dims, layer: "LayerConfig", *, key: Key) -> "Parallel":
        """Build the module of a layer at the given sizes."""
        return Parallel()


@register("order", "parallel-two-norms")
class ParallelTwoNormsConfig(ParallelConfig):
    """x + mixer(N1(x)) + ffn(N2(x)), with a norm for each branch. Black et al. 2022 (GPT-NeoX).

    Source: Black et al. 2022, "GPT-NeoX-20B: An Open-Source Autoregressive Language Model", arXiv 2204.06745.
    Reference: transformers.GPTNeoXForCausalLM.
    Excludes: norms with a placement other than `pre`, and layers without a mixer or an ffn.
    """

    norms = ("mixer", "ffn")


class Parallel(eqx.Module):
    """The sum of both branches, which read the same stream. Both are added by the mixer's residual connection."""

    def __call__(self, block: "Block", x: Stream, ctx: Context) -> Stream:
        """Return the residual stream after both branches."""
        stream = branch_input(block.mixer_residual, x)
        h = name_sites(block.mixer_norm, "mixer_norm")(stream)
        shared = block.ffn_norm is None
        ffn_input = h if shared else name_sites(block.ffn_norm, "ffn_norm")(stream)
        mixed, fed = block.branch("mixer", h, ctx), block.branch("ffn", ffn_input, ctx)
        return block.mixer_residual(x, block.skip_branch("mixer", mixed, ctx) + block.skip_branch("ffn", fed, ctx))


@register("order", "macaron")
class MacaronConfig(OrderConfig):
    """Half an ffn, the mixer, half an ffn: x + ffn0(N0(x)) / 2, then the mixer, then the ffn halved. Lu et al. 2019.

    The first ffn has the config of the layer's ffn and separate parameters. The sites are those of `first_ffn` and
    `first_ffn_norm`.

    Source: Lu et al. 2019, "Understanding and Improving Transformer From a Multi-Particle Dynamic System Point of
    View", arXiv 1906.02762.
    Excludes: layers without an ffn, and ffn deepseek-moe, whose state is updated by the load of one ffn in each layer.
    """

    def check_layer(self, layer: "LayerConfig") -> None:
        """Raise `UserError` if a layer's other components cannot be used in this order."""
        super().check_layer(layer)
        if layer.ffn.kind == "none":
            problem = "order 'macaron' has an ffn before and after the mixer, but this layer has no ffn"
            raise UserError(problem, path=("order",), remedy="Use order sequential, or give the layer an ffn.")
        if any(part.has_state for part in iter_components(layer.ffn)):
            problem = f"order 'macaron' has two ffns in a layer, and {layer.ffn.kind!r} stores the state of one"
            raise UserError(problem, path=("order",), remedy="Use order sequential, or another ffn, such as moe.")

    def init(self, dims: Dims, layer: "LayerConfig", *, key: Key) -> "Macaron":
        """Build the module of a layer at the given sizes."""
        return Macaron(
            ffn=layer.ffn.init(dims, key=named(key, "ffn")),
            ffn_norm=layer.build_norm(dims, "ffn", key=named(key, "ffn_norm")),
            ffn_residual=layer.build_residual(dims, "ffn", key=named(key, "ffn_residual")),
        )


class Macaron(eqx.Module):
    """An ffn branch before the mixer; see `MacaronConfig`."""

    ffn: Any
    ffn_norm: Any
    ffn_residual: Any

    def __call__(self, block: "Block", x: Stream, ctx: Context) -> Stream:
        """Return the residual stream after the three branches."""

        def half(h: Stream) -> Stream:
            with rename_sites("ffn", "first_ffn"):
                return block.apply("ffn", self.ffn, h, ctx, name="first_ffn") / 2

        residual = block.connect("first_ffn", self.ffn_residual, ctx)
        x = block.wire(x, name_sites(self.ffn_norm, "first_ffn_norm"), half, residual)
        x = block.add("mixer", x, ctx)
        return block.add("ffn", x, ctx, factor=0.5)

"""The block: a mixer branch, then a feed-forward branch, each connected to the residual stream."""

from collections.abc import Callable
from dataclasses import replace
from typing import Annotated, Any

import equinox as eqx
import jax
import numpy as np
from jaxtyping import Array, Bool, Float
from pydantic import Field, NonNegativeInt

from taetpu.core.config import Component, Config, SlotMark, Traced
from taetpu.core.errors import UserError, check_known, suggest
from taetpu.core.keys import Key, named
from taetpu.core.sites import site
from taetpu.nn.adapter import NoAdapter
from taetpu.nn.attention import AttentionConfig
from taetpu.nn.common import Context, Dims, Fixed, build_dropout, check_slots
from taetpu.nn.ffn.dense import SwiGLUConfig
from taetpu.nn.layer_dropout import NoLayerDropoutConfig
from taetpu.nn.mixer_base import MixerConfig, UndeclaredMixer
from taetpu.nn.norm import NormPair, RMSNormConfig, name_sites
from taetpu.nn.order import SequentialConfig
from taetpu.nn.position.rotary import RopeConfig
from taetpu.nn.post_block import NoAfter
from taetpu.nn.residual.base import Connection, branch_input
from taetpu.nn.residual.single import DeepNormConfig, NoResidualConfig, StandardConfig
from taetpu.nn.short_conv import NoShortConvConfig

Stream = Float[Array, "batch seq *streams dim"]  # see `nn.residual.num_streams`
SLOTS = ("mixer", "position", "norm", "ffn", "residual", "short_conv", "order", "layer_dropout", "after", "adapter")
BRANCHES = ("mixer", "ffn")
DROPPABLE = (*BRANCHES, "layer")


def _keep_parts(config: "LayerConfig", dropped: tuple[str, ...]) -> np.ndarray:
    return np.array([part not in dropped for part in DROPPABLE], np.float32)


class LayerConfig(Config):
    """One layer. `drop` switches off the mixer branch, the ffn branch or the whole layer, in training too."""

    mixer: Annotated[Any, SlotMark("mixer")] = AttentionConfig()
    """The same as `model.mixer`, for this layer."""
    position: Annotated[Any, SlotMark("position")] = RopeConfig()
    """The same as `model.position`, for this layer."""
    norm: Annotated[Any, SlotMark("norm")] = RMSNormConfig()
    """The same as `model.norm`, for this layer."""
    ffn: Annotated[Any, SlotMark("ffn")] = SwiGLUConfig()
    """The same as `model.ffn`, for this layer."""
    residual: Annotated[Any, SlotMark("residual")] = StandardConfig()
    """The same as `model.residual`, for this layer."""
    short_conv: Annotated[Any, SlotMark("short_conv")] = NoShortConvConfig()
    """The same as `model.short_conv`, for this layer."""
    order: Annotated[Any, SlotMark("order")] = SequentialConfig()
    """The same as `model.order`, for this layer."""
    layer_dropout: Annotated[Any, SlotMark("layer_dropout")] = NoLayerDropoutConfig()
    """The same as `model.layer_dropout`, for this layer."""
    after: Annotated[Any, SlotMark("after")] = NoAfter()
    """The same as `model.after`, for this layer."""
    adapter: Annotated[Any, SlotMark("adapter")] = NoAdapter()
    """The same as `model.adapter`, for this layer."""
    same_as: NonNegativeInt | Annotated[tuple[NonNegativeInt, ...], Field(min_length=1)] | None = None
    """Number of the earlier layer whose parameters and settings this layer shares; `none`: no sharing.

    A list is repeated over the layers after the last one in it: with [0, 1], layer 2 shares layer 0, layer 3 layer 1,
    layer 4 layer 0 and so on.
    """
    drop: Annotated[tuple[str, ...], Traced(neutral=(), promote=True, encode=_keep_parts)] = ()
    """Parts to switch off in training and evaluation: `mixer`, `ffn` or `layer` (the whole layer)."""

    @property
    def typed_mixer(self) -> MixerConfig:
        """The mixer, which answers by its fields alone if it extends only `Component`."""
        return self.mixer if isinstance(self.mixer, MixerConfig) else UndeclaredMixer(mixer=self.mixer)

    def with_mask(self, mask: Component) -> "LayerConfig":
        """Return the layer with another component in the mixer's field `mask`."""
        return self.model_copy(update={"mixer": self.mixer.model_copy(update={"mask": mask})})

    def check(self, dims: Dims) -> None:
        """Raise `UserError` if a component cannot be built at these sizes, or if a dropped part does not exist."""
        check_slots(self, SLOTS, dims)
        if self.norm.placement not in WIRINGS:
            problem = f"norm {self.norm.kind!r} has the unknown placement {self.norm.placement!r}"
            raise UserError(problem, path=("norm",), remedy=suggest(str(self.norm.placement), WIRINGS))
        if isinstance(self.residual, DeepNormConfig):
            self.residual.check_layer(self)
        self.order.check_layer(self)
        self.layer_dropout.check_layer(self)
        self.adapter.check_layer(self, dims)
        for part in self.drop:
            check_known(part, DROPPABLE, f"a layer has no part {part!r} to drop", path=("drop",))
            if part != "layer" and getattr(self, part).kind == "none":
                raise UserError(f"this layer has no {part} to drop", path=("drop",), remedy=f"Remove {part} from drop.")
            if part != "layer" and isinstance(self.residual, NoResidualConfig) and self.residual.removes(part):
                raise UserError(
                    f"dropping the {part} of a layer without a residual connection makes the layer's output zero",
                    path=("drop",),
                    remedy=f"Set {part}: none to remove the branch, or drop: [layer] to skip the whole layer.",
                )

    def init(self, dims: Dims, *, key: Key) -> "Block":
        """Build the module at the given sizes."""
        keep: Any = self.drop
        parts: dict[str, Any] = {
            "mixer": self.mixer.init(dims, self.position.in_layer, key=named(key, "mixer")),
            "ffn": self.ffn.init(dims, key=named(key, "ffn")),
        }
        for branch in BRANCHES:
            normed = parts[branch] is not None and branch in self.order.norms
            norm, residual = f"{branch}_norm", f"{branch}_residual"
            parts[norm] = self.build_norm(dims, branch, key=named(key, norm)) if normed else None
            parts[residual] = self.build_residual(dims, branch, key=named(key, residual))
        block = Block(
            **parts,
            short_conv={
                branch: self.short_conv.init(replace(dims, branch=branch), key=named(key, "short_conv", branch))
                for branch in BRANCHES
                if parts[branch] is not None
            },
            order=self.order.init(dims, self, key=named(key, "order")),
            layer_dropout=self.layer_dropout.init(dims, key=named(key, "layer_dropout")),
            after=self.after.init(dims, key=named(key, "after")),
            dropout=build_dropout(dims),
            keep=None if isinstance(keep, tuple) else Fixed(keep),
            wire=WIRINGS[self.norm.placement],
        )
        adapter = self.adapter.init(dims, block, key=named(key, "adapter"))
        return block if adapter is None else replace(block, adapter=adapter)

    def build_norm(self, dims: Dims, branch: str, *, key: Key) -> Any:
        """Build the norm of a branch, or a pair of norms for the placement `sandwich`."""
        dims = replace(dims, branch=branch)
        if self.norm.placement != "sandwich":
            return self.norm.init(dims, key=key)
        return NormPair(*(self.norm.init(dims, key=named(key, place)) for place in ("before", "after")))

    def build_residual(self, dims: Dims, branch: str, *, key: Key) -> Any:
        """Build the connection of a branch to the residual stream."""
        return self.residual.init(replace(dims, branch=branch), key=key)


def pre(x: Stream, norm: Callable, branch: Callable, residual: Any) -> Stream:
    """Return x + f(N(x)), with the norm before the branch. Xiong et al. 2020."""
    return residual(x, branch(norm(branch_input(residual, x))))


def post(x: Stream, norm: Callable, branch: Callable, residual: Any) -> Stream:
    """Return N(x + f(x)), with the norm after the sum. Vaswani et al. 2017."""
    return norm(residual(x, branch(branch_input(residual, x))))


def sandwich(x: Stream, norm: NormPair, branch: Callable, residual: Any) -> Stream:
    """Return x + N2(f(N1(x))), with a norm on both sides of the branch. Ding et al. 2021 (CogView); Gemma 2."""
    return residual(x, norm.after(branch(norm.before(branch_input(residual, x)))))


def output(x: Stream, norm: Callable, branch: Callable, residual: Any) -> Stream:
    """Return x + N(f(x)), with the norm on the branch's output. Team OLMo 2024 (OLMo 2)."""
    return residual(x, norm(branch(branch_input(residual, x))))


WIRINGS = {"pre": pre, "post": post, "sandwich": sandwich, "output": output}


def keep_or_skip(keep: Bool[Array, ""], y: Stream, x: Stream) -> Stream:
    """Return `y`, the stream after a layer, or `x`, the stream before it.

    XLA's CPU compiler would fuse `jnp.where` and the gradients of all later layers into those of each layer, which took
    a fifth longer with 8 layers (docs/log.md). It fuses no conditional. `jax.vmap` makes it a `where` again.
    """
    return jax.lax.cond(keep, lambda y, x: y, lambda y, x: x, y, x)


def with_key(ctx: Context, *name: str) -> Context:
    """Return the context with the key at `name` below its key; unchanged without a key."""
    return ctx if ctx.key is None else replace(ctx, key=named(ctx.key, *name))


class Block(eqx.Module):
    """A mixer branch and a feed-forward branch on the residual stream; see `LayerConfig`."""

    mixer: Any
    mixer_norm: Any
    mixer_residual: Any
    ffn: Any
    ffn_norm: Any
    ffn_residual: Any
    short_conv: dict[str, Any]  # of each branch's input
    order: Any
    layer_dropout: Any
    after: Any
    dropout: Any
    keep: Fixed | None
    wire: Callable = eqx.field(static=True)
    adapter: Any = None

    def __call__(self, x: Stream, ctx: Context) -> Stream:
        """Return the residual stream after the block."""
        block = self if self.adapter is None else self.adapter(self)
        y = block.order(block, x, ctx)
        y = block.layer_dropout.layer(x, y, with_key(ctx, "layer_dropout"))
        y = block.after(y, with_key(ctx, "after"))
        return site("residual", y if self.keep is None else keep_or_skip(self.keep.value[2] > 0, y, x))

    def add(self, name: str, x: Stream, ctx: Context, factor: float = 1.0) -> Stream:
        """Return the residual stream after a branch (`mixer` or `ffn`), unchanged if the block has no such branch."""
        if getattr(self, name) is None:
            return x

        def branch(h: Stream) -> Stream:
            y = self.branch(name, h, ctx)
            return y if factor == 1.0 else y * factor

        norm = name_sites(getattr(self, f"{name}_norm"), f"{name}_norm")
        return self.wire(x, norm, branch, self.connect(name, getattr(self, f"{name}_residual"), ctx))

    def connect(self, name: str, residual: Any, ctx: Context) -> Connection:
        """Return the residual connection of a branch, with layer dropout on the branch's output."""
        return Connection(residual, lambda y: self.skip_branch(name, y, ctx))

    def skip_branch(self, name: str, y: Stream, ctx: Context) -> Stream:
        """Return the output of a branch after layer dropout, as its residual connection adds it to the stream."""
        return self.layer_dropout.branch(y, with_key(ctx, name, "layer_dropout"))

    def branch(self, name: str, h: Stream, ctx: Context) -> Stream:
        """Return the output of the mixer or the ffn after dropout, or zeros if the branch is dropped.

        The input `h` is convolved first.
        """
        return self.apply(name, getattr(self, name), self.short_conv[name](h, with_key(ctx, name, "short_conv")), ctx)

    def apply(self, part: str, module: Callable, h: Stream, ctx: Context, name: str = "") -> Stream:
        """Return the output of a module as `branch` does.

        Args:
            part: The branch with which the module is dropped, `mixer` or `ffn`.
            module: The module.
            h: The input of the module.
            ctx: The context of the block.
            name: The name from which the module's key is derived; by default, `part`.
        """
        keyed = with_key(ctx, name or part)
        y = site(f"{part}.out", module(h, keyed))
        y = self.dropout(y, with_key(keyed, "dropout").key)
        return y if self.keep is None else y * self.keep.value[DROPPABLE.index(part)].astype(y.dtype)

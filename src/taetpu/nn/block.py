"""The block: a mixer branch, then a feed-forward branch, each connected to the residual stream."""

from collections.abc import Callable
from dataclasses import replace
from typing import Annotated, Any

import equinox as eqx
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from taetpu.core.config import Config, SlotMark, Traced
from taetpu.core.errors import UserError, suggest
from taetpu.core.keys import Key, named
from taetpu.core.sites import site
from taetpu.nn.attention import AttentionConfig
from taetpu.nn.common import Context, Dims, Fixed, build_dropout
from taetpu.nn.ffn import SwiGLUConfig
from taetpu.nn.norm import RMSNormConfig
from taetpu.nn.position import RopeConfig
from taetpu.nn.post_block import NoAfter
from taetpu.nn.residual import NoResidualConfig, StandardConfig

Stream = Float[Array, "batch seq dim"]
SLOTS = ("mixer", "position", "norm", "ffn", "residual", "after")
DROPPABLE = ("mixer", "ffn", "layer")


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
    after: Annotated[Any, SlotMark("after")] = NoAfter()
    """The same as `model.after`, for this layer."""
    drop: Annotated[tuple[str, ...], Traced(neutral=(), promote=True, encode=_keep_parts)] = ()
    """Parts to switch off in training and evaluation: `mixer`, `ffn` or `layer` (the whole layer)."""

    def check(self, dims: Dims) -> None:
        """Raise `UserError` if a component cannot be built at these sizes, or if a dropped part does not exist."""
        for slot in SLOTS:
            try:
                getattr(self, slot).check(dims)
            except UserError as error:
                raise error.within(slot) from None
        if self.norm.placement not in WIRINGS:
            problem = f"norm {self.norm.kind!r} has the unknown placement {self.norm.placement!r}"
            raise UserError(problem, path=("norm",), remedy=suggest(str(self.norm.placement), WIRINGS))
        for part in self.drop:
            if part not in DROPPABLE:
                raise UserError(
                    f"a layer has no part {part!r} to drop", path=("drop",), remedy=suggest(part, DROPPABLE)
                )
            if part != "layer" and getattr(self, part).kind == "none":
                raise UserError(f"this layer has no {part} to drop", path=("drop",), remedy=f"Remove {part} from drop.")
            if part != "layer" and isinstance(self.residual, NoResidualConfig):
                raise UserError(
                    f"dropping the {part} of a layer without a residual connection makes the layer's output zero",
                    path=("drop",),
                    remedy=f"Set {part}: none to remove the branch, or drop: [layer] to skip the whole layer.",
                )

    def init(self, dims: Dims, *, key: Key) -> "Block":
        """Build the module at the given sizes."""
        wire = WIRINGS[self.norm.placement]
        keep: Any = self.drop
        mixer = self.mixer.init(dims, self.position, key=named(key, "mixer"))
        ffn = self.ffn.init(dims, key=named(key, "ffn"))
        return Block(
            mixer=mixer,
            mixer_norm=None if mixer is None else self.norm.init(dims, key=named(key, "mixer_norm")),
            ffn=ffn,
            ffn_norm=None if ffn is None else self.norm.init(dims, key=named(key, "ffn_norm")),
            residual=self.residual.init(dims, key=named(key, "residual")),
            after=self.after.init(dims, key=named(key, "after")),
            dropout=build_dropout(dims),
            keep=None if isinstance(keep, tuple) else Fixed(keep),
            wire_mixer=skip_branch if mixer is None else wire,
            wire_ffn=skip_branch if ffn is None else wire,
        )


def pre(x: Stream, norm: Callable, branch: Callable, residual: Callable) -> Stream:
    """Return x + f(N(x)), with the norm before the branch. Xiong et al. 2020."""
    return residual(x, branch(norm(x)))


def post(x: Stream, norm: Callable, branch: Callable, residual: Callable) -> Stream:
    """Return N(x + f(x)), with the norm after the sum. Vaswani et al. 2017."""
    return norm(residual(x, branch(x)))


def skip_branch(x: Stream, norm: Any, branch: Callable, residual: Callable) -> Stream:
    """Return `x` unchanged, for a layer without the branch."""
    return x


WIRINGS = {"pre": pre, "post": post}


class Block(eqx.Module):
    """A mixer branch and a feed-forward branch on the residual stream; see `LayerConfig`."""

    mixer: Any
    mixer_norm: Any
    ffn: Any
    ffn_norm: Any
    residual: Any
    after: Any
    dropout: Any
    keep: Fixed | None
    wire_mixer: Callable = eqx.field(static=True)
    wire_ffn: Callable = eqx.field(static=True)

    def __call__(self, x: Stream, ctx: Context) -> Stream:
        """Return the residual stream after the block."""
        y = self.wire_mixer(x, self.mixer_norm, lambda h: self.branch("mixer", h, ctx), self.residual)
        y = self.wire_ffn(y, self.ffn_norm, lambda h: self.branch("ffn", h, ctx), self.residual)
        y = self.after(y, replace(ctx, key=None if ctx.key is None else named(ctx.key, "after")))
        return site("residual", y if self.keep is None else jnp.where(self.keep.value[2] > 0, y, x))

    def branch(self, name: str, h: Stream, ctx: Context) -> Stream:
        """Return the output of the mixer or the ffn after dropout, or zeros if the branch is dropped."""
        key = None if ctx.key is None else named(ctx.key, name)
        y = site(f"{name}.out", getattr(self, name)(h, replace(ctx, key=key)))
        y = self.dropout(y, None if key is None else named(key, "dropout"))
        return y if self.keep is None else y * self.keep.value[DROPPABLE.index(name)].astype(y.dtype)

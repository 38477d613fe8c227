"""Slot `mixer`: the branch that mixes information between positions."""

from dataclasses import replace
from typing import Annotated, Any, ClassVar, Literal

import equinox as eqx
import numpy as np
from jaxtyping import Array, Float
from pydantic import Field, NonNegativeInt, PositiveFloat, field_validator, model_validator

from taetpu.core.config import Size, SlotMark, Traced
from taetpu.core.errors import UserError
from taetpu.core.keys import Key, named
from taetpu.core.registry import register
from taetpu.core.sites import site
from taetpu.nn.attention_kernels import PLAIN, KernelMask
from taetpu.nn.common import AttentionDims, Context, Dims, Fixed, build_dropout, check_slots, project
from taetpu.nn.gate import NoGate
from taetpu.nn.mask import CausalConfig, FullConfig, visible
from taetpu.nn.mixer_base import MixerConfig
from taetpu.nn.normalizer import SoftmaxConfig
from taetpu.nn.position.base import IN_ATTENTION, PositionConfig
from taetpu.nn.qk_norm import NoQKNorm
from taetpu.nn.scores import NoScores
from taetpu.nn.values import NoValues

Stream = Float[Array, "batch seq dim"]
Heads = Float[Array, "batch head seq head_dim"]
ATTENTION_SLOTS = ("mask", "qk_norm", "values", "scores", "normalizer", "gate")
HeadCount = Annotated[int, Field(gt=0, le=2**12)]


@register("mixer", "none")
class NoMixer(MixerConfig):
    """No mixing between positions. Neither the mixer branch nor the norm of the branch exists."""

    def cache_size(self, dims: Dims) -> int:
        """Return 0."""
        return 0

    def init(self, dims: Dims, position: PositionConfig, *, key: Key) -> None:
        """Return None, because there is no module."""
        return


def _keep_heads(config: "AttentionConfig", dropped: tuple[int, ...]) -> np.ndarray:
    keep = np.ones(config.num_heads, np.float32)
    keep[list(dropped)] = 0.0
    return keep


@register("mixer", "attention")
class AttentionConfig(MixerConfig):
    """Scaled dot-product attention. Vaswani et al. 2017; Ainslie et al. 2023 (GQA, fewer key-value heads).

    `head_dim` defaults to dim / num_heads and `scale` to head_dim^-0.5. Query head i reads key-value head
    floor(i * num_kv_heads / num_heads). The output of the heads in `drop_heads` is zeroed before the output projection,
    in training and evaluation.

    Source: Vaswani et al. 2017, "Attention Is All You Need", arXiv 1706.03762; Ainslie et al. 2023, "GQA: Training
    Generalized Multi-Query Transformer Models from Multi-Head Checkpoints", arXiv 2305.13245; Shazeer 2019, "Fast
    Transformer Decoding: One Write-Head is All You Need", arXiv 1911.02150.
    Reference: transformers.models.llama.modeling_llama.LlamaAttention.
    """

    position_parts = IN_ATTENTION

    num_heads: HeadCount = 4
    """Number of query heads."""
    num_kv_heads: HeadCount | None = None
    """Number of key-value heads, a divisor of `num_heads`; `none`: `num_heads`."""
    head_dim: Size | None = None
    """Width of a head; `none`: dim / num_heads."""
    scale: Annotated[PositiveFloat | Literal["1/head_dim"] | None, Traced(neutral=None)] = None
    """Factor by which scores are multiplied; `none`: head_dim^-0.5; `1/head_dim` for muP."""
    scores: Annotated[Any, SlotMark("scores")] = NoScores()
    """Change of the scores before the softmax."""
    bias: bool | Literal["qkv", "out"] | None = None
    """Whether projections have biases; `qkv`: all but the output projection; `out`: the output projection alone;
    `none`: as `model.bias`."""
    causal: bool = True
    """False is short for `mask: full`; the task determines the allowed value."""
    mask: Annotated[Any, SlotMark("mask")] = CausalConfig()
    """The keys that a query may attend to."""
    qk_norm: Annotated[Any, SlotMark("qk_norm")] = NoQKNorm()
    """Normalisation of queries and keys."""
    values: Annotated[Any, SlotMark("values")] = NoValues()
    """Change of the values."""
    normalizer: Annotated[Any, SlotMark("normalizer")] = SoftmaxConfig()
    """The attention weights as a function of the scores."""
    gate: Annotated[Any, SlotMark("gate")] = NoGate()
    """Factor on the outputs of the heads."""
    drop_heads: Annotated[tuple[NonNegativeInt, ...], Traced(neutral=(), promote=True, encode=_keep_heads)] = ()
    """Heads, counted from 0, whose output is zeroed in training and evaluation."""

    @field_validator("drop_heads")
    @classmethod
    def _in_order(cls, heads: tuple[int, ...]) -> tuple[int, ...]:
        return tuple(sorted(set(heads)))

    @model_validator(mode="before")
    @classmethod
    def _all_heads(cls, data: Any) -> Any:
        """Normalise `num_kv_heads == num_heads` to None."""
        heads = cls.model_fields["num_heads"].default
        same = data.get("num_kv_heads") == data.get("num_heads", heads)
        return {**data, "num_kv_heads": None} if same else data

    @model_validator(mode="before")
    @classmethod
    def _full_mask(cls, data: Any) -> Any:
        """Normalise `mask: full` to `causal: false`, so that both have the identity of runs from before masks."""
        mask, causal = data.get("mask", CausalConfig()), data.get("causal", True)
        if isinstance(mask, FullConfig):
            return {**data, "mask": CausalConfig(), "causal": False}
        if causal is False and not isinstance(mask, CausalConfig):
            problem = f"causal: false is short for mask: full, but mask is {mask.kind!r}"
            raise UserError(problem, path=("causal",), remedy="Remove causal.")
        return data

    def check(self, dims: Dims) -> None:
        """Raise `UserError` if this component cannot be built at the given sizes."""
        check_slots(self, ATTENTION_SLOTS, dims)
        head_width(dims, self.num_heads, self.head_dim, shown=3)
        if self.num_heads % (self.num_kv_heads or 1):
            fits = [n for n in range(1, self.num_heads + 1) if self.num_heads % n == 0]
            raise UserError(
                f"num_heads={self.num_heads} is not divisible by num_kv_heads={self.num_kv_heads}",
                path=("num_kv_heads",),
                remedy=f"Set num_kv_heads to one of {', '.join(map(str, fits))}.",
            )
        beyond = [h for h in self.drop_heads if h >= self.num_heads]
        if beyond:
            raise UserError(
                f"head {beyond[0]} does not exist", path=("drop_heads",), remedy=f"Use heads 0 to {self.num_heads - 1}."
            )

    def carries(self, dims: Dims) -> dict[str, tuple[int, ...]]:
        """Return the arrays that layers hand to later layers."""
        return self.values.carries_heads(dims, self.heads(dims))

    def cache_size(self, dims: Dims) -> int:
        """Return the number of elements that text generation caches for each token: its keys and values."""
        heads = self.heads(dims)
        return 2 * heads.num_kv_heads * heads.head_dim

    def init(self, dims: Dims, position: PositionConfig, *, key: Key) -> "Attention":
        """Build the module at the given sizes."""
        heads: AttentionDims = self.heads(dims)
        mask: Any = self.effective_mask
        bias, out_bias = (self.bias == name if isinstance(self.bias, str) else self.bias for name in ("qkv", "out"))
        inner, inner_kv = heads.num_heads * heads.head_dim, heads.num_kv_heads * heads.head_dim
        dropped: Any = self.drop_heads
        return Attention(
            wq=dims.weight(named(key, "wq"), dims.dim, inner, role="q"),
            wk=dims.weight(named(key, "wk"), dims.dim, inner_kv, role="k"),
            wv=dims.weight(named(key, "wv"), dims.dim, inner_kv, role="v"),
            wo=dims.weight(named(key, "wo"), inner, dims.dim, role="out"),
            bq=dims.zeros(inner, bias),
            bk=dims.zeros(inner_kv, bias),
            bv=dims.zeros(inner_kv, bias),
            bo=dims.zeros(dims.dim, out_bias),
            scale=Fixed(score_scale(self.scale, heads.head_dim)),
            qk_norm=self.qk_norm.init(dims, heads, key=named(key, "qk_norm")),
            position=position.in_attention(heads.head_dim),
            values=self.values.init(dims, heads, key=named(key, "values")),
            on_scores=position.on_scores(dims, heads, key=named(key, "on_scores")),
            scores=self.scores.init(dims, key=named(key, "scores")),
            mask=mask.init(dims, key=named(key, "mask")),
            normalizer=self.normalizer.init(dims, heads, key=named(key, "normalizer")),
            gate=self.gate.init(dims, heads, key=named(key, "gate")),
            keep=None if isinstance(dropped, tuple) else Fixed(dropped),
            dropout=build_dropout(dims),
            num_heads=heads.num_heads,
            num_kv_heads=heads.num_kv_heads,
            cached=mask.causal,
            kernel_mask=mask.kernel if isinstance(self.normalizer, SoftmaxConfig) else None,
        )

    def heads(self, dims: Dims) -> AttentionDims:
        """Return the numbers of heads and the width of a head at the given sizes."""
        return AttentionDims(
            self.num_heads, self.num_kv_heads or self.num_heads, self.head_dim or dims.dim // self.num_heads
        )


class Attention(eqx.Module):
    """Scaled dot-product attention; see `AttentionConfig`."""

    products: ClassVar = ("wq", "wk", "wv", "wo")  # see `nn.cast`

    wq: Float[Array, "dim inner"]
    wk: Float[Array, "dim inner_kv"]
    wv: Float[Array, "dim inner_kv"]
    wo: Float[Array, "inner dim"]
    bq: Float[Array, " inner"] | None
    bk: Float[Array, " inner_kv"] | None
    bv: Float[Array, " inner_kv"] | None
    bo: Float[Array, " dim"] | None
    scale: Fixed
    scores: Any
    keep: Fixed | None
    position: Any
    dropout: Any
    num_heads: int = eqx.field(static=True)
    num_kv_heads: int = eqx.field(static=True)
    mask: Any
    qk_norm: Any
    values: Any
    on_scores: Any
    normalizer: Any
    gate: Any
    kernel_mask: KernelMask | None = eqx.field(static=True)  # if a kernel computes the same weights
    path: Any = PLAIN  # the implementation; see `nn.attention_kernels`
    cached: bool = eqx.field(static=True, default=True)  # whether no query attends to a later key

    def __call__(self, x: Stream, ctx: Context) -> Stream:
        """Return the attention output of all heads, projected to the stream."""
        q = split_heads(project(x, self.wq, self.bq), self.num_heads)
        k = split_heads(project(x, self.wk, self.bk), self.num_kv_heads)
        v = split_heads(project(x, self.wv, self.bv), self.num_kv_heads)
        q, k = (q, k) if self.qk_norm is None else self.qk_norm(q, k)
        v = v if self.values is None else self.values(v, ctx)
        q, k = self.position(q, k, ctx)
        q, k, v = site("mixer.q", q), site("mixer.k", k), site("mixer.v", v)
        if ctx.cache is not None:
            k, v = ctx.cache.extend("k", k), ctx.cache.extend("v", v)
        z = self.path(self, q, k, v, replace(ctx, x=x))
        z = z if self.gate is None else self.gate(z, x, ctx)
        z = site("mixer.z", z if self.keep is None else z * self.keep.value.astype(z.dtype)[:, None, None])
        return project(join_heads(z), self.wo, self.bo)

    def visible(self, ctx: Context) -> Any:
        """Return whether each query may attend to each key (see `nn.mask.visible`)."""
        return visible(self.mask, ctx)

    def cache_shapes(self, length: int) -> dict[str, tuple[int, ...]]:
        """Return the shapes of a sequence's keys and values in a cache for `length` tokens.

        Raises:
            UserError: if queries may attend to later tokens, whose keys are not in the cache yet.
        """
        if not self.cached:
            problem = "this attention is not causal, so earlier tokens depend on later ones and cannot be cached"
            raise UserError(problem, remedy="Compute the whole sequence at once.")
        head_dim = self.wk.shape[-1] // self.num_kv_heads
        return dict.fromkeys(("k", "v"), (self.num_kv_heads, length, head_dim))


def head_width(dims: Dims, num_heads: int, head_dim: int | None, shown: int = 4) -> int:
    """Return the width of a head.

    Raises:
        UserError: if no width is set and the number of heads does not divide the width of the model.
    """
    if head_dim is None and dims.dim % num_heads:
        fits = [n for n in range(1, dims.dim + 1) if dims.dim % n == 0]
        near = sorted(fits, key=lambda n: abs(n - num_heads))[:shown]
        raise UserError(
            f"dim={dims.dim} is not divisible by num_heads={num_heads}",
            path=("num_heads",),
            remedy=f"Set num_heads to one of {', '.join(map(str, sorted(near)))}, or set head_dim.",
        )
    return head_dim or dims.dim // num_heads


def score_scale(scale: Any, head_dim: int) -> Any:
    """Return the factor by which scores are multiplied for heads of the given width; see `AttentionConfig.scale`."""
    if scale is None:
        return head_dim**-0.5
    return 1 / head_dim if isinstance(scale, str) else scale


def split_heads(x: Float[Array, "batch seq inner"], num_heads: int) -> Heads:
    """Return projections with a separate axis for the heads, before the axis for tokens."""
    return x.reshape(*x.shape[:2], num_heads, -1).transpose(0, 2, 1, 3)


def join_heads(z: Heads) -> Float[Array, "batch seq inner"]:
    """Return the outputs of the heads, concatenated for each token."""
    return z.transpose(0, 2, 1, 3).reshape(z.shape[0], z.shape[2], -1)

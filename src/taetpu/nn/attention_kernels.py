"""Attention paths: implementations that compute the output of each head from queries, keys and values.

`PLAIN` computes every kind of attention with XLA. The other paths are kernels that never materialise the scores: cuDNN
on NVIDIA GPUs, and splash attention (Pallas) on TPUs. The plain path computes the calls that a kernel does not
support (see `Kernel.refusal`).

All paths return the same values up to rounding. Kernels need a scale at compile time, but the model's scale is traced,
so the queries are multiplied by the scale before a kernel is called.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, ClassVar, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
from jax.ad_checkpoint import checkpoint_name
from jaxtyping import Array, Float

from taetpu.core.keys import named
from taetpu.core.sites import is_requested, site
from taetpu.nn.common import Context, Identity
from taetpu.nn.matmul import matmul

Heads = Float[Array, "batch head seq head_dim"]
KVHeads = Float[Array, "batch kv_head key head_dim"]
Keys = Float[Array, "batch head key head_dim"]
Values = Float[Array, "batch kv_head key value_dim"]
Outputs = Float[Array, "batch head seq value_dim"]
Scores = Float[Array, "batch head query key"]

SITES = ("mixer.scores", "mixer.pattern")  # activations that only the plain path materialises
LANES = 128  # lanes of a TPU's vector unit; in splash attention, the number of keys must be a multiple of this number
MAX_HEAD_DIM = 128  # with blocks of 512 and a head_dim of 1024, splash attention exceeds a v5e's vector memory
CHECKPOINT_NAME = "attention"  # the name by which `jax.checkpoint` policies recognise a kernel's output


class KernelMask(NamedTuple):
    """A mask that kernels compute.

    Attributes:
        causal: Whether no query attends to a later key.
        width: The number of positions that a query attends to, its own included; None for no limit.
    """

    causal: bool
    width: int | None = None


@dataclass(frozen=True)
class Call:
    """The properties of an attention call that decide which paths support it.

    Attributes:
        seq: The length of the sequences.
        head_dim: The width of a head.
        dtype: The dtype of queries, keys and values.
        scored: Whether the scores are changed before the softmax (slots `scores` and `position`).
        mask: The mask of the kernel; None if no kernel computes the mask and the normalizer.
        drawn: Whether dropout is applied to the pattern (the attention weights).
        observed: Whether the scores or the pattern are read or edited (`core.sites`).
    """

    seq: int
    head_dim: int
    dtype: Any
    scored: bool
    mask: KernelMask | None
    drawn: bool
    observed: bool


def describe_call(attention: Any, seq: int, dtype: Any, *, training: bool, observed: bool = False) -> Call:
    """Return the properties of a call to an `Attention` module. Dropout is drawn only in `training`."""
    scored, drawn = (not isinstance(part, Identity) for part in (attention.scores, attention.dropout))
    scored = scored or attention.on_scores is not None
    head_dim = attention.wq.shape[-1] // attention.num_heads
    return Call(seq, head_dim, jnp.dtype(dtype), scored, attention.kernel_mask, drawn and training, observed)


class Plain(eqx.Module):
    """Attention with the scores in memory. This path supports all kinds in attention's slots, dropout and sites."""

    name: ClassVar = "plain"
    platform: ClassVar = ""  # any
    needs: ClassVar = "nothing"

    def refusal(self, call: Call) -> None:
        """Return None, because this path supports every call."""
        return

    def __call__(self, attention: Any, q: Heads, k: KVHeads, v: Values, ctx: Context) -> Outputs:
        """Return the output of each head."""
        k, v = (self.shared(kv, q.shape[1] // kv.shape[1]) for kv in (k, v))
        scores = matmul(q, k.mT, jnp.float32) * attention.scale.value
        if attention.on_scores is not None:
            scores = attention.on_scores(scores, q, k, ctx)
        scores = attention.scores(scores, ctx)
        if (allowed := attention.visible(ctx)) is not None:
            scores = jnp.where(allowed, scores, -1e30)
        return self.read(attention, site("mixer.scores", scores), v, ctx)

    def shared(self, kv: KVHeads, heads: int) -> Keys:
        """Repeat each key-value head for the query heads that read it."""
        return jnp.repeat(kv, heads, axis=1) if heads > 1 else kv

    def read(self, attention: Any, scores: Scores, v: Keys, ctx: Context) -> Heads:
        """Return the weighted values, normalised after the product unless the pattern is observed.

        Normalising after the product is cheaper, because the product is smaller than the pattern and no gradient has to
        be summed over the pattern.
        """
        pattern, total = attention.normalizer(scores, ctx)
        if is_requested("mixer.pattern"):
            pattern, total = site("mixer.pattern", (pattern / total).astype(v.dtype)), jnp.ones(())
        pattern = attention.dropout(pattern.astype(v.dtype), None if ctx.key is None else named(ctx.key, "pattern"))
        return (matmul(pattern, v, jnp.float32) / total).astype(v.dtype)


PLAIN = Plain()


class Kernel(eqx.Module):
    """A path that computes supported calls with a kernel, and other calls with the plain path.

    Kernels mask keys by index in the sequence, not by position. Both masks are the same, because `Context.positions` is
    ascending.
    """

    name: ClassVar[str]
    platform: ClassVar[str]  # see `platform_of`
    needs: ClassVar[str]

    def __call__(self, attention: Any, q: Heads, k: KVHeads, v: KVHeads, ctx: Context) -> Heads:
        """Return the output of each head, computed by the plain path if the kernel does not support the call."""
        observed = True in [is_requested(name) for name in SITES]  # not `any`, which might register only one site
        call = describe_call(attention, q.shape[2], q.dtype, training=ctx.key is not None, observed=observed)
        # Kernels know neither padding nor caches.
        plain = ctx.positions.ndim == 2 or ctx.real is not None or ctx.cache is not None
        if plain or self.refusal(call) is not None:
            return PLAIN(attention, q, k, v, ctx)
        q = (q.astype(jnp.float32) * attention.scale.value).astype(q.dtype)
        return self.attend(q, k, v, attention.kernel_mask)

    def refusal(self, call: Call) -> str | None:
        """Return a reason why the kernel does not support a call, or None if the call is supported."""
        return next(self.refusals(call), None)

    def refusals(self, call: Call) -> Iterator[str]:
        """Yield the reasons why the kernel does not support a call."""
        if call.scored:
            yield "the scores are changed before the softmax, by numbers that are not constants of the program"
        if call.mask is None:
            yield (
                "the mask is not causal, full or a static window (train.compute.windows), or the weights are not a "
                "softmax"
            )
        if call.drawn:
            yield "dropout is applied to the attention pattern"
        if call.observed:
            yield f"{' or '.join(SITES)} is read or edited"

    def attend(self, q: Heads, k: KVHeads, v: KVHeads, mask: KernelMask) -> Heads:
        """Return softmax(q k) v; query head i reads key-value head floor(i * kv_heads / heads)."""
        raise NotImplementedError


class CuDNN(Kernel):
    """cuDNN's flash attention, from `jax.nn.dot_product_attention`."""

    name: ClassVar = "cudnn"
    platform: ClassVar = "cuda"
    needs: ClassVar = "an NVIDIA GPU, Ampere or later"

    def refusals(self, call: Call) -> Iterator[str]:
        """Yield the reasons why the kernel does not support a call."""
        yield from super().refusals(call)
        if call.dtype != jnp.bfloat16:
            yield f"cuDNN supports only bfloat16, not {call.dtype}"
        if call.head_dim % 8 or call.head_dim > 128:
            yield f"cuDNN supports a head_dim that is a multiple of 8 and at most 128, not {call.head_dim}"

    def attend(self, q: Heads, k: KVHeads, v: KVHeads, mask: KernelMask) -> Heads:
        """Return softmax(q k) v; query head i reads key-value head floor(i * kv_heads / heads)."""
        turned = (x.transpose(0, 2, 1, 3) for x in (q, k, v))
        window = None if mask.width is None else (mask.width - 1, 0)
        z = jax.nn.dot_product_attention(
            *turned, scale=1.0, is_causal=mask.causal, local_window_size=window, implementation="cudnn"
        )
        return z.transpose(0, 2, 1, 3)


class Splash(Kernel):
    """Splash attention of `jax.experimental.pallas`: flash attention that skips fully masked blocks.

    Attributes:
        block: The maximum number of queries, and of keys, in a block.
        interpret: Whether to interpret the kernel on any device, for tests.
    """

    name: ClassVar = "splash"
    platform: ClassVar = "tpu"
    needs: ClassVar = "a TPU"

    block: int = eqx.field(static=True, default=512)
    interpret: bool = eqx.field(static=True, default=False)

    def refusals(self, call: Call) -> Iterator[str]:
        """Yield the reasons why the kernel does not support a call."""
        yield from super().refusals(call)
        if call.seq % LANES:
            yield f"splash attention supports sequences of a multiple of {LANES} tokens, not {call.seq}"
        if call.head_dim > MAX_HEAD_DIM:
            yield f"splash attention is used for a head_dim of at most {MAX_HEAD_DIM}, not {call.head_dim}"

    def attend(self, q: Heads, k: KVHeads, v: KVHeads, mask: KernelMask) -> Heads:
        """Return softmax(q k) v; query head i reads key-value head floor(i * kv_heads / heads)."""
        # Imported here, because importing Pallas for TPUs takes as long as importing the rest of the model.
        from jax.experimental.pallas.ops.tpu.splash_attention import splash_attention_kernel as splash
        from jax.experimental.pallas.ops.tpu.splash_attention import splash_attention_mask as masks

        heads, seq = q.shape[1:3]
        size = next(n for n in range(min(self.block, seq), 0, -LANES) if seq % n == 0)
        sides: dict[str, Any] = {f"block_{side}": size for side in ("q", "kv", "q_dkv", "kv_dkv", "q_dq", "kv_dq")}
        if mask.width is not None:
            shape: Any = masks.LocalMask((seq, seq), window_size=(mask.width - 1, 0), offset=0)
        else:
            shape = masks.CausalMask((seq, seq)) if mask.causal else masks.FullMask((seq, seq))
        kernel: Any = splash.make_splash_mha_single_device(
            masks.MultiHeadMask([shape] * heads),
            block_sizes=splash.BlockSizes(**sides),
            residual_checkpoint_name=CHECKPOINT_NAME,
            interpret=self.interpret,
        )
        return jax.vmap(kernel)(q, k, v)


class MemoryStandIn(Kernel):
    """A placeholder that returns zeros for the calls that a kernel supports, for memory estimates on any machine."""

    kernel: Kernel

    def refusals(self, call: Call) -> Iterator[str]:
        """Yield the reasons why the kernel does not support a call."""
        return self.kernel.refusals(call)

    def attend(self, q: Heads, k: KVHeads, v: KVHeads, mask: KernelMask) -> Heads:
        """Return zeros in the shape of the output."""
        return checkpoint_name(jnp.zeros_like(q), CHECKPOINT_NAME)


PATHS = {path.name: path for path in (PLAIN, CuDNN(), Splash())}

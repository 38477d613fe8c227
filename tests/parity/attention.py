"""Comparisons of variants of attention."""

from dataclasses import replace
from typing import Any

import jax.numpy as jnp
import numpy as np
import torch
from tests.parity._common import CONTEXT, DIM, DIMS, HEADS, SEQ, build, randomised, stream
from tests.parity.mixers import linear_layers
from tests.parity.registry import parity

from taetpu.core.config_parsing import build_component

CAUSAL = torch.full((1, 1, SEQ, SEQ), -torch.inf).triu(1)


def with_weights(attention: Any, seed: int = 1) -> Any:
    """Return a module with random parameters and its own numbers, such as scales."""
    from taetpu.nn.common import combine_trainable, partition_trainable

    params, rest = partition_trainable(attention)
    return combine_trainable(randomised(params, seed), rest)


def in_two_halves(weight: Any, heads: int) -> np.ndarray:
    """Return the columns of a projection with heads 0, 2, 4 ... before heads 1, 3, 5 ..."""
    columns = np.asarray(weight).reshape(DIM, heads // 2, 2, -1)
    return columns.swapaxes(1, 2).reshape(DIM, -1)


@parity("mixer/differential", "transformers.models.diffllama.modeling_diffllama.DiffLlamaAttention")
def differential():
    """In the reference, heads i and i + num_heads / 2 are a pair; ours are neighbours."""
    from transformers import DiffLlamaConfig
    from transformers.models.diffllama.modeling_diffllama import DiffLlamaAttention, DiffLlamaRotaryEmbedding

    layer, kv_heads = 3, 4
    heads = 2 * HEADS
    position = build_component("position", "rope")
    settings = {"num_heads": heads, "num_kv_heads": kv_heads, "head_dim": 6, "bias": False}
    ours = with_weights(build("mixer", "differential", position, dims=replace(DIMS, layer=layer), **settings))
    config = DiffLlamaConfig(
        hidden_size=DIM, num_attention_heads=heads, num_key_value_heads=kv_heads, head_dim=6, rms_norm_eps=1e-5,
    )  # fmt: skip
    config._attn_implementation = "eager"
    theirs = DiffLlamaAttention(config, layer).eval()
    path = ours.path
    linear_layers(theirs, {
        "q_proj.weight": in_two_halves(ours.wq, heads).T, "k_proj.weight": in_two_halves(ours.wk, kv_heads).T,
        "v_proj.weight": in_two_halves(ours.wv, kv_heads).T, "o_proj.weight": np.asarray(ours.wo).T,
        "lambda_q1": path.q1, "lambda_k1": path.k1, "lambda_q2": path.q2, "lambda_k2": path.k2,
    })  # fmt: skip
    x = torch.tensor(stream())
    rotary = DiffLlamaRotaryEmbedding(config)(x, torch.arange(SEQ)[None])
    with torch.no_grad():
        return ours(jnp.asarray(stream()), CONTEXT), theirs(x, rotary, CAUSAL)[0].numpy()


def latent(q_latent: int | None) -> tuple[Any, Any]:
    """Compare latent attention. The reference has the shared key next to the latent, and keys next to values."""
    from transformers import DeepseekV3Config
    from transformers.models.deepseek_v3.modeling_deepseek_v3 import DeepseekV3Attention, DeepseekV3RotaryEmbedding

    size, rope, value, kv_latent = 6, 4, 5, 7
    position = build_component("position", {"kind": "rope", "pairs": "interleaved"})
    widths = {"head_dim": size, "rope_dim": rope, "value_dim": value, "kv_latent": kv_latent, "q_latent": q_latent}
    ours = with_weights(build("mixer", "mla", position, **widths))
    config = DeepseekV3Config(
        hidden_size=DIM, num_attention_heads=HEADS, num_key_value_heads=HEADS, qk_nope_head_dim=size,
        qk_rope_head_dim=rope, v_head_dim=value, kv_lora_rank=kv_latent, q_lora_rank=q_latent, rope_interleave=True,
    )  # fmt: skip
    config._attn_implementation = "eager"
    theirs = DeepseekV3Attention(config, 0).eval()
    wk, wv = (np.asarray(w).reshape(kv_latent, HEADS, -1) for w in (ours.wk, ours.wv))
    queries = {"q_proj.weight": np.asarray(ours.wq).T}
    if q_latent is not None:
        queries = {
            "q_a_proj.weight": np.asarray(ours.wq_down).T, "q_a_layernorm.weight": ours.q_norm.weight,
            "q_b_proj.weight": np.asarray(ours.wq).T,
        }  # fmt: skip
    linear_layers(theirs, {
        **queries,
        "kv_a_proj_with_mqa.weight": np.concatenate([np.asarray(ours.wkv_down), np.asarray(ours.wk_rope)], 1).T,
        "kv_a_layernorm.weight": ours.kv_norm.weight,
        "kv_b_proj.weight": np.concatenate([wk, wv], -1).reshape(kv_latent, -1).T,
        "o_proj.weight": np.asarray(ours.wo).T,
    })  # fmt: skip
    x = torch.tensor(stream())
    rotary = DeepseekV3RotaryEmbedding(config)(x, torch.arange(SEQ)[None])
    with torch.no_grad():
        return ours(jnp.asarray(stream()), CONTEXT), theirs(x, rotary, CAUSAL)[0].numpy()


@parity("mixer/mla", "transformers.models.deepseek_v3.modeling_deepseek_v3.DeepseekV3Attention")
def without_query_latent():
    return latent(None)


@parity("mixer/mla", "transformers.models.deepseek_v3.modeling_deepseek_v3.DeepseekV3Attention", "q_latent: 9")
def with_query_latent():
    return latent(9)


@parity("normalizer/talking-heads", "x_transformers.attend.Attend")
def talking_heads():
    """The reference adds the mixed scores to the scores before the softmax."""
    from x_transformers.attend import Attend

    position = build_component("position", "none")
    ours = with_weights(build("mixer", "attention", position, normalizer="talking-heads"))
    theirs = Attend(heads=HEADS, causal=True, pre_talking_heads=True, post_talking_heads=True).eval()
    module = ours.normalizer
    linear_layers(theirs, {
        "pre_softmax_talking_heads.weight": np.asarray(module.before) - np.eye(HEADS),
        "post_softmax_talking_heads.weight": module.after,
    })  # fmt: skip
    x = stream()
    q, k, v = (
        torch.tensor((x @ np.asarray(w)).reshape(*x.shape[:2], HEADS, -1).swapaxes(1, 2))
        for w in (ours.wq, ours.wk, ours.wv)
    )
    with torch.no_grad():
        z = theirs(q, k, v)[0].numpy()
    return ours(jnp.asarray(x), CONTEXT), z.swapaxes(1, 2).reshape(x.shape) @ np.asarray(ours.wo)

"""Comparisons of positions."""

from typing import Any

import jax.numpy as jnp
import numpy as np
import torch
from tests.parity._common import ATTENTION, CONTEXT, DIMS, SEQ, stream
from tests.parity.registry import parity

from taetpu.core.config_parsing import build_component
from taetpu.core.keys import root_key
from taetpu.nn.common import AttentionDims
from taetpu.nn.rope_scaling import ByLength

HEAD_DIM = 16
Q, K = stream(2, 4, SEQ, HEAD_DIM), stream(2, 4, SEQ, HEAD_DIM, seed=3)


def rotated(**settings: Any) -> np.ndarray:
    """Return our queries and keys, side by side."""
    module = build_component("position", {"kind": "rope", **settings}).in_attention(HEAD_DIM)
    return np.concatenate(module(jnp.asarray(Q), jnp.asarray(K), CONTEXT), -1)


def scored(kind: str, scores: np.ndarray, change: Any = None, **settings: Any) -> np.ndarray:
    """Return the scores that a kind changes, with its parameters changed by a function."""
    module = build_component("position", {"kind": kind, **settings}).on_scores(DIMS, ATTENTION, key=root_key(0))
    module = module if change is None else change(module)
    q, k = stream(2, 4, SEQ, 4), stream(2, 4, SEQ, 4, seed=3)
    return module(jnp.asarray(scores), jnp.asarray(q), jnp.asarray(k), CONTEXT)


def hugging_face(rope: Any, config: Any, apply: Any) -> np.ndarray:
    """Return the reference's queries and keys, side by side."""
    cos, sin = rope(config)(torch.tensor(Q), torch.arange(SEQ)[None])
    return np.concatenate([x.numpy() for x in apply(torch.tensor(Q), torch.tensor(K), cos, sin)], -1)


@parity("position/rope", "transformers.models.llama.modeling_llama.LlamaRotaryEmbedding")
def half():
    from transformers import LlamaConfig
    from transformers.models.llama import modeling_llama as llama

    theirs = LlamaConfig(head_dim=HEAD_DIM, rope_parameters={"rope_type": "default", "rope_theta": 100.0})
    return rotated(base=100.0), hugging_face(llama.LlamaRotaryEmbedding, theirs, llama.apply_rotary_pos_emb)


@parity("position/rope", "transformers.models.gpt_neox.modeling_gpt_neox.GPTNeoXRotaryEmbedding", "fraction=0.25")
def partial():
    from transformers import GPTNeoXConfig
    from transformers.models.gpt_neox import modeling_gpt_neox as neox

    theirs = GPTNeoXConfig(hidden_size=64, num_attention_heads=4, rotary_pct=0.25)
    return rotated(fraction=0.25), hugging_face(neox.GPTNeoXRotaryEmbedding, theirs, neox.apply_rotary_pos_emb)


@parity("position/rope", "transformers.models.gptj.modeling_gptj.apply_rotary_pos_emb", "interleaved")
def interleaved():
    from transformers.models.gptj import modeling_gptj as gptj

    table = gptj.create_sinusoidal_positions(SEQ, HEAD_DIM)[None]
    sin, cos = table.chunk(2, -1)
    theirs = [gptj.apply_rotary_pos_emb(torch.tensor(x).transpose(1, 2), sin, cos).transpose(1, 2) for x in (Q, K)]
    return rotated(pairs="interleaved"), np.concatenate(theirs, -1)


def scaled(kind: str, theirs: dict[str, Any], seq_len: int | None = None, **settings: Any) -> tuple[Any, Any]:
    """Return our frequencies times our factor, and those of transformers, for a base of 100."""
    from transformers import LlamaConfig
    from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS

    size = 32
    module = build_component("rope_scaling", {"kind": kind, **settings}).init()
    module = module.at_length(seq_len) if isinstance(module, ByLength) else module
    frequencies, factor = module(100.0 ** -(jnp.arange(0, size, 2) / size), jnp.asarray(100.0))
    rope = {"rope_theta": 100.0, **theirs}
    config = LlamaConfig(head_dim=size, max_position_embeddings=64, rope_parameters=rope)
    expected, attention = ROPE_INIT_FUNCTIONS[rope["rope_type"]](config, "cpu", seq_len=seq_len)
    return frequencies * (1 if factor is None else factor), expected.numpy() * attention


UTILS = "transformers.modeling_rope_utils.ROPE_INIT_FUNCTIONS"


@parity("rope_scaling/linear", UTILS)
def linear():
    return scaled("linear", {"rope_type": "linear", "factor": 3.0}, factor=3.0)


@parity("rope_scaling/ntk", UTILS, "dynamic, at twice the trained length")
def ntk():
    return scaled("ntk", {"rope_type": "dynamic", "factor": 2.0}, seq_len=128, factor=3.0)


@parity("rope_scaling/yarn", UTILS)
def yarn():
    theirs = {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 256}
    return scaled("yarn", theirs, original_seq_len=256)


@parity("rope_scaling/yarn", UTILS, "without truncation")
def yarn_without_truncation():
    theirs = {"rope_type": "yarn", "factor": 8.0, "original_max_position_embeddings": 128, "truncate": False}
    theirs |= {"beta_fast": 16.0, "beta_slow": 2.0, "attention_factor": 1.5}
    ours = {"factor": 8.0, "truncate": False, "beta_fast": 16.0, "beta_slow": 2.0, "attention_factor": 1.5}
    return scaled("yarn", theirs, original_seq_len=128, **ours)


@parity("rope_scaling/llama3", UTILS)
def llama3():
    theirs = {"rope_type": "llama3", "factor": 8.0, "original_max_position_embeddings": 256}
    theirs |= {"low_freq_factor": 1.0, "high_freq_factor": 4.0}
    return scaled("llama3", theirs, original_seq_len=256)


@parity("rope_scaling/dynamic", UTILS)
def dynamic():
    return scaled("dynamic", {"rope_type": "dynamic", "factor": 3.0}, 160, original_seq_len=64, factor=3.0)


def long_rope(seq_len: int) -> tuple[Any, Any]:
    """Return our frequencies of a sequence of this length, and those of transformers."""
    factors = {"short_factor": np.linspace(1, 2, 16).tolist(), "long_factor": np.linspace(2, 9, 16).tolist()}
    theirs = {"rope_type": "longrope", "original_max_position_embeddings": 32, "attention_factor": 1.3, **factors}
    return scaled("longrope", theirs, seq_len, original_seq_len=32, attention_factor=1.3, **factors)


@parity("rope_scaling/longrope", UTILS, "short")
def long_rope_short():
    return long_rope(32)


@parity("rope_scaling/longrope", UTILS, "long")
def long_rope_long():
    return long_rope(33)


@parity("position/xpos", "x_transformers.x_transformers.RotaryEmbedding")
def xpos():
    from x_transformers.x_transformers import RotaryEmbedding, apply_rotary_pos_emb

    module = build_component("position", {"kind": "xpos", "scale_base": 8.0, "pairs": "interleaved"})
    q, k = module.in_attention(HEAD_DIM)(jnp.asarray(Q), jnp.asarray(K), CONTEXT)
    angles, scale = RotaryEmbedding(HEAD_DIM, use_xpos=True, scale_base=8)(torch.arange(SEQ))
    queries = apply_rotary_pos_emb(torch.tensor(Q), angles, scale)
    keys = apply_rotary_pos_emb(torch.tensor(K), angles, scale**-1)
    return np.tril(q @ k.mT), np.tril((queries @ keys.mT).numpy())  # the reference counts positions from the middle


@parity("position/alibi", "transformers.models.bloom.modeling_bloom.build_alibi_tensor", "6 heads")
def alibi():
    from transformers.models.bloom.modeling_bloom import build_alibi_tensor

    heads = 6
    scores = stream(2, heads, SEQ, SEQ)
    module = build_component("position", {"kind": "alibi"}).on_scores(
        DIMS, AttentionDims(heads, heads, HEAD_DIM), key=root_key(0)
    )
    queries = jnp.zeros((2, 6, SEQ, HEAD_DIM))
    ours = module(jnp.asarray(scores), queries, queries, CONTEXT)
    bias = build_alibi_tensor(torch.ones(2, SEQ), heads, torch.float32).reshape(2, heads, 1, SEQ).numpy()
    # Bloom adds m j in place of -m (i - j), which is the same after the softmax.
    return ours - ours[..., :1], scores + bias - (scores + bias)[..., :1]


@parity("position/t5", "transformers.models.t5.modeling_t5.T5Attention")
def t5():
    from transformers import T5Config
    from transformers.models.t5.modeling_t5 import T5Attention

    config = T5Config(d_model=16, d_kv=4, num_heads=4, is_decoder=True)
    config.relative_attention_num_buckets, config.relative_attention_max_distance = 8, 10
    theirs = T5Attention(config, has_relative_attention_bias=True)
    module = build_component("position", {"kind": "t5", "buckets": 8, "max_distance": 10}).on_scores(
        DIMS, ATTENTION, key=root_key(0)
    )
    with torch.no_grad():
        theirs.relative_attention_bias.weight.copy_(torch.tensor(np.array(module.bias)))
        bias = theirs.compute_bias(SEQ, SEQ).numpy()
    ours = module(jnp.zeros((2, 4, SEQ, SEQ)), jnp.asarray(Q), jnp.asarray(K), CONTEXT)
    return np.tril(ours), np.tril(np.broadcast_to(bias, ours.shape))


@parity("position/cope", "x_transformers.x_transformers.CoPE")
def cope():
    import equinox as eqx
    from x_transformers.x_transformers import CoPE

    scores, table = stream(2, 4, SEQ, SEQ), stream(6, 4, seed=5)
    later = np.triu(np.ones((SEQ, SEQ), bool), 1)
    ours = scored("cope", scores, lambda m: eqx.tree_at(lambda m: m.table, m, jnp.asarray(table)), max_position=6)
    theirs = CoPE(4, 4, 6)
    with torch.no_grad():
        theirs.pos_emb.copy_(torch.tensor(table))
        masked = torch.tensor(scores).masked_fill(torch.tensor(later), -1e30)
        added = theirs(torch.tensor(stream(2, 4, SEQ, 4)), masked).numpy()
    return np.where(later, 0, ours), np.where(later, 0, scores + added)


@parity("position/kerple", "arXiv 2205.09921, equations 5 and 6, in NumPy", "log")
def kerple_log():
    return kerple("log", lambda r1, r2, apart: r1 * np.log(1 + r2 * apart))


@parity("position/kerple", "arXiv 2205.09921, equations 5 and 6, in NumPy", "power")
def kerple_power():
    return kerple("power", lambda r1, r2, apart: r1 * apart**r2)


def kerple(form: str, kernel: Any) -> tuple[Any, Any]:
    """Return our scores and those with a kernel in NumPy."""
    module = build_component("position", {"kind": "kerple", "form": form}).on_scores(DIMS, ATTENTION, key=root_key(0))
    apart = np.abs(np.arange(SEQ)[:, None] - np.arange(SEQ)).astype(np.float64)
    r1, r2 = (np.asarray(r, np.float64)[:, None, None].clip(0.01, 2) for r in (module.r1, module.r2))
    scores = stream(2, 4, SEQ, SEQ)
    return scored("kerple", scores, form=form), scores - kernel(r1, r2, apart)


@parity("position/fire", "arXiv 2310.04418, equation 7, in PyTorch")
def fire():
    scores, made = stream(2, 4, SEQ, SEQ), []
    ours = scored("fire", scores, lambda module: made.append(module) or module, threshold=4.0)
    (module,) = made
    network = torch.nn.Sequential(torch.nn.Linear(1, 32), torch.nn.ReLU(), torch.nn.Linear(32, 4, bias=False))
    with torch.no_grad():
        for layer, name, value in (
            (0, "weight", module.up[None]),
            (0, "bias", module.up_bias),
            (2, "weight", module.down),
        ):
            getattr(network[layer], name).copy_(torch.tensor(np.array(value).T))
        at = torch.arange(SEQ).float()
        reach = torch.maximum(at, torch.tensor(4.0))[:, None]
        share = torch.log(0.1 * (at[:, None] - at).abs() + 1) / torch.log(0.1 * reach + 1)
        return ours, scores + network(share[..., None]).permute(2, 0, 1).numpy()


@parity("position/learned", "torch.nn.Embedding")
def learned():
    module = build_component("position", {"kind": "learned"}).at_input(DIMS, key=root_key(0))
    theirs = torch.nn.Embedding.from_pretrained(torch.tensor(np.array(module.weight)))
    return module(jnp.asarray(stream()), CONTEXT), stream() + theirs(torch.arange(SEQ)).numpy()

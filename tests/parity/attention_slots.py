"""Comparisons of softmax attention and of the components in its slots."""

from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import jax.numpy as jnp
import numpy as np
import torch
from tests.parity._common import ATTENTION, CONTEXT, DIM, DIMS, HEADS, SEQ, build, randomised, stream
from tests.parity.registry import parity

from taetpu.core.config_parsing import build_component
from taetpu.core.keys import root_key

POSITION = build_component("position", "none")
HEAD = DIM // HEADS
LATER = torch.triu(torch.ones(SEQ, SEQ, dtype=torch.bool), 1)
CAUSAL = torch.zeros(SEQ, SEQ).masked_fill(LATER, -1e30)[None, None]
UNROTATED = (torch.ones(1, SEQ, HEAD), torch.zeros(1, SEQ, HEAD))
SIZES = {"hidden_size": DIM, "num_attention_heads": HEADS, "head_dim": HEAD, "attn_implementation": "eager"}


def attention(**settings: Any) -> Any:
    """Return an attention module without positions, with random weights."""
    return randomised(build("mixer", "attention", POSITION, num_heads=HEADS, **settings))


def copied(theirs: torch.nn.Module, weights: dict[str, Any]) -> torch.nn.Module:
    """Set all parameters of a module of torch by name, and return it."""
    known = dict(theirs.named_parameters())
    assert set(known) == set(weights), set(known) ^ set(weights)
    with torch.no_grad():
        for name, value in weights.items():
            known[name].copy_(torch.tensor(np.array(value)).reshape(known[name].shape))
    return theirs


def projections(ours: Any, *names: str) -> dict[str, Any]:
    """Return the projections of our module by the names of the reference."""
    return {f"{name}.weight": np.array(getattr(ours, f"w{x}")).T for x, name in zip("qkvo", names, strict=True)}


HUGGING_FACE = ("q_proj", "k_proj", "v_proj", "o_proj")
X_TRANSFORMERS = ("to_q", "to_k", "to_v", "to_out")


def outputs(ours: Any, theirs: torch.nn.Module) -> tuple[Any, Any]:
    """Return the outputs of our module and of an attention module of transformers."""
    with torch.no_grad():
        expected = theirs.eval()(torch.tensor(stream()), position_embeddings=UNROTATED, attention_mask=CAUSAL)[0]
    return ours(jnp.asarray(stream()), CONTEXT), expected.numpy()


LLAMA = "transformers.models.llama.modeling_llama.LlamaAttention"


def llama(**settings: Any) -> tuple[Any, Any]:
    """Compare with Llama's attention."""
    from transformers import LlamaConfig
    from transformers.models.llama.modeling_llama import LlamaAttention

    ours = attention(**settings)
    theirs = LlamaAttention(LlamaConfig(**SIZES, num_key_value_heads=settings.get("num_kv_heads", HEADS)), 0)
    return outputs(ours, copied(theirs, projections(ours, *HUGGING_FACE)))


@parity("mixer/attention", LLAMA)
def multi_head():
    return llama()


@parity("mixer/attention", LLAMA, "num_kv_heads=2")
def grouped():
    return llama(num_kv_heads=2)


@parity("mixer/attention", LLAMA, "num_kv_heads=1")
def multi_query():
    return llama(num_kv_heads=1)


@parity("mixer/attention", "transformers.models.t5.modeling_t5.T5Attention", "scale=1")
def unscaled():
    """T5 does not scale the scores."""
    from transformers import T5Config
    from transformers.models.t5.modeling_t5 import T5Attention

    ours = attention(scale=1.0)
    config = T5Config(d_model=DIM, d_kv=HEAD, num_heads=HEADS, is_decoder=True)
    theirs = copied(T5Attention(config, layer_idx=0), projections(ours, *"qkvo"))
    with torch.no_grad():
        expected = theirs.eval()(torch.tensor(stream()), mask=CAUSAL)[0]
    return ours(jnp.asarray(stream()), CONTEXT), expected.numpy()


@parity("qk_norm/rms", "transformers.models.qwen3.modeling_qwen3.Qwen3Attention")
def qk_norm():
    from transformers import Qwen3Config
    from transformers.models.qwen3.modeling_qwen3 import Qwen3Attention

    ours = attention(qk_norm="rms", num_kv_heads=2)
    norms = {f"{x}_norm.weight": getattr(ours.qk_norm, x).weight for x in "qk"}
    theirs = Qwen3Attention(Qwen3Config(**SIZES, num_key_value_heads=2), 0)
    return outputs(ours, copied(theirs, projections(ours, *HUGGING_FACE) | norms))


@parity("gate/sigmoid", "transformers.models.qwen3_next.modeling_qwen3_next.Qwen3NextAttention", "and QK norms")
def gate():
    """The reference projects the queries and the gate of a head with one matrix."""
    from transformers import Qwen3NextConfig
    from transformers.models.qwen3_next.modeling_qwen3_next import Qwen3NextAttention

    ours = attention(qk_norm={"kind": "rms", "weight": "unit-offset"}, gate="sigmoid")
    norms = {f"{x}_norm.weight": getattr(ours.qk_norm, x).weight for x in "qk"}
    both = [np.array(w).reshape(DIM, HEADS, HEAD) for w in (ours.wq, ours.gate.weight)]
    queries = {"q_proj.weight": np.concatenate(both, -1).reshape(DIM, -1).T}
    theirs = Qwen3NextAttention(Qwen3NextConfig(**SIZES, num_key_value_heads=HEADS, num_hidden_layers=1), 0)
    return outputs(ours, copied(theirs, projections(ours, *HUGGING_FACE) | norms | queries))


@parity("gate/sigmoid", "x_transformers.x_transformers.Attention", "over=head")
def gate_of_heads():
    """The reference's gate also has a bias, which is 0 here."""
    from x_transformers.x_transformers import Attention

    ours = attention(gate={"kind": "sigmoid", "over": "head"})
    theirs = Attention(DIM, dim_head=HEAD, heads=HEADS, causal=True, gate_values=True, gate_values_headwise=True)
    gate = {name: p for name, p in theirs.named_parameters() if "gate" in name}
    weights = {name: np.array(ours.gate.weight).T if p.ndim > 1 else np.zeros(p.shape) for name, p in gate.items()}
    copied(theirs, projections(ours, *X_TRANSFORMERS) | weights)
    with torch.no_grad():
        return ours(jnp.asarray(stream()), CONTEXT), theirs(torch.tensor(stream())).numpy()


@parity("values/residual", "x_transformers.x_transformers.Attention")
def value_residual():
    """The values of the first layer are random; both weights are 1/2, as in the reference."""
    from x_transformers.x_transformers import Attention

    first = stream(2, HEADS, SEQ, HEAD, seed=7)
    ours = attention(values="residual")
    ours = replace(ours, values=type(ours.values)(jnp.asarray(0.5), jnp.asarray(0.5)))
    carried: Any = SimpleNamespace(first=lambda name, v: jnp.asarray(first).transpose(0, 2, 1, 3))
    theirs = copied(Attention(DIM, dim_head=HEAD, heads=HEADS, causal=True), projections(ours, *X_TRANSFORMERS))
    with torch.no_grad():
        expected = theirs(torch.tensor(stream()), value_residual=torch.tensor(first)).numpy()
    return ours(jnp.asarray(stream()), replace(CONTEXT, carried=carried)), expected


# --- scores and weights ----------------------------------------------------------------------------------------------

Q, K, V = (stream(2, HEADS, SEQ, HEAD, seed=seed) for seed in (2, 3, 4))
SCORES = (Q @ K.swapaxes(-1, -2) * HEAD**-0.5 + CAUSAL.numpy()).astype(np.float32)
TENSORS = [torch.tensor(x) for x in (Q, K, V)]


def weighted(kind: str, change: Any = None, **settings: Any) -> np.ndarray:
    """Return the values, weighted by a normalizer whose parameters are changed by a function."""
    module = build_component("normalizer", {"kind": kind, **settings}).init(DIMS, ATTENTION, key=root_key(0))
    module = module if change is None else change(module)
    weights, total = module(jnp.asarray(SCORES), CONTEXT)
    return np.asarray(weights / total) @ V


def attend(*inputs: torch.Tensor, bias: torch.Tensor | None = None, **settings: Any) -> np.ndarray:
    """Return the weighted values of x-transformers."""
    from x_transformers.attend import Attend

    return Attend(heads=HEADS, causal=True, **settings)(*inputs, attn_bias=bias)[0].numpy()


@parity("normalizer/softmax", "torch.nn.functional.scaled_dot_product_attention")
def softmax():
    return weighted("softmax"), torch.nn.functional.scaled_dot_product_attention(*TENSORS, is_causal=True).numpy()


@parity("normalizer/softmax1", "x_transformers.attend.Attend")
def softmax1():
    """The reference adds a key and a value of zero (`add_zero_kv`)."""
    return weighted("softmax1"), attend(*TENSORS, add_zero_kv=True)


@parity("normalizer/sink", "transformers.models.gpt_oss.modeling_gpt_oss.eager_attention_forward")
def sink():
    from transformers.models.gpt_oss.modeling_gpt_oss import eager_attention_forward

    sinks = np.array([0.5, -1.0, 3.0, 0.0], np.float32)
    module: Any = SimpleNamespace(num_key_value_groups=1, training=False, sinks=torch.tensor(sinks))
    expected = eager_attention_forward(module, *TENSORS, CAUSAL, scaling=HEAD**-0.5)[0].transpose(1, 2)
    return weighted("sink", lambda module: replace(module, bias=jnp.asarray(sinks))), expected.numpy()


@parity("normalizer/sigmoid", "x_transformers.attend.Attend")
def sigmoid():
    """The reference has no bias, so -log(seq_len) is its bias of the scores."""
    bias = torch.full((HEADS, SEQ, SEQ), -float(np.log(SEQ)))
    return weighted("sigmoid"), attend(*TENSORS, bias=bias, sigmoid=True)


@parity("scores/softcap", "transformers.models.gemma2.modeling_gemma2.eager_attention_forward")
def softcap():
    from transformers.models.gemma2.modeling_gemma2 import eager_attention_forward

    module: Any = SimpleNamespace(num_key_value_groups=1, training=False, head_dim=HEAD)
    expected = eager_attention_forward(module, *TENSORS, CAUSAL, scaling=1.0, softcap=2.0)[0].transpose(1, 2)
    cap = build_component("scores", {"kind": "softcap", "cap": 2.0}).init(DIMS, key=root_key(0))
    capped = np.asarray(cap(jnp.asarray(Q @ K.swapaxes(-1, -2)))) + CAUSAL.numpy()
    weights = np.exp(capped - capped.max(-1, keepdims=True))
    return weights / weights.sum(-1, keepdims=True) @ V, expected.numpy()


# --- masks -----------------------------------------------------------------------------------------------------------


def masks(kind: str, function: Any, **settings: Any) -> tuple[Any, Any]:
    """Return our mask and a mask of transformers, a function of a sequence, a query and a key."""
    module = build_component("mask", {"kind": kind, **settings}).init(DIMS, key=root_key(0))
    batch, query, key = torch.meshgrid(torch.arange(2), torch.arange(SEQ), torch.arange(SEQ), indexing="ij")
    ours = np.asarray(module(replace(CONTEXT, segments=jnp.asarray(SEGMENTS))))
    return np.broadcast_to(ours if ours.ndim == 2 else ours[:, 0], (2, SEQ, SEQ)), function(
        batch, 0, query, key
    ).numpy()


SEGMENTS = np.sort(np.random.default_rng(5).integers(0, 4, (2, SEQ)), -1).astype(np.int32)
MASKS = "transformers.masking_utils"


@parity("mask/causal", f"{MASKS}.causal_mask_function")
def causal():
    from transformers.masking_utils import causal_mask_function

    return masks("causal", causal_mask_function)


@parity("mask/window", f"{MASKS}.sliding_window_causal_mask_function")
def window():
    from transformers.masking_utils import sliding_window_causal_mask_function

    return masks("window", sliding_window_causal_mask_function(5), width=5)


@parity("mask/local", f"{MASKS}.sliding_window_bidirectional_mask_function")
def local():
    from transformers.masking_utils import sliding_window_bidirectional_mask_function

    return masks("local", sliding_window_bidirectional_mask_function(2), width=5)


@parity("mask/document", f"{MASKS}.packed_sequence_mask_function")
def document():
    from transformers.masking_utils import and_masks, causal_mask_function, packed_sequence_mask_function

    packed = packed_sequence_mask_function(torch.tensor(SEGMENTS))
    return masks("document", and_masks(packed, causal_mask_function))

"""Comparisons of whole models, composed from the slots, with classes of transformers."""

import functools
from collections.abc import Mapping
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import torch
import transformers
from tests.parity.registry import parity

from taetpu.core.config_parsing import load_config
from taetpu.core.jit import jit_once
from taetpu.core.keys import root_key
from taetpu.interop.families import FAMILIES, Family
from taetpu.interop.huggingface import read_parameters
from taetpu.nn.lm import ModelConfig, build_model
from taetpu.nn.named_arrays import with_parameters
from taetpu.nn.position.biases import alibi_slopes, t5_bucket

VOCAB, SEQ, DIM, LAYERS, HEADS = 13, 12, 16, 6, 4
TOKENS = np.random.default_rng(0).integers(0, VOCAB, (2, SEQ)).astype(np.int32)
SIZES = {"vocab_size": VOCAB, "hidden_size": DIM, "num_hidden_layers": LAYERS, "num_attention_heads": HEADS,
         "max_position_embeddings": SEQ, "bos_token_id": 0, "eos_token_id": 0, "pad_token_id": 0,
         "attn_implementation": "eager"}  # fmt: skip
ATTENTION = {"kind": "attention", "num_heads": HEADS}
GROUPED = {**ATTENTION, "num_kv_heads": 2}
Arrays = dict[str, np.ndarray]
Both = tuple[Any, Any]


def reference(name: str, **settings: Any) -> tuple[Any, Arrays]:
    """Return a model of transformers with random parameters, and its arrays by name."""
    config = getattr(transformers, f"{name}{'Text' * (name == 'Gemma3')}Config")(**SIZES, **settings)
    torch.manual_seed(0)
    model = getattr(transformers, f"{name}ForCausalLM")(config).eval()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.copy_(0.3 * torch.randn_like(parameter) + (parameter == 1))
    return model, {name: tensor.detach().numpy() for name, tensor in model.state_dict().items()}


def logits(model: Any, settings: Mapping[str, Any], tensors: Arrays, family: str | type[Family]) -> Both:
    """Return the logits of our model with the given settings and of a model of transformers.

    Args:
        model: The model of transformers.
        settings: The settings of our model.
        tensors: The arrays of the model of transformers.
        family: The architecture of `interop` that maps the arrays, or its `model_type`.
    """
    config = load_config(ModelConfig, {"dim": DIM, "num_layers": LAYERS, **settings}).resolve()
    ours = build_model(config, VOCAB, SEQ, key=root_key(0))
    family = FAMILIES[family] if isinstance(family, str) else family
    ours = with_parameters(ours, read_parameters(family, tensors, ours, config))
    found = jit_once(lambda model, tokens: model(tokens))(ours, TOKENS)
    with torch.no_grad():
        return found, model(torch.tensor(TOKENS, dtype=torch.long)).logits.numpy()


# --- parallel branches ------------------------------------------------------------------------------------------------


def gpt_neox(parallel: bool) -> Both:
    """Compare with GPT-NeoX."""
    model, have = reference(
        "GPTNeoX", use_parallel_residual=parallel, hidden_act="gelu", tie_word_embeddings=False, intermediate_size=24,
        rope_parameters={"rope_type": "default", "rope_theta": 10000.0, "partial_rotary_factor": 1.0},
    )  # fmt: skip
    order = {"order": "parallel-two-norms"} if parallel else {}
    settings = {"mixer": ATTENTION, "norm": "layer", "embedding": "untied", "bias": True,
                "ffn": {"kind": "gelu-erf", "hidden": 24}}  # fmt: skip
    return logits(model, settings | order, have, "gpt_neox")


@parity("order/parallel-two-norms", "transformers.GPTNeoXForCausalLM")
def two_norms() -> Both:
    return gpt_neox(parallel=True)


@parity("order/sequential", "transformers.GPTNeoXForCausalLM")
def sequential() -> Both:
    return gpt_neox(parallel=False)


@parity("order/parallel", "transformers.GPTJForCausalLM")
def one_norm() -> Both:
    """The reference has biases in the ffn and of the logits only."""
    model, have = reference("GPTJ", n_inner=24, rotary_dim=DIM // HEADS, tie_word_embeddings=False)
    settings = {
        "mixer": {**ATTENTION, "bias": False}, "norm": "layer", "embedding": {"kind": "untied", "bias": True},
        "bias": True, "ffn": {"kind": "gelu-tanh", "hidden": 24}, "order": "parallel",
        "position": {"kind": "rope", "pairs": "interleaved"},
    }  # fmt: skip
    return logits(model, settings, have, "gptj")


def granite() -> Both:
    """All factors differ from 1."""
    model, have = reference(
        "Granite", intermediate_size=24, embedding_multiplier=3.0, attention_multiplier=0.3, residual_multiplier=0.4,
        logits_scaling=2.5,
    )  # fmt: skip
    settings = {
        "mixer": {**ATTENTION, "scale": 0.3}, "embedding": "untied", "ffn": {"kind": "swiglu", "hidden": 24},
        "stem": {"kind": "scale", "factor": 3.0}, "residual": {"kind": "scale", "factor": 0.4},
        "logits": {"kind": "scale", "factor": 0.4},
    }  # fmt: skip
    return logits(model, settings, have, "granite")


@parity("residual/scale", "transformers.GraniteForCausalLM")
def scaled_branches() -> Both:
    return granite()


@parity("logits/scale", "transformers.GraniteForCausalLM")
def scaled_logits() -> Both:
    return granite()


# --- placements of norms, windows and caps ----------------------------------------------------------------------------


@parity("norm/rms", "transformers.Olmo2ForCausalLM", "placement=output")
def olmo2() -> Both:
    """The QK norms are over all heads, and there are fewer key-value heads."""
    model, have = reference(
        "Olmo2", num_key_value_heads=2, tie_word_embeddings=False, rms_norm_eps=1e-6, intermediate_size=24
    )
    settings = {
        "mixer": {**GROUPED, "qk_norm": {"kind": "rms", "over": "all"}},
        "norm": {"kind": "rms", "placement": "output"}, "embedding": "untied", "ffn": {"kind": "swiglu", "hidden": 24},
        "position": {"kind": "rope", "base": model.config.rope_parameters["rope_theta"]},
    }  # fmt: skip
    return logits(model, settings, have, "olmo2")


def gemma_tensors(have: Arrays) -> Arrays:
    """Return the arrays of Gemma, with scaled embeddings and with 1 added to the weights of norms."""
    table = have["model.embed_tokens.weight"]
    have = {name: array + 1 if "norm" in name else array for name, array in have.items()}
    return have | {"model.embed_tokens.weight": table * DIM**0.5, "lm_head.weight": table}


def gemma(local: Mapping[str, Any], layers: Mapping[int, Any]) -> dict[str, Any]:
    """Return the settings of a model with the norms of Gemma 2 and 3."""
    return {
        "mixer": local, "norm": {"kind": "rms", "placement": "sandwich"}, "embedding": "untied",
        "ffn": {"kind": "swiglu", "hidden": 24}, "layers": layers,
    }  # fmt: skip


GEMMA = {"num_key_value_heads": 2, "head_dim": 8, "sliding_window": 4, "query_pre_attn_scalar": 8,
         "hidden_activation": "silu", "rms_norm_eps": 1e-6, "intermediate_size": 24}  # fmt: skip


@parity("mask/window", "transformers.Gemma3ForCausalLM", "five local layers for each global layer")
def gemma3() -> Both:
    """Local and global layers have different bases of RoPE; widths and bases are traced, so they form one stack."""
    rope = {"full_attention": {"rope_type": "default", "rope_theta": 1e6},
            "sliding_attention": {"rope_type": "default", "rope_theta": 1e4}}  # fmt: skip
    model, have = reference("Gemma3", **GEMMA, rope_parameters=rope)
    assert model.config.layer_types == ["sliding_attention"] * 5 + ["full_attention"]
    mixer = {**GROUPED, "head_dim": 8, "qk_norm": "rms"}
    last = {"mixer": {**mixer, "mask": {"kind": "window", "width": None}}, "position": {"kind": "rope", "base": 1e6}}
    settings = gemma({**mixer, "mask": {"kind": "window", "width": 4}}, {5: last})
    config = load_config(ModelConfig, {"dim": DIM, "num_layers": LAYERS, **settings}).resolve()
    assert len(jax.eval_shape(lambda: build_model(config, VOCAB, SEQ, key=root_key(0))).stacks) == 1
    return logits(model, settings, gemma_tensors(have), "gemma3_text")


@functools.cache
def gemma2() -> Both:
    """Compare with Gemma 2, whose windows and full masks alternate."""
    model, have = reference("Gemma2", **GEMMA, attn_logit_softcapping=2.0, final_logit_softcapping=3.0)
    mixer = {**GROUPED, "head_dim": 8, "scores": {"kind": "softcap", "cap": 2.0}}
    wide = {"mixer": {**mixer, "mask": {"kind": "window", "width": None}}}
    settings = gemma({**mixer, "mask": {"kind": "window", "width": 4}}, dict.fromkeys((1, 3, 5), wide))
    settings |= {"logits": {"kind": "softcap", "cap": 3.0}}
    return logits(model, settings, gemma_tensors(have), "gemma2")


@parity("norm/rms", "transformers.Gemma2ForCausalLM", "placement=sandwich")
def sandwich() -> Both:
    return gemma2()


@parity("logits/softcap", "transformers.Gemma2ForCausalLM", "and softcap of scores")
def logit_cap() -> Both:
    return gemma2()


# --- positions --------------------------------------------------------------------------------------------------------


@parity("position/t5", "transformers.models.t5.modeling_t5.T5Attention", "buckets of 300 distances")
def t5_buckets() -> Both:
    from transformers.models.t5.modeling_t5 import T5Attention

    apart, sizes = np.arange(300), ((32, 128), (8, 20))
    theirs = [T5Attention._relative_position_bucket(torch.tensor(-apart), False, *size).numpy() for size in sizes]
    return np.stack([t5_bucket(jnp.asarray(apart), *size) for size in sizes]), np.stack(theirs)


@parity("position/alibi", "transformers.models.bloom.modeling_bloom.build_alibi_tensor", "1, 8 and 12 heads")
def slopes() -> Both:
    from transformers.models.bloom.modeling_bloom import build_alibi_tensor

    sizes = (1, 8, 12)
    theirs = [build_alibi_tensor(torch.ones(1, 2), heads, torch.float32)[:, 0, 1].numpy() for heads in sizes]
    return np.concatenate([alibi_slopes(heads) for heads in sizes]), np.concatenate(theirs)

"""Models of other families, composed from the slots, equal transformers' classes with the same random weights."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import torch
import transformers

from taetpu.core.config_parsing import build_component, load_config
from taetpu.core.jit_once import jit_once
from taetpu.core.keys import root_key
from taetpu.nn.common import AttentionDims, Context, Dims
from taetpu.nn.lm import ModelConfig, build_model
from taetpu.nn.named_arrays import named_parameters, with_parameters
from taetpu.nn.position import alibi_slopes, t5_bucket

VOCAB, SEQ, DIM, LAYERS, HEADS = 13, 12, 16, 6, 4
TOKENS = np.random.default_rng(0).integers(0, VOCAB, (2, SEQ)).astype(np.int32)
SIZES = {"vocab_size": VOCAB, "hidden_size": DIM, "num_hidden_layers": LAYERS, "num_attention_heads": HEADS,
         "intermediate_size": 24, "max_position_embeddings": SEQ, "bos_token_id": 0, "eos_token_id": 0,
         "pad_token_id": 0, "attn_implementation": "eager"}  # fmt: skip
BOUND = 5e-5
DIMS = Dims(DIM, LAYERS, SEQ, VOCAB, bias=False, init=build_component("init", "fan-in"))  # pyright: ignore


def reference(name, **settings):
    """Return a model of transformers with random parameters, and its arrays by name."""
    config = getattr(transformers, f"{name}{'Text' * (name == 'Gemma3')}Config")(**settings)
    torch.manual_seed(0)
    model = getattr(transformers, f"{name}ForCausalLM")(config).eval()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.copy_(0.3 * torch.randn_like(parameter) + (parameter == 1))
    return model, {name: tensor.detach().numpy() for name, tensor in model.state_dict().items()}


def check_logits(model, settings, names, vocab=VOCAB):
    """Check that our model with the given settings has the logits of a model of transformers.

    Args:
        model: The model of transformers.
        settings: The settings of our model.
        names: The parameters of our model by logical name, with `{i}` for the number of a layer.
    """
    config = load_config(ModelConfig, {"dim": DIM, "num_layers": LAYERS, **settings}).resolve()
    ours = build_model(config, vocab, SEQ, key=root_key(0))
    values = {
        name.format(i=i): np.asarray(array(i) if callable(array) else array)
        for name, array in names.items()
        for i in (range(LAYERS) if "{i}" in name else (0,))
    }
    assert set(values) == set(named_parameters(ours))
    logits = jit_once(lambda model, tokens: model(tokens))(with_parameters(ours, values), TOKENS)
    with torch.no_grad():
        expected = model(torch.tensor(TOKENS, dtype=torch.long)).logits.numpy()
    assert np.abs(np.asarray(logits) - expected).max() < BOUND * max(1.0, np.abs(expected).max())


@pytest.mark.parametrize("parallel", [True, pytest.param(False, marks=pytest.mark.slow)])
def test_gpt_neox_has_parallel_branches_with_two_norms(parallel):
    model, have = reference(
        "GPTNeoX", **SIZES, use_parallel_residual=parallel, hidden_act="gelu", tie_word_embeddings=False,
        rope_parameters={"rope_type": "default", "rope_theta": 10000.0, "partial_rotary_factor": 1.0},
    )  # fmt: skip

    def qkv(part, i, bias=False):
        array = have[f"gpt_neox.layers.{i}.attention.query_key_value.{'bias' if bias else 'weight'}"]
        part = array.reshape(HEADS, 3, DIM // HEADS, *array.shape[1:])[:, "qkv".index(part)]
        return part.reshape(DIM, *array.shape[1:]).T

    layer = "gpt_neox.layers.{}."
    names = {f"layers.{{i}}.mixer.w{x}": lambda i, x=x: qkv(x, i) for x in "qkv"}
    names |= {f"layers.{{i}}.mixer.b{x}": lambda i, x=x: qkv(x, i, bias=True) for x in "qkv"}
    for ours, theirs in (
        ("mixer.wo", "attention.dense.weight"), ("mixer.bo", "attention.dense.bias"),
        ("ffn.up", "mlp.dense_h_to_4h.weight"), ("ffn.up_bias", "mlp.dense_h_to_4h.bias"),
        ("ffn.down", "mlp.dense_4h_to_h.weight"), ("ffn.down_bias", "mlp.dense_4h_to_h.bias"),
        ("mixer_norm.weight", "input_layernorm.weight"), ("mixer_norm.bias", "input_layernorm.bias"),
        ("ffn_norm.weight", "post_attention_layernorm.weight"), ("ffn_norm.bias", "post_attention_layernorm.bias"),
    ):  # fmt: skip
        names[f"layers.{{i}}.{ours}"] = lambda i, theirs=theirs: have[layer.format(i) + theirs].T
    names |= {
        "embedding.weight": have["gpt_neox.embed_in.weight"],
        "embedding.unembed": have["lm_head.weight"].T,
        "norm.weight": have["gpt_neox.final_layer_norm.weight"],
        "norm.bias": have["gpt_neox.final_layer_norm.bias"],
    }
    order = {"order": "parallel-two-norms"} if parallel else {}
    settings = {
        "mixer": {"kind": "attention", "num_heads": HEADS}, "norm": "layer", "embedding": "untied", "bias": True,
        "ffn": {"kind": "gelu-erf", "hidden": 24},
    }  # fmt: skip
    check_logits(model, settings | order, names)


def llama_like(have, layer):
    """Return the parameters that most families name as Llama does."""
    pairs = [(f"mixer.w{x}", f"self_attn.{x}_proj.weight") for x in "qkvo"]
    pairs += [
        ("ffn.gate", "mlp.gate_proj.weight"),
        ("ffn.up", "mlp.up_proj.weight"),
        ("ffn.down", "mlp.down_proj.weight"),
    ]
    return {f"layers.{{i}}.{ours}": lambda i, theirs=theirs: have[layer.format(i) + theirs].T for ours, theirs in pairs}


def test_olmo2_has_output_norms_and_norms_of_all_heads_together():
    model, have = reference("Olmo2", **SIZES, num_key_value_heads=2, tie_word_embeddings=False, rms_norm_eps=1e-6)
    layer = "model.layers.{}."
    names = llama_like(have, layer)
    for ours, theirs in (
        ("mixer.qk_norm.q.weight", "self_attn.q_norm.weight"), ("mixer.qk_norm.k.weight", "self_attn.k_norm.weight"),
        ("mixer_norm.weight", "post_attention_layernorm.weight"),
        ("ffn_norm.weight", "post_feedforward_layernorm.weight"),
    ):  # fmt: skip
        names[f"layers.{{i}}.{ours}"] = lambda i, theirs=theirs: have[layer.format(i) + theirs]
    names |= {"embedding.weight": have["model.embed_tokens.weight"], "embedding.unembed": have["lm_head.weight"].T,
              "norm.weight": have["model.norm.weight"]}  # fmt: skip
    settings = {
        "mixer": {"kind": "attention", "num_heads": HEADS, "num_kv_heads": 2,
                  "qk_norm": {"kind": "rms", "over": "all"}},
        "norm": {"kind": "rms", "placement": "output"}, "embedding": "untied",
        "ffn": {"kind": "swiglu", "hidden": 24},
        "position": {"kind": "rope", "base": model.config.rope_parameters["rope_theta"]},
    }  # fmt: skip
    check_logits(model, settings, names)


def gemma_names(have, **norms):
    """Return the parameters of Gemma: scaled embeddings, four norms in each layer and the given ones, with 1 added."""
    layer, table = "model.layers.{}.", have["model.embed_tokens.weight"]
    norms |= {
        "mixer_norm.before": "input_layernorm", "mixer_norm.after": "post_attention_layernorm",
        "ffn_norm.before": "pre_feedforward_layernorm", "ffn_norm.after": "post_feedforward_layernorm",
    }  # fmt: skip
    return llama_like(have, layer) | {
        "embedding.weight": table * DIM**0.5,
        "embedding.unembed": table.T,
        "norm.weight": 1 + have["model.norm.weight"],
        **{
            f"layers.{{i}}.{ours}.weight": lambda i, theirs=theirs: 1 + have[f"{layer.format(i)}{theirs}.weight"]
            for ours, theirs in norms.items()
        },
    }


def test_gemma3_has_five_local_layers_for_each_global_one_and_two_rope_bases():
    """The layers form one stack, since widths and bases are traced. Gemma's norms multiply by 1 + weight."""
    model, have = reference(
        "Gemma3", **SIZES, num_key_value_heads=2, head_dim=8, sliding_window=4, query_pre_attn_scalar=8,
        hidden_activation="silu", rms_norm_eps=1e-6,
        rope_parameters={"full_attention": {"rope_type": "default", "rope_theta": 1e6},
                         "sliding_attention": {"rope_type": "default", "rope_theta": 1e4}},
    )  # fmt: skip
    assert model.config.layer_types == ["sliding_attention"] * 5 + ["full_attention"]
    names = gemma_names(have, **{"mixer.qk_norm.q": "self_attn.q_norm", "mixer.qk_norm.k": "self_attn.k_norm"})
    settings = {
        "mixer": {"kind": "attention", "num_heads": HEADS, "num_kv_heads": 2, "head_dim": 8, "qk_norm": "rms",
                  "mask": {"kind": "window", "width": 4}},
        "norm": {"kind": "rms", "placement": "sandwich"}, "embedding": "untied",
        "ffn": {"kind": "swiglu", "hidden": 24},
        "position": {"kind": "rope", "base": 1e4},
        "layers": {5: {"mixer": {"kind": "attention", "num_heads": HEADS, "num_kv_heads": 2, "head_dim": 8,
                                 "qk_norm": "rms", "mask": {"kind": "window", "width": None}},
                       "position": {"kind": "rope", "base": 1e6}}},
    }  # fmt: skip
    check_logits(model, settings, names)
    config = load_config(ModelConfig, {"dim": DIM, "num_layers": LAYERS, **settings}).resolve()
    assert len(jax.eval_shape(lambda: build_model(config, VOCAB, SEQ, key=root_key(0))).stacks) == 1


def test_gemma2_caps_scores_and_logits():
    model, have = reference(
        "Gemma2", **SIZES, num_key_value_heads=2, head_dim=8, sliding_window=4, query_pre_attn_scalar=8,
        hidden_activation="silu", rms_norm_eps=1e-6, attn_logit_softcapping=2.0, final_logit_softcapping=3.0,
    )  # fmt: skip
    names = gemma_names(have)
    attention = {"kind": "attention", "num_heads": HEADS, "num_kv_heads": 2, "head_dim": 8,
                 "scores": {"kind": "softcap", "cap": 2.0}}  # fmt: skip
    wide = {"mixer": {**attention, "mask": {"kind": "window", "width": None}}}
    settings = {
        "mixer": {**attention, "mask": {"kind": "window", "width": 4}},
        "norm": {"kind": "rms", "placement": "sandwich"}, "embedding": "untied",
        "ffn": {"kind": "swiglu", "hidden": 24},
        "logits": {"kind": "softcap", "cap": 3.0}, "layers": {1: wide, 3: wide, 5: wide},
    }  # fmt: skip
    check_logits(model, settings, names)


# --- parts of families -----------------------------------------------------------------------------------------------


def test_t5_buckets_and_alibi_slopes_equal_the_references():
    from transformers.models.bloom.modeling_bloom import build_alibi_tensor
    from transformers.models.t5.modeling_t5 import T5Attention

    apart = np.arange(300)
    for buckets, far in ((32, 128), (8, 20)):
        expected = T5Attention._relative_position_bucket(torch.tensor(-apart), False, buckets, far).numpy()
        assert np.array_equal(np.asarray(t5_bucket(jnp.asarray(apart), buckets, far)), expected)
    for heads in (1, 6, 8, 12):
        expected = build_alibi_tensor(torch.ones(1, 2), heads, torch.float32)[:, 0, 1].numpy()
        assert np.allclose(alibi_slopes(heads), expected, rtol=1e-6)


def test_sinks_equal_those_of_gpt_oss():
    from transformers.models.gpt_oss.modeling_gpt_oss import eager_attention_forward

    rng = np.random.default_rng(1)
    q, k, v = rng.standard_normal((3, 2, 3, 7, 4)).astype(np.float32)
    mask = np.where(np.tril(np.ones((7, 7), bool)), 0.0, -1e30).astype(np.float32)

    class Attention(torch.nn.Module):
        num_key_value_groups, training = 1, False
        sinks = torch.tensor([0.5, -1.0, 3.0])

    given = [torch.tensor(x) for x in (q, k, v, mask[None, None])]
    expected = eager_attention_forward(Attention(), *given, scaling=0.5)[0].transpose(1, 2).numpy()
    module = build_component("normalizer", "sink").init(DIMS, AttentionDims(3, 3, 4), key=root_key(0))
    module = jax.tree.map(lambda a: jnp.asarray(Attention.sinks.numpy()), module)
    scores = jnp.asarray(q @ k.transpose(0, 1, 3, 2) * 0.5 + mask)
    weights, total = module(scores, Context(jnp.zeros((2, 7), int), jnp.arange(7)))
    assert np.abs(np.asarray(weights / total) @ v - expected).max() < 1e-6

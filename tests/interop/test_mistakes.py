"""Messages about models that are not read or written: the value, the place and the remedy."""

import json

import numpy as np
import pytest
from safetensors.numpy import load_file, save_file
from tests.interop.cases import SEQ, VOCAB

from taetpu.core.config_parsing import load_config
from taetpu.core.errors import UserError
from taetpu.interop.blank import blank_model
from taetpu.interop.exporting import to_huggingface
from taetpu.interop.families import READ
from taetpu.interop.huggingface import from_huggingface, load_folder
from taetpu.nn.lm import ModelConfig

# --- settings --------------------------------------------------------------------------------------------------------

LLAMA = {
    "type": ({"model_type": "lama"}, r"type 'lama' .*\n  where:  model_type\n  remedy: Did you mean 'llama'\?"),
    "known": ({"model_type": "x"}, "remedy: Use one of: " + ", ".join(sorted([*READ, "gemma3"])[:24])),
    "other": ({"model_type": "rwkv"}, r"'rwkv' is not supported\n  where:  model_type\n  remedy: Use one of: "),
    "unknown": ({"rope_thetas": 3.0}, r"rope_thetas=3.0 is not a known setting .*\n.*rope_thetas\n.*'rope_theta'\?"),
    "quantized": ({"quantization_config": {"quant_method": "mxfp4"}}, r"\(mxfp4\) .*\n.*quantization_config\n.*dequan"),
    "scaling": ({"rope_parameters": {"rope_type": "llama3"}}, r"'factor' is missing\n.*rope_parameters.factor"),
    "proportional": ({"rope_parameters": {"rope_type": "proportional", "factor": 2.0}},
                r"'proportional' is not supported: taetpu .*\n.*rope_parameters.rope_type\n.*default, linear"),
    "longrope": ({"rope_parameters": {"rope_type": "longrope", "short_factor": [1.0] * 5, "long_factor": [2.0] * 3}},
                 r"short_factor has 5 numbers, but 3 pairs .*position.scaling.short_factor"),
    "old-scaling": ({"rope_parameters": None, "rope_scaling": {"type": "liner"}},
                    r"rope_type='liner'.*\n.*rope_scaling.rope_type\n  remedy: Did you mean 'linear'"),
    "scaling-setting": ({"rope_parameters": {"rope_type": "linear", "factor": 2.0, "beta": 3}},
                        r"unknown field 'beta'\n.*rope_parameters.beta\n.*'beta_"),
    "partial": ({"rope_parameters": {"rope_type": "linear", "factor": 2.0, "partial_rotary_factor": 0.5}},
                r"partial_rotary_factor=0.5 .*'linear'\n  where:  rope_parameters.partial_rotary_factor\n"),
    "rope-type": ({"rope_parameters": {"rope_type": [1]}}, r"\[1\] is not .*\n  where:  rope_parameters.rope_type"),
    "causal": ({"is_causal": False}, r"is_causal=False is not supported\n  where:  is_causal\n.*is_causal=True"),
    "positions": ({"max_position_embeddings": 3.5}, r"3.5 is not .*\n  where:  max_position_embeddings"),
    "no-positions": ({"max_position_embeddings": -5}, r"-5 is not .*\n.*max_position_embeddings\n.*at least 1"),
    "end": ({"eos_token_id": "x"}, r"'x' is not allowed: .*integer\n  where:  eos_token_id"),
    "end-part": ({"eos_token_id": 1.5}, r"1.5 is not allowed: .*integer.*\n  where:  eos_token_id"),
    "bool-token": ({"pad_token_id": True}, r"True is not allowed: .*integer\n  where:  pad_token_id"),
    "activation": ({"hidden_act": "sillu"}, r"hidden_act='sillu' .*\n.*\n  remedy: Did you mean 'silu'\?"),
    "missing": ({"hidden_size": None}, r"'hidden_size' is missing\n  remedy: Add hidden_size"),
    "word": ({"hidden_size": "16"}, r"'16' is not allowed: .*integer\n  where:  hidden_size"),
    "eps": ({"rms_norm_eps": "1e-5"}, r"'1e-5' is not allowed: .*number\n  where:  rms_norm_eps"),
    "negative-eps": ({"rms_norm_eps": -1}, r"-1 is not allowed: .*greater than 0\n  where:  rms_norm_eps"),
    "heads": ({"head_dim": None, "num_attention_heads": 3, "num_key_value_heads": 3},
              r"dim=16 is not divisible by num_heads=3 \(taetpu's layers.0.mixer.num_heads\)"),
    "vocab": ({"vocab_size": 12}, r"tensor 'model.embed_tokens.weight' has shape \(11, 16\), not \(12, 16\)"),
    "width": ({"intermediate_size": 8}, r"'model.layers.0.mlp.gate_proj.weight' has shape \(24, 16\), not \(8, 16\)"),
    "layers": ({"num_hidden_layers": 2}, r"9 tensors do not .*e\.g\. 'model.layers.2.input_layernorm.weight'"),
    "biases": ({"attention_bias": True}, r"tensor 'model.layers.0.self_attn.q_proj.bias' is missing"),
}  # fmt: skip


@pytest.mark.parametrize("change", LLAMA)
def test_llama_configs_refused(llama, change):
    settings, text = LLAMA[change]
    with pytest.raises(UserError, match=text):
        from_huggingface(llama[0] | settings, llama[1])


GPT2 = [
    ({"scale_attn_weights": False}, "scale_attn_weights=False is not supported"),
    ({"hidden_size": 24}, r"hidden_size=24 and n_embd=16 .*\n  where:  hidden_size\n  remedy: Remove "),
    ({"activation_function": "tanh"}, "activation_function='tanh' is not supported"),
]


@pytest.mark.parametrize(("settings", "text"), GPT2)
def test_gpt2_configs_refused(gpt2, settings, text):
    with pytest.raises(UserError, match=text):
        from_huggingface(gpt2[0] | settings, gpt2[1])


GEMMA3 = [
    (
        {"layer_types": ["full_attention"]},
        r"layer_types has 1 entries, expected one for each of 3 layers\n.*layer_types",
    ),
    ({"layer_types": ["full_attention", "linear", "full_attention"]}, r"type 'linear' .*\n  where:  layer_types.1\n"),
    ({"sliding_window": None}, r"sliding_window is None, expected a positive integer\n  where:  sliding_window"),
    ({"attn_logit_softcapping": 50.0}, r"attn_logit_softcapping=50.0 is not supported"),
    ({"use_bidirectional_attention": True}, r"use_bidirectional_attention=True is not supported"),
    ({"query_pre_attn_scalar": 0}, r"0 is not .*\n  where:  query_pre_attn_scalar\n.*above 0"),
    ({"rope_parameters": {"rope_theta": 3.0}}, r"'rope_theta' is not a type of layer\n  where:  rope_parameters.rope"),
    ({"layer_types": None, "sliding_window_pattern": 0.5}, r"0.5 is not .*integer\n  where:  sliding_window_pattern"),
]


@pytest.mark.parametrize(("settings", "text"), GEMMA3)
def test_gemma3_configs_refused(gemma3, settings, text):
    with pytest.raises(UserError, match=text):
        from_huggingface(gemma3[0] | settings, gemma3[1])


def test_the_place_of_a_setting_in_a_multimodal_model(gemma3):
    config = {"model_type": "gemma3", "text_config": gemma3[0] | {"hidden_activation": "swiss"}}
    with pytest.raises(
        UserError, match=r"'swiss' is not supported\n  where:  text_config.hidden_activation\n.*'swish'"
    ):
        from_huggingface(config, gemma3[1])
    with pytest.raises(UserError, match=r"'text_config' is missing\n  where:  text_config"):
        from_huggingface({"model_type": "gemma3"}, gemma3[1])


# --- tensors ---------------------------------------------------------------------------------------------------------


def test_tensors_refused(gpt2):
    config, tensors = gpt2
    with pytest.raises(UserError, match=r"'lm_head.weight' differs from .*\n  where:  tie_word_embeddings"):
        from_huggingface(config, tensors | {"lm_head.weight": tensors["lm_head.weight"] + 1})
    with pytest.raises(UserError, match=r"1 tensors .* gpt2 model, e\.g\. 'transformer.extra'"):
        from_huggingface(config, tensors | {"extra": np.zeros(1)})
    name = "transformer.h.0.attn.c_attn.weight"
    with pytest.raises(UserError, match=rf"'{name}' has shape \(16, 47\), not \(16, 48\)"):
        from_huggingface(config, tensors | {name: tensors[name][:, :-1]})
    with pytest.raises(UserError, match=rf"tensor '{name}' .* dtype int8\n  remedy: Convert the"):
        from_huggingface(config, tensors | {name: tensors[name].astype(np.int8)})


# --- folders ---------------------------------------------------------------------------------------------------------


def test_broken_folders_are_refused(tmp_path, llama):
    config, tensors = llama
    weights = tmp_path / "model.safetensors"

    def refused(text):
        with pytest.raises(UserError, match=text):
            load_folder(tmp_path)

    refused(r"no such file\n  where:  .*config.json\n  remedy: Use a folder with config.json")
    (tmp_path / "config.json").write_text("{\n  oops")
    refused(r"not JSON: .*\n  where:  .*config.json:2")
    (tmp_path / "config.json").write_text("[]")
    refused(r"expected a JSON object, got list\n  where:  .*config.json")
    (tmp_path / "config.json").write_text(json.dumps(config))
    refused(r"no such file\n  where:  .*model.safetensors\n  remedy: .*transformers")
    weights.write_bytes(b"not safe")
    refused(r"not a complete safetensors file: .*\n  where:  .*model.safetensors\n  remedy: Copy or download")
    save_file(tensors, weights)
    weights.write_bytes(weights.read_bytes()[:-100])
    refused(r"not a complete safetensors file: .*\n  where:  .*model.safetensors\n  remedy: Copy or download")
    save_file({k: v for k, v in tensors.items() if k != "model.norm.weight"}, weights)
    refused(r"tensor 'model.norm.weight' is missing\n  where:  .*model.safetensors")
    (tmp_path / "config.json").write_text(json.dumps(config | {"hidden_act": "tanh"}))
    refused(r"where:  .*config.json at hidden_act")
    assert load_file(weights).keys() == tensors.keys() - {"model.norm.weight"}


def test_pickles_are_refused(tmp_path, llama):
    (tmp_path / "config.json").write_text(json.dumps(llama[0]))
    (tmp_path / "pytorch_model.bin").write_bytes(b"cos\nsystem\n(S'touch owned'\ntR.")
    text = (
        r"the weights are in pytorch_model.bin, a pickle, .* never read\n  where:  .*\n  remedy: Convert it .*save_pre"
    )
    with pytest.raises(UserError, match=text):
        load_folder(tmp_path)


def test_broken_indexes_are_refused(tmp_path, llama):
    (tmp_path / "config.json").write_text(json.dumps(llama[0]))
    index = tmp_path / "model.safetensors.index.json"
    for content, text in (
        (
            {"weight_map": {"a": "model-1-of-2.safetensors"}},
            r"the shard 'model-1-of-2.safetensors' is missing.*\n.*index",
        ),
        ({"weight_map": {"a": "../other.safetensors"}}, r"the index names '../other.safetensors', which is not read"),
        ({"weight_map": {"a": "model.bin"}}, r"the index names 'model.bin', which is not read"),
        ({}, r"'weight_map' is missing .*\n  where:  .*index.json\n  remedy: Copy or download"),
    ):
        index.write_text(json.dumps(content))
        with pytest.raises(UserError, match=text):
            load_folder(tmp_path)


# --- models that no architecture admits ------------------------------------------------------------------------------

BASE = {"dim": 16, "num_layers": 3}
ATTENTION = {"kind": "attention", "num_heads": 4}
UNSUPPORTED = [
    ({"ffn": "relu"}, r"llama does not support ffn.kind=relu\n  where:  ffn.kind\n  remedy: Use ffn.kind: swiglu or "),
    ({"mixer": {**ATTENTION, "drop_heads": [1]}}, r"mixer.drop_heads=\[1\]"),
    ({"mixer": {**ATTENTION, "scale": 0.3}}, r"mixer.scale=0.3\n.*\n  remedy: Use mixer.scale: none for llama"),
    ({"mixer": {**ATTENTION, "scale": "1/head_dim"}}, "mixer.scale=1/head_dim"),
    ({"mixer": "gru"}, r"llama does not support mixer.kind=gru\n.*\n  remedy: Use mixer.kind: attention"),
    ({"logits": {"kind": "mup", "base_dim": 8}}, r"logits.kind=mup\n  where:  logits.kind"),
    (
        {"layers": {-1: {"ffn": "none"}}},
        r"llama does not support ffn.kind=none in layer 2\n  where:  layers.2.ffn.kind",
    ),
    ({"layers": {1: {"same_as": 0}}}, r"same_as=0 in layer 1\n  where:  layers.1.same_as\n  remedy: Use same_as: none"),
    ({"layers": {"::": {"norm": "layer"}}}, r"norm.kind=rms outside the layers|norm.kind=layer"),
    ({"position": "learned", "norm": "layer"}, "Use ffn.kind: gelu-tanh or gelu-erf or relu or relu2 or silu for gpt2"),
    ({"heads": ["multi-token"]}, r"no place for the head 'multi-token'.*\n  where:  heads.multi-token"),
    ({"position": {"kind": "rope", "scaling": {"kind": "ntk"}}}, r"position.scaling.kind=ntk"),
]


@pytest.mark.parametrize(("settings", "text"), UNSUPPORTED)
def test_unsupported_models_are_refused(settings, text):
    config = load_config(ModelConfig, BASE | settings)
    with pytest.raises(UserError, match=text):
        to_huggingface(config, blank_model(config.resolve(), VOCAB, SEQ))


def test_an_architecture_that_does_not_admit_a_model():
    config = load_config(ModelConfig, BASE)
    model = blank_model(config.resolve(), VOCAB, SEQ)
    with pytest.raises(UserError, match=r"gemma .*support (position|norm.weight=plain, nor)"):
        to_huggingface(config, model, family="gemma")
    with pytest.raises(UserError, match=r"model type 'gema' is not supported\n.*\n  remedy: Did you mean 'gemma'\?"):
        to_huggingface(config, model, family="gema")

"""Converted models equal transformers' GPT-2 and Llama with the same weights, in both directions."""

import json
from functools import cache

import jax
import ml_dtypes
import numpy as np
import pytest
import torch
from safetensors.numpy import load_file, save_file
from tests.suites import by_default
from transformers import GPT2Config, GPT2LMHeadModel, LlamaConfig, LlamaForCausalLM

from taetpu.core.config_parsing import load_config
from taetpu.core.errors import UserError
from taetpu.core.jit_once import jit_once
from taetpu.core.keys import root_key
from taetpu.interop.huggingface import from_huggingface, load_folder, save_folder, to_huggingface
from taetpu.nn.lm import ModelConfig, build_model
from taetpu.nn.named_arrays import named_parameters

VOCAB, SEQ = 11, 8
TOKENS = np.random.default_rng(0).integers(0, VOCAB, (2, SEQ)).astype(np.int32)

GPT2 = {"vocab_size": VOCAB, "n_positions": SEQ, "n_embd": 16, "n_layer": 2, "n_head": 2, "resid_pdrop": 0.0,
        "embd_pdrop": 0.0, "attn_pdrop": 0.0, "bos_token_id": 0, "eos_token_id": 0}  # fmt: skip
LLAMA = {"vocab_size": VOCAB, "hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 4,
         "intermediate_size": 24, "max_position_embeddings": SEQ, "bos_token_id": 0, "eos_token_id": 0}  # fmt: skip

CASES = {
    "gpt2": (GPT2LMHeadModel, GPT2Config, GPT2),
    "gpt2-untied-erf": (GPT2LMHeadModel, GPT2Config, GPT2 | {
        "tie_word_embeddings": False, "activation_function": "gelu", "n_inner": 24, "layer_norm_epsilon": 1e-2}),
    "llama-gqa-tied": (LlamaForCausalLM, LlamaConfig, LLAMA | {
        "num_key_value_heads": 2, "head_dim": 6, "tie_word_embeddings": True,
        "rope_parameters": {"rope_type": "default", "rope_theta": 50.0}}),
    "llama-biases": (LlamaForCausalLM, LlamaConfig, LLAMA | {
        "rms_norm_eps": 1e-2, "num_key_value_heads": 1, "attention_bias": True, "mlp_bias": True}),
}  # fmt: skip


@jit_once
def forward(model, tokens):
    return model(tokens)


@cache
def theirs(case):
    """Return a Hugging Face model with random parameters, including biases and norms."""
    model_class, config_class, settings = CASES[case]
    torch.manual_seed(0)
    model = model_class(config_class(**settings)).eval()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.copy_(0.3 * torch.randn_like(parameter) + (parameter == 1))
    return model


def arrays(model):
    return {name: tensor.detach().numpy() for name, tensor in model.state_dict().items()}


def their_logits(model):
    with torch.no_grad():
        return model(torch.tensor(TOKENS, dtype=torch.long)).logits.numpy()


@pytest.fixture(scope="module")
def gpt2():
    model = theirs("gpt2")
    return model.config.to_dict(), arrays(model)


@pytest.fixture(scope="module")
def llama():
    model = theirs("llama-gqa-tied")
    return model.config.to_dict(), arrays(model)


@pytest.mark.parametrize("case", by_default(CASES, "gpt2", "llama-gqa-tied"))
def test_same_logits_in_both_directions(case):
    hf = theirs(case)
    expected = their_logits(hf)
    config, model = from_huggingface(hf.config.to_dict(), arrays(hf))
    np.testing.assert_allclose(forward(model, TOKENS), expected, atol=5e-5)

    model_class, config_class, _ = CASES[case]
    settings, tensors = to_huggingface(config, model, seq_len=SEQ)
    again = model_class(config_class(**settings)).eval()
    report = again.load_state_dict({k: torch.tensor(v) for k, v in tensors.items()}, strict=False)
    assert not report.unexpected_keys
    assert set(report.missing_keys) <= {"lm_head.weight"}
    again.tie_weights()
    np.testing.assert_array_equal(their_logits(again), expected)


def test_export_then_import_gives_the_same_parameters():
    hf = theirs("gpt2-untied-erf")
    config, model = from_huggingface(hf.config.to_dict(), arrays(hf))
    config_again, model_again = from_huggingface(*to_huggingface(config, model))
    assert config_again.resolve().check(VOCAB, SEQ) is None
    for name, array in named_parameters(model).items():
        np.testing.assert_array_equal(array, named_parameters(model_again)[name], err_msg=name)


def test_missing_biases_are_exported_as_zeros():
    config = load_config(
        ModelConfig, {"dim": 16, "num_layers": 2, "position": "learned", "norm": "layer", "ffn": "gelu-erf"}
    )
    model = build_model(config.resolve(), VOCAB, SEQ, key=root_key(1))
    settings, tensors = to_huggingface(config, model)
    hf = GPT2LMHeadModel(GPT2Config(**settings, bos_token_id=0, eos_token_id=0)).eval()
    hf.load_state_dict({k: torch.tensor(v) for k, v in tensors.items()}, strict=False)
    hf.tie_weights()
    np.testing.assert_allclose(forward(model, TOKENS), their_logits(hf), atol=5e-5)


def test_settings_are_imported(llama):
    config, _ = from_huggingface(*llama)
    assert (config.mixer.num_kv_heads, config.mixer.head_dim, config.position.base) == (2, 6, 50.0)
    assert config.embedding.kind == "tied"


def test_configs_of_transformers_4_are_imported(llama):
    config, tensors = llama
    old = {k: v for k, v in config.items() if k != "rope_parameters"} | {"rope_theta": 50.0, "rope_scaling": None}
    assert from_huggingface(old, tensors)[0] == from_huggingface(config, tensors)[0]


def test_older_files_are_imported(gpt2):
    """Older files have no prefix `transformer.` and no tied head, but attention masks."""
    config, tensors = gpt2
    bare = {k.removeprefix("transformer."): v for k, v in tensors.items() if k != "lm_head.weight"}
    bare |= {"h.0.attn.bias": np.ones((1, 1, SEQ, SEQ)), "h.1.attn.masked_bias": np.array(-1e4)}
    _, model = from_huggingface(config, bare)
    _, expected = from_huggingface(config, tensors)
    assert jax.tree.all(jax.tree.map(np.array_equal, model, expected))


# --- folders ---------------------------------------------------------------------------------------------------------


def test_folders_are_read_in_both_directions(tmp_path):
    hf = theirs("llama-gqa-tied")
    hf.save_pretrained(tmp_path / "theirs")
    config, model = load_folder(tmp_path / "theirs")
    save_folder(tmp_path / "ours", config, model, seq_len=SEQ)
    again = LlamaForCausalLM.from_pretrained(tmp_path / "ours")
    np.testing.assert_array_equal(their_logits(again), their_logits(hf))
    with pytest.raises(UserError, match="already exists"):
        save_folder(tmp_path / "ours", config, model)


def test_bfloat16_shards(tmp_path, llama):
    config, tensors = llama
    half = {k: v.astype(ml_dtypes.bfloat16) for k, v in tensors.items()}
    names = sorted(half)
    shards = {"a.safetensors": names[::2], "b.safetensors": names[1::2]}
    for file, part in shards.items():
        save_file({k: half[k] for k in part}, tmp_path / file)
    index = {"weight_map": {name: file for file, part in shards.items() for name in part}}
    (tmp_path / "model.safetensors.index.json").write_text(json.dumps(index))
    (tmp_path / "config.json").write_text(json.dumps(config))
    _, model = load_folder(tmp_path)
    parameters = named_parameters(model)
    assert {a.dtype.name for a in parameters.values()} == {"float32"}
    rounded = half["model.layers.1.self_attn.q_proj.weight"].astype(np.float32).T
    np.testing.assert_array_equal(parameters["layers.1.mixer.wq"], rounded)


def test_broken_folders_are_refused(tmp_path, llama):
    config, tensors = llama
    with pytest.raises(
        UserError, match=r"no such file\n  where:  .*config.json\n  remedy: Use a folder with config.json"
    ):
        load_folder(tmp_path)
    (tmp_path / "config.json").write_text("{\n  oops")
    with pytest.raises(UserError, match=r"not JSON: .*\n  where:  .*config.json:2"):
        load_folder(tmp_path)
    (tmp_path / "config.json").write_text(json.dumps(config))
    with pytest.raises(UserError, match=r"no such file\n  where:  .*model.safetensors\n  remedy: .*transformers"):
        load_folder(tmp_path)
    (tmp_path / "model.safetensors").write_bytes(b"not safe")
    with pytest.raises(UserError, match="not a safetensors file"):
        load_folder(tmp_path)
    save_file({k: v for k, v in tensors.items() if k != "model.norm.weight"}, tmp_path / "model.safetensors")
    with pytest.raises(UserError, match=r"tensor 'model.norm.weight' is missing\n  where:  .*model.safetensors"):
        load_folder(tmp_path)
    (tmp_path / "config.json").write_text(json.dumps(config | {"hidden_act": "gelu"}))
    with pytest.raises(UserError, match=r"where:  .*config.json at hidden_act"):
        load_folder(tmp_path)
    assert load_file(tmp_path / "model.safetensors").keys() == tensors.keys() - {"model.norm.weight"}


# --- unsupported models ---------------------------------------------------------------------------------------------

REFUSED = {
    "type": ({"model_type": "lama"}, r"type 'lama' .*\n  where:  model_type\n  remedy: Did you mean 'llama'\?"),
    "scaling": ({"rope_parameters": {"rope_type": "llama3"}}, r"rope_type='llama3'.*\n.*rope_parameters"),
    "old-scaling": ({"rope_parameters": None, "rope_scaling": {"type": "linear"}}, r"type='linear'.*\n.*rope_scaling"),
    "activation": ({"hidden_act": "sillu"}, r"hidden_act='sillu' .*\n.*\n  remedy: Did you mean 'silu'\?"),
    "dropout": ({"attention_dropout": 0.1}, r"attention_dropout=0.1 is not .*\n  where:  attention_dropout"),
    "missing": ({"hidden_size": None}, r"'hidden_size' is missing\n.*\n  remedy: Set all of hidden_size, "),
    "heads": ({"head_dim": None, "num_attention_heads": 3}, r"dim=16 is not divisible by num_heads=3"),
    "vocab": ({"vocab_size": 12}, r"'embedding.weight' has shape \(11, 16\), not \(12, 16\)"),
    "layers": ({"num_hidden_layers": 1}, r"9 tensors do not .*e\.g\. 'model.layers.1.input_layernorm.weight'"),
    "biases": ({"attention_bias": True}, r"tensor 'model.layers.0.self_attn.q_proj.bias' is missing"),
}  # fmt: skip


@pytest.mark.parametrize("change", REFUSED)
def test_llama_configs_refused(llama, change):
    settings, text = REFUSED[change]
    with pytest.raises(UserError, match=text):
        from_huggingface(llama[0] | settings, llama[1])


@pytest.mark.parametrize(
    ("settings", "text"),
    [
        ({"scale_attn_by_inverse_layer_idx": True}, "scale_attn_by_inverse_layer_idx=True is not supported"),
        ({"attn_pdrop": 0.1}, "resid_pdrop=0.0, embd_pdrop=0.0, attn_pdrop=0.1"),
        ({"activation_function": "tanh"}, "activation_function='tanh' is not supported"),
    ],
)
def test_gpt2_configs_refused(gpt2, settings, text):
    with pytest.raises(UserError, match=text):
        from_huggingface(gpt2[0] | settings, gpt2[1])


def test_a_head_that_is_not_tied_is_refused_when_the_config_says_so(gpt2):
    config, tensors = gpt2
    with pytest.raises(UserError, match=r"'lm_head.weight' differs from the embedding\n  where:  tie_word_embeddings"):
        from_huggingface(config, tensors | {"lm_head.weight": tensors["lm_head.weight"] + 1})
    with pytest.raises(UserError, match=r"1 tensors do not belong to a gpt2 model, e\.g\. 'transformer.extra'"):
        from_huggingface(config, tensors | {"extra": np.zeros(1)})


BASE = {"dim": 16, "num_layers": 3}


@pytest.fixture(scope="module")
def llama_model():
    return build_model(load_config(ModelConfig, BASE).resolve(), VOCAB, SEQ, key=root_key(0))


@pytest.mark.parametrize(
    ("settings", "text"),
    [
        ({"ffn": "relu"}, r"llama does not support ffn.kind=relu\n.*\n  remedy: Use ffn.kind: swiglu "),
        ({"mixer": {"kind": "attention", "drop_heads": [1]}}, "mixer.drop_heads"),
        ({"mixer": {"kind": "attention", "scale": 0.3}}, "mixer.scale=0.3"),
        ({"mixer": {"kind": "attention", "scale": "1/head_dim"}}, "mixer.scale=1/head_dim"),
        ({"logits": {"kind": "mup", "base_dim": 8}}, "logits.kind=mup"),
        ({"layers": {-1: {"ffn": "none"}}}, r"layers 0 and 2 have different ffn\n  where:  layers.2.ffn"),
        ({"layers": {"::": {"norm": "layer"}}}, "layers and model have different norm"),
        ({"position": "learned", "norm": "layer"}, "Use ffn.kind: gelu-tanh or gelu-erf or relu for gpt2"),
    ],
)  # fmt: skip
def test_unsupported_models_are_refused(llama_model, settings, text):
    with pytest.raises(UserError, match=text):
        to_huggingface(load_config(ModelConfig, BASE | settings), llama_model)

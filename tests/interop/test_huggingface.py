"""Settings, tensors and folders of Hugging Face models that are read and written."""

import json
import math

import jax
import jax.numpy as jnp
import ml_dtypes
import numpy as np
import pytest
import torch
import transformers
from safetensors.numpy import load_file, save_file
from tests.interop.cases import LLAMA, SEQ, TOKENS, VOCAB, arrays, forward, imported, their_logits, theirs
from transformers import GPT2Config, GPT2LMHeadModel, LlamaForCausalLM

from taetpu.core.config_parsing import load_config
from taetpu.core.errors import UserError
from taetpu.core.keys import root_key
from taetpu.core.registry import kinds
from taetpu.data.tokenizers.bpe import BPEConfig
from taetpu.interop.blank import blank_model
from taetpu.interop.exporting import save_folder, to_huggingface
from taetpu.interop.huggingface import from_huggingface, import_config, import_folder, load_folder
from taetpu.interop.tokenizer_files import read_tokenizer
from taetpu.nn.block import SLOTS
from taetpu.nn.lm import ModelConfig, build_model
from taetpu.nn.named_arrays import named_parameters
from taetpu.nn.rope_scaling import LinearScalingConfig
from taetpu.spec.preset_study import preset_model
from taetpu.spec.presets import PRESETS


def same(model, other) -> bool:
    return jax.tree.all(jax.tree.map(np.array_equal, model, other))


def small(**settings):
    return load_config(ModelConfig, {"dim": 16, "num_layers": 3, **settings})


def zeros(config):
    """Return a model whose parameters are zeros."""
    return jax.tree.map(jnp.asarray, blank_model(config.resolve(), VOCAB, SEQ))


# --- settings --------------------------------------------------------------------------------------------------------


def test_settings_are_imported(llama):
    config, _ = from_huggingface(*llama)
    assert (config.mixer.num_kv_heads, config.mixer.head_dim, config.norm.eps) == (2, 6, 1e-2)
    assert (config.embedding.kind, config.ffn.kind) == ("untied", "geglu")
    assert config.position.scaling == LinearScalingConfig(factor=2.0)


def test_configs_of_transformers_4_are_imported(llama, gemma3):
    for config, changes in (
        (llama[0], {"rope_theta": 50.0, "rope_scaling": {"type": "linear", "factor": 2.0}}),
        (
            gemma3[0],
            {
                "rope_theta": 80.0,
                "rope_local_base_freq": 20.0,
                "rope_scaling": {"rope_type": "linear", "factor": 4.0},
                "cache_implementation": "hybrid",
                "torch_dtype": "bfloat16",
            },
        ),
    ):
        old = {k: v for k, v in config.items() if k != "rope_parameters"} | changes
        assert import_config(old) == import_config(config)


HUB = {
    "EleutherAI/pythia-70m": {
        "model_type": "gpt_neox", "hidden_act": "gelu", "hidden_size": 512, "initializer_range": 0.02,
        "intermediate_size": 2048, "layer_norm_eps": 1e-05, "max_position_embeddings": 2048, "num_attention_heads": 8,
        "num_hidden_layers": 6, "rotary_emb_base": 10000, "rotary_pct": 0.25, "tie_word_embeddings": False,
        "torch_dtype": "float16", "transformers_version": "4.24.0", "use_cache": True, "use_parallel_residual": True,
        "vocab_size": 50304, "bos_token_id": 0, "eos_token_id": 0},
    "google/gemma-3-4b-it": {
        "model_type": "gemma3", "architectures": ["Gemma3ForConditionalGeneration"], "boi_token_index": 255999,
        "eos_token_id": [1, 106], "mm_tokens_per_image": 256, "text_config": {
            "hidden_size": 2560, "intermediate_size": 10240, "model_type": "gemma3_text", "num_hidden_layers": 34,
            "rope_scaling": {"factor": 8.0, "rope_type": "linear"}, "sliding_window": 1024},
        "vision_config": {"hidden_size": 1152}},
    "meta-llama/Llama-3.2-1B": {
        "model_type": "llama", "attention_bias": False, "attention_dropout": 0.0, "head_dim": 64, "hidden_act": "silu",
        "hidden_size": 2048, "initializer_range": 0.02, "intermediate_size": 8192, "max_position_embeddings": 131072,
        "mlp_bias": False, "num_attention_heads": 32, "num_hidden_layers": 16, "num_key_value_heads": 8,
        "pretraining_tp": 1, "rms_norm_eps": 1e-05, "rope_scaling": {
            "factor": 32.0, "high_freq_factor": 4.0, "low_freq_factor": 1.0,
            "original_max_position_embeddings": 8192, "rope_type": "llama3"},
        "rope_theta": 500000.0, "tie_word_embeddings": True, "vocab_size": 128256},
    "Qwen/Qwen2.5-7B": {
        "model_type": "qwen2", "attention_dropout": 0.0, "hidden_act": "silu", "hidden_size": 3584,
        "intermediate_size": 18944, "max_position_embeddings": 131072, "max_window_layers": 28,
        "num_attention_heads": 28, "num_hidden_layers": 28, "num_key_value_heads": 4, "rms_norm_eps": 1e-06,
        "rope_theta": 1000000.0, "sliding_window": 131072, "tie_word_embeddings": False, "use_mrope": False,
        "use_sliding_window": False, "vocab_size": 152064},
}  # fmt: skip
"""Settings as on the hub, written by several versions of transformers."""


@pytest.mark.parametrize(
    ("name", "layers"),
    [
        ("EleutherAI/pythia-70m", {"position.fraction": 0.25, "order.kind": "parallel-two-norms"}),
        ("google/gemma-3-4b-it", {"mixer.num_heads": 8, "mixer.mask.width": 1024, "position.base": 10000.0}),
        ("meta-llama/Llama-3.2-1B", {"position.scaling.factor": 32.0, "mixer.head_dim": 64, "norm.eps": 1e-5}),
        ("Qwen/Qwen2.5-7B", {"mixer.bias": "qkv", "mixer.mask.kind": "causal", "position.base": 1000000.0}),
    ],
)
def test_settings_of_the_hub_are_read(name, layers):
    first = import_config(HUB[name]).resolve().layers[0]
    for path, expected in layers.items():
        value = first
        for part in path.split("."):
            value = getattr(value, part)
        assert value == expected, path


def test_layers_of_the_rarer_type_are_one_slice():
    config = import_config(HUB["google/gemma-3-4b-it"])
    assert list(config.layers) == ["5::6"]
    full = [i for i, layer in enumerate(config.resolve().layers) if layer.mixer.mask.width is None]
    assert full == [5, 11, 17, 23, 29]
    assert config.resolve().layers[5].position.scaling == LinearScalingConfig(factor=8.0)


# --- tensors ---------------------------------------------------------------------------------------------------------


def test_older_files_are_imported(gpt2):
    """Older files have no prefix `transformer.` and no tied head, but attention masks."""
    config, tensors = gpt2
    bare = {k.removeprefix("transformer."): v for k, v in tensors.items() if k != "lm_head.weight"}
    bare |= {"h.0.attn.bias": np.ones((1, 1, SEQ, SEQ), bool), "h.1.attn.masked_bias": np.array(-1e4)}
    assert same(from_huggingface(config, bare)[1], imported("gpt2")[1])


def test_older_files_of_pythia_are_imported():
    hf = theirs("neox")
    old = {name.replace("lm_head", "embed_out"): array for name, array in arrays(hf).items()}
    old |= {f"gpt_neox.layers.{i}.attention.rotary_emb.inv_freq": np.ones(4) for i in range(3)}
    old |= {"gpt_neox.layers.0.attention.bias": np.ones((1, 1, SEQ, SEQ), bool)}
    assert same(from_huggingface(hf.config.to_dict(), old)[1], imported("neox")[1])


@pytest.mark.slow
@pytest.mark.parametrize("prefix", ["language_model.model.", "model.language_model."])
def test_the_text_model_of_a_multimodal_model_is_imported(gemma3, prefix):
    config, tensors = gemma3
    outer = {"model_type": "gemma3", "text_config": config, "mm_tokens_per_image": 4}
    inner = {prefix + k.removeprefix("model."): v for k, v in tensors.items() if k != "lm_head.weight"}
    inner |= {"vision_tower.embeddings.weight": np.ones(3), "model.multi_modal_projector.weight": np.ones(3)}
    assert same(from_huggingface(outer, inner)[1], imported("gemma3")[1])
    with pytest.raises(UserError, match=r"2 tensors .* gemma3_text model"):
        from_huggingface(config, inner)


@pytest.mark.slow
def test_missing_biases_are_exported_as_zeros():
    config = small(position="learned", norm="layer", ffn="gelu-erf")
    model = build_model(config.resolve(), VOCAB, SEQ, key=root_key(1))
    settings, tensors = to_huggingface(config, model)
    hf = GPT2LMHeadModel(GPT2Config(**settings)).eval()
    hf.load_state_dict({k: torch.tensor(v) for k, v in tensors.items()}, strict=False)
    hf.tie_weights()
    np.testing.assert_allclose(forward(model, TOKENS), their_logits(hf), atol=5e-5)


# --- export ----------------------------------------------------------------------------------------------------------


EXPORTS = {"gpt2": "gpt2", "llama3": "llama", "qwen3": "qwen3", "gemma3": "gemma3_text", "olmo2": "olmo2"}
EXPORTS |= {"bert": "bert", "roberta": "bert", "modernbert": "modernbert"}  # roberta names the layers as bert does


@pytest.mark.slow
@pytest.mark.parametrize("name", PRESETS)
def test_presets_are_exported_as_their_family(name):
    config = preset_model(name, 32, 8)
    model = zeros(config)
    if name in EXPORTS:
        settings, _ = to_huggingface(config, model)
        assert settings["model_type"] == EXPORTS[name]
    else:
        with pytest.raises(UserError, match=r"does not support .*\n.*where: .*\n  remedy: Use "):
            to_huggingface(config, model)


def test_a_window_in_all_layers_is_mistral():
    config = small(mixer={"kind": "attention", "mask": {"kind": "window", "width": 4}})
    settings, _ = to_huggingface(config, zeros(config))
    assert (settings["model_type"], settings["sliding_window"]) == ("mistral", 4)


@pytest.mark.slow
def test_every_kind_is_exported_or_refused():
    """No kind of a layer's slots breaks the search for an architecture."""
    exported = set()
    for slot in SLOTS:
        for kind, cls in kinds(slot).items():
            own = {name: value for name, value in cls.example.items() if "." not in name}
            config = small(**{slot: {"kind": kind, **own}})
            try:
                settings, _ = to_huggingface(config, zeros(config))
                assert import_config(settings)
                exported.add(f"{slot}/{kind}")
            except UserError as error:  # refused, or other settings are required
                refused = error
                assert refused.remedy or refused.path, (slot, kind)
    assert exported >= {"mixer/attention", "ffn/swiglu", "ffn/reglu", "position/rope", "norm/rms", "order/sequential"}
    assert not exported & {"ffn/relu2", "norm/scale", "mixer/gru"}


# --- folders ---------------------------------------------------------------------------------------------------------


def test_folders_are_read_in_both_directions(tmp_path):
    hf = theirs("llama-linear")
    hf.save_pretrained(tmp_path / "theirs")
    config, model = load_folder(tmp_path / "theirs")
    save_folder(tmp_path / "ours", config, model, seq_len=SEQ)
    again = LlamaForCausalLM.from_pretrained(tmp_path / "ours", attn_implementation="eager")
    np.testing.assert_allclose(their_logits(again), their_logits(hf), atol=1e-5)
    with pytest.raises(UserError, match=r"not empty: it contains config\.json"):
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
    made = import_folder(tmp_path)
    parameters = named_parameters(made.model)
    assert (made.family.model_type, made.vocab_size, made.seq_len, made.tokenizer) == ("llama", VOCAB, SEQ, None)
    assert {a.dtype.name for a in parameters.values()} == {"float32"}
    rounded = half["model.layers.1.self_attn.q_proj.weight"].astype(np.float32).T
    np.testing.assert_array_equal(parameters["layers.1.mixer.wq"], rounded)


def test_bfloat16_folders_of_transformers(tmp_path):
    """Gemma's factor on embeddings is that of float32 here and in transformers, if both compute in float32."""
    hf = theirs("gemma")
    hf.save_pretrained(tmp_path)
    stored = {k: v.astype(ml_dtypes.bfloat16) for k, v in load_file(tmp_path / "model.safetensors").items()}
    save_file(stored, tmp_path / "model.safetensors", metadata={"format": "pt"})
    reread = type(hf).from_pretrained(tmp_path, dtype=torch.float32, attn_implementation="eager").eval()
    _, model = load_folder(tmp_path)
    np.testing.assert_allclose(forward(model, TOKENS), their_logits(reread), atol=5e-5)
    assert math.sqrt(LLAMA["hidden_size"]) == model.stem.factor.value


# --- tokenizers ------------------------------------------------------------------------------------------------------

TEXT = "the quick brown fox jumps over the lazy dog. " * 3


@pytest.fixture
def with_tokenizer(tmp_path):
    """A folder with a model and a tokenizer with `<bos>` before each text, as that of Gemma."""
    import tokenizers as hf

    inner = hf.Tokenizer.from_str(BPEConfig(vocab_size=270).train(TEXT).to_json())
    inner.add_special_tokens(["<bos>"])
    inner.post_processor = hf.processors.TemplateProcessing(
        single="<bos> $A", special_tokens=[("<bos>", inner.token_to_id("<bos>"))]
    )
    config = small()
    model = build_model(config.resolve(), 272, SEQ, key=root_key(0))
    save_folder(tmp_path / "model", config, model, tokenizer=BPEConfig(vocab_size=270).train(TEXT))
    (tmp_path / "model" / "tokenizer.json").write_text(inner.to_str())
    return tmp_path / "model"


@pytest.mark.slow
def test_texts_are_encoded_as_by_transformers(with_tokenizer):
    tokenizer = read_tokenizer(with_tokenizer)
    expected = transformers.AutoTokenizer.from_pretrained(with_tokenizer)(TEXT)["input_ids"]
    assert tokenizer.encode(TEXT).tolist() == expected
    assert tokenizer.decode(expected) == f"<bos>{TEXT}"
    assert tokenizer.escape_bits(TEXT) == 0.0
    assert import_folder(with_tokenizer).tokenizer.encode(TEXT).tolist() == expected
    (with_tokenizer / "tokenizer.json").write_text("{}")
    with pytest.raises(UserError, match=r"not a tokenizer: .*\n  where: .*tokenizer.json\n  remedy: Copy or"):
        import_folder(with_tokenizer)

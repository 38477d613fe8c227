"""Tiny models of every Hugging Face class, with random weights and settings that differ from the defaults."""

import tempfile
from functools import cache
from pathlib import Path

import numpy as np
import torch
import transformers
from safetensors.numpy import load_file

from taetpu.core.jit import jit_once
from taetpu.interop.huggingface import from_huggingface

VOCAB, SEQ, LAYERS = 11, 12, 3
TOKENS = np.random.default_rng(0).integers(0, VOCAB, (2, SEQ)).astype(np.int32)
PADDING = np.arange(SEQ) < np.array([[0], [5]])
"""The second sequence is shorter, and padded on the left."""
UNKNOWN = dict.fromkeys(("bos_token_id", "eos_token_id", "pad_token_id"))

LLAMA = {
    "vocab_size": VOCAB, "hidden_size": 16, "num_hidden_layers": LAYERS, "num_attention_heads": 4,
    "num_key_value_heads": 2, "head_dim": 6, "intermediate_size": 24, "max_position_embeddings": SEQ,
    "rms_norm_eps": 1e-2, **UNKNOWN,
}  # fmt: skip
GEMMA2 = {**LLAMA, "query_pre_attn_scalar": 9, "sliding_window": 3}
OPT = {
    "vocab_size": VOCAB, "hidden_size": 16, "num_hidden_layers": LAYERS, "num_attention_heads": 2, "ffn_dim": 64,
    "max_position_embeddings": SEQ, "dropout": 0.0, **UNKNOWN,
}  # fmt: skip
PHI = {
    "vocab_size": VOCAB, "hidden_size": 16, "num_hidden_layers": LAYERS, "num_attention_heads": 2,
    "intermediate_size": 24, "max_position_embeddings": SEQ, "layer_norm_eps": 1e-2, **UNKNOWN,
}  # fmt: skip
PHI3 = {name: value for name, value in LLAMA.items() if name not in ("head_dim", "num_key_value_heads")}
PLAIN = {name: value for name, value in PHI3.items() if name != "rms_norm_eps"}
MOE = {name: value for name, value in LLAMA.items() if name != "hidden_act"}
FALCON = {
    "vocab_size": VOCAB, "hidden_size": 16, "num_hidden_layers": LAYERS, "num_attention_heads": 4,
    "ffn_hidden_size": 24, "max_position_embeddings": SEQ, "layer_norm_epsilon": 1e-2, **UNKNOWN,
}  # fmt: skip
TYPES = ["sliding_attention", "full_attention", "sliding_attention"]
BERT = {
    "vocab_size": VOCAB, "hidden_size": 16, "num_hidden_layers": LAYERS, "num_attention_heads": 2,
    "intermediate_size": 24, "max_position_embeddings": SEQ, "layer_norm_eps": 1e-2,
}  # fmt: skip
ROBERTA = {**BERT, "type_vocab_size": 1, "max_position_embeddings": SEQ + 2, "pad_token_id": 1}
MODERN = {
    "vocab_size": VOCAB, "hidden_size": 16, "num_hidden_layers": 5, "num_attention_heads": 2, "intermediate_size": 24,
    "max_position_embeddings": SEQ, "norm_eps": 1e-2, "local_attention": 6, **UNKNOWN,
}  # fmt: skip
THREE = {"id2label": {0: "a", 1: "b", 2: "c"}}
PADDED = {**LLAMA, **THREE, "vocab_size": VOCAB + 1, "pad_token_id": VOCAB}
"""A classifier that finds the last token by the token of padding, which no text has."""


def rope(base: float = 50.0, **scaling: object) -> dict:
    return {"rope_parameters": {"rope_type": "default", "rope_theta": base, **scaling}}


YARN = rope(
    rope_type="yarn", factor=2.0, original_max_position_embeddings=6, beta_fast=4.0, beta_slow=0.5, truncate=False
)
CASES = {
    "gpt2": ("GPT2", {
        "vocab_size": VOCAB, "n_positions": SEQ, "n_embd": 16, "n_layer": LAYERS, "n_head": 2, "n_inner": 24,
        "activation_function": "gelu", "layer_norm_epsilon": 1e-2, "resid_pdrop": 0.0, "embd_pdrop": 0.0,
        "attn_pdrop": 0.0, **UNKNOWN}),
    "gpt2-untied": ("GPT2", {
        "vocab_size": VOCAB, "n_positions": SEQ, "n_embd": 16, "n_layer": LAYERS, "n_head": 2, "resid_pdrop": 0.0,
        "embd_pdrop": 0.0, "attn_pdrop": 0.0, "tie_word_embeddings": False, **UNKNOWN}),
    "gpt2-nanogpt": ("GPT2", {
        "vocab_size": VOCAB, "n_positions": SEQ, "n_embd": 16, "n_layer": LAYERS, "n_head": 2, "resid_pdrop": 0.0,
        "embd_pdrop": 0.0, "attn_pdrop": 0.0, "activation_function": "gelu", **UNKNOWN}),
    "gpt2-layer-scales": ("GPT2", {
        "vocab_size": VOCAB, "n_positions": SEQ, "n_embd": 16, "n_layer": LAYERS, "n_head": 2, "resid_pdrop": 0.0,
        "embd_pdrop": 0.0, "attn_pdrop": 0.0, "scale_attn_by_inverse_layer_idx": True, **UNKNOWN}),
    "gpt-neo": ("GPTNeo", {
        "vocab_size": VOCAB, "hidden_size": 16, "num_layers": LAYERS, "num_heads": 2, "intermediate_size": 24,
        "max_position_embeddings": SEQ, "attention_types": [[["local", "global"], 1], [["local"], 1]], "window_size": 3,
        "layer_norm_epsilon": 1e-2, **UNKNOWN}),
    "opt": ("OPT", {**OPT, "ffn_dim": 24}),
    "opt-post": ("OPT", {**OPT, "do_layer_norm_before": False, "enable_bias": False, "activation_function": "gelu"}),
    "opt-plain-norms": ("OPT", {**OPT, "layer_norm_elementwise_affine": False, "tie_word_embeddings": False}),
    "phi": ("Phi", {**PHI, "num_key_value_heads": 1, **rope(partial_rotary_factor=0.25)}),
    "phi-linear": ("Phi", {**PHI, **rope(rope_type="linear", factor=2.0, partial_rotary_factor=1.0)}),
    "gptj": ("GPTJ", {
        "vocab_size": VOCAB, "n_positions": SEQ, "n_embd": 20, "n_layer": LAYERS, "n_head": 2, "n_inner": 24,
        "rotary_dim": 6, "layer_norm_epsilon": 1e-2, **UNKNOWN}),
    "phi3": ("Phi3", {
        **PHI3, "hidden_size": 32, "num_key_value_heads": 2, "sliding_window": 4,
        "original_max_position_embeddings": 6, **rope(
            rope_type="longrope", short_factor=[1.0, 1.5], long_factor=[2.0, 3.5], partial_rotary_factor=0.5,
            original_max_position_embeddings=6)}),
    "phi3-plain": ("Phi3", PHI3),
    "olmo": ("Olmo", {**PLAIN, "num_key_value_heads": 2, "attention_bias": True, "tie_word_embeddings": True}),
    "olmo3": ("Olmo3", {**PHI3, "sliding_window": 3, "layer_types": TYPES, "rope_parameters": {
        "full_attention": {"rope_type": "yarn", "factor": 2.0, "original_max_position_embeddings": 6,
                           "rope_theta": 50.0, "beta_fast": 4.0, "beta_slow": 0.5},
        "sliding_attention": {"rope_type": "default", "rope_theta": 20.0}}}),
    "stablelm": ("StableLm", {
        **PLAIN, "num_key_value_heads": 2, "use_qkv_bias": True, "layer_norm_eps": 1e-2,
        **rope(partial_rotary_factor=0.5)}),
    "stablelm-parallel": ("StableLm", {**PLAIN, "num_key_value_heads": 4, "use_parallel_residual": True, **rope(
        rope_type="dynamic", factor=3.0, partial_rotary_factor=1.0), "max_position_embeddings": 8}),
    "starcoder2": ("Starcoder2", {
        **PLAIN, "num_key_value_heads": 2, "norm_epsilon": 1e-2, "sliding_window": 4, **rope()}),
    "starcoder2-no-bias": ("Starcoder2", {**PLAIN, "num_key_value_heads": 4, "use_bias": False,
                                          "tie_word_embeddings": False}),
    "granite": ("Granite", {
        **LLAMA, "embedding_multiplier": 3.0, "attention_multiplier": 0.3, "residual_multiplier": 0.4,
        "logits_scaling": 2.5, "attention_bias": True, "mlp_bias": True, **rope()}),
    "mixtral": ("Mixtral", {**MOE, "num_local_experts": 5, "num_experts_per_tok": 2, "sliding_window": 4, **rope()}),
    "qwen3-moe": ("Qwen3Moe", {**MOE, "moe_intermediate_size": 20, "num_experts": 4, "num_experts_per_tok": 3,
                               "norm_topk_prob": True, "attention_bias": True}),
    "smollm3": ("SmolLM3", {**PHI3, "num_key_value_heads": 2, "no_rope_layers": [0, 1, 0], "sliding_window": 3,
                            "use_sliding_window": True, "attention_bias": True, **rope()}),
    "smollm3-third": ("SmolLM3", {**PHI3, "num_key_value_heads": 2, "no_rope_layer_interval": 3}),
    "falcon": ("Falcon", {**FALCON, "bias": True}),
    "falcon-groups": ("Falcon", {**FALCON, "new_decoder_architecture": True, "num_kv_heads": 2, **rope()}),
    "falcon-one-norm": ("Falcon", {**FALCON, "new_decoder_architecture": True, "num_kv_heads": 2,
                                   "num_ln_in_parallel_attn": 1, "tie_word_embeddings": False}),
    "falcon-sequential": ("Falcon", {**FALCON, "multi_query": False, "parallel_attn": False}),
    "bloom": ("Bloom", {"vocab_size": VOCAB, "hidden_size": 24, "n_layer": LAYERS, "n_head": 3,
                        "layer_norm_epsilon": 1e-2, **UNKNOWN}),
    "nanochat": ("NanoChat", {**PHI3, "num_key_value_heads": 2, "attention_bias": True, "final_logit_softcapping": 2.0,
                              **rope()}),
    "mamba2": ("Mamba2", {"vocab_size": VOCAB, "hidden_size": 16, "num_hidden_layers": LAYERS, "num_heads": 4,
                          "head_dim": 8, "state_size": 6, "n_groups": 1, "chunk_size": 4, **UNKNOWN}),
    "neox": ("GPTNeoX", {
        "vocab_size": VOCAB, "hidden_size": 24, "num_hidden_layers": LAYERS, "num_attention_heads": 3,
        "intermediate_size": 20, "max_position_embeddings": SEQ, "layer_norm_eps": 1e-2, **UNKNOWN,
        **rope(partial_rotary_factor=0.5)}),
    "neox-sequential": ("GPTNeoX", {
        "vocab_size": VOCAB, "hidden_size": 24, "num_hidden_layers": LAYERS, "num_attention_heads": 3,
        "intermediate_size": 20, "max_position_embeddings": SEQ, "use_parallel_residual": False,
        "attention_bias": False, "hidden_act": "gelu_fast", "tie_word_embeddings": True, **UNKNOWN}),
    "llama": ("Llama", {**LLAMA, "tie_word_embeddings": True, **rope(
        rope_type="llama3", factor=8.0, low_freq_factor=0.5, high_freq_factor=2.0, original_max_position_embeddings=6,
    )}),
    "llama-biases": ("Llama", {**LLAMA, "num_key_value_heads": 1, "attention_bias": True, "mlp_bias": True, **YARN}),
    "llama-linear": ("Llama", {**LLAMA, "hidden_act": "gelu", **rope(rope_type="linear", factor=2.0)}),
    "mistral": ("Mistral", {**LLAMA, "sliding_window": 4, **rope()}),
    "mistral-full": ("Mistral", {**LLAMA, "sliding_window": None}),
    "qwen2": ("Qwen2", {**LLAMA, "use_sliding_window": True, "sliding_window": 4,
                        "max_window_layers": 1, **rope()}),
    "qwen3": ("Qwen3", {**LLAMA, "attention_bias": True, "use_sliding_window": True, "sliding_window": 3,
                        "layer_types": TYPES, **YARN}),
    "qwen3-plain": ("Qwen3", {**LLAMA, "tie_word_embeddings": True}),
    "gemma": ("Gemma", {**LLAMA, "attention_bias": True, **rope()}),
    "gemma2": ("Gemma2", {**GEMMA2, "attn_logit_softcapping": 2.0, "final_logit_softcapping": 3.0, **rope()}),
    "gemma2-uncapped": ("Gemma2", {**GEMMA2, "attn_logit_softcapping": None, "final_logit_softcapping": None,
                                   "tie_word_embeddings": False, "hidden_activation": "gelu"}),
    "gemma3": ("Gemma3", {**GEMMA2, "layer_types": TYPES, "final_logit_softcapping": 3.0, "rope_parameters": {
        "full_attention": {"rope_type": "linear", "factor": 4.0, "rope_theta": 80.0},
        "sliding_attention": {"rope_type": "default", "rope_theta": 20.0}}}),
    "olmo2": ("Olmo2", {**LLAMA, "attention_bias": True, **rope()}),
    "gpt-oss": ("GptOss", {**LLAMA, "num_local_experts": 5, "num_experts_per_tok": 2, "sliding_window": 3,
                           "swiglu_limit": 1.5, "swiglu_alpha": 1.3, **YARN}),
    "bert": ("BertForMaskedLM", {**BERT, "type_vocab_size": 3}),
    "bert-classes": ("BertForSequenceClassification", {**BERT, **THREE, "hidden_act": "relu"}),
    "roberta": ("RobertaForMaskedLM", {**ROBERTA, "hidden_act": "silu"}),
    "roberta-classes": ("RobertaForSequenceClassification", {**ROBERTA, **THREE}),
    "modernbert": ("ModernBertForMaskedLM", {**MODERN, "rope_parameters": {
        "full_attention": {"rope_type": "default", "rope_theta": 80.0},
        "sliding_attention": {"rope_type": "default", "rope_theta": 20.0}}}),
    "modernbert-biases": ("ModernBertForMaskedLM", {
        **MODERN, "norm_bias": True, "attention_bias": True, "mlp_bias": True, "classifier_bias": True,
        "decoder_bias": False, "hidden_activation": "silu", "classifier_activation": "relu", "layer_types": [
            "sliding_attention", *["full_attention"] * 3, "sliding_attention"]}),
    "modernbert-classes": ("ModernBertForSequenceClassification", {
        **MODERN, **THREE, "layer_types": ["full_attention"] * 5}),
    "gpt2-classes": ("GPT2ForSequenceClassification", {
        "vocab_size": VOCAB + 1, "n_embd": 16, "n_layer": LAYERS, "n_head": 2, "n_positions": SEQ, **UNKNOWN, **THREE,
        "pad_token_id": VOCAB}),
    "llama-classes": ("LlamaForSequenceClassification", {**PADDED, **rope()}),
    "mistral-classes": ("MistralForSequenceClassification", {**PADDED, "sliding_window": 4}),
    "qwen2-classes": ("Qwen2ForSequenceClassification", PADDED),
    "qwen3-classes": ("Qwen3ForSequenceClassification", PADDED),
    "gemma-classes": ("GemmaForSequenceClassification", PADDED),
}  # fmt: skip
"""The name of the class and its settings. Each family has a case with all options that matter."""
MAIN = (
    "gpt2",
    "neox",
    "llama",
    "mistral",
    "qwen2",
    "qwen3",
    "gemma",
    "gemma2",
    "gemma3",
    "olmo2",
    "gpt-oss",
    "gpt-neo",
    "opt",
    "phi",
    "gptj",
    "phi3",
    "olmo",
    "olmo3",
    "stablelm",
    "starcoder2",
    "granite",
    "mixtral",
    "qwen3-moe",
    "smollm3",
    "falcon",
    "bloom",
    "nanochat",
    "mamba2",
    "bert",
    "roberta",
    "modernbert",
)
CLASSES = ("bert-classes", "roberta-classes", "modernbert-classes")
LAST_CLASSES = tuple(case for case in CASES if case.endswith("-classes") and case not in CLASSES)
"""Classifiers of sequences that read the first position, and those that read the last one."""
LANGUAGE = tuple(case for case in CASES if case not in (*CLASSES, *LAST_CLASSES))
ENCODERS = ("bert", "roberta", "modernbert", "modernbert-biases", *CLASSES)
"""Cases with attention to later tokens. The last are classifiers of sequences."""  # fmt: skip


@cache
def theirs(case: str):
    """Return a Hugging Face model with random parameters, including biases and norms."""
    name, settings = CASES[case]
    architecture, _, purpose = name.partition("For")
    config = getattr(transformers, f"{architecture}{'Text' * (name == 'Gemma3')}Config")
    torch.manual_seed(0)
    purpose = f"For{purpose}" if purpose else "LMHeadModel" if name == "GPT2" else "ForCausalLM"
    model_class = getattr(transformers, architecture + purpose)
    model = model_class(config(**settings, attn_implementation="eager", experts_implementation="eager")).eval()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.copy_(0.3 * torch.randn_like(parameter) + (parameter == 1))
        if name == "OPT":  # the rows of padding, which are not read
            model.model.decoder.embed_positions.weight[:2] = 0
        if architecture == "Roberta":
            model.roberta.embeddings.position_embeddings.weight[:2] = 0
    return model


@cache
def imported(case: str):
    """Return the config and the model that are imported from `theirs(case)`."""
    hf = theirs(case)
    return from_huggingface({**hf.config.to_dict(), "architectures": [type(hf).__name__]}, arrays(hf))


def arrays(model) -> dict[str, np.ndarray]:
    """Return the arrays of a model as in its files, where each expert has a separate tensor."""
    if model.config.model_type in ("mixtral", "qwen3_moe"):
        with tempfile.TemporaryDirectory() as folder:
            model.save_pretrained(folder)
            return load_file(Path(folder) / "model.safetensors")
    return {name: tensor.detach().numpy() for name, tensor in model.state_dict().items()}


def their_logits(model, tokens=TOKENS, padding=None) -> np.ndarray:
    """Return the logits of a Hugging Face model, with the positions of a sequence without its padding."""
    padding = np.zeros_like(tokens, bool) if padding is None else padding
    positions = np.maximum(np.cumsum(~padding, -1) - 1, 0) + 2 * (model.config.model_type == "roberta")
    with torch.no_grad():
        return model(
            torch.tensor(tokens, dtype=torch.long),
            attention_mask=torch.tensor(~padding, dtype=torch.long),
            position_ids=torch.tensor(positions),
        ).logits.numpy()


@jit_once
def forward(model, tokens, padding=None):
    return model(tokens, padding=padding)

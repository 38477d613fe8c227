"""Gemma 1, 2 and 3, the text models.

The weights of norms are stored as their difference from 1. Embeddings are multiplied by sqrt(dim), rounded to the dtype
of activations, as transformers does; a model in float32 is computed with the factor in float32.

In Gemma 1, `post_attention_layernorm` is the norm before the feed-forward network; in Gemma 2 and 3, it is that of the
attention's output. Files of multimodal Gemma 3 models contain the text model below `language_model`. The vision tower
is not read.

Source: modeling_gemma.py, modeling_gemma2.py, modeling_gemma3.py and their configurations in transformers.
"""

from typing import Any

from taetpu.core.errors import UserError
from taetpu.interop.families.base import Exported, Family, Settings
from taetpu.interop.families.llama import (
    CHOICES,
    FIXED,
    PRE_NORMS,
    QK_NORMS,
    SIZES,
    llama_rules,
    read_common,
    write_common,
)
from taetpu.interop.families.rope import read_parameters, write_rope
from taetpu.interop.families.windows import (
    FULL,
    SLIDING,
    every_nth_full,
    read_layer_types,
    with_positions,
    with_windows,
    write_windows,
)

SANDWICH_NORMS = {
    "mixer_norm.before": "input_layernorm",
    "mixer_norm.after": "post_attention_layernorm",
    "ffn_norm.before": "pre_feedforward_layernorm",
    "ffn_norm.after": "post_feedforward_layernorm",
}
GEMMA_SIZES: Settings = {
    **SIZES,
    "head_dim": 256,
    "num_key_value_heads": 4,
    "max_position_embeddings": 8192,
    "tie_word_embeddings": True,
    "attention_bias": False,
}
GEMMA_FIXED: Settings = {**FIXED, "use_bidirectional_attention": False}


def read_gemma_common(config: Settings, act: str, placement: str) -> dict[str, Any]:
    """Convert the settings that all versions share to the data of a `ModelConfig`."""
    made = read_common(config, act)
    norm = {**made["norm"], "weight": "unit-offset", "placement": placement}
    return {**made, "norm": norm, "stem": "scale"}


def write_gemma_common(ours: Exported, act: str) -> dict[str, Any]:
    """Convert the settings of a model to those that all versions share."""
    return {**write_common(ours, act), "attention_bias": ours.get("mixer.bias", False) is not False}


# --- Gemma 1 ---------------------------------------------------------------------------------------------------------


def read_gemma(config: Settings) -> dict[str, Any]:
    """Convert Gemma settings to the data of a `ModelConfig`. `gelu` stands for the tanh approximation."""
    act = config["hidden_activation"] or config["hidden_act"]
    act = "gelu_pytorch_tanh" if act == "gelu" else act
    return read_gemma_common({**config, "hidden_act": act}, "hidden_act", "pre")


def write_gemma(ours: Exported) -> dict[str, Any]:
    """Convert the settings of a model to Gemma settings."""
    return write_gemma_common(ours, "hidden_act")


GEMMA = Family(
    model_type="gemma",
    architecture="GemmaForCausalLM",
    about="Gemma 1",
    prefix="model.",
    rules=llama_rules(PRE_NORMS),
    settings={
        **GEMMA_SIZES,
        "num_key_value_heads": 16,
        "hidden_act": "gelu_pytorch_tanh",
        "hidden_activation": None,
    },
    read=read_gemma,
    write=write_gemma,
    fixed=GEMMA_FIXED,
    choices={"ffn.kind": tuple(kind for kind in CHOICES["ffn.kind"] if kind != "geglu")},
)


# --- Gemma 2 ---------------------------------------------------------------------------------------------------------

GEMMA2_SETTINGS: Settings = {
    **{name: value for name, value in GEMMA_SIZES.items() if name != "hidden_act"},
    "hidden_activation": "gelu_pytorch_tanh",
    "query_pre_attn_scalar": 256,
    "sliding_window": 4096,
    "layer_types": None,
    "final_logit_softcapping": 30.0,
    "attn_logit_softcapping": 50.0,
}


def read_gemma2(config: Settings) -> dict[str, Any]:
    """Convert Gemma 2 settings to the data of a `ModelConfig`. By default, every second layer has a window."""
    made = _with_caps(read_gemma_common(config, "hidden_activation", "sandwich"), config)
    types = read_layer_types(config, every_nth_full(config["num_hidden_layers"], 2))
    return with_windows(made, types, config["sliding_window"])


def _with_caps(data: dict[str, Any], config: Settings) -> dict[str, Any]:
    """Return the data of a model with the scale of scores and the caps of scores and logits."""
    scalar = config["query_pre_attn_scalar"]
    if scalar <= 0:
        problem = f"query_pre_attn_scalar is {scalar}, expected a positive number"
        raise UserError(problem, path=("query_pre_attn_scalar",), remedy="Correct query_pre_attn_scalar.")
    mixer = dict(data["mixer"])
    if scalar != config["head_dim"]:
        mixer["scale"] = scalar**-0.5
    if config["attn_logit_softcapping"]:
        mixer["scores"] = {"kind": "softcap", "cap": float(config["attn_logit_softcapping"])}
    made = {**data, "mixer": mixer}
    if config["final_logit_softcapping"]:
        made["logits"] = {"kind": "softcap", "cap": float(config["final_logit_softcapping"])}
    return made


def write_gemma2(ours: Exported) -> dict[str, Any]:
    """Convert the settings of a model to Gemma 2 settings. transformers requires an integer as scalar of the scores."""
    types, width = write_windows(ours)
    return {
        **write_gemma_common(ours, "hidden_activation"),
        "query_pre_attn_scalar": max(1, round(ours.get("mixer.scale", 1.0) ** -2)),
        "attn_logit_softcapping": ours.get("mixer.scores.cap"),
        "final_logit_softcapping": ours.get("logits.cap"),
        "sliding_window": width,
        "layer_types": types,
    }


GEMMA2 = Family(
    model_type="gemma2",
    architecture="Gemma2ForCausalLM",
    about="Gemma 2",
    prefix="model.",
    rules=llama_rules(SANDWICH_NORMS),
    settings=GEMMA2_SETTINGS,
    read=read_gemma2,
    write=write_gemma2,
    fixed=GEMMA_FIXED,
    harmless=("hidden_act", "sliding_window_size"),
    choices=CHOICES,
)


# --- Gemma 3 ---------------------------------------------------------------------------------------------------------


def read_gemma3(config: Settings) -> dict[str, Any]:
    """Convert Gemma 3 settings to the data of a `ModelConfig`.

    By default, every sixth layer is a full one. Layers with a window have another base of RoPE, without scaling.
    """
    plain = {**config, "rope_parameters": None, "rope_scaling": None}
    made = _with_caps(read_gemma_common(plain, "hidden_activation", "sandwich"), config)
    made["mixer"]["qk_norm"] = {"kind": "rms", "weight": "unit-offset", "eps": config["rms_norm_eps"]}
    pattern = config["sliding_window_pattern"] or config["_sliding_window_pattern"] or 6
    if type(pattern) is not int or pattern < 1:
        problem = f"sliding_window_pattern is {pattern!r}, expected a positive integer"
        raise UserError(problem, path=("sliding_window_pattern",), remedy="Correct it, or set layer_types.")
    types = read_layer_types(config, every_nth_full(config["num_hidden_layers"], pattern))
    return with_positions(with_windows(made, types, config["sliding_window"]), types, _read_positions(config))


def _read_positions(config: Settings) -> dict[str, dict[str, Any]]:
    """Return the position of each type of layer."""
    bases = {FULL: config["rope_theta"], SLIDING: config["rope_local_base_freq"]}
    nested = config["rope_parameters"] or {FULL: config["rope_scaling"], SLIDING: None}
    if unknown := [name for name in nested if name not in bases]:
        problem = f"{unknown[0]!r} is not a type of layer"
        remedy = f"Write {{{FULL}: {{...}}, {SLIDING}: {{...}}}}."
        raise UserError(problem, path=("rope_parameters", unknown[0]), remedy=remedy)
    where = (lambda kind: ("rope_parameters", kind)) if config["rope_parameters"] else lambda kind: ("rope_scaling",)
    length = config["max_position_embeddings"]
    return {kind: read_parameters(nested.get(kind) or {}, where(kind), base, length) for kind, base in bases.items()}


def write_gemma3(ours: Exported) -> dict[str, Any]:
    """Convert the settings of a model to Gemma 3 settings, for current and earlier versions of transformers."""
    made = write_gemma2(ours)
    by_type = {kind: layer for layer, kind in reversed(list(zip(ours.layers, made["layer_types"], strict=True)))}
    ropes = {kind: write_rope(by_type.get(kind, {"position.base": base})) for kind, base in BASES.items()}
    scaled = {name: value for name, value in ropes[FULL].items() if name != "rope_theta"}
    made.pop("rope_scaling", None)
    return {
        **made,
        "sliding_window": made["sliding_window"] or 4096,
        "attn_logit_softcapping": None,
        "rope_parameters": ropes,
        "rope_theta": ropes[FULL]["rope_theta"],
        "rope_local_base_freq": ropes[SLIDING]["rope_theta"],
        **({"rope_scaling": scaled} if scaled["rope_type"] != "default" else {}),
    }


BASES = {FULL: 1_000_000.0, SLIDING: 10_000.0}

GEMMA3 = Family(
    model_type="gemma3_text",
    architecture="Gemma3ForCausalLM",
    about="Gemma 3",
    prefix="model.",
    rules=llama_rules({**SANDWICH_NORMS, **QK_NORMS}),
    settings={
        **GEMMA2_SETTINGS,
        "vocab_size": 262208,
        "num_attention_heads": 8,
        "max_position_embeddings": 131072,
        "final_logit_softcapping": None,
        "attn_logit_softcapping": None,
        "rope_theta": BASES[FULL],
        "rope_local_base_freq": BASES[SLIDING],
        "sliding_window_pattern": None,
        "_sliding_window_pattern": None,
    },
    read=read_gemma3,
    write=write_gemma3,
    # transformers ignores a cap of the scores, which Gemma 3 does not have.
    fixed={**GEMMA_FIXED, "attn_logit_softcapping": None},
    harmless=("hidden_act",),
    renamed=(
        (r"^(model\.)?language_model\.(model\.)?(?!lm_head)", "model."),
        (r"^language_model\.lm_head\.", "lm_head."),
    ),
    choices=CHOICES,
)
MULTIMODAL = {"gemma3": "gemma3_text"}
"""The types of models whose `text_config` is read, with the type of their text model."""
VISION = r"^(model\.)?(vision_tower|multi_modal_projector)\."
"""The pattern of the tensors of a multimodal model that its text model does not use."""

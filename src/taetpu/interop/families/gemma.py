"""Gemma 1, 2 and 3, the text models.

The weights of norms are stored as their difference from 1. Embeddings are multiplied by sqrt(dim), rounded to the dtype
of activations, as transformers does; a model in float32 is computed with the factor in float32.

In Gemma 1, `post_attention_layernorm` is the norm before the feed-forward network; in Gemma 2 and 3, it is that of the
attention's output. Files of multimodal Gemma 3 models contain the text model below `language_model`. The vision tower
is not read.

Source: modeling_gemma.py, modeling_gemma2.py, modeling_gemma3.py and their configurations in transformers.
"""

from typing import Any

from pydantic import PositiveFloat

from taetpu.core.errors import UserError
from taetpu.interop.families.base import Count, Exported, Family, NotNegative, Settings, TokenNumbers
from taetpu.interop.families.llama import (
    CHOICES,
    PRE_NORMS,
    QK_NORMS,
    CommonSettings,
    llama_rules,
    read_common,
    write_common,
)
from taetpu.interop.families.rope import read_positions_by_type, write_positions_by_type
from taetpu.interop.families.windows import (
    FULL,
    SLIDING,
    every_nth_full,
    read_layer_types,
    with_positions,
    with_windows,
    write_windows,
)

TANH = "gelu_pytorch_tanh"
SANDWICH_NORMS = {
    "mixer_norm.before": "input_layernorm",
    "mixer_norm.after": "post_attention_layernorm",
    "ffn_norm.before": "pre_feedforward_layernorm",
    "ffn_norm.after": "post_feedforward_layernorm",
}
GEMMA_FIXED: Settings = {"use_bidirectional_attention": False}


class GemmaSettings(CommonSettings):
    """The settings that all versions share."""

    bos_token_id: TokenNumbers = 2
    eos_token_id: TokenNumbers = 1
    pad_token_id: TokenNumbers = 0
    head_dim: Count | None = 256
    num_key_value_heads: Count | None = 4
    max_position_embeddings: Count | None = 8192
    tie_word_embeddings: bool = True
    attention_bias: bool = False


def read_gemma_common(config: Settings, act: str, placement: str) -> dict[str, Any]:
    """Convert the settings that all versions share to the data of a `ModelConfig`."""
    made = read_common(config, act)
    norm = {**made["norm"], "weight": "unit-offset", "placement": placement}
    return {**made, "norm": norm, "stem": "scale"}


def write_gemma_common(ours: Exported, act: str) -> dict[str, Any]:
    """Convert the settings of a model to those that all versions share."""
    return {**write_common(ours, act), "attention_bias": ours.get("mixer.bias", False) is not False}


# --- Gemma 1 ---------------------------------------------------------------------------------------------------------


class Gemma1Settings(GemmaSettings):
    """The settings of Gemma 1."""

    num_key_value_heads: Count | None = 16
    hidden_act: str = TANH
    hidden_activation: str | None = None


def read_gemma(config: Settings) -> dict[str, Any]:
    """Convert Gemma settings to the data of a `ModelConfig`. `gelu` stands for the tanh approximation.

    Raises:
        UserError: If both settings of the activation are present and differ: versions of transformers then differ too.
    """
    act, other = (TANH if config[name] == "gelu" else config[name] for name in ("hidden_act", "hidden_activation"))
    if other not in (None, act):
        problem = f"hidden_act={act!r} and hidden_activation={other!r} are different activations"
        raise UserError(problem, path=("hidden_activation",), remedy="Remove the one with which it was not trained.")
    return read_gemma_common({**config, "hidden_act": act}, "hidden_act", "pre")


def write_gemma(ours: Exported) -> dict[str, Any]:
    """Convert the settings of a model to Gemma settings."""
    return write_gemma_common(ours, "hidden_act")


GEMMA = Family(
    model_type="gemma",
    architecture="GemmaForCausalLM",
    about="Gemma 1",
    rules=llama_rules(PRE_NORMS),
    settings=Gemma1Settings,
    read=read_gemma,
    write=write_gemma,
    fixed=GEMMA_FIXED,
    choices={"ffn.kind": tuple(kind for kind in CHOICES["ffn.kind"] if kind != "geglu")},
)


# --- Gemma 2 ---------------------------------------------------------------------------------------------------------


class Gemma2Settings(GemmaSettings):
    """The settings of Gemma 2."""

    hidden_activation: str = TANH
    query_pre_attn_scalar: PositiveFloat = 256
    sliding_window: Count | None = 4096
    layer_types: tuple[str, ...] | None = None
    final_logit_softcapping: NotNegative | None = 30.0
    attn_logit_softcapping: NotNegative | None = 50.0


def read_gemma2(config: Settings) -> dict[str, Any]:
    """Convert Gemma 2 settings to the data of a `ModelConfig`. By default, every second layer has a window."""
    made = _with_caps(read_gemma_common(config, "hidden_activation", "sandwich"), config)
    types = read_layer_types(config, every_nth_full(config["num_hidden_layers"], 2))
    return with_windows(made, types, config["sliding_window"])


def _with_caps(data: dict[str, Any], config: Settings) -> dict[str, Any]:
    """Return the data of a model with the scale of scores and the caps of scores and logits."""
    mixer = dict(data["mixer"])
    if config["query_pre_attn_scalar"] != config["head_dim"]:
        mixer["scale"] = config["query_pre_attn_scalar"] ** -0.5
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
    rules=llama_rules(SANDWICH_NORMS),
    settings=Gemma2Settings,
    read=read_gemma2,
    write=write_gemma2,
    fixed=GEMMA_FIXED,
    harmless=("hidden_act", "sliding_window_size"),
    choices=CHOICES,
)


# --- Gemma 3 ---------------------------------------------------------------------------------------------------------


BASES = {FULL: 1_000_000.0, SLIDING: 10_000.0}


class Gemma3Settings(Gemma2Settings):
    """The settings of Gemma 3."""

    vocab_size: Count = 262208
    num_attention_heads: Count = 8
    max_position_embeddings: Count | None = 131072
    final_logit_softcapping: NotNegative | None = None
    rope_local_base_freq: PositiveFloat | None = None
    sliding_window_pattern: Count = 6


def read_gemma3(config: Settings) -> dict[str, Any]:
    """Convert Gemma 3 settings to the data of a `ModelConfig`.

    By default, every sixth layer is a full one. Layers with a window have another base of RoPE, without scaling.
    """
    plain = {**config, "rope_parameters": None, "rope_scaling": None}
    made = _with_caps(read_gemma_common(plain, "hidden_activation", "sandwich"), config)
    made["mixer"]["qk_norm"] = {"kind": "rms", "weight": "unit-offset", "eps": config["rms_norm_eps"]}
    types = read_layer_types(config, every_nth_full(config["num_hidden_layers"], config["sliding_window_pattern"]))
    positions = read_positions_by_type(
        config, BASES, {FULL: config["rope_theta"], SLIDING: config["rope_local_base_freq"]}
    )
    return with_positions(with_windows(made, types, config["sliding_window"]), types, positions)


def write_gemma3(ours: Exported) -> dict[str, Any]:
    """Convert the settings of a model to Gemma 3 settings, for current and earlier versions of transformers."""
    made = write_gemma2(ours)
    positions = write_positions_by_type(ours, made["layer_types"], BASES)
    made.pop("rope_scaling", None)
    return {
        **made,
        **positions,
        "sliding_window": made["sliding_window"] or 4096,
        "attn_logit_softcapping": None,
        "rope_local_base_freq": positions["rope_parameters"][SLIDING]["rope_theta"],
    }


GEMMA3 = Family(
    model_type="gemma3_text",
    architecture="Gemma3ForCausalLM",
    about="Gemma 3",
    rules=llama_rules({**SANDWICH_NORMS, **QK_NORMS}),
    settings=Gemma3Settings,
    read=read_gemma3,
    write=write_gemma3,
    # transformers ignores a cap of the scores, which Gemma 3 does not have.
    fixed={**GEMMA_FIXED, "attn_logit_softcapping": None},
    # `_sliding_window_pattern` is written beside `layer_types`, and never read.
    harmless=("hidden_act", "_sliding_window_pattern"),
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

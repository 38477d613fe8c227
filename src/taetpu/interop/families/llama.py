"""Llama, Mistral, and what other architectures have in common with them.

The weight of Linear has the layout (out, in). As in taetpu, RoPE pairs the elements of the two halves of a head. Files
of Meta and GGUF pair neighbours and are not read.

Source: modeling_llama.py, modeling_mistral.py and their configurations in transformers.
"""

from collections.abc import Mapping
from typing import Any

from pydantic import PositiveFloat

from taetpu.interop.families.base import (
    DEFAULT_LENGTH,
    GATED,
    Count,
    Exported,
    Family,
    Settings,
    TokenNumbers,
    choose_name,
    translate_choice,
)
from taetpu.interop.families.rope import RopeReader, RopeSettings, write_plain_rope
from taetpu.interop.families.windows import SLIDING, with_windows, write_windows
from taetpu.interop.layouts import LINEAR, Rule, layer_rules

LAYER = "model.layers.{i}"
PRE_NORMS = {"mixer_norm": "input_layernorm", "ffn_norm": "post_attention_layernorm"}
"""The norms before both branches."""
QK_NORMS = {"mixer.qk_norm.q": "self_attn.q_norm", "mixer.qk_norm.k": "self_attn.k_norm"}
"""The norms of queries and keys."""
ATTENTION_RULES = tuple(rule for x in "qkvo" for rule in layer_rules(f"{LAYER}.self_attn.{x}_proj", f"mixer.w{x}"))
MLP_RULES = tuple(rule for x in ("gate", "up", "down") for rule in layer_rules(f"{LAYER}.mlp.{x}_proj", f"ffn.{x}"))


def llama_rules(
    norms: Mapping[str, str], ffn: tuple[Rule, ...] = MLP_RULES, attention: tuple[Rule, ...] = ATTENTION_RULES
) -> tuple[Rule, ...]:
    """Return the rules of an architecture that names its tensors as Llama does.

    Args:
        norms: The names of a layer's norms in taetpu, with those in transformers.
        ffn: The rules of the feed-forward networks.
        attention: The rules of attention.
    """
    return (
        Rule("model.embed_tokens.weight", "embedding.weight"),
        *attention,
        *ffn,
        *(Rule(f"{LAYER}.{theirs}.weight", f"layers.{{i}}.{ours}.weight") for ours, theirs in norms.items()),
        Rule("model.norm.weight", "norm.weight"),
        Rule("lm_head.weight", "embedding.unembed", LINEAR),
    )


class CommonSettings(RopeSettings):
    """The settings that most architectures share, with the defaults of Llama."""

    hidden_size: Count
    num_hidden_layers: Count
    num_attention_heads: Count
    intermediate_size: Count
    num_key_value_heads: Count | None = None
    head_dim: Count | None = None
    max_position_embeddings: Count | None = 2048
    rms_norm_eps: PositiveFloat = 1e-6


class ActivationSettings(CommonSettings):
    """The settings of an architecture that names its activation `hidden_act`."""

    hidden_act: str = "silu"


class LlamaSettings(ActivationSettings):
    """The settings of Llama."""

    bos_token_id: TokenNumbers = 1
    eos_token_id: TokenNumbers = 2
    attention_bias: bool = False
    mlp_bias: bool = False


def read_common(config: Settings, act: str = "hidden_act", rope: RopeReader | None = None) -> dict[str, Any]:
    """Convert the settings that most architectures share to the data of a `ModelConfig` with pre-norm and RoPE.

    Args:
        config: The settings, with the fields of `CommonSettings`.
        act: The name of the setting with the activation.
        rope: The reader of the settings of RoPE; by default, that of Llama.
    """
    return {
        "dim": config["hidden_size"],
        "num_layers": config["num_hidden_layers"],
        "mixer": {
            "kind": "attention",
            "num_heads": config["num_attention_heads"],
            "num_kv_heads": config["num_key_value_heads"],
            "head_dim": config["head_dim"],
            "bias": config.get("attention_bias", False),
        },
        "position": (rope or RopeReader()).read(config, config["max_position_embeddings"] or DEFAULT_LENGTH),
        "norm": {"kind": "rms", "eps": config["rms_norm_eps"]},
        "ffn": {
            "kind": translate_choice(config, act, GATED),
            "hidden": config["intermediate_size"],
            "bias": config.get("mlp_bias", False),
        },
        "embedding": "tied" if config["tie_word_embeddings"] else "untied",
        "init": {"kind": "normal", "std": config["initializer_range"]},
    }


def write_common(ours: Exported, act: str = "hidden_act") -> dict[str, Any]:
    """Convert the settings of a model to those that most architectures share; see `read_common`."""
    heads = ours.get("mixer.num_heads", 1)
    return {
        "vocab_size": ours.get("vocab_size"),
        "max_position_embeddings": ours.get("seq_len"),
        "hidden_size": ours.get("dim"),
        "num_hidden_layers": ours.get("num_layers"),
        "num_attention_heads": heads,
        "num_key_value_heads": ours.get("mixer.num_kv_heads", heads),
        "head_dim": ours.get("mixer.head_dim", 2 * max(1, ours.get("dim") // heads // 2)),
        "intermediate_size": ours.get("ffn.hidden", ours.get("dim")),
        act: choose_name(GATED, ours.get("ffn.kind")),
        "rms_norm_eps": ours.get("norm.eps", 1e-6),
        **write_plain_rope(ours.model),
        "attention_dropout": 0.0,
        "tie_word_embeddings": ours.get("embedding.kind") == "tied",
    }


def write_biased(ours: Exported) -> dict[str, Any]:
    """Convert the settings of a model to those of an architecture whose attention may have biases."""
    return {**write_common(ours), "attention_bias": ours.get("mixer.bias", False) is not False}


CHOICES = {"ffn.kind": tuple(dict.fromkeys(GATED.values()))}


# --- Llama -----------------------------------------------------------------------------------------------------------


def write_llama(ours: Exported) -> dict[str, Any]:
    """Convert the settings of a model to Llama settings."""
    return {**write_biased(ours), "mlp_bias": ours.get("ffn.bias", False) is not False}


LLAMA = Family(
    model_type="llama",
    architecture="LlamaForCausalLM",
    about="Llama 2 and 3",
    rules=llama_rules(PRE_NORMS),
    settings=LlamaSettings,
    read=read_common,
    write=write_llama,
    harmless=("is_llama_config", "rope_interleaved"),
    choices=CHOICES,
)


# --- Mistral ---------------------------------------------------------------------------------------------------------


class MistralSettings(ActivationSettings):
    """The settings of Mistral."""

    bos_token_id: TokenNumbers = 1
    eos_token_id: TokenNumbers = 2
    num_key_value_heads: Count | None = 8
    max_position_embeddings: Count | None = 131072
    sliding_window: Count | None = 4096


def read_windowed(config: Settings, rope: RopeReader | None = None) -> dict[str, Any]:
    """Convert Mistral settings to the data of a `ModelConfig`. All layers have the sliding window, if there is one."""
    types = [] if config["sliding_window"] is None else [SLIDING] * config["num_hidden_layers"]
    return with_windows(read_common(config, rope=rope), types, config["sliding_window"])


def write_mistral(ours: Exported) -> dict[str, Any]:
    """Convert the settings of a model to Mistral settings."""
    return {**write_common(ours), "sliding_window": write_windows(ours)[1]}


MISTRAL = Family(
    model_type="mistral",
    architecture="MistralForCausalLM",
    about="Mistral",
    rules=llama_rules(PRE_NORMS),
    settings=MistralSettings,
    read=read_windowed,
    write=write_mistral,
    choices=CHOICES,
)

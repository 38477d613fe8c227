"""Qwen 2 and 2.5, with biases of queries, keys and values, and Qwen 3, with norms of queries and keys.

Source: modeling_qwen2.py, modeling_qwen3.py and their configurations in transformers.
"""

from typing import Any

from pydantic import NonNegativeInt

from taetpu.interop.families.base import Count, Exported, Family, Settings
from taetpu.interop.families.llama import (
    CHOICES,
    PRE_NORMS,
    QK_NORMS,
    ActivationSettings,
    llama_rules,
    read_common,
    write_common,
)
from taetpu.interop.families.windows import FULL, SLIDING, read_layer_types, with_windows, write_windows


class Qwen2Settings(ActivationSettings):
    """The settings of Qwen 2."""

    num_key_value_heads: Count | None = 32
    max_position_embeddings: Count | None = 32768
    use_sliding_window: bool = False
    sliding_window: Count | None = 4096
    max_window_layers: NonNegativeInt = 28
    layer_types: tuple[str, ...] | None = None


class Qwen3Settings(Qwen2Settings):
    """The settings of Qwen 3."""

    head_dim: Count | None = 128
    attention_bias: bool = False


def read_windows(config: Settings, data: dict[str, Any]) -> dict[str, Any]:
    """Return the data of a model with the windows of its layers.

    With `use_sliding_window`, the layers from number `max_window_layers` on have a window, unless `layer_types` says
    otherwise.
    """
    width = config["sliding_window"] if config["use_sliding_window"] else None
    first = config["num_hidden_layers"] if width is None else config["max_window_layers"]
    default = [FULL if i < first else SLIDING for i in range(config["num_hidden_layers"])]
    return with_windows(data, read_layer_types(config, default), width)


def write_qwen(ours: Exported) -> dict[str, Any]:
    """Convert the settings of a model to those that both versions share, which are all of Qwen 2."""
    types, width = write_windows(ours)
    return {
        **write_common(ours),
        "use_sliding_window": width is not None,
        "sliding_window": width,
        "max_window_layers": len(types),
        "layer_types": types,
    }


def read_qwen2(config: Settings) -> dict[str, Any]:
    """Convert Qwen 2 settings to the data of a `ModelConfig`."""
    return read_windows(config, read_common({**config, "attention_bias": "qkv"}))


QWEN2 = Family(
    model_type="qwen2",
    architecture="Qwen2ForCausalLM",
    about="Qwen 2 and 2.5",
    rules=llama_rules(PRE_NORMS),
    settings=Qwen2Settings,
    read=read_qwen2,
    write=write_qwen,
    fixed={"use_mrope": False},
    harmless=("dual_chunk_attention_config",),  # of vLLM
    choices=CHOICES,
)


def read_qwen3(config: Settings) -> dict[str, Any]:
    """Convert Qwen 3 settings to the data of a `ModelConfig`."""
    made = read_common(config)
    made["mixer"]["qk_norm"] = {"kind": "rms", "eps": config["rms_norm_eps"]}
    return read_windows(config, made)


def write_qwen3(ours: Exported) -> dict[str, Any]:
    """Convert the settings of a model to Qwen 3 settings."""
    return {**write_qwen(ours), "attention_bias": ours.get("mixer.bias", False) is not False}


QWEN3 = Family(
    model_type="qwen3",
    architecture="Qwen3ForCausalLM",
    about="Qwen 3",
    rules=llama_rules({**PRE_NORMS, **QK_NORMS}),
    settings=Qwen3Settings,
    read=read_qwen3,
    write=write_qwen3,
    harmless=("dual_chunk_attention_config",),  # of vLLM
    choices=CHOICES,
)

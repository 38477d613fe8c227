"""Granite 3: Llama with constant factors on embeddings, scores, branches and logits.

Source: modeling_granite.py and configuration_granite.py in transformers.
"""

from typing import Any

from pydantic import PositiveFloat

from taetpu.interop.families.base import Exported, Family, Settings
from taetpu.interop.families.llama import CHOICES, PRE_NORMS, LlamaSettings, llama_rules, read_common, write_llama


class GraniteSettings(LlamaSettings):
    """The settings of Granite."""

    embedding_multiplier: PositiveFloat = 1.0
    attention_multiplier: PositiveFloat = 1.0
    residual_multiplier: PositiveFloat = 1.0
    logits_scaling: PositiveFloat = 1.0


def read_granite(config: Settings) -> dict[str, Any]:
    """Convert Granite settings to the data of a `ModelConfig`."""
    made = read_common(config)
    made["mixer"]["scale"] = float(config["attention_multiplier"])
    return {
        **made,
        "stem": {"kind": "scale", "factor": float(config["embedding_multiplier"])},
        "residual": {"kind": "scale", "factor": float(config["residual_multiplier"])},
        "logits": {"kind": "scale", "factor": 1 / config["logits_scaling"]},
    }


def write_granite(ours: Exported) -> dict[str, Any]:
    """Convert the settings of a model to Granite settings."""
    return {
        **write_llama(ours),
        "embedding_multiplier": ours.get("stem.factor", 1.0),
        "attention_multiplier": ours.get("mixer.scale", 1.0),
        "residual_multiplier": ours.get("residual.factor", 1.0),
        "logits_scaling": 1 / ours.get("logits.factor", 1.0),
    }


GRANITE = Family(
    model_type="granite",
    architecture="GraniteForCausalLM",
    about="Granite 3",
    rules=llama_rules(PRE_NORMS),
    settings=GraniteSettings,
    read=read_granite,
    write=write_granite,
    choices=CHOICES,
)

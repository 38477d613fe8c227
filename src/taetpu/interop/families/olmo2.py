"""OLMo 2, with norms on the outputs of branches, and of all heads of queries and keys together.

Source: modeling_olmo2.py and configuration_olmo2.py in transformers.
"""

from typing import Any

from pydantic import PositiveFloat

from taetpu.interop.families.base import Exported, Family, Settings, TokenNumbers
from taetpu.interop.families.llama import CHOICES, QK_NORMS, ActivationSettings, llama_rules, read_common, write_common

NORMS = {"mixer_norm": "post_attention_layernorm", "ffn_norm": "post_feedforward_layernorm", **QK_NORMS}


class Olmo2Settings(ActivationSettings):
    """The settings of OLMo 2."""

    eos_token_id: TokenNumbers = 50279
    pad_token_id: TokenNumbers = 1
    rms_norm_eps: PositiveFloat = 1e-5
    attention_bias: bool = False


def read_olmo2(config: Settings) -> dict[str, Any]:
    """Convert OLMo 2 settings to the data of a `ModelConfig`."""
    made = read_common(config)
    made["mixer"]["qk_norm"] = {"kind": "rms", "over": "all", "eps": config["rms_norm_eps"]}
    made["norm"]["placement"] = "output"
    return made


def write_olmo2(ours: Exported) -> dict[str, Any]:
    """Convert the settings of a model to OLMo 2 settings."""
    return {**write_common(ours), "attention_bias": ours.get("mixer.bias", False) is not False}


OLMO2 = Family(
    model_type="olmo2",
    architecture="Olmo2ForCausalLM",
    about="OLMo 2",
    prefix="model.",
    rules=llama_rules(NORMS),
    settings=Olmo2Settings,
    read=read_olmo2,
    write=write_olmo2,
    choices=CHOICES,
)

"""StableLM: Llama with layer norms and RoPE of a share of each head, parallel branches in some models.

transformers ignores `head_dim` and `rms_norm_eps` in its settings.

Source: modeling_stablelm.py and configuration_stablelm.py in transformers.
"""

from typing import Any

from pydantic import PositiveFloat

from taetpu.interop.families.base import Count, Exported, Family, Settings, TokenNumbers
from taetpu.interop.families.layer_norms import Rate
from taetpu.interop.families.llama import CHOICES, PRE_NORMS, ActivationSettings, llama_rules, read_common, write_common
from taetpu.interop.families.rope import RopeReader, write_plain_rope
from taetpu.interop.layouts import norm_biases

ROPE = RopeReader(share=0.25, partial=True)


class StableLMSettings(ActivationSettings):
    """The settings of StableLM."""

    bos_token_id: TokenNumbers = 0
    eos_token_id: TokenNumbers = 0
    num_key_value_heads: Count | None = 32
    max_position_embeddings: Count | None = 4096
    layer_norm_eps: PositiveFloat = 1e-5
    use_qkv_bias: bool = False
    use_parallel_residual: bool = False
    hidden_dropout: Rate = 0.0


def read_stablelm(config: Settings) -> dict[str, Any]:
    """Convert StableLM settings to the data of a `ModelConfig`."""
    bias = "qkv" if config["use_qkv_bias"] else False
    made = read_common({**config, "attention_bias": bias, "head_dim": None}, rope=ROPE)
    return {
        **made,
        "norm": {"kind": "layer", "eps": config["layer_norm_eps"], "bias": True},
        "order": "parallel" if config["use_parallel_residual"] else "sequential",
        "dropout": config["hidden_dropout"],
    }


def write_stablelm(ours: Exported) -> dict[str, Any]:
    """Convert the settings of a model to StableLM settings."""
    made = {name: value for name, value in write_common(ours).items() if name not in ("rms_norm_eps", "head_dim")}
    return {
        **made,
        **write_plain_rope(ours.model, partial=True),
        "layer_norm_eps": ours.get("norm.eps", 1e-5),
        "use_qkv_bias": ours.get("mixer.bias", False) is not False,
        "use_parallel_residual": ours.get("order.kind") == "parallel",
        "hidden_dropout": ours.get("dropout", 0.0),
    }


STABLELM = Family(
    model_type="stablelm",
    architecture="StableLmForCausalLM",
    about="StableLM 2 and 3B",
    rules=(*llama_rules(PRE_NORMS), *norm_biases(PRE_NORMS)),
    settings=StableLMSettings,
    read=read_stablelm,
    write=write_stablelm,
    fixed={"qk_layernorm": False},
    choices=CHOICES,
)

"""nanochat: norms without weights, also of embeddings and of queries and keys, squared ReLU and a cap of logits.

The angles of RoPE have the opposite sign. Both halves of each head of queries and keys are exchanged, which gives the
same scores.

Source: modeling_nanochat.py and configuration_nanochat.py in transformers.
"""

from typing import Any

from taetpu.interop.families.base import (
    MLPS,
    Exported,
    Family,
    NotNegative,
    Settings,
    TokenNumbers,
    choose_name,
    translate_choice,
)
from taetpu.interop.families.layer_norms import MLP_CHOICES
from taetpu.interop.families.llama import LAYER, CommonSettings, llama_rules, read_common, write_biased
from taetpu.interop.layouts import HALVES_SWAPPED, layer_rules

WITHOUT_WEIGHT = {"kind": "rms", "weight": "none"}


class NanochatSettings(CommonSettings):
    """The settings of nanochat."""

    bos_token_id: TokenNumbers = 0
    eos_token_id: TokenNumbers = 1
    pad_token_id: TokenNumbers = 1
    hidden_act: str = "relu2"
    final_logit_softcapping: NotNegative | None = 15.0
    attention_bias: bool = False


def read_nanochat(config: Settings) -> dict[str, Any]:
    """Convert nanochat settings to the data of a `ModelConfig`."""
    made = read_common({**config, "hidden_act": "silu"})
    norm = {**WITHOUT_WEIGHT, "eps": config["rms_norm_eps"]}
    made["mixer"]["qk_norm"] = norm
    made["ffn"]["kind"] = translate_choice(config, "hidden_act", MLPS)
    if config["final_logit_softcapping"] is not None:
        made["logits"] = {"kind": "softcap", "cap": config["final_logit_softcapping"]}
    return {**made, "norm": norm, "stem": {"kind": "norm", "norm": norm}}


def write_nanochat(ours: Exported) -> dict[str, Any]:
    """Convert the settings of a model to nanochat settings."""
    return {
        **write_biased(ours),
        "hidden_act": choose_name({"relu2": "relu2", **MLPS}, ours.get("ffn.kind")),
        "final_logit_softcapping": ours.get("logits.cap"),
    }


NANOCHAT = Family(
    model_type="nanochat",
    architecture="NanoChatForCausalLM",
    about="nanochat",
    rules=llama_rules(
        {},
        (*layer_rules(f"{LAYER}.mlp.fc1", "ffn.up"), *layer_rules(f"{LAYER}.mlp.fc2", "ffn.down")),
        (
            *(rule for x in "qk" for rule in layer_rules(f"{LAYER}.self_attn.{x}_proj", f"mixer.w{x}", HALVES_SWAPPED)),
            *(rule for x in "vo" for rule in layer_rules(f"{LAYER}.self_attn.{x}_proj", f"mixer.w{x}")),
        ),
    ),
    settings=NanochatSettings,
    read=read_nanochat,
    write=write_nanochat,
    choices=MLP_CHOICES,
)

"""GPT-J: parallel branches after one layer norm, RoPE of neighbouring elements, and a bias on the logits.

Source: modeling_gptj.py and configuration_gptj.py in transformers.
"""

import math
from typing import Any

from pydantic import PositiveFloat

from taetpu.interop.families.base import Count, Exported, Family, FamilySettings, Settings, TokenNumbers
from taetpu.interop.families.layer_norms import GPT, GPT_ALIASES, MLP_CHOICES, SUMMARY, Rate
from taetpu.interop.layouts import LINEAR, Rule, layer_rules, module_rules

LAYER = "transformer.h.{i}"


class GPTJSettings(FamilySettings):
    """The settings of GPT-J."""

    bos_token_id: TokenNumbers = 50256
    eos_token_id: TokenNumbers = 50256
    n_embd: Count
    n_layer: Count
    n_head: Count
    n_positions: Count = 2048
    n_inner: Count | None = None
    rotary_dim: Count = 64
    activation_function: str = "gelu_new"
    layer_norm_epsilon: PositiveFloat = 1e-5
    resid_pdrop: Rate = 0.0


def read_gptj(config: Settings) -> dict[str, Any]:
    """Convert GPT-J settings to the data of a `ModelConfig`."""
    made = GPT.read(config)
    made["mixer"]["bias"] = False
    head_dim = max(1, config["n_embd"] // config["n_head"])
    share = config["rotary_dim"] / head_dim
    if int(head_dim * share) < config["rotary_dim"]:
        share = math.nextafter(share, 1)
    position = {"kind": "rope", "pairs": "interleaved", "fraction": share}
    return {**made, "position": position, "order": "parallel", "embedding": {"kind": "untied", "bias": True}}


def write_gptj(ours: Exported) -> dict[str, Any]:
    """Convert the settings of a model to GPT-J settings."""
    head_dim = ours.get("dim") // ours.get("mixer.num_heads", 1)
    rotated = max(1, int(head_dim * ours.get("position.fraction", 1.0)))
    return {**GPT.write(ours), "rotary_dim": rotated, "tie_word_embeddings": False}


GPTJ = Family(
    model_type="gptj",
    architecture="GPTJForCausalLM",
    about="GPT-J",
    prefix="transformer.",
    rules=(
        Rule("transformer.wte.weight", "embedding.weight"),
        *(rule for x in "qkv" for rule in layer_rules(f"{LAYER}.attn.{x}_proj", f"mixer.w{x}")),
        *layer_rules(f"{LAYER}.attn.out_proj", "mixer.wo"),
        *layer_rules(f"{LAYER}.ln_1", "mixer_norm"),
        *layer_rules(f"{LAYER}.mlp.fc_in", "ffn.up"),
        *layer_rules(f"{LAYER}.mlp.fc_out", "ffn.down"),
        *module_rules("transformer.ln_f", "norm"),
        Rule("lm_head.weight", "embedding.unembed", LINEAR),
        Rule("lm_head.bias", "embedding.bias"),
    ),
    settings=GPTJSettings,
    read=read_gptj,
    write=write_gptj,
    fixed={"tie_word_embeddings": False},
    harmless=("n_ctx", "rotary", "scale_attn_weights", *SUMMARY),
    aliases=GPT_ALIASES,
    ignored=r"\.attn\.(bias|masked_bias)$",
    choices=MLP_CHOICES,
    seq_len="n_positions",
)

"""Phi 1, 1.5 and 2: parallel branches after one layer norm, and a bias on the logits.

Source: modeling_phi.py and configuration_phi.py in transformers.
"""

from typing import Any

from pydantic import PositiveFloat

from taetpu.interop.families.base import DEFAULT_LENGTH, Count, Exported, Family, Settings, TokenNumbers
from taetpu.interop.families.layer_norms import MLP_CHOICES, Names, Rate
from taetpu.interop.families.rope import RopeReader, RopeSettings, write_plain_rope
from taetpu.interop.layouts import LINEAR, Rule, layer_rules, module_rules

LAYER = "model.layers.{i}"
NAMES = Names(dropouts=("resid_pdrop", "embd_pdrop", "attention_dropout"))
ROPE = RopeReader(share=0.5, partial=True)


class PhiSettings(RopeSettings):
    """The settings of Phi."""

    bos_token_id: TokenNumbers = 1
    eos_token_id: TokenNumbers = 2
    hidden_size: Count
    num_hidden_layers: Count
    num_attention_heads: Count
    num_key_value_heads: Count | None = None
    intermediate_size: Count
    max_position_embeddings: Count | None = 2048
    hidden_act: str = "gelu_new"
    layer_norm_eps: PositiveFloat = 1e-5
    resid_pdrop: Rate = 0.0


def read_phi(config: Settings) -> dict[str, Any]:
    """Convert Phi settings to the data of a `ModelConfig`."""
    made = NAMES.read(config)
    made["mixer"]["num_kv_heads"] = config["num_key_value_heads"]
    position = ROPE.read(config, config["max_position_embeddings"] or DEFAULT_LENGTH)
    return {**made, "position": position, "order": "parallel", "embedding": {"kind": "untied", "bias": True}}


def write_phi(ours: Exported) -> dict[str, Any]:
    """Convert the settings of a model to Phi settings."""
    made = {**NAMES.write(ours), **write_plain_rope(ours.model, partial=True), "tie_word_embeddings": False}
    return {**made, "num_key_value_heads": ours.get("mixer.num_kv_heads", ours.get("mixer.num_heads", 1))}


PHI = Family(
    model_type="phi",
    architecture="PhiForCausalLM",
    about="Phi 1, 1.5 and 2",
    rules=(
        Rule("model.embed_tokens.weight", "embedding.weight"),
        *(rule for x in "qkv" for rule in layer_rules(f"{LAYER}.self_attn.{x}_proj", f"mixer.w{x}")),
        *layer_rules(f"{LAYER}.self_attn.dense", "mixer.wo"),
        *layer_rules(f"{LAYER}.input_layernorm", "mixer_norm"),
        *layer_rules(f"{LAYER}.mlp.fc1", "ffn.up"),
        *layer_rules(f"{LAYER}.mlp.fc2", "ffn.down"),
        *module_rules("model.final_layernorm", "norm"),
        Rule("lm_head.weight", "embedding.unembed", LINEAR),
        Rule("lm_head.bias", "embedding.bias"),
    ),
    settings=PhiSettings,
    read=read_phi,
    write=write_phi,
    fixed={"qk_layernorm": False, "tie_word_embeddings": False},
    harmless=("embd_pdrop",),
    choices=MLP_CHOICES,
)

"""Phi 3 and 4: Llama with joined projections, and long RoPE.

Source: modeling_phi3.py and configuration_phi3.py in transformers.
"""

from dataclasses import replace
from typing import Any

from pydantic import PositiveFloat

from taetpu.interop.families.base import Count, Exported, Family, Settings, TokenNumbers
from taetpu.interop.families.llama import CHOICES, PRE_NORMS, MistralSettings, llama_rules, read_windowed, write_mistral
from taetpu.interop.families.rope import RopeReader, write_plain_rope
from taetpu.interop.layouts import LINEAR, Rule

LAYER = "model.layers.{i}"
ROPE = RopeReader(partial=True, kinds=("longrope",))
JOINED = (
    Rule(f"{LAYER}.self_attn.qkv_proj.weight", " ".join(f"layers.{{i}}.mixer.w{x}" for x in "qkv"), LINEAR),
    Rule(f"{LAYER}.self_attn.o_proj.weight", "layers.{i}.mixer.wo", LINEAR),
    Rule(f"{LAYER}.mlp.gate_up_proj.weight", "layers.{i}.ffn.gate layers.{i}.ffn.up", LINEAR),
    Rule(f"{LAYER}.mlp.down_proj.weight", "layers.{i}.ffn.down", LINEAR),
)


class Phi3Settings(MistralSettings):
    """The settings of Phi 3."""

    eos_token_id: TokenNumbers = 32000
    pad_token_id: TokenNumbers = 32000
    num_key_value_heads: Count | None = None
    max_position_embeddings: Count | None = 4096
    original_max_position_embeddings: Count | None = 4096
    sliding_window: Count | None = None
    rms_norm_eps: PositiveFloat = 1e-5


def read_phi3(config: Settings) -> dict[str, Any]:
    """Convert Phi 3 settings to the data of a `ModelConfig`. Early files call long RoPE `su` or `yarn`."""
    where = "rope_scaling" if config["rope_scaling"] else "rope_parameters"
    given = dict(config[where] or {})
    for name in ("rope_type", "type"):
        if given.get(name) in ("su", "yarn"):
            given[name] = "longrope"
    return read_windowed({**config, where: given}, ROPE)


def write_phi3(ours: Exported) -> dict[str, Any]:
    """Convert the settings of a model to Phi 3 settings."""
    if ours.get("position.scaling.kind") != "longrope":
        ours = replace(ours, model={**ours.model, "position.scaling.kind": None})
    rope = write_plain_rope(ours.model, partial=True)
    original = rope["rope_parameters"].get("original_max_position_embeddings", ours.get("seq_len"))
    return {**write_mistral(ours), **rope, "original_max_position_embeddings": original}


PHI3 = Family(
    model_type="phi3",
    architecture="Phi3ForCausalLM",
    about="Phi 3 and 4",
    rules=llama_rules(PRE_NORMS, JOINED, attention=()),
    settings=Phi3Settings,
    read=read_phi3,
    write=write_phi3,
    harmless=("embd_pdrop",),
    choices=CHOICES,
)

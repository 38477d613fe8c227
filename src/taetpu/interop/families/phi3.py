"""Phi 3 and 4: Llama with joined projections, and long RoPE.

Source: modeling_phi3.py and configuration_phi3.py in transformers.
"""

from dataclasses import replace
from typing import Any

from pydantic import PositiveFloat

from taetpu.interop.families.base import Count, Exported, TokenNumbers
from taetpu.interop.families.llama import LAYER, PRE_NORMS, Mistral, llama_rules
from taetpu.interop.families.rope import RopeFamily, RopeReader, write_plain_rope
from taetpu.interop.layouts import LINEAR, Rule

JOINED = (
    Rule(f"{LAYER}.self_attn.qkv_proj.weight", " ".join(f"layers.{{i}}.mixer.w{x}" for x in "qkv"), LINEAR),
    Rule(f"{LAYER}.self_attn.o_proj.weight", "layers.{i}.mixer.wo", LINEAR),
    Rule(f"{LAYER}.mlp.gate_up_proj.weight", "layers.{i}.ffn.gate layers.{i}.ffn.up", LINEAR),
    Rule(f"{LAYER}.mlp.down_proj.weight", "layers.{i}.ffn.down", LINEAR),
)


class Phi3(Mistral):
    """Phi 3 and 4."""

    model_type = "phi3"
    architecture = "Phi3ForCausalLM"
    about = "Phi 3 and 4"
    rules = llama_rules(PRE_NORMS, JOINED, attention=())
    rope = RopeReader(partial=True, kinds=("longrope",))
    harmless = ("embd_pdrop",)

    eos_token_id: TokenNumbers = 32000
    pad_token_id: TokenNumbers = 32000
    num_key_value_heads: Count | None = None
    max_position_embeddings: Count | None = 4096
    original_max_position_embeddings: Count | None = 4096
    sliding_window: Count | None = None
    rms_norm_eps: PositiveFloat = 1e-5

    def read_position(self) -> dict[str, Any]:
        """Return the data of position `rope`. Early files call long RoPE `su` or `yarn`."""
        where = "rope_scaling" if self.rope_scaling else "rope_parameters"
        given = dict(getattr(self, where) or {})
        for name in ("rope_type", "type"):
            if given.get(name) in ("su", "yarn"):
                given[name] = "longrope"
        return RopeFamily.read_position(self.model_copy(update={where: given}))

    @classmethod
    def write(cls, ours: Exported) -> dict[str, Any]:
        """See `Family.write`."""
        if ours.get("position.scaling.kind") != "longrope":
            ours = replace(ours, model={**ours.model, "position.scaling.kind": None})
        rope = write_plain_rope(ours.model, partial=True)
        original = rope["rope_parameters"].get("original_max_position_embeddings", ours.get("seq_len"))
        return {**super().write(ours), **rope, "original_max_position_embeddings": original}

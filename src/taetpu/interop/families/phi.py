"""Phi 1, 1.5 and 2: parallel branches after one layer norm, and a bias on the logits.

Source: modeling_phi.py and configuration_phi.py in transformers.
"""

from typing import Any, ClassVar

from pydantic import PositiveFloat

from taetpu.interop.families.base import Count, Exported, TokenNumbers
from taetpu.interop.families.layer_norms import LayerNormFamily, Names, Rate
from taetpu.interop.families.llama import LAYER
from taetpu.interop.families.rope import RopeFamily, RopeReader, write_plain_rope
from taetpu.interop.layouts import LINEAR, Rule, layer_rules, module_rules


class Phi(LayerNormFamily, RopeFamily):
    """Phi 1, 1.5 and 2."""

    model_type = "phi"
    architecture = "PhiForCausalLM"
    about = "Phi 1, 1.5 and 2"
    rules = (
        Rule("model.embed_tokens.weight", "embedding.weight"),
        *(rule for x in "qkv" for rule in layer_rules(f"{LAYER}.self_attn.{x}_proj", f"mixer.w{x}")),
        *layer_rules(f"{LAYER}.self_attn.dense", "mixer.wo"),
        *layer_rules(f"{LAYER}.input_layernorm", "mixer_norm"),
        *layer_rules(f"{LAYER}.mlp.fc1", "ffn.up"),
        *layer_rules(f"{LAYER}.mlp.fc2", "ffn.down"),
        *module_rules("model.final_layernorm", "norm"),
        Rule("lm_head.weight", "embedding.unembed", LINEAR),
        Rule("lm_head.bias", "embedding.bias"),
    )
    names = Names(dropouts=("resid_pdrop", "embd_pdrop", "attention_dropout"))
    rope = RopeReader(share=0.5, partial=True)
    fixed: ClassVar = {"qk_layernorm": False, "tie_word_embeddings": False}
    harmless = ("embd_pdrop",)

    bos_token_id: TokenNumbers = 1
    eos_token_id: TokenNumbers = 2
    num_key_value_heads: Count | None = None
    intermediate_size: Count
    max_position_embeddings: Count | None = 2048
    hidden_act: str = "gelu_new"
    layer_norm_eps: PositiveFloat = 1e-5
    resid_pdrop: Rate = 0.0

    def read(self) -> dict[str, Any]:
        """See `Family.read`."""
        made = super().read()
        made["mixer"]["num_kv_heads"] = self.num_key_value_heads
        position, embedding = self.read_position(), {"kind": "untied", "bias": True}
        return {**made, "position": position, "order": "parallel", "embedding": embedding}

    @classmethod
    def write(cls, ours: Exported) -> dict[str, Any]:
        """See `Family.write`."""
        made = {**super().write(ours), **write_plain_rope(ours.model, partial=True), "tie_word_embeddings": False}
        return {**made, "num_key_value_heads": ours.get("mixer.num_kv_heads", ours.get("mixer.num_heads", 1))}

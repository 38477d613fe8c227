"""GPT-J: parallel branches after one layer norm, RoPE of neighbouring elements, and a bias on the logits.

Source: modeling_gptj.py and configuration_gptj.py in transformers.
"""

import math
from typing import Any, ClassVar

from pydantic import PositiveFloat

from taetpu.interop.families.base import Count, Exported, TokenNumbers
from taetpu.interop.families.gpt2 import GPTFamily
from taetpu.interop.families.layer_norms import SUMMARY, Rate
from taetpu.interop.layouts import LINEAR, Rule, layer_rules, module_rules

LAYER = "transformer.h.{i}"


class GPTJ(GPTFamily):
    """GPT-J."""

    model_type = "gptj"
    architecture = "GPTJForCausalLM"
    about = "GPT-J"
    rules = (
        Rule("transformer.wte.weight", "embedding.weight"),
        *(rule for x in "qkv" for rule in layer_rules(f"{LAYER}.attn.{x}_proj", f"mixer.w{x}")),
        *layer_rules(f"{LAYER}.attn.out_proj", "mixer.wo"),
        *layer_rules(f"{LAYER}.ln_1", "mixer_norm"),
        *layer_rules(f"{LAYER}.mlp.fc_in", "ffn.up"),
        *layer_rules(f"{LAYER}.mlp.fc_out", "ffn.down"),
        *module_rules("transformer.ln_f", "norm"),
        Rule("lm_head.weight", "embedding.unembed", LINEAR),
        Rule("lm_head.bias", "embedding.bias"),
    )
    fixed: ClassVar = {"tie_word_embeddings": False}
    harmless = ("n_ctx", "rotary", "scale_attn_weights", *SUMMARY)

    bos_token_id: TokenNumbers = 50256
    eos_token_id: TokenNumbers = 50256
    n_positions: Count = 2048
    n_inner: Count | None = None
    rotary_dim: Count = 64
    activation_function: str = "gelu_new"
    layer_norm_epsilon: PositiveFloat = 1e-5
    resid_pdrop: Rate = 0.0

    def read(self) -> dict[str, Any]:
        """See `Family.read`."""
        made = super().read()
        made["mixer"]["bias"] = False
        head_dim = max(1, self.n_embd // self.n_head)
        share = self.rotary_dim / head_dim
        if int(head_dim * share) < self.rotary_dim:
            share = math.nextafter(share, 1)
        position = {"kind": "rope", "pairs": "interleaved", "fraction": share}
        return {**made, "position": position, "order": "parallel", "embedding": {"kind": "untied", "bias": True}}

    @classmethod
    def write(cls, ours: Exported) -> dict[str, Any]:
        """See `Family.write`."""
        head_dim = ours.get("dim") // ours.get("mixer.num_heads", 1)
        rotated = max(1, int(head_dim * ours.get("position.fraction", 1.0)))
        return {**super().write(ours), "rotary_dim": rotated, "tie_word_embeddings": False}

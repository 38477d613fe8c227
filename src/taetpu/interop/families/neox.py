"""GPT-NeoX and Pythia.

Queries, keys and values are one projection whose outputs are ordered by head. RoPE rotates a share of each head. Files
of earlier versions name the head `embed_out` and contain attention masks.

Source: modeling_gpt_neox.py and configuration_gpt_neox.py in transformers.
"""

from typing import Any, ClassVar

from pydantic import PositiveFloat

from taetpu.interop.families.base import MLPS, Count, Exported, TokenNumbers
from taetpu.interop.families.layer_norms import LayerNormFamily, Rate
from taetpu.interop.families.rope import RopeFamily, RopeReader, Share, write_plain_rope
from taetpu.interop.layouts import HEADS_FUSED, LINEAR, Rule, layer_rules, module_rules

LAYER = "gpt_neox.layers.{i}"
RULES = (
    Rule("gpt_neox.embed_in.weight", "embedding.weight"),
    *layer_rules(f"{LAYER}.input_layernorm", "mixer_norm"),
    *layer_rules(f"{LAYER}.attention.query_key_value", "mixer.wq mixer.wk mixer.wv", HEADS_FUSED),
    *layer_rules(f"{LAYER}.attention.dense", "mixer.wo"),
    *layer_rules(f"{LAYER}.post_attention_layernorm", "ffn_norm"),
    *layer_rules(f"{LAYER}.mlp.dense_h_to_4h", "ffn.up"),
    *layer_rules(f"{LAYER}.mlp.dense_4h_to_h", "ffn.down"),
    *module_rules("gpt_neox.final_layer_norm", "norm"),
    Rule("embed_out.weight", "embedding.unembed", LINEAR),
)


class NeoX(LayerNormFamily, RopeFamily):
    """GPT-NeoX and Pythia."""

    model_type = "gpt_neox"
    architecture = "GPTNeoXForCausalLM"
    about = "GPT-NeoX, Pythia"
    prefix = "gpt_neox."
    rules = RULES
    networks: ClassVar = {"gelu": "gelu-erf", **MLPS}
    rope = RopeReader(share=0.25, partial=True)
    renamed = ((r"^lm_head\.", "embed_out."),)
    ignored = r"\.attention\.(bias|masked_bias|rotary_emb\.inv_freq)$|\.rotary_emb\.inv_freq$"
    head = "embed_out.weight"

    bos_token_id: TokenNumbers = 0
    eos_token_id: TokenNumbers = 2
    intermediate_size: Count
    max_position_embeddings: Count | None = 2048
    hidden_act: str = "gelu"
    layer_norm_eps: PositiveFloat = 1e-5
    attention_bias: bool = True
    use_parallel_residual: bool = True
    hidden_dropout: Rate = 0.0
    rotary_emb_base: PositiveFloat | None = None
    rotary_pct: Share | None = None

    def read(self) -> dict[str, Any]:
        """See `Family.read`.

        transformers reads the base and the share outside `rope_parameters` from `rotary_emb_base` and `rotary_pct`
        alone.
        """
        outside = {"rope_theta": self.rotary_emb_base, "partial_rotary_factor": self.rotary_pct}
        made = super().read()
        made["mixer"]["bias"] = self.attention_bias
        order = "parallel-two-norms" if self.use_parallel_residual else "sequential"
        return {**made, "position": self.model_copy(update=outside).read_position(), "order": order}

    @classmethod
    def write(cls, ours: Exported) -> dict[str, Any]:
        """See `Family.write`. The settings are those of current and earlier versions of transformers."""
        rope = write_plain_rope(ours.model, partial=True)
        return {
            **super().write(ours),
            "attention_bias": ours.get("mixer.bias", False) is not False,
            "use_parallel_residual": ours.get("order.kind") != "sequential",
            "rotary_emb_base": rope["rope_theta"],
            "rotary_pct": rope["partial_rotary_factor"],
            **rope,
        }

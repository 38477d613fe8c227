"""StableLM: Llama with layer norms and RoPE of a share of each head, parallel branches in some models.

transformers ignores `head_dim` and `rms_norm_eps` in its settings.

Source: modeling_stablelm.py and configuration_stablelm.py in transformers.
"""

from typing import Any, ClassVar

from pydantic import PositiveFloat

from taetpu.interop.families.base import Count, Exported, TokenNumbers
from taetpu.interop.families.layer_norms import Rate
from taetpu.interop.families.llama import SiluFamily
from taetpu.interop.families.rope import RopeReader, write_plain_rope


class StableLM(SiluFamily):
    """StableLM 2 and 3B."""

    model_type = "stablelm"
    architecture = "StableLmForCausalLM"
    about = "StableLM 2 and 3B"
    rope = RopeReader(share=0.25, partial=True)
    fixed: ClassVar = {"qk_layernorm": False}

    bos_token_id: TokenNumbers = 0
    eos_token_id: TokenNumbers = 0
    num_key_value_heads: Count | None = 32
    max_position_embeddings: Count | None = 4096
    layer_norm_eps: PositiveFloat = 1e-5
    use_qkv_bias: bool = False
    use_parallel_residual: bool = False
    hidden_dropout: Rate = 0.0

    def read(self) -> dict[str, Any]:
        """See `Family.read`."""
        made = super().read()
        made["mixer"] |= {"head_dim": None, "bias": "qkv" if self.use_qkv_bias else False}
        return {
            **made,
            "norm": {"kind": "layer", "eps": self.layer_norm_eps, "bias": True},
            "order": "parallel" if self.use_parallel_residual else "sequential",
            "dropout": self.hidden_dropout,
        }

    @classmethod
    def write(cls, ours: Exported) -> dict[str, Any]:
        """See `Family.write`."""
        made = super().write(ours)
        del made["rms_norm_eps"], made["head_dim"]
        return {
            **made,
            **write_plain_rope(ours.model, partial=True),
            "layer_norm_eps": ours.get("norm.eps", 1e-5),
            "use_qkv_bias": ours.get("mixer.bias", False) is not False,
            "use_parallel_residual": ours.get("order.kind") == "parallel",
            "hidden_dropout": ours.get("dropout", 0.0),
        }

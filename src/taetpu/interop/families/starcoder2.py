"""StarCoder 2: layer norms, networks of two matrices, RoPE and grouped key-value heads.

Source: modeling_starcoder2.py and configuration_starcoder2.py in transformers.
"""

from typing import Any

from pydantic import PositiveFloat

from taetpu.interop.families.base import Count, Exported, NotNegative, TokenNumbers
from taetpu.interop.families.layer_norms import LayerNormFamily, Names, Rate
from taetpu.interop.families.llama import LAYER, PRE_NORMS, llama_rules
from taetpu.interop.families.rope import RopeFamily, write_plain_rope
from taetpu.interop.families.windows import SLIDING, with_windows, write_windows
from taetpu.interop.layouts import layer_rules


class StarCoder2(LayerNormFamily, RopeFamily):
    """StarCoder 2. All layers have the window, if there is one."""

    model_type = "starcoder2"
    architecture = "Starcoder2ForCausalLM"
    about = "StarCoder 2"
    rules = llama_rules(
        PRE_NORMS, (*layer_rules(f"{LAYER}.mlp.c_fc", "ffn.up"), *layer_rules(f"{LAYER}.mlp.c_proj", "ffn.down"))
    )
    names = Names(eps="norm_epsilon", dropouts=("residual_dropout", "embedding_dropout", "attention_dropout"))

    bos_token_id: TokenNumbers = 50256
    eos_token_id: TokenNumbers = 50256
    num_key_value_heads: Count = 2
    intermediate_size: Count
    max_position_embeddings: Count | None = 4096
    hidden_act: str = "gelu_pytorch_tanh"
    norm_epsilon: PositiveFloat = 1e-5
    sliding_window: Count | None = None
    use_bias: bool = True
    initializer_range: NotNegative = 0.018042
    tie_word_embeddings: bool = True
    residual_dropout: Rate = 0.0

    def read(self) -> dict[str, Any]:
        """See `Family.read`."""
        made = super().read()
        made["mixer"]["num_kv_heads"] = self.num_key_value_heads
        made["norm"]["bias"] = True
        types = [SLIDING] * self.num_hidden_layers if self.sliding_window else []
        made |= {"position": self.read_position(), "bias": self.use_bias}
        return with_windows(made, types, self.sliding_window)

    @classmethod
    def write(cls, ours: Exported) -> dict[str, Any]:
        """See `Family.write`."""
        return {
            **super().write(ours),
            **write_plain_rope(ours.model),
            "num_key_value_heads": ours.get("mixer.num_kv_heads", ours.get("mixer.num_heads", 1)),
            "sliding_window": write_windows(ours)[1],
            "use_bias": bool(ours.get("mixer.bias", False)),
        }

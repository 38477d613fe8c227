"""nanochat: norms without weights, also of embeddings and of queries and keys, squared ReLU and a cap of logits.

The angles of RoPE have the opposite sign. Both halves of each head of queries and keys are exchanged, which gives the
same scores.

Source: modeling_nanochat.py and configuration_nanochat.py in transformers.
"""

from typing import Any, ClassVar

from taetpu.interop.families.base import MLPS, Exported, NotNegative, TokenNumbers
from taetpu.interop.families.layer_norms import LayerNormFamily
from taetpu.interop.families.llama import LAYER, LlamaLike, llama_rules
from taetpu.interop.layouts import HALVES_SWAPPED, layer_rules

WITHOUT_WEIGHT = {"kind": "rms", "weight": "none"}


class Nanochat(LlamaLike):
    """nanochat."""

    model_type = "nanochat"
    architecture = "NanoChatForCausalLM"
    about = "nanochat"
    rules = llama_rules(
        {},
        (*layer_rules(f"{LAYER}.mlp.fc1", "ffn.up"), *layer_rules(f"{LAYER}.mlp.fc2", "ffn.down")),
        (
            *(rule for x in "qk" for rule in layer_rules(f"{LAYER}.self_attn.{x}_proj", f"mixer.w{x}", HALVES_SWAPPED)),
            *(rule for x in "vo" for rule in layer_rules(f"{LAYER}.self_attn.{x}_proj", f"mixer.w{x}")),
        ),
    )
    networks: ClassVar = {"relu2": "relu2", **MLPS}
    choices = LayerNormFamily.choices

    bos_token_id: TokenNumbers = 0
    eos_token_id: TokenNumbers = 1
    pad_token_id: TokenNumbers = 1
    hidden_act: str = "relu2"
    final_logit_softcapping: NotNegative | None = 15.0
    attention_bias: bool = False

    def read(self) -> dict[str, Any]:
        """See `Family.read`."""
        made = super().read()
        norm = {**WITHOUT_WEIGHT, "eps": self.rms_norm_eps}
        made["mixer"]["qk_norm"] = norm
        if self.final_logit_softcapping is not None:
            made["logits"] = {"kind": "softcap", "cap": self.final_logit_softcapping}
        return {**made, "norm": norm, "stem": {"kind": "norm", "norm": norm}}

    @classmethod
    def write(cls, ours: Exported) -> dict[str, Any]:
        """See `Family.write`."""
        return {**super().write(ours), "final_logit_softcapping": ours.get("logits.cap")}

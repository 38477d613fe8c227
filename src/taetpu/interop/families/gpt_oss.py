"""gpt-oss: mixtures of clamped experts with biases, trained sinks in attention, and alternating windows.

The files of OpenAI on the hub are quantized (MXFP4) and are refused.

Source: modeling_gpt_oss.py and configuration_gpt_oss.py in transformers.
"""

from typing import Any, ClassVar

from pydantic import PositiveFloat

from taetpu.interop.families.base import Count, Exported, NotNegative
from taetpu.interop.families.llama import PRE_NORMS, LlamaLike, llama_rules
from taetpu.interop.families.rope import RopeReader
from taetpu.interop.families.windows import every_nth_full, read_layer_types, with_windows, write_windows
from taetpu.interop.layouts import INTERLEAVED, LINEAR, Rule

MLP = "model.layers.{i}.mlp"
EXPERTS = "layers.{i}.ffn.experts"
MOE_RULES = (
    Rule(f"{MLP}.router.weight", "layers.{i}.ffn.router", LINEAR),
    Rule(f"{MLP}.router.bias", "layers.{i}.ffn.router_bias"),
    Rule(f"{MLP}.experts.gate_up_proj", f"{EXPERTS}.gate {EXPERTS}.up", INTERLEAVED),
    Rule(f"{MLP}.experts.gate_up_proj_bias", f"{EXPERTS}.gate_bias {EXPERTS}.up_bias", INTERLEAVED),
    Rule(f"{MLP}.experts.down_proj", f"{EXPERTS}.down"),
    Rule(f"{MLP}.experts.down_proj_bias", f"{EXPERTS}.down_bias"),
    Rule("model.layers.{i}.self_attn.sinks", "layers.{i}.mixer.normalizer.bias"),
)
YARN = {
    "rope_type": "yarn",
    "factor": 32.0,
    "beta_fast": 32.0,
    "beta_slow": 1.0,
    "truncate": False,
    "original_max_position_embeddings": 4096,
}
"""The default of transformers, which is that of all released models."""


class GptOss(LlamaLike):
    """gpt-oss. By default, every second layer has a window."""

    model_type = "gpt_oss"
    architecture = "GptOssForCausalLM"
    about = "gpt-oss"
    rules = llama_rules(PRE_NORMS, MOE_RULES)
    rope = RopeReader(base=150000.0)
    fixed: ClassVar = {"hidden_act": "silu"}
    harmless = ("output_router_logits", "experts_per_token", "initial_context_length")
    aliases: ClassVar = {"num_experts": "num_local_experts"}
    choices: ClassVar = {}

    num_local_experts: Count
    num_experts_per_tok: Count = 4
    num_key_value_heads: Count | None = 8
    head_dim: Count | None = 64
    max_position_embeddings: Count | None = 131072
    rms_norm_eps: PositiveFloat = 1e-5
    attention_bias: bool = True
    swiglu_alpha: PositiveFloat = 1.702
    swiglu_limit: PositiveFloat = 7.0
    router_aux_loss_coef: NotNegative = 0.001
    sliding_window: Count | None = 128
    layer_types: tuple[str, ...] | None = None

    def read(self) -> dict[str, Any]:
        """See `Family.read`."""
        if self.rope_parameters is None and not self.rope_scaling:
            return self.model_copy(update={"rope_parameters": YARN}).read()
        made = super().read()
        made["mixer"]["normalizer"] = "sink"
        types = read_layer_types(self, every_nth_full(self.num_hidden_layers, 2))
        return with_windows(made, types, self.sliding_window)

    def read_ffn(self) -> dict[str, Any]:
        """Return the data of the feed-forward networks."""
        return {
            "kind": "clamped-moe",
            "experts": self.num_local_experts,
            "top": self.num_experts_per_tok,
            "hidden": self.intermediate_size,
            "alpha": float(self.swiglu_alpha),
            "limit": float(self.swiglu_limit),
            "balance": float(self.router_aux_loss_coef),
        }

    @classmethod
    def write(cls, ours: Exported) -> dict[str, Any]:
        """See `Family.write`."""
        types, width = write_windows(ours)
        return {
            **super().write(ours),
            "num_local_experts": ours.get("ffn.experts", 1),
            "num_experts_per_tok": ours.get("ffn.top", 1),
            "swiglu_alpha": ours.get("ffn.alpha", 1.702),
            "swiglu_limit": ours.get("ffn.limit", 7.0),
            "sliding_window": width,
            "layer_types": types,
        }

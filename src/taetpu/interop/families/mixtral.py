"""Mixtral and the mixtures of Qwen 3: a SwiGLU network for each expert, stored as separate matrices.

The weights of the chosen experts are divided by their sum, as in the kind `moe` with several chosen experts.

Source: modeling_mixtral.py, modeling_qwen3_moe.py and their configurations in transformers.
"""

from typing import Any, ClassVar

from pydantic import PositiveFloat

from taetpu.core.errors import UserError
from taetpu.interop.families.base import Count, Exported, NotNegative, TokenNumbers
from taetpu.interop.families.llama import LAYER, PRE_NORMS, QK_NORMS, WindowedFamily, llama_rules
from taetpu.interop.families.rope import RopeReader
from taetpu.interop.layouts import EXPERTS_IN, EXPERTS_OUT, LINEAR, Rule


def expert_rules(block: str, gate: str, up: str, down: str) -> tuple[Rule, ...]:
    """Return the rules of a mixture, from the names of its module and of an expert's matrices."""
    ours, theirs = "layers.{i}.ffn.experts", f"{LAYER}.{block}.experts.{{e}}"
    return (
        Rule(f"{LAYER}.{block}.gate.weight", "layers.{i}.ffn.router", LINEAR),
        Rule(f"{theirs}.{gate}.weight", f"{ours}.gate", EXPERTS_IN),
        Rule(f"{theirs}.{up}.weight", f"{ours}.up", EXPERTS_IN),
        Rule(f"{theirs}.{down}.weight", f"{ours}.down", EXPERTS_OUT),
    )


class MixtureFamily(WindowedFamily):
    """An architecture with mixtures of experts.

    Attributes:
        experts: The setting with the number of experts.
        expert_size: The setting with the inner size of an expert.
    """

    experts: ClassVar[str]
    expert_size: ClassVar[str] = "intermediate_size"
    choices: ClassVar = {}

    num_experts_per_tok: Count
    router_aux_loss_coef: NotNegative = 0.001

    def read_ffn(self) -> dict[str, Any]:
        """Return the data of the feed-forward networks.

        Raises:
            UserError: If the weights are not those of the kind `moe`.
        """
        top, normed = self.num_experts_per_tok, getattr(self, "norm_topk_prob", True)
        if normed != (top > 1):
            problem = f"num_experts_per_tok={top} is not supported with expert weights that are{' not' * (not normed)} "
            problem += "divided by their sum: taetpu's moe divides those of several experts, and not that of one"
            remedy = "Use a model with two or more experts per token, whose weights are divided by their sum."
            raise UserError(problem, path=("num_experts_per_tok",), remedy=remedy)
        return {
            "kind": "moe",
            "experts": getattr(self, self.experts),
            "top": top,
            "hidden": getattr(self, self.expert_size),
            "balance": float(self.router_aux_loss_coef),
        }


class Mixtral(MixtureFamily):
    """Mixtral."""

    model_type = "mixtral"
    architecture = "MixtralForCausalLM"
    about = "Mixtral"
    rules = llama_rules(PRE_NORMS, expert_rules("block_sparse_moe", "w1", "w3", "w2"))
    rope = RopeReader(base=1_000_000.0)
    experts = "num_local_experts"
    fixed: ClassVar = {"hidden_act": "silu"}
    harmless = ("output_router_logits", "router_jitter_noise")
    aliases: ClassVar = {"num_experts": "num_local_experts"}

    bos_token_id: TokenNumbers = 1
    eos_token_id: TokenNumbers = 2
    num_key_value_heads: Count | None = 8
    max_position_embeddings: Count | None = 131072
    rms_norm_eps: PositiveFloat = 1e-5
    sliding_window: Count | None = None
    num_local_experts: Count = 8
    num_experts_per_tok: Count = 2

    @classmethod
    def write(cls, ours: Exported) -> dict[str, Any]:
        """See `Family.write`."""
        experts, top = ours.get("ffn.experts", 2), ours.get("ffn.top", 2)
        return {**super().write(ours), "num_local_experts": experts, "num_experts_per_tok": max(2, top)}


class Qwen3MoE(MixtureFamily):
    """Qwen 3, mixtures of experts."""

    model_type = "qwen3_moe"
    architecture = "Qwen3MoeForCausalLM"
    about = "Qwen 3, mixtures of experts"
    rules = llama_rules({**PRE_NORMS, **QK_NORMS}, expert_rules("mlp", "gate_proj", "up_proj", "down_proj"))
    experts = "num_experts"
    expert_size = "moe_intermediate_size"
    fixed: ClassVar = {"hidden_act": "silu", "decoder_sparse_step": 1, "mlp_only_layers": []}
    harmless = ("output_router_logits", "max_window_layers")
    aliases: ClassVar = {"num_local_experts": "num_experts"}

    num_key_value_heads: Count | None = 4
    max_position_embeddings: Count | None = 32768
    attention_bias: bool = False
    use_sliding_window: bool = False
    sliding_window: Count | None = 4096
    moe_intermediate_size: Count = 768
    num_experts: Count = 128
    num_experts_per_tok: Count = 8
    norm_topk_prob: bool = False

    @property
    def window(self) -> int | None:
        """The width of the window."""
        return self.sliding_window if self.use_sliding_window else None

    def read(self) -> dict[str, Any]:
        """See `Family.read`."""
        made = super().read()
        made["mixer"]["qk_norm"] = {"kind": "rms", "eps": self.rms_norm_eps}
        return made

    @classmethod
    def write(cls, ours: Exported) -> dict[str, Any]:
        """See `Family.write`."""
        made, top = super().write(ours), ours.get("ffn.top", 2)
        return {
            **made,
            "use_sliding_window": made["sliding_window"] is not None,
            "moe_intermediate_size": made["intermediate_size"],
            "num_experts": ours.get("ffn.experts", 2),
            "num_experts_per_tok": top,
            "norm_topk_prob": top > 1,
        }

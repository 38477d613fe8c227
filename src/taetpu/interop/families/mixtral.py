"""Mixtral and the mixtures of Qwen 3: a SwiGLU network for each expert, stored as separate matrices.

The weights of the chosen experts are divided by their sum, as in the kind `moe` with several chosen experts.

Source: modeling_mixtral.py, modeling_qwen3_moe.py and their configurations in transformers.
"""

from typing import Any

from pydantic import PositiveFloat

from taetpu.core.errors import UserError
from taetpu.interop.families.base import Count, Exported, Family, NotNegative, Settings, TokenNumbers
from taetpu.interop.families.llama import (
    LAYER,
    PRE_NORMS,
    QK_NORMS,
    CommonSettings,
    llama_rules,
    read_windowed,
    write_biased,
    write_mistral,
)
from taetpu.interop.families.rope import RopeReader
from taetpu.interop.layouts import EXPERTS_IN, EXPERTS_OUT, LINEAR, Rule


class MixtralSettings(CommonSettings):
    """The settings of Mixtral."""

    bos_token_id: TokenNumbers = 1
    eos_token_id: TokenNumbers = 2
    num_key_value_heads: Count | None = 8
    max_position_embeddings: Count | None = 131072
    rms_norm_eps: PositiveFloat = 1e-5
    sliding_window: Count | None = None
    num_local_experts: Count = 8
    num_experts_per_tok: Count = 2
    router_aux_loss_coef: NotNegative = 0.001


class Qwen3MoESettings(CommonSettings):
    """The settings of the mixtures of Qwen 3."""

    num_key_value_heads: Count | None = 4
    max_position_embeddings: Count | None = 32768
    attention_bias: bool = False
    use_sliding_window: bool = False
    sliding_window: Count | None = 4096
    moe_intermediate_size: Count = 768
    num_experts: Count = 128
    num_experts_per_tok: Count = 8
    norm_topk_prob: bool = False
    router_aux_loss_coef: NotNegative = 0.001


def expert_rules(block: str, gate: str, up: str, down: str) -> tuple[Rule, ...]:
    """Return the rules of a mixture, from the names of its module and of an expert's matrices."""
    ours, theirs = "layers.{i}.ffn.experts", f"{LAYER}.{block}.experts.{{e}}"
    return (
        Rule(f"{LAYER}.{block}.gate.weight", "layers.{i}.ffn.router", LINEAR),
        Rule(f"{theirs}.{gate}.weight", f"{ours}.gate", EXPERTS_IN),
        Rule(f"{theirs}.{up}.weight", f"{ours}.up", EXPERTS_IN),
        Rule(f"{theirs}.{down}.weight", f"{ours}.down", EXPERTS_OUT),
    )


def with_experts(config: Settings, data: dict[str, Any], experts: str, hidden: str, normed: bool) -> dict[str, Any]:
    """Return the data of a model with a mixture of experts.

    Args:
        config: The settings.
        data: The data of the model.
        experts: The setting with the number of experts.
        hidden: The setting with the inner size of an expert.
        normed: Whether the weights of chosen experts are divided by their sum.

    Raises:
        UserError: If the weights are not those of the kind `moe`.
    """
    top = config["num_experts_per_tok"]
    if normed != (top > 1):
        problem = f"num_experts_per_tok={top} is not supported with expert weights that are{' not' * (not normed)} "
        problem += "divided by their sum: taetpu's moe divides those of several experts, and not that of one"
        remedy = "Use a model with two or more experts per token, whose weights are divided by their sum."
        raise UserError(problem, path=("num_experts_per_tok",), remedy=remedy)
    ffn = {
        "kind": "moe",
        "experts": config[experts],
        "top": top,
        "hidden": config[hidden],
        "balance": float(config["router_aux_loss_coef"]),
    }
    return {**data, "ffn": ffn}


def read_mixtral(config: Settings) -> dict[str, Any]:
    """Convert Mixtral settings to the data of a `ModelConfig`. All layers have the window, if there is one."""
    made = read_windowed({**config, "hidden_act": "silu"}, RopeReader(base=1_000_000.0))
    return with_experts(config, made, "num_local_experts", "intermediate_size", normed=True)


def write_mixtral(ours: Exported) -> dict[str, Any]:
    """Convert the settings of a model to Mixtral settings."""
    experts, top = ours.get("ffn.experts", 2), ours.get("ffn.top", 2)
    made = {**write_mistral(ours), "hidden_act": "silu"}
    return {**made, "num_local_experts": experts, "num_experts_per_tok": max(2, top)}


def read_qwen3_moe(config: Settings) -> dict[str, Any]:
    """Convert the settings of a mixture of Qwen 3 to the data of a `ModelConfig`."""
    width = config["sliding_window"] if config["use_sliding_window"] else None
    made = read_windowed({**config, "hidden_act": "silu", "sliding_window": width})
    made["mixer"]["qk_norm"] = {"kind": "rms", "eps": config["rms_norm_eps"]}
    return with_experts(config, made, "num_experts", "moe_intermediate_size", config["norm_topk_prob"])


def write_qwen3_moe(ours: Exported) -> dict[str, Any]:
    """Convert the settings of a model to those of a mixture of Qwen 3."""
    made = {**write_biased(ours), **write_mistral(ours), "hidden_act": "silu"}
    top = ours.get("ffn.top", 2)
    return {
        **made,
        "use_sliding_window": made["sliding_window"] is not None,
        "moe_intermediate_size": made["intermediate_size"],
        "num_experts": ours.get("ffn.experts", 2),
        "num_experts_per_tok": top,
        "norm_topk_prob": top > 1,
    }


MIXTRAL = Family(
    model_type="mixtral",
    architecture="MixtralForCausalLM",
    about="Mixtral",
    rules=llama_rules(PRE_NORMS, expert_rules("block_sparse_moe", "w1", "w3", "w2")),
    settings=MixtralSettings,
    read=read_mixtral,
    write=write_mixtral,
    fixed={"hidden_act": "silu"},
    harmless=("output_router_logits", "router_jitter_noise"),
    aliases={"num_experts": "num_local_experts"},
)
QWEN3_MOE = Family(
    model_type="qwen3_moe",
    architecture="Qwen3MoeForCausalLM",
    about="Qwen 3, mixtures of experts",
    rules=llama_rules({**PRE_NORMS, **QK_NORMS}, expert_rules("mlp", "gate_proj", "up_proj", "down_proj")),
    settings=Qwen3MoESettings,
    read=read_qwen3_moe,
    write=write_qwen3_moe,
    fixed={"hidden_act": "silu", "decoder_sparse_step": 1, "mlp_only_layers": []},
    harmless=("output_router_logits", "max_window_layers"),
    aliases={"num_local_experts": "num_experts"},
)

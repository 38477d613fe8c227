"""Comparisons of mixtures of experts."""

from dataclasses import replace
from typing import Any

import jax.numpy as jnp
import numpy as np
import torch
from tests.parity._common import CONTEXT, DIM, build, randomised, stream
from tests.parity.registry import parity

EXPERTS, TOP, HIDDEN = 6, 2, 24


def experts(kind: str, theirs: torch.nn.Module, **settings: Any) -> tuple[Any, Any]:
    """Compare with a class of transformers, which has the matrices of all experts in one array."""
    ours = randomised(build("ffn", kind, experts=EXPERTS, top=TOP, hidden=HIDDEN, **settings))
    if kind == "deepseek-moe":
        ours = replace(ours, bias=type(ours.bias)(jnp.asarray(0.2 * np.sign(stream(EXPERTS)))))
    gate, up, down = (np.asarray(getattr(ours.experts, name)) for name in ("gate", "up", "down"))
    values = {
        "gate.weight": np.asarray(ours.router).T,
        "experts.gate_up_proj": np.concatenate([gate, up], 2).transpose(1, 2, 0),
        "experts.down_proj": down.transpose(0, 2, 1),
    }
    if shared := getattr(ours, "shared", None):
        values |= {f"shared_experts.{x}_proj.weight": np.asarray(getattr(shared, x)).T for x in ("gate", "up", "down")}
        values["gate.e_score_correction_bias"] = np.asarray(ours.bias.value)
    theirs.load_state_dict({name: torch.tensor(value) for name, value in values.items()})
    with torch.no_grad():
        return ours(jnp.asarray(stream()), CONTEXT), theirs.eval()(torch.tensor(stream())).numpy()


@parity("ffn/moe", "transformers.models.mixtral.modeling_mixtral.MixtralSparseMoeBlock")
def mixtral():
    from transformers import MixtralConfig
    from transformers.models.mixtral.modeling_mixtral import MixtralSparseMoeBlock

    config = MixtralConfig(
        hidden_size=DIM, intermediate_size=HIDDEN, num_local_experts=EXPERTS, num_experts_per_tok=TOP
    )
    return experts("moe", MixtralSparseMoeBlock(config))


@parity("ffn/deepseek-moe", "transformers.models.deepseek_v3.modeling_deepseek_v3.DeepseekV3MoE")
def deepseek():
    """The random bias of the router changes which experts are chosen, but not their weights."""
    from transformers import DeepseekV3Config
    from transformers.models.deepseek_v3.modeling_deepseek_v3 import DeepseekV3MoE

    config = DeepseekV3Config(
        hidden_size=DIM, moe_intermediate_size=HIDDEN, n_routed_experts=EXPERTS, num_experts_per_tok=TOP, n_group=1,
        topk_group=1, n_shared_experts=2, routed_scaling_factor=1.7, norm_topk_prob=True,
    )  # fmt: skip
    return experts("deepseek-moe", DeepseekV3MoE(config), shared=2, scale=1.7)

"""Comparisons of feed-forward networks."""

from dataclasses import replace
from typing import Any

import jax.numpy as jnp
import numpy as np
import torch
from tests.parity._common import CONTEXT, build, randomised, stream
from tests.parity.registry import parity


def gated(kind: str, theirs: Any) -> tuple[Any, Any]:
    """Compare a gated network with an MLP class of transformers."""
    ours = randomised(build("ffn", kind, hidden=24))
    with torch.no_grad():
        for name in ("gate", "up", "down"):
            getattr(theirs, f"{name}_proj").weight.copy_(torch.tensor(np.array(getattr(ours, name))).T)
        return ours(jnp.asarray(stream()), CONTEXT), theirs(torch.tensor(stream())).numpy()


def glu(kind: str, activation: Any) -> tuple[Any, Any]:
    """Compare with x-transformers' GLU, whose projection has the value first, then the gate, and always a bias."""
    from x_transformers.x_transformers import FeedForward

    ours = randomised(build("ffn", kind, hidden=24))
    theirs = FeedForward(16, glu=True, no_bias=True, mult=1.5, custom_activation=activation)
    with torch.no_grad():
        both = np.concatenate([np.array(ours.up), np.array(ours.gate)], 1)
        theirs.ff[0].proj.weight.copy_(torch.tensor(both).T)
        theirs.ff[0].proj.bias.zero_()
        theirs.ff[2].weight.copy_(torch.tensor(np.array(ours.down)).T)
        return ours(jnp.asarray(stream()), CONTEXT), theirs(torch.tensor(stream())).numpy()


def mlp(kind: str, activation: Any) -> tuple[Any, Any]:
    """Compare a network of two matrices with its activation in torch."""
    ours = randomised(build("ffn", kind, hidden=24))
    up, down = (torch.tensor(np.array(one)) for one in (ours.up, ours.down))
    return ours(jnp.asarray(stream()), CONTEXT), (activation(torch.tensor(stream()) @ up) @ down).numpy()


@parity("ffn/swiglu", "transformers.models.llama.modeling_llama.LlamaMLP")
def swiglu():
    from transformers import LlamaConfig
    from transformers.models.llama.modeling_llama import LlamaMLP

    return gated("swiglu", LlamaMLP(LlamaConfig(hidden_size=16, intermediate_size=24, num_attention_heads=4)))


@parity("ffn/geglu-tanh", "transformers.models.gemma.modeling_gemma.GemmaMLP")
def geglu_tanh():
    from transformers import GemmaConfig
    from transformers.models.gemma.modeling_gemma import GemmaMLP

    return gated("geglu-tanh", GemmaMLP(GemmaConfig(hidden_size=16, intermediate_size=24, num_attention_heads=4)))


@parity("ffn/geglu", "x_transformers.x_transformers.GLU")
def geglu():
    return glu("geglu", torch.nn.GELU())


@parity("ffn/reglu", "x_transformers.x_transformers.GLU")
def reglu():
    return glu("reglu", torch.nn.ReLU())


@parity("ffn/bilinear", "x_transformers.x_transformers.GLU")
def bilinear():
    return glu("bilinear", torch.nn.Identity())


@parity("ffn/glu", "torch.nn.functional.glu")
def sigmoid_gated():
    ours = randomised(build("ffn", "glu", hidden=24))
    gate, up, down = (torch.tensor(np.array(one)) for one in (ours.gate, ours.up, ours.down))
    x = torch.tensor(stream())
    return ours(jnp.asarray(stream()), CONTEXT), (
        torch.nn.functional.glu(torch.cat([x @ up, x @ gate], -1)) @ down
    ).numpy()


@parity("ffn/relu", "torch.nn.functional.relu")
def relu():
    return mlp("relu", torch.nn.functional.relu)


@parity("ffn/gelu-tanh", "torch.nn.functional.gelu", "tanh")
def gelu_tanh():
    return mlp("gelu-tanh", lambda h: torch.nn.functional.gelu(h, approximate="tanh"))


@parity("ffn/gelu-erf", "torch.nn.functional.gelu")
def gelu_erf():
    return mlp("gelu-erf", torch.nn.functional.gelu)


@parity("ffn/silu", "torch.nn.functional.silu")
def silu():
    return mlp("silu", torch.nn.functional.silu)


@parity("ffn/relu2", "transformers.activations.ReLUSquaredActivation")
def relu2():
    from transformers.activations import ReLUSquaredActivation

    return mlp("relu2", ReLUSquaredActivation())


@parity("ffn/clamped-swiglu", "transformers.models.gpt_oss.modeling_gpt_oss.GptOssExperts")
def clamped_swiglu():
    """Compare with a mixture of one expert. The input is scaled so that a quarter of the factors exceed the limit."""
    from transformers import GptOssConfig
    from transformers.models.gpt_oss.modeling_gpt_oss import GptOssExperts

    built, x = build("ffn", "clamped-swiglu", hidden=24, bias=True), 4 * stream()
    ours = replace(randomised(built), limit=built.limit, alpha=built.alpha)
    theirs = GptOssExperts(GptOssConfig(hidden_size=16, intermediate_size=24, num_local_experts=1))
    parameters = {
        "gate_up_proj": (ours.gate, ours.up),
        "gate_up_proj_bias": (ours.gate_bias, ours.up_bias),
        "down_proj": (ours.down,),
        "down_proj_bias": (ours.down_bias,),
    }
    with torch.no_grad():
        for name, parts in parameters.items():
            both = np.stack([np.array(part) for part in parts], -1)  # gate and up alternate
            getattr(theirs, name).copy_(torch.tensor(both.reshape(1, *both.shape[:-2], -1)))
        tokens = x.reshape(-1, 16)
        first, one = torch.zeros((len(tokens), 1), dtype=torch.long), torch.ones((len(tokens), 1))
        expected = theirs(torch.tensor(tokens), first, one).numpy().reshape(x.shape)
    return ours(jnp.asarray(x), CONTEXT), expected


@parity("ffn/clamped-moe", "transformers.models.gpt_oss.modeling_gpt_oss.GptOssMLP")
def clamped_moe():
    """The inputs are scaled so that some gates and values exceed the limit."""
    from transformers import GptOssConfig
    from transformers.models.gpt_oss.modeling_gpt_oss import GptOssMLP

    ours = randomised(build("ffn", "clamped-moe", hidden=24, experts=4, limit=1.5, alpha=1.3))
    experts = ours.experts
    clamp = {"swiglu_limit": float(experts.limit.value), "swiglu_alpha": float(experts.alpha.value)}
    sizes = {"hidden_size": 16, "intermediate_size": 24, "num_local_experts": 4, "num_experts_per_tok": 2}
    theirs = GptOssMLP(GptOssConfig(**sizes, **clamp, experts_implementation="eager"))
    both = np.stack([np.array(experts.gate), np.array(experts.up)], -1).transpose(1, 0, 2, 3).reshape(4, 16, 48)
    bias = np.stack([np.array(experts.gate_bias), np.array(experts.up_bias)], -1).reshape(4, 48)
    values = {
        "router.weight": np.array(ours.router).T, "router.bias": np.array(ours.router_bias),
        "experts.gate_up_proj": both, "experts.gate_up_proj_bias": bias,
        "experts.down_proj": np.array(experts.down), "experts.down_proj_bias": np.array(experts.down_bias),
    }  # fmt: skip
    theirs.load_state_dict({name: torch.tensor(value) for name, value in values.items()})
    x = 3 * stream()
    with torch.no_grad():
        return ours(jnp.asarray(x), CONTEXT), theirs(torch.tensor(x))[0].numpy()

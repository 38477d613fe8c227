"""Comparisons of feed-forward networks."""

import jax.numpy as jnp
import numpy as np
import torch
from tests.parity._common import CONTEXT, build, randomised, stream
from tests.parity.registry import parity


@parity("ffn/swiglu", "transformers.models.llama.modeling_llama.LlamaMLP")
def swiglu():
    from transformers import LlamaConfig
    from transformers.models.llama.modeling_llama import LlamaMLP

    ours = randomised(build("ffn", "swiglu", hidden=24))
    theirs = LlamaMLP(LlamaConfig(hidden_size=16, intermediate_size=24, num_attention_heads=4))
    with torch.no_grad():
        for name in ("gate", "up", "down"):
            getattr(theirs, f"{name}_proj").weight.copy_(torch.tensor(np.array(getattr(ours, name))).T)
        return ours(jnp.asarray(stream()), CONTEXT), theirs(torch.tensor(stream())).numpy()

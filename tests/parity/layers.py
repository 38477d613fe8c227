"""Comparisons of residual connections, layer dropout and short convolutions."""

from dataclasses import replace
from unittest.mock import patch

import jax.numpy as jnp
import numpy as np
import torch
from tests.parity._common import CONTEXT, DIM, DIMS, SEQ, build, stream
from tests.parity.registry import parity

from taetpu.core.keys import root_key


@parity("layer_dropout/stochastic-depth", "transformers.models.dinov2.modeling_dinov2.Dinov2DropPath")
def stochastic_depth():
    """The reference skips the sequences that we skip: its random numbers are replaced."""
    from transformers.models.dinov2.modeling_dinov2 import Dinov2DropPath

    x, number, layers = stream(16, 5, 8), 1, 2
    module = build("layer_dropout", "stochastic-depth", rate=0.4)
    ours = module.branch(jnp.asarray(x), replace(CONTEXT, layer=number, key=root_key(0)))
    kept = np.asarray(ours != 0).any((1, 2))
    assert 0 < kept.sum() < len(x)
    drawn = torch.tensor(kept, dtype=torch.float32).reshape(-1, 1, 1) * 0.99
    with patch("torch.rand", lambda *shape, **options: drawn):
        theirs = Dinov2DropPath(0.4 * (number + 1) / layers).train()(torch.tensor(x))
    return ours, theirs.numpy()


@parity("short_conv/canon", "torch.nn.Conv1d")
def canon():
    """The reference pads both ends; its last outputs are cut off."""
    x, width = stream(), 4
    module = build("short_conv", "canon", dims=replace(DIMS, branch="ffn"))
    theirs = torch.nn.Conv1d(DIM, DIM, width, groups=DIM, padding=width - 1, bias=False)
    with torch.no_grad():
        theirs.weight.copy_(torch.tensor(np.array(module.taps)).T[:, None])
        mixed = theirs(torch.tensor(x).transpose(1, 2))[..., :SEQ].transpose(1, 2).numpy()
    return module(jnp.asarray(x), CONTEXT), x + mixed

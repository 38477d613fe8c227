"""Comparisons of residual connections, layer dropout and short convolutions."""

from dataclasses import replace
from typing import Any
from unittest.mock import patch

import jax.numpy as jnp
import numpy as np
import torch
from tests.parity._common import BATCH, CONTEXT, DIM, DIMS, SEQ, build, randomised, stream
from tests.parity.registry import parity

from taetpu.core.keys import root_key
from taetpu.nn.residual.hyper_connections import sinkhorn

FFN = replace(DIMS, layer=jnp.asarray(1), branch="ffn")


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
    module = build("short_conv", "canon", dims=FFN)
    theirs = torch.nn.Conv1d(DIM, DIM, width, groups=DIM, padding=width - 1, bias=False)
    with torch.no_grad():
        theirs.weight.copy_(torch.tensor(np.array(module.taps)).T[:, None])
        mixed = theirs(torch.tensor(x).transpose(1, 2))[..., :SEQ].transpose(1, 2).numpy()
    return module(jnp.asarray(x), CONTEXT), x + mixed


def streams(n: int) -> tuple[np.ndarray, np.ndarray]:
    """Return random residual streams and a random output of a branch."""
    return stream(BATCH, SEQ, n, DIM), stream(seed=3)


def connected(module: Any, n: int) -> np.ndarray:
    """Return the input of a branch and the streams after it, side by side."""
    x, y = streams(n)
    return np.concatenate([module.read(jnp.asarray(x))[:, :, None], module(jnp.asarray(x), jnp.asarray(y))], 2)


@parity("residual/hyper-connections", "arXiv 2409.19606, algorithm 2, in torch")
def hyper_connections():
    module = randomised(build("residual", "hyper-connections", dims=FFN, streams=3))
    return connected(module, 3), algorithm_2(module, 3, lambda x: (0.0, 0.0))


@parity("residual/dynamic-hyper-connections", "arXiv 2409.19606, algorithm 2, in torch")
def dynamic_hyper_connections():
    module = randomised(build("residual", "dynamic-hyper-connections", dims=FFN, streams=3))

    def dynamic(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        weight, scales = torch.tensor(np.array(module.weight)), torch.tensor(np.array(module.scales))
        h = torch.nn.functional.layer_norm(x, (DIM,))
        alphas = torch.cat([weight[:, :1], weight[:, 2:]], 1)
        return torch.tanh(h @ alphas) * scales[0], torch.tanh(h @ weight[:, 1]) * scales[1]

    return connected(module, 3), algorithm_2(module, 3, dynamic)


def algorithm_2(module: Any, n: int, dynamic: Any) -> np.ndarray:
    """Return the input of a branch and the streams after it, as in the paper's algorithm.

    Args:
        module: Our module, whose static weights are used.
        n: The number of streams.
        dynamic: A function that returns what is added to alpha and to beta for each token.
    """
    x, y = (torch.tensor(one) for one in streams(n))
    alpha = torch.tensor(np.concatenate([np.array(module.reads)[:, None], np.array(module.mixes).T], 1))
    more, less = dynamic(x)
    mixed = (alpha + more).expand(*x.shape[:2], n, n + 1).transpose(-1, -2) @ x
    beta = (torch.tensor(np.array(module.writes)) + less).expand(*x.shape[:3])
    after = torch.einsum("blh,bln->blnh", y, beta) + mixed[..., 1:, :]
    return torch.cat([mixed[..., :1, :], after], 2).numpy()


@parity("residual/mhc", "transformers.models.deepseek_v4.modeling_deepseek_v4.DeepseekV4HyperConnection")
def mhc():
    """The reference has the matrices transposed."""
    from transformers import DeepseekV4Config
    from transformers.models.deepseek_v4.modeling_deepseek_v4 import DeepseekV4HyperConnection

    n = 3
    module = randomised(build("residual", "mhc", dims=FFN, streams=n))
    order = np.concatenate([np.arange(2 * n), 2 * n + np.arange(n * n).reshape(n, n).T.reshape(-1)])
    theirs = DeepseekV4HyperConnection(DeepseekV4Config(hidden_size=DIM, hc_mult=n, hc_sinkhorn_iters=20))
    x, y = (torch.tensor(one) for one in streams(n))
    with torch.no_grad():
        theirs.fn.copy_(torch.tensor(np.array(module.weight).T[order]))
        theirs.base.copy_(torch.tensor(np.array(module.bias)[order]))
        theirs.scale.copy_(torch.tensor(np.array(module.scales)))
        post, mixes, read = theirs(x)
        after = post.unsqueeze(-1) * y.unsqueeze(-2) + mixes.transpose(-1, -2) @ x
    return connected(module, n), torch.cat([read.unsqueeze(2), after], 2).numpy()


@parity("residual/mhc", "x_transformers.x_transformers.sinkhorn", "the mixing matrix")
def mixing_matrix():
    """The function is right, but its caller in `HyperConnection` gives it matrices with one row.

    It divides columns once more than we do, which changes nothing after 20 iterations.
    """
    from x_transformers.x_transformers import sinkhorn as theirs

    logits = stream(7, 4, 4)
    ours = sinkhorn(jnp.asarray(logits).transpose(1, 2, 0), 20)
    return ours, theirs(torch.tensor(logits), 20).permute(1, 2, 0).numpy()

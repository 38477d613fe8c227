"""Comparisons of mixers without softmax attention."""

from typing import Any

import jax.numpy as jnp
import numpy as np
import torch
from tests.parity._common import CONTEXT, DIM, HEADS, build, randomised, stream
from tests.parity.registry import parity

from taetpu.core.config_parsing import build_component

POSITION = build_component("position", "none")


def tensor(array: Any) -> torch.Tensor:
    """Return an array as a tensor."""
    return torch.tensor(np.array(array))


def mixer(kind: str, **settings: Any) -> Any:
    """Return a mixer with random parameters; those of norms, decays and steps stay near their initial values."""
    return randomised(build("mixer", kind, POSITION, **settings))


def linear_layers(theirs: torch.nn.Module, weights: dict[str, Any]) -> None:
    """Set parameters of a module of torch by name."""
    known = dict(theirs.named_parameters())
    assert set(known) == set(weights), set(known) ^ set(weights)
    with torch.no_grad():
        for name, value in weights.items():
            known[name].copy_(tensor(value).reshape(known[name].shape))


def run(ours: Any, theirs: Any) -> tuple[Any, Any]:
    """Return the outputs of both mixers."""
    with torch.no_grad():
        return ours(jnp.asarray(stream()), CONTEXT), theirs(torch.tensor(stream())).numpy()


@parity("mixer/gated-delta", "transformers.models.qwen3_next.modeling_qwen3_next.Qwen3NextGatedDeltaNet")
def gated_delta():
    """The reference has q, k, v and z of a head next to each other; our chunks of 5 tokens divide the sequence."""
    from transformers import Qwen3NextConfig
    from transformers.models.qwen3_next.modeling_qwen3_next import Qwen3NextGatedDeltaNet

    ours = mixer("gated-delta", chunk=5)
    size = DIM // HEADS
    config = Qwen3NextConfig(
        hidden_size=DIM, linear_num_value_heads=HEADS, linear_num_key_heads=HEADS, linear_key_head_dim=size,
        linear_value_head_dim=size, num_hidden_layers=1, num_attention_heads=HEADS, rms_norm_eps=1e-6,
    )  # fmt: skip
    theirs = Qwen3NextGatedDeltaNet(config, 0)
    parts = [np.array(w).reshape(DIM, HEADS, size) for w in (ours.wq, ours.wk, ours.wv, ours.wz)]
    linear_layers(theirs, {
        "in_proj_qkvz.weight": np.concatenate(parts, -1).reshape(DIM, -1).T,
        "in_proj_ba.weight": np.stack([np.array(ours.wb), np.array(ours.wa)], -1).reshape(DIM, -1).T,
        "conv1d.weight": np.array(ours.taps).T,
        "dt_bias": ours.step, "A_log": ours.decay, "norm.weight": ours.norm.weight,
        "out_proj.weight": np.array(ours.wo).T,
    })  # fmt: skip
    return run(ours, theirs)


@parity("mixer/mamba2", "transformers.models.mamba2.modeling_mamba2.Mamba2Mixer")
def mamba2():
    from transformers import Mamba2Config
    from transformers.models.mamba2.modeling_mamba2 import Mamba2Mixer

    ours = mixer("mamba2", head_dim=8, state=6, chunk=5)
    config = Mamba2Config(
        hidden_size=DIM, num_heads=4, head_dim=8, state_size=6, expand=2, n_groups=1, conv_kernel=4, chunk_size=8,
        num_hidden_layers=1,
    )  # fmt: skip
    theirs = Mamba2Mixer(config, 0)
    linear_layers(theirs, {
        "in_proj.weight": np.concatenate([np.array(w) for w in (ours.wz, ours.wx, ours.wb, ours.wc, ours.wdt)], 1).T,
        "conv1d.weight": np.array(ours.taps).T, "conv1d.bias": ours.conv_bias, "dt_bias": ours.dt_bias,
        "A_log": ours.decay, "D": ours.skip, "norm.weight": ours.norm.weight, "out_proj.weight": np.array(ours.wo).T,
    })  # fmt: skip
    return run(ours, theirs)


@parity("mixer/linear", "arXiv 2006.16236, equation 9, in torch")
def linear():
    ours = mixer("linear", chunk=5)
    x = torch.tensor(stream())
    q, k, v = ((x @ tensor(w)).reshape(*x.shape[:2], HEADS, -1).transpose(1, 2) for w in (ours.wq, ours.wk, ours.wv))
    q, k = torch.nn.functional.elu(q) + 1, torch.nn.functional.elu(k) + 1
    weights = torch.tril(q @ k.transpose(-1, -2))
    z = (weights / weights.sum(-1, keepdim=True)) @ v
    return ours(jnp.asarray(stream()), CONTEXT), (z.transpose(1, 2).reshape(x.shape) @ tensor(ours.wo)).numpy()


def recurrent(kind: str, make: Any) -> tuple[Any, Any]:
    """Compare a recurrent network with that of torch."""
    ours = mixer(kind, hidden=24)
    theirs = make(DIM, 24, batch_first=True)
    linear_layers(theirs, {
        "weight_ih_l0": np.array(ours.wi).T, "weight_hh_l0": np.array(ours.wh).T, "bias_ih_l0": ours.bi,
        "bias_hh_l0": ours.bh,
    })  # fmt: skip
    return run(ours, lambda x: theirs(x)[0] @ tensor(ours.wo))


@parity("mixer/lstm", "torch.nn.LSTM")
def lstm():
    return recurrent("lstm", torch.nn.LSTM)


@parity("mixer/gru", "torch.nn.GRU")
def gru():
    return recurrent("gru", torch.nn.GRU)

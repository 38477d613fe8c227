"""Comparisons of norms."""

from typing import Any

import jax.numpy as jnp
import numpy as np
import torch
from tests.parity._common import build, randomised, stream
from tests.parity.registry import parity


def normed(kind: str, theirs: Any, names: dict[str, str], **settings: Any) -> tuple[Any, Any]:
    """Compare a norm with a module of torch; `names` are its parameters by the name of ours."""
    ours = randomised(build("norm", kind, **settings))
    known = dict(theirs.named_parameters())
    with torch.no_grad():
        for own, name in names.items():
            known[name].copy_(torch.tensor(np.array(getattr(ours, own))))
        return ours(jnp.asarray(3 * stream() + 1)), theirs(torch.tensor(3 * stream() + 1)).numpy()


@parity("norm/layer", "torch.nn.LayerNorm")
def layer():
    return normed("layer", torch.nn.LayerNorm(16), {"weight": "weight", "bias": "bias"}, bias=True)


@parity("norm/layer", "torch.nn.LayerNorm", "without weight and bias")
def layer_plain():
    return normed("layer", torch.nn.LayerNorm(16, elementwise_affine=False), {}, affine=False)


@parity("norm/rms", "torch.nn.RMSNorm")
def rms():
    return normed("rms", torch.nn.RMSNorm(16, eps=1e-6), {"weight": "weight"})


@parity("norm/rms", "transformers.models.gemma3.modeling_gemma3.Gemma3RMSNorm", "unit offset")
def rms_offset():
    from transformers.models.gemma3.modeling_gemma3 import Gemma3RMSNorm

    return normed("rms", Gemma3RMSNorm(16), {"weight": "weight"}, weight="unit-offset")


@parity("norm/rms", "transformers.models.nanochat.modeling_nanochat.NanoChatRMSNorm", "without weight")
def rms_plain():
    from transformers.models.nanochat.modeling_nanochat import NanoChatRMSNorm

    return normed("rms", NanoChatRMSNorm(), {}, weight="none")


@parity("norm/scale", "x_transformers.x_transformers.ScaleNorm")
def scale():
    """The reference divides by the largest of the length and eps, and multiplies by sqrt(dim)."""
    from x_transformers.x_transformers import ScaleNorm

    ours, theirs = randomised(build("norm", "scale", eps=1e-12)), ScaleNorm(16)
    with torch.no_grad():
        theirs.g.fill_(float(ours.length) / 4 - (1.0 if theirs.unit_offset else 0.0))
        return ours(jnp.asarray(stream())), theirs(torch.tensor(stream())).numpy()


@parity("norm/dyt", "x_transformers.x_transformers.DynamicTanh")
def dyt():
    from x_transformers.x_transformers import DynamicTanh

    names = {"alpha": "pre_tanh_scale", "weight": "gamma", "bias": "beta"}
    return normed("dyt", DynamicTanh(16), names)


@parity("norm/derf", "x_transformers.x_transformers.Derf")
def derf():
    from x_transformers.x_transformers import Derf

    return normed("derf", Derf(16), {"alpha": "alpha", "shift": "s", "weight": "gamma", "bias": "beta"})

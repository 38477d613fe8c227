"""Slot `mixer`: the branch of a block that mixes positions."""

from taetpu.nn import attention
from taetpu.nn.mixer import differential, gated_delta, latent, linear, mamba, recurrent

__all__ = ["attention", "differential", "gated_delta", "latent", "linear", "mamba", "recurrent"]

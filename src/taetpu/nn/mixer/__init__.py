"""Slot `mixer`: the branch of a block that mixes positions."""

from taetpu.nn import attention
from taetpu.nn.mixer import gated_delta, linear, mamba, recurrent

__all__ = ["attention", "gated_delta", "linear", "mamba", "recurrent"]

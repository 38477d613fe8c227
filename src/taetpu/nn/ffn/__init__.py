"""Slot `ffn`: the feed-forward network of a block."""

from taetpu.nn.ffn.dense import MLP, GELUErf, GELUTanh, MLPConfig, NoFFN, ReLU, SwiGLU, SwiGLUConfig
from taetpu.nn.ffn.moe import DeepSeekMoEConfig, MoEConfig

__all__ = [
    "MLP",
    "DeepSeekMoEConfig",
    "GELUErf",
    "GELUTanh",
    "MLPConfig",
    "MoEConfig",
    "NoFFN",
    "ReLU",
    "SwiGLU",
    "SwiGLUConfig",
]

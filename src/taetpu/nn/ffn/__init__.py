"""Slot `ffn`: the feed-forward network of a block."""

from taetpu.nn.ffn.dense import GLU, MLP, GELUErf, GELUTanh, GLUConfig, MLPConfig, NoFFN, ReLU, SwiGLUConfig
from taetpu.nn.ffn.moe import DeepSeekMoEConfig, MoEConfig

__all__ = [
    "GLU",
    "MLP",
    "DeepSeekMoEConfig",
    "GELUErf",
    "GELUTanh",
    "GLUConfig",
    "MLPConfig",
    "MoEConfig",
    "NoFFN",
    "ReLU",
    "SwiGLUConfig",
]

"""Slot `ffn`: the feed-forward network of a block."""

from taetpu.nn.ffn.dense import GLU, MLP, GLUConfig, MLPConfig, NoFFN, SwiGLUConfig
from taetpu.nn.ffn.moe import DeepSeekMoEConfig, MoEConfig

__all__ = ["GLU", "MLP", "DeepSeekMoEConfig", "GLUConfig", "MLPConfig", "MoEConfig", "NoFFN", "SwiGLUConfig"]

"""Slot `ffn`: the feed-forward network of a block."""

from taetpu.nn.ffn.dense import GLU, MLP, ReLU, SwiGLUConfig

__all__ = ["GLU", "MLP", "ReLU", "SwiGLUConfig"]  # to extend in plug-ins

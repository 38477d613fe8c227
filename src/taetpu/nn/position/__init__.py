"""Slot `position`: the encoding of token order."""

from taetpu.nn.position.base import PositionConfig

__all__ = ["PositionConfig"]

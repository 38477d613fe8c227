"""Slot `mixer`: the branch of a block that mixes positions."""

from taetpu.nn import attention

__all__ = ["attention"]

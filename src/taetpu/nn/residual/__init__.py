"""Slot `residual`: the connection of a branch's output to the stream. Each branch has a separate connection."""

from taetpu.nn.residual.single import Standard, StandardConfig

__all__ = ["Standard", "StandardConfig"]  # to extend in plug-ins

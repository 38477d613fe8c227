"""Slot `task`: importing this module registers every kind that the package brings."""

from taetpu.data.synthetic import Copy, Histogram, Induction, Reverse, Sort
from taetpu.data.text import TextTask

__all__ = ["Copy", "Histogram", "Induction", "Reverse", "Sort", "TextTask"]

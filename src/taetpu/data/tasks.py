"""Imports the modules that register the built-in kinds of slot `task`."""

from taetpu.data.synthetic import Copy, Histogram, Induction, Reverse, Sort
from taetpu.data.text import TextTask

__all__ = ["Copy", "Histogram", "Induction", "Reverse", "Sort", "TextTask"]

"""Slot `optimizer`: the computation of updates from gradients, and the parameters to evaluate."""

from taetpu.optim.optimizers.base import OptimizerConfig

__all__ = ["OptimizerConfig"]

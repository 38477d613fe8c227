"""Registers every built-in tracker without importing its library."""

from taetpu.trackers.tensorboard import TensorBoard
from taetpu.trackers.trackio import Trackio
from taetpu.trackers.wandb import WandB

__all__ = ["TensorBoard", "Trackio", "WandB"]

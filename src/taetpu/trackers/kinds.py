"""Importing this module registers every tracker that the package brings; their libraries are imported later."""

from taetpu.trackers.tensorboard import TensorBoard
from taetpu.trackers.trackio import Trackio
from taetpu.trackers.wandb import WandB

__all__ = ["TensorBoard", "Trackio", "WandB"]

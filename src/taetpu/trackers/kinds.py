"""Registration of all built-in trackers. The trackers' libraries are not imported."""

from taetpu.trackers.tensorboard import TensorBoard
from taetpu.trackers.trackio import Trackio
from taetpu.trackers.wandb import WandB

__all__ = ["TensorBoard", "Trackio", "WandB"]

"""Slot `optimizer`: the computation of updates from gradients, and the parameters to evaluate."""

from taetpu.optim.optimizers.adafactor import Adafactor
from taetpu.optim.optimizers.adam import SGD, Adam, AdamW, Lion, ScheduleFree
from taetpu.optim.optimizers.base import OptimizerConfig
from taetpu.optim.optimizers.muon import Muon
from taetpu.optim.optimizers.soap import SOAP
from taetpu.optim.optimizers.sophia import Sophia

__all__ = ["SGD", "SOAP", "Adafactor", "Adam", "AdamW", "Lion", "Muon", "OptimizerConfig", "ScheduleFree", "Sophia"]

"""Slot `position`: the encoding of token order."""

from taetpu.nn.position.absolute import Learned, LearnedConfig, SinusoidalConfig
from taetpu.nn.position.base import IN_ATTENTION, SHARED, NoPosition, PositionConfig
from taetpu.nn.position.biases import AlibiConfig, FireConfig, KerpleConfig, T5Config, alibi_slopes, t5_bucket
from taetpu.nn.position.contextual import CopeConfig
from taetpu.nn.position.rotary import RopeConfig, XposConfig

__all__ = [
    "IN_ATTENTION",
    "SHARED",
    "AlibiConfig",
    "CopeConfig",
    "FireConfig",
    "KerpleConfig",
    "Learned",
    "LearnedConfig",
    "NoPosition",
    "PositionConfig",
    "RopeConfig",
    "SinusoidalConfig",
    "T5Config",
    "XposConfig",
    "alibi_slopes",
    "t5_bucket",
]

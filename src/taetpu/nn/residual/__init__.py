"""Slot `residual`: the connection of a branch's output to the stream. Each branch has a separate connection."""

from taetpu.nn.residual.base import Connection, branch_input, num_streams
from taetpu.nn.residual.hyper_connections import (
    DynamicHyperConnectionsConfig,
    HyperConnections,
    HyperConnectionsConfig,
    ManifoldHyperConnectionsConfig,
    sinkhorn,
)
from taetpu.nn.residual.single import DeepNormConfig, NoResidual, NoResidualConfig, Standard, StandardConfig

__all__ = [
    "Connection",
    "DeepNormConfig",
    "DynamicHyperConnectionsConfig",
    "HyperConnections",
    "HyperConnectionsConfig",
    "ManifoldHyperConnectionsConfig",
    "NoResidual",
    "NoResidualConfig",
    "Standard",
    "StandardConfig",
    "branch_input",
    "num_streams",
    "sinkhorn",
]

"""The costs of arms: their names, their words, and which values are better."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from taetpu.stats import formatting


@dataclass(frozen=True)
class CostColumn:
    """A cost of arms.

    Attributes:
        title: the name of the cost in sentences and at axes.
        header: the header of its column in tables of ratios.
        text: formats a value.
        lower: whether lower values are better.
    """

    title: str
    header: str
    text: Callable[[float | None], str] = formatting.amount
    lower: bool = True


def _rate(value: float | None) -> str:
    return "-" if value is None else f"{formatting.amount(float(f'{value:.3g}'))}/s"


COLUMNS: Mapping[str, CostColumn] = {
    "params": CostColumn("parameters", "params"),
    "flops": CostColumn("training FLOPs", "FLOPs"),
    "flops_per_token": CostColumn("training FLOPs per token", "FLOPs/token"),
    "memory": CostColumn("bytes of training memory", "memory", formatting.size),
    "cache_bytes": CostColumn("bytes of cache per token", "cache/token", formatting.size),
    "train_seconds": CostColumn("seconds of training", "train time", formatting.seconds),
    "step_time": CostColumn("seconds per step", "step time", formatting.seconds),
    "decode_rate": CostColumn("generated tokens per second", "decode rate", _rate, lower=False),
    "cycles": CostColumn("compiler's cycles per step", "TPU cycles"),
}
"""The costs by name. `report.costs.read_costs` reads them."""
COUNTED = ("params", "flops_per_token", "memory", "cache_bytes", "cycles")
"""Costs that programs alone decide."""
TIMED = ("step_time", "decode_rate")
"""Costs that `taetpu costs --time` measures."""

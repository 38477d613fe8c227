"""The properties of a metric: its better direction, its bounds, and how it is shown."""

import math
from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Any, Literal

from taetpu.core.errors import UserError

Direction = Literal["min", "max"]
UNBOUNDED = (-math.inf, math.inf)


@dataclass(frozen=True)
class MetricSpec:
    """The properties of a metric, declared by its task or component. An analysis plan stores those of its metrics.

    Attributes:
        better: whether lower (`min`) or higher (`max`) values are better.
        bounds: the smallest and the largest possible value; infinite if there is no limit.
        unit: the unit, e.g. `nats per token`; empty if the metric has none.
        label: the name to show; empty to show the name that the study gives the metric.
        mean_of: for a mean, the names of two sums over an evaluation set: the sum of values and that of weights.

    Raises:
        UserError: If `better`, `bounds` or `mean_of` is invalid.
    """

    better: Direction = "min"
    bounds: tuple[float, float] = UNBOUNDED
    unit: str = ""
    label: str = ""
    mean_of: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        if self.better not in ("min", "max"):
            raise UserError(f"better is {self.better!r}", remedy="Use min or max.")
        if len(self.bounds) != 2 or not self.bounds[0] < self.bounds[1]:
            remedy = "Use the smallest and the largest possible value, e.g. (0, 1)."
            raise UserError(f"bounds is {self.bounds!r}", remedy=remedy)
        if len(self.mean_of) not in (0, 2):
            raise UserError(f"mean_of is {self.mean_of!r}", remedy="Name a sum and the sum of its weights.")

    @property
    def title(self) -> str:
        """The label with the unit, e.g. `val/loss (nats per token)`."""
        return f"{self.label} ({self.unit})" if self.unit else self.label

    def to_data(self) -> dict[str, Any]:
        """Return the fields that differ from their default as plain data. An infinite bound is None."""
        data = {f.name: getattr(self, f.name) for f in fields(self) if getattr(self, f.name) != f.default}
        if "bounds" in data:
            data["bounds"] = [bound if math.isfinite(bound) else None for bound in self.bounds]
        return {name: list(value) if isinstance(value, tuple) else value for name, value in data.items()}

    @classmethod
    def from_data(cls, data: Mapping[str, Any]) -> "MetricSpec":
        """Return the spec whose `to_data` is `data`."""
        values: dict[str, Any] = {n: tuple(value) if isinstance(value, list) else value for n, value in data.items()}
        if "bounds" in values:
            pairs = zip(values["bounds"], UNBOUNDED, strict=True)
            values["bounds"] = tuple(free if bound is None else bound for bound, free in pairs)
        return cls(**values)


LOSS = MetricSpec("min", (0.0, math.inf), "nats per token", mean_of=("nll", "weight"))
ACCURACY = MetricSpec("max", (0.0, 1.0), "share of tokens", mean_of=("correct", "weight"))
# The number of tokens in a block may differ between arms, so bits per byte is not the mean of sums over blocks.
BITS_PER_BYTE = MetricSpec("min", (0.0, math.inf), "bits per byte")
TASK_METRICS = {"loss": LOSS, "accuracy": ACCURACY, "bits_per_byte": BITS_PER_BYTE}
"""The metrics of tasks. Components of slot `eval_metric` may not use these names."""

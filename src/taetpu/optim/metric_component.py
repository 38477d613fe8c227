"""Base of the components that are metrics, in training steps and on evaluation sets."""

from typing import ClassVar

from pydantic import model_validator

from taetpu.core.config import Component
from taetpu.core.metric_spec import UNBOUNDED, Direction, MetricSpec


class MetricComponent(Component):
    """Base of all metrics. A class declares what its metric is.

    Attributes:
        better: Whether lower (`min`) or higher (`max`) values are better.
        bounds: The smallest and the largest possible value, e.g. `(0, 1)`.
        unit: The unit, e.g. `share of tokens`.
        label: The name that reports show. By default, they show the name in the study file.
    """

    better: ClassVar[Direction] = "min"
    bounds: ClassVar[tuple[float, float]] = UNBOUNDED
    unit: ClassVar[str] = ""
    label: ClassVar[str] = ""

    @property
    def spec(self) -> MetricSpec:
        """What the metric is. A class overrides it if a field of the component decides."""
        return MetricSpec(self.better, self.bounds, self.unit, self.label)

    @model_validator(mode="after")
    def _valid_spec(self) -> "MetricComponent":
        assert self.spec  # invalid declarations raise `UserError`
        return self

"""What is known of the time of training before it is measured: ranges, and what they are spent on."""

from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class Span:
    """From the least to the most, in seconds."""

    low: float = 0.0
    high: float = 0.0

    def __add__(self, other: "Span") -> "Span":
        return Span(self.low + other.low, self.high + other.high)

    def times(self, low: float, high: float | None = None) -> "Span":
        """Multiplied by a number, or by another one at each end."""
        return Span(self.low * low, self.high * (low if high is None else high))

    @property
    def middle(self) -> float:
        """The geometric mean of both ends: a range of factors has its middle there."""
        return (self.low * self.high) ** 0.5


@dataclass(frozen=True)
class Forecast:
    """Seconds of what is left to train of a study.

    Attributes:
        steps: of all train steps, of which there are `run_steps`.
        evaluating: of evaluations and of the texts drawn at them.
        storing: of writing metrics and checkpoints.
        compiling: of compiling the `programs`.
        around: of all else, from the start to the report.
        source: what it is computed from, in words.
    """

    steps: Span
    evaluating: Span
    storing: Span
    compiling: Span
    run_steps: int
    programs: int
    source: str
    around: Span

    @property
    def total(self) -> Span:
        return self.steps + self.evaluating + self.storing + self.compiling + self.around

    @property
    def beside(self) -> float:
        """Seconds of evaluating and storing for each second of train steps."""
        return (self.evaluating + self.storing).middle / self.steps.middle if self.steps.high else 0.0

    @property
    def facts(self) -> dict[str, Any]:
        """As plain data: `[low, high]` in seconds."""
        names = ("total", "steps", "evaluating", "storing", "compiling", "around")
        return {**{name: [(s := getattr(self, name)).low, s.high] for name in names}, "source": self.source}

"""How arms are compared: the field `measure` of a study file, and that of an entry of `tasks`."""

import math
from typing import TYPE_CHECKING, Annotated, Literal

from pydantic import Field, PositiveFloat, field_validator, model_validator

from taetpu.core.config import Config
from taetpu.core.errors import UserError
from taetpu.core.metric_spec import Direction, MetricSpec
from taetpu.spec.contrasts import ContrastConfig
from taetpu.spec.post_hoc import PostHocConfig
from taetpu.store.metrics import SAMPLED, metric_on_split

if TYPE_CHECKING:
    from taetpu.spec.train_config import TrainConfig


class Measure(Config):
    """How arms are compared. The direction defaults to the better direction of the primary metric."""

    primary: str = "val/loss"
    """Metric by which arms are compared at the end of training."""
    direction: Direction = "min"
    """Whether lower (`min`) or higher (`max`) values of the primary metric are better."""
    equivalence: Annotated[
        PositiveFloat | None, Field(description="margin of equivalence: differences smaller than this do not matter")
    ] = None
    alpha: Annotated[
        float, Field(gt=0, le=0.2, description="probability of at least one false verdict of better or worse")
    ] = 0.05
    solved: float | None = None
    """Value of the primary metric from which on a run has solved its task; arms are compared by shares of such runs."""
    reach: float | None = None
    """Value that the primary metric, e.g. `val_sample/loss`, is to reach; arms are compared by the time to it."""
    by: Literal["steps", "tokens", "flops"] = "steps"
    """Unit of the time to `reach`."""
    worth: Annotated[
        Literal["flops"] | None,
        Field(description="what the effects on a ladder are expressed in, as factors on the baseline's: flops"),
    ] = None
    looks: tuple[int, ...] = ()
    """Numbers of seeds at which interim analyses give verdicts, e.g. [5, 8]."""
    contrasts: dict[str, ContrastConfig] = Field(default_factory=dict)
    """Further comparisons by name: `{compare: ARM, to: ARM}`, or `{spread: METRIC, over: PATH, by: PATH}`."""
    post_hoc: tuple[PostHocConfig, ...] = ()
    """Tables of what trained models lose without each part, e.g. `[{knockout: heads, how: mean}]`."""

    @field_validator("post_hoc")
    @classmethod
    def _different_tables(cls, value: tuple[PostHocConfig, ...]) -> tuple[PostHocConfig, ...]:
        for number, table in enumerate(value):
            if (first := value.index(table)) < number:
                problem = f"table {number} is the same as table {first}: {table.knockout} ({table.how})"
                raise UserError(problem, path=("post_hoc", number), remedy="Remove one of the two.")
        return value

    @model_validator(mode="after")
    def _one_outcome(self) -> "Measure":
        if self.solved is not None and self.reach is not None:
            problem = f"solved={self.solved:g} and reach={self.reach:g}: arms are compared by one outcome"
            raise UserError(problem, path=("reach",), remedy="Remove solved or reach.")
        if self.worth and (self.solved is not None or self.reach is not None):
            problem = "worth reads the primary metric from a scaling law, and arms are compared by another outcome"
            raise UserError(problem, path=("worth",), remedy="Remove worth, or remove solved and reach.")
        if "by" in self.model_fields_set and self.reach is None:
            raise UserError(f"by={self.by} is the unit of a time, and reach is not set", path=("by",),
                            remedy="Set reach, or remove by.")  # fmt: skip
        if self.solved is not None and self.equivalence is not None:
            problem = f"equivalence={self.equivalence:g}: the exact test of shares of solved runs has no margin"
            raise UserError(problem, path=("equivalence",), remedy="Remove equivalence or solved.")
        for name, contrast in self.contrasts.items() if self.solved is not None else ():
            if max(len(contrast.compare), len(contrast.to)) > 1:
                problem = "the exact test of shares of solved runs compares single arms, and this contrast has groups"
                raise UserError(problem, path=("contrasts", name), remedy="Compare one arm to one arm.")
        return self

    @property
    def measured(self) -> str:
        """The primary metric, or the metric on the whole validation split if a sample of it is primary."""
        return metric_on_split(self.primary, "val") if self.reach is not None else self.primary

    def check_split(self) -> None:
        """Raise `UserError` if `reach` is about a metric that is not measured during training."""
        split, _, name = self.primary.partition("/")
        if self.reach is not None and split != SAMPLED:
            problem = f"{self.primary!r} is not measured during training, so runs have no time to reach={self.reach:g}"
            raise UserError(problem, path=("measure", "primary"), remedy=f"Use {SAMPLED}/{name}.")

    def check_outcome(self, spec: MetricSpec, train: "TrainConfig") -> None:
        """Raise `UserError` if `solved` or `reach` cannot be compared with the primary metric.

        Args:
            spec: What the primary metric is.
            train: The training of the baseline.
        """
        if self.reach is not None and train.eval_every is None:
            problem = f"eval_every is not set, and reach={self.reach:g} measures times in evaluations"
            raise UserError(problem, path=("base", "train", "eval_every"), remedy="Set eval_every, e.g. 20.")
        low, high = spec.bounds
        for field, level in (("solved", self.solved), ("reach", self.reach)):
            if level is None:
                continue
            worst = low if spec.better == "max" else high
            if not low <= level <= high or level == worst:
                problem = f"{self.primary} is between {low:g} and {high:g}, so {field}={level:g} "
                problem += "is reached by every run" if level == worst else "is not one of its values"
                limit = "at most" if spec.better == "max" else "below"
                inside = f" and {limit} {high:g}" if math.isfinite(high) else ""
                raise UserError(problem, path=("measure", field), remedy=f"Use a value above {low:g}{inside}.")

    def directed(self, spec: MetricSpec) -> "Measure":
        """Return the measure with the better direction of its primary metric.

        Args:
            spec: What the primary metric is.

        Raises:
            UserError: If the study sets the other direction, or a margin that includes all possible effects.
        """
        if "direction" in self.model_fields_set and self.direction != spec.better:
            more = "higher" if self.direction == "max" else "lower"
            problem = f"{self.direction} would judge a {more} {self.primary} as better"
            remedy = f"Set direction: {spec.better}, or remove it."
            raise UserError(problem, path=("measure", "direction"), remedy=remedy)
        widest = spec.bounds[1] - spec.bounds[0]
        if self.equivalence is not None and self.reach is None and self.equivalence >= widest:
            problem = (
                f"{self.equivalence:g} is not below {widest:g}, the largest possible difference between two values of "
                f"{self.primary}"
            )
            raise UserError(problem, path=("measure", "equivalence"), remedy=f"Use e.g. {widest / 100:g}.")
        return self.model_copy(update={"direction": spec.better})


class TaskMeasure(Config):
    """How arms are compared on one of the `tasks`. What is not set is that of the study's `measure` or of the task."""

    primary: str = ""
    """Metric by which arms are compared on this task; by default, that of the study."""
    direction: Direction | None = None
    """Whether lower (`min`) or higher (`max`) values are better; by default, as the metric says."""
    equivalence: PositiveFloat | None = None
    """Margin of equivalence on this task; without one, equivalence is tested on the baseline's task only."""
    chance: float | None = None
    """Value that counts as 0 in pooled effects; by default, that of a uniform guess if the task knows it."""
    best: float | None = None
    """Value that counts as 1 in pooled effects; by default, the lowest possible loss or the bound of the metric."""

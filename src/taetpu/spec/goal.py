"""The goal of a study: the smallest candidate whose metric meets a threshold."""

import math
from collections.abc import Mapping, Sequence
from typing import Annotated, Any

from pydantic import Field, model_validator

from taetpu.core.config import Config, to_data
from taetpu.core.errors import UserError, suggest
from taetpu.core.metric_spec import MetricSpec
from taetpu.store.frozen_study import PlannedGoal

COMPUTED = ("params", "flops", "memory", "cache_bytes")
"""Costs that are computed from a candidate's program."""
TIMED = "step_time"
"""The cost that is measured before the first run."""
ROOTS = ("model", "train", "task")
EXAMPLE = "{metric: val/loss, at_most: 1.9, minimise: params}"


class GoalConfig(Config):
    """The smallest candidate whose metric meets a threshold."""

    metric: Annotated[str, Field(description="the metric with the threshold; by default measure.primary")] = ""
    at_most: Annotated[float | None, Field(description="largest value that meets the goal")] = None
    at_least: Annotated[float | None, Field(description="smallest value that meets the goal")] = None
    minimise: Annotated[
        str,
        Field(description="cost that orders candidates: params, flops, memory, cache_bytes, step_time, or a path"),
    ] = "params"
    monotone: bool = False
    """Whether a candidate meets the threshold if a cheaper one does."""

    @model_validator(mode="after")
    def _one_threshold(self) -> "GoalConfig":
        given = [name for name in ("at_most", "at_least") if getattr(self, name) is not None]
        if len(given) != 1:
            problem = f"a goal has one threshold, got {len(given)}"
            raise UserError(problem, path=tuple(given[:1]), remedy=f"Use e.g. {EXAMPLE}.")
        if not math.isfinite(level := getattr(self, given[0])):
            raise UserError(f"{level} is not a threshold", path=(given[0],), remedy="Use e.g. 1.9.")
        return self

    @property
    def side(self) -> str:
        """`at_most` or `at_least`."""
        return "at_least" if self.at_most is None else "at_most"

    @property
    def level(self) -> float:
        """The threshold."""
        return float(getattr(self, self.side))


def plan_goal(
    goal: GoalConfig, primary: str, metrics: Mapping[str, MetricSpec], configs: Sequence[tuple[str, Any]]
) -> PlannedGoal:
    """Return a goal as the analysis plan stores it.

    Args:
        goal: the goal of the study file.
        primary: the primary metric.
        metrics: what each metric is that all runs measure.
        configs: name and resolved config of each candidate.

    Raises:
        UserError: If no run measures the metric, if the threshold is on its worse side or not within its bounds, or if
            the cost is unknown or not a number in a candidate.
    """
    metric = goal.metric or primary
    if metric not in metrics:
        raise UserError(f"no run measures {metric!r}", path=("metric",), remedy=suggest(metric, metrics))
    spec = metrics[metric]
    if (goal.side == "at_most") != (spec.better == "min"):
        better = {"min": ("lower", "at_most"), "max": ("higher", "at_least")}[spec.better]
        problem = f"{better[0]} values of {metric} are better, so {goal.side} is not a goal"
        raise UserError(problem, path=(goal.side,), remedy=f"Use {better[1]}: {goal.level:g}.")
    low, high = spec.bounds
    if not low < goal.level < high:
        problem = f"{goal.level:g} is not between {low:g} and {high:g}, the bounds of {metric}"
        raise UserError(problem, path=(goal.side,), remedy="Use a value between the bounds.")
    if goal.minimise not in (*COMPUTED, TIMED):
        path_costs(goal.minimise, configs)
    return {
        "metric": metric,
        "side": goal.side,
        "level": goal.level,
        "minimise": goal.minimise,
        "monotone": goal.monotone,
    }


def path_costs(path: str, configs: Sequence[tuple[str, Any]]) -> dict[str, float]:
    """Return the value of a setting in each candidate.

    Raises:
        UserError: If a candidate has no such setting, or if it is not a number.
    """
    costs = {}
    for name, config in configs:
        value: Any = to_data(config)
        for part in path.split("."):
            value = value[part] if isinstance(value, Mapping) and part in value else None
        if path.split(".")[0] not in ROOTS or isinstance(value, bool) or not isinstance(value, int | float):
            problem = f"{path!r} is neither a cost nor a number in candidate {name!r}"
            remedy = f"Use one of {', '.join((*COMPUTED, TIMED))}, or a setting such as model.num_layers."
            raise UserError(problem, path=("minimise",), remedy=remedy)
        costs[name] = float(value)
    return costs

"""The goal of a study: the smallest candidate whose metric meets a threshold."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, Any

from pydantic import Field, model_validator

from taetpu.core.config import Config, to_data
from taetpu.core.errors import UserError, locate_errors, suggest
from taetpu.core.metric_spec import MetricSpec
from taetpu.core.short_paths import value_at
from taetpu.spec.document import format_value
from taetpu.store.frozen_study import PlannedGoal, PlannedThreshold

COMPUTED = ("params", "flops", "memory", "cache_bytes")
"""Costs that are computed from a candidate's program."""
TIMED = "step_time"
"""The cost that is measured before the first run."""
ROOTS = ("model", "train", "task")
EXAMPLE = "{metric: val/loss, at_most: 1.9, minimise: params}"


class Threshold(Config):
    """A value that a metric must not exceed, or must reach."""

    metric: Annotated[str, Field(description="the metric with the threshold; by default the primary metric")] = ""
    at_most: Annotated[float | None, Field(description="largest value that meets the goal")] = None
    at_least: Annotated[float | None, Field(description="smallest value that meets the goal")] = None

    @model_validator(mode="after")
    def _one_threshold(self) -> "Threshold":
        given = [name for name in ("at_most", "at_least") if getattr(self, name) is not None]
        if self._divided():
            if given or self.metric:
                what = (*given, "metric")[0]
                raise UserError(f"{what} is set for each task of this goal", path=(what,), remedy=f"Remove {what}.")
            return self
        if len(given) != 1:
            problem = f"a goal has one threshold, got {len(given)}"
            raise UserError(problem, path=tuple(given[:1]), remedy=f"Use e.g. {EXAMPLE}.")
        if not math.isfinite(level := getattr(self, given[0])):
            raise UserError(f"{level} is not a threshold", path=(given[0],), remedy="Use e.g. 1.9.")
        return self

    def _divided(self) -> bool:
        """Return whether each task has its threshold instead."""
        return False

    @property
    def side(self) -> str:
        """`at_most` or `at_least`."""
        return "at_least" if self.at_most is None else "at_most"

    @property
    def level(self) -> float:
        """The threshold."""
        return float(getattr(self, self.side))


class GoalConfig(Threshold):
    """The smallest candidate whose metric meets a threshold, or the threshold of each task."""

    minimise: Annotated[
        str,
        Field(description="cost that orders candidates: params, flops, memory, cache_bytes, step_time, or a path"),
    ] = "params"
    monotone: bool = False
    """Whether a candidate meets the threshold if a cheaper one does."""
    tasks: Annotated[dict[str, Threshold], Field(description="the threshold of each of the study's tasks")] = Field(
        default_factory=dict
    )

    def _divided(self) -> bool:
        return bool(self.tasks)


@dataclass(frozen=True)
class Measured:
    """What runs measure on a task: its primary metric, and the specs of the metrics that all of its arms have."""

    primary: str
    metrics: Mapping[str, MetricSpec]


def plan_goal(
    goal: GoalConfig,
    measured: Measured,
    configs: Sequence[tuple[str, Any]],
    tasks: Mapping[str, Measured],
    declared: Sequence[str] | None = None,
) -> PlannedGoal:
    """Return a goal as the analysis plan stores it.

    Args:
        goal: the goal of the study file.
        measured: what all runs measure.
        configs: name and resolved config of each arm.
        tasks: what runs measure on each of several tasks; empty without tasks.
        declared: the costs that the runs of a program report; None for models, whose costs are computed.

    Raises:
        UserError: If a threshold is missing or names no task, if no run measures its metric, if it is on the worse side
            of the metric or not within its bounds, or if the cost is unknown or not a number in a candidate.
    """
    if tasks.keys() != goal.tasks.keys():
        example = {name: {"at_most": 1.9} for name in tasks}
        odd = next(iter({*goal.tasks} - {*tasks}), None)
        problem = f"a study with tasks {', '.join(tasks)} needs a threshold for each of them"
        remedy = f"Use e.g. {format_value({'tasks': example})}."
        if odd is not None:
            problem, remedy = f"the study has no task {odd!r}", suggest(odd, tasks) if tasks else "Remove goal.tasks."
        raise UserError(problem, path=("tasks", odd) if odd else (), remedy=remedy)
    thresholds: dict[str, PlannedThreshold] = {}
    for name, threshold in goal.tasks.items():
        with locate_errors("tasks", name):
            thresholds[name] = _plan_threshold(threshold, tasks[name])
    first = next(iter(thresholds.values())) if thresholds else _plan_threshold(goal, measured)
    if goal.minimise not in ((*COMPUTED, TIMED) if declared is None else declared):
        path_costs(goal.minimise, configs, declared)
    planned: PlannedGoal = {**first, "minimise": goal.minimise, "monotone": goal.monotone}
    return {**planned, "tasks": thresholds} if thresholds else planned


def _plan_threshold(threshold: Threshold, measured: Measured) -> PlannedThreshold:
    metric, metrics = threshold.metric or measured.primary, measured.metrics
    if metric not in metrics:
        raise UserError(f"no run measures {metric!r}", path=("metric",), remedy=suggest(metric, metrics))
    spec = metrics[metric]
    if (threshold.side == "at_most") != (spec.better == "min"):
        better = {"min": ("lower", "at_most"), "max": ("higher", "at_least")}[spec.better]
        problem = f"{better[0]} values of {metric} are better, so {threshold.side} is not a goal"
        raise UserError(problem, path=(threshold.side,), remedy=f"Use {better[1]}: {threshold.level:g}.")
    low, high = spec.bounds
    if not low < threshold.level < high:
        met = threshold.level <= low if spec.better == "max" else threshold.level >= high
        problem = f"{metric} is between {low:g} and {high:g}, so {threshold.side}={threshold.level:g} "
        problem += "is met by every candidate" if met else "cannot be shown for any candidate"
        inside = f" and below {high:g}" if math.isfinite(high) else ""
        raise UserError(problem, path=(threshold.side,), remedy=f"Use a value above {low:g}{inside}.")
    return {"metric": metric, "side": threshold.side, "level": threshold.level}


def path_costs(
    path: str, configs: Sequence[tuple[str, Any]], declared: Sequence[str] | None = None
) -> dict[str, float]:
    """Return the value of a setting in each candidate. `declared` is as in `plan_goal`.

    Raises:
        UserError: If a candidate has no such setting, or if it is not a number.
    """
    costs = {}
    for name, config in configs:
        value = value_at(to_data(config), path) if declared is None else config.get(path)
        unknown = declared is None and path.split(".")[0] not in ROOTS
        if unknown or isinstance(value, bool) or not isinstance(value, int | float):
            problem = f"{path!r} is neither a cost nor a number in candidate {name!r}"
            remedy = f"Use one of {', '.join((*COMPUTED, TIMED))}, or a setting such as model.num_layers."
            if declared is not None:
                remedy = "Use a setting that is a number, or a cost that the program prints: program.costs."
            raise UserError(problem, path=("minimise",), remedy=remedy)
        costs[name] = float(value)
    return costs

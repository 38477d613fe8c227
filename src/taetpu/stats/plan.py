"""Analysis plan of a study, including the planned interim analyses.

The plan is frozen with the study before the first run. Its hash shows that no choice in the plan was changed after
results were known.
"""

import hashlib
import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import MISSING, asdict, dataclass, field, fields, replace
from typing import Any, Literal, get_args

from taetpu.core.errors import UserError
from taetpu.core.metric_spec import TASK_METRICS, Direction, MetricSpec
from taetpu.stats import group_sequential
from taetpu.stats.power import ALPHA
from taetpu.store.frozen_study import FrozenStudy, PlannedContrast, PlannedTask, PostHocSettings

NoiseModel = Literal["guard", "moderated"]
"""How unequal noise of arms is treated: tested and guarded against (`stats.linear_model`), or weighed
(`stats.moderated`)."""

EARLIER_METRICS = {
    **TASK_METRICS,
    "exact_match": MetricSpec(
        "max", (0.0, 1.0), "share of answers", mean_of=("exact_match.right", "exact_match.answers")
    ),
    "macro_f1": MetricSpec("max", (0.0, 1.0)),
    "in_context_score": MetricSpec(unit="nats per token"),
}
"""What metrics of these names are in plans without `metrics`. Newer plans take nothing from a metric's name."""

FIRST_FIELDS = ("primary", "direction", "arms", "seeds", "looks", "equivalence", "alpha")
"""The fields that every stored plan has. Other fields are stored only if they differ from their default."""

COSTS = {"steps": "steps", "tokens": "tokens", "flops": "FLOPs"}
"""Units of the time to a value, by name in a study file."""

SPEC_FIELDS = {f.name for f in fields(MetricSpec)}

RULES = 2
"""The version of the rules of analysis in new plans; docs/statistics.md lists what each version changed."""

MIN_SEEDS = 2
"""Minimum number of seeds for a verdict, since a single seed shows no noise."""


def describe_metric(plan: Mapping[str, Any], series: str = "") -> MetricSpec:
    """Return what a stored series is, with the series' label and the full names of the sums of which it is the mean.

    Args:
        plan: the stored fields of a plan.
        series: the name of the series, e.g. `val/loss`; by default, what arms are compared by: the primary metric, the
            share of solved runs, or the time to a value.
    """
    if not series and (spec := _describe_outcome(plan)):
        return spec
    series = series or plan["primary"]
    split, _, name = series.partition("/")
    specs, label = plan.get("metrics"), series
    if not specs:
        spec = EARLIER_METRICS.get(series.rpartition("/")[2], MetricSpec())
        # Such plans impute metrics other than the primary one as if lower values were better.
        spec = MetricSpec("min", spec.bounds, spec.unit, mean_of=spec.mean_of if name in EARLIER_METRICS else ())
        spec = spec if plan.get("known_metric", True) else MetricSpec(mean_of=spec.mean_of)
    elif f"{split}/" in specs:
        spec = MetricSpec.from_data(specs[f"{split}/"])
        label = "/".join(filter(None, (spec.label or split, name)))
    else:
        spec = MetricSpec.from_data(specs.get(series) or specs.get(name, {}))
        label = f"{split}/{spec.label}" if spec.label else series
    return replace(spec, label=label, mean_of=tuple(f"{split}/{part}" for part in spec.mean_of))


def _describe_outcome(plan: Mapping[str, Any]) -> MetricSpec | None:
    """Return what arms are compared by if that is not the primary metric itself (see `stats.outcomes`)."""
    if plan.get("reach") is not None:
        label = f"time to {describe_metric(plan, plan['primary']).label} {plan['reach']:g}"
        return MetricSpec("min", (0.0, math.inf), COSTS[plan.get("by", "steps")], label)
    if plan.get("solved") is not None:
        side = "at most" if plan["direction"] == "min" else "at least"
        rule = f"{describe_metric(plan, plan['primary']).label} {side} {plan['solved']:g}"
        return MetricSpec("max", (0.0, 1.0), rule, "share of solved runs")
    return None


@dataclass(frozen=True)
class Plan:
    """Analysis plan of a study.

    A field that is not one of `FIRST_FIELDS` must have a default, which is what plans meant before the field existed: a
    plan at the default has the text, hash and verdicts of such a plan. A changed rule therefore is a new field, whose
    default is the earlier rule and which `study.freeze` sets in new plans, or a new version of `rules`.

    Attributes:
        primary: the metric used to compare arms at the end of training.
        direction: whether lower (`min`) or higher (`max`) is better.
        arms: the compared arms, the baseline first.
        seeds: the seeds of the first analysis.
        looks: numbers of seeds per arm at the planned analyses, ascending.
        equivalence: the equivalence margin, or None if equivalence is not tested.
        alpha: maximum probability of at least one false verdict of better or worse over all arms, contrasts and planned
            analyses.
        contrasts: contrasts by name, with the arms that they compare (see `stats.contrasts`).
        post_hoc: settings of the post-hoc ablation tables, by the name of the table (see `stats.post_hoc`).
        rules: version of the rules of analysis, at most `RULES`. Plans that store none have version 1.
        known_metric: whether the primary metric is one of taetpu's, in plans without `metrics`. It is false in those of
            judged tables, which may have an `accuracy` in percent.
        noise: how unequal noise of arms is treated. Plans that store none have the guard.
        table: the options by which a judged table was read, by name.
        solved: the value from which on a run has solved its task; arms are then compared by shares of solved runs.
        reach: the value of the primary metric that runs are to reach; arms are then compared by the time to it.
        by: the unit of that time, a key of `COSTS`.
        eval_every: the number of steps between evaluations, if arms are compared by the time to a value.
        eval_windows: the setting of the number of windows in these evaluations.
        metrics: the metrics that runs measure (`MetricSpec.to_data`): those of evaluations by name (`loss`), those of
            training steps with a slash after the name (`gradient-norm/`), and that of a judged table by the name of its
            column. Plans that store none take the metrics from their names (`EARLIER_METRICS`).
        goal: the goal (`store.frozen_study.PlannedGoal`); empty without one.
        tasks: how arms are compared on each task, if they are repeated on several (see `stats.repeats`).
        pool: how effects are pooled over tasks: `iqm` or `mean`; empty without tasks.
        across: the settings under which arms are repeated, by the name of what they change.
        worth: the cost in which the effects on a ladder are expressed (see `stats.worth`).
    """

    primary: str
    direction: Direction
    arms: tuple[str, ...]
    seeds: tuple[int, ...]
    looks: tuple[int, ...]
    equivalence: float | None = None
    alpha: float = ALPHA
    contrasts: Mapping[str, PlannedContrast] = field(default_factory=dict)
    post_hoc: Mapping[str, PostHocSettings] = field(default_factory=dict)
    rules: int = 1
    known_metric: bool = True
    noise: NoiseModel = "guard"
    table: Mapping[str, Any] = field(default_factory=dict)
    metrics: Mapping[str, Any] = field(default_factory=dict)
    goal: Mapping[str, Any] = field(default_factory=dict)
    tasks: Mapping[str, PlannedTask] = field(default_factory=dict)
    pool: str = ""
    across: Mapping[str, Sequence[str]] = field(default_factory=dict)
    solved: float | None = None
    reach: float | None = None
    by: str = "steps"
    eval_every: int | None = None
    eval_windows: int | str | None = None
    worth: str | None = None

    def frozen(self) -> dict[str, Any]:
        """Return the plan with its hash, as stored with the study."""
        return {**json.loads(_text(self._data())), "sha256": self.sha256}

    @property
    def sha256(self) -> str:
        """Hash of the plan."""
        return _sha256(_text(self._data()))

    @property
    def bounds(self) -> tuple[float, float]:
        """Smallest and largest possible value of what arms are compared by."""
        return self.metric().bounds

    @property
    def has_outcome(self) -> bool:
        """Whether arms are compared by an outcome other than the primary metric itself (see `stats.outcomes`)."""
        return _describe_outcome(vars(self)) is not None

    @property
    def better(self) -> Direction:
        """Whether lower or higher values of what arms are compared by are better; see `describe_metric`."""
        spec = _describe_outcome(vars(self))
        return self.direction if spec is None else spec.better

    def metric(self, series: str = "") -> MetricSpec:
        """Return what a stored series is, by default what arms are compared by (see `describe_metric`)."""
        return describe_metric(vars(self), series)

    def at(self, rung: str) -> "Plan":
        """Return the plan by which arms are compared at a rung: on a task, with its metric, direction and margin."""
        if (task := self.tasks.get(rung)) is None:
            return self
        primary, direction, margin = task["primary"], task["direction"], task["equivalence"]
        return replace(self, primary=primary, direction=direction, equivalence=margin, metrics=task["metrics"])

    def _data(self) -> dict[str, Any]:
        """Return the stored fields."""
        default = {f.name: f.default if f.default_factory is MISSING else f.default_factory() for f in fields(self)}
        data = asdict(self)
        return {name: data[name] for name in data if name in FIRST_FIELDS or data[name] != default[name]}

    def analysis_index(self, seeds: int) -> int | None:
        """Return the index of the planned analysis at this number of seeds, or None if no analysis is planned there."""
        return self.looks.index(seeds) if seeds in self.looks else None

    def overall_p(self, p: float, seeds: int) -> float:
        """Return the overall p-value for the p-value `p` of the analysis at this number of seeds."""
        index = self.analysis_index(seeds)
        return p if index is None else group_sequential.overall_p(p, self._shares, index)

    def overall_one_sided_p(self, p: float, seeds: int) -> float:
        """Return the overall p-value for a one-sided p-value, e.g. from an equivalence test."""
        return self.overall_p(min(1.0, 2 * p), seeds) / 2

    def strictest_level(self, arms: int, seeds: int) -> float:
        """Return the error rate that corresponds to Holm's strictest test at this number of seeds.

        If a single analysis had this error rate and divided it equally among `arms` arms, it would test each arm at the
        level of the strictest test at this planned analysis.
        """
        index, alpha = self.analysis_index(seeds), self.alpha
        return alpha if index is None else arms * group_sequential.nominal_level(alpha / arms, self._shares, index)

    @property
    def _shares(self) -> list[float]:
        """The seeds of each planned analysis as a share of those of the last one."""
        return [number / self.looks[-1] for number in self.looks]

    def error_rate(self, seeds: int, judged_at: Sequence[int] | None = None) -> float:
        """Return the probability of a false verdict: `alpha`, or more after repeated verdicts beyond the plan.

        Args:
            seeds: number of seeds per arm.
            judged_at: number of seeds at each earlier verdict. None means that earlier verdicts were not recorded. In
                this case, a verdict is assumed at each number of seeds from `MIN_SEEDS` to `seeds - 1`.
        """
        last = self.looks[-1]
        if seeds <= last:
            return self.alpha
        if judged_at is None:
            judged_at = range(MIN_SEEDS, seeds)
        earlier = sorted({max(number, last) for number in judged_at if number < seeds})
        return group_sequential.inflated_error_rate(self.alpha, [*earlier, seeds]) if earlier else self.alpha


def read_plan(study: FrozenStudy, where: str) -> Plan:
    """Return the plan of a frozen study.

    Args:
        study: the frozen study.
        where: the study's folder, for messages.

    Raises:
        UserError: If the study has no plan, the plan was changed, or a newer version of taetpu froze it.
    """
    if not isinstance(study.get("plan"), Mapping):
        problem = "the study has no analysis plan, because an earlier version of taetpu froze it"
        remedy = "Run the study again under another name."
        raise UserError(problem, path=("plan",), file=where, remedy=remedy)
    data = {str(name): value for name, value in study["plan"].items()}
    sha256, known = data.pop("sha256", None), {f.name for f in fields(Plan)}
    rules = data.get("rules", 1)
    newer = {
        "rules": type(rules) is int and rules > RULES,
        "noise": data.get("noise", "guard") not in get_args(NoiseModel),
        "metrics": any(not {*spec} <= SPEC_FIELDS for spec in data.get("metrics", {}).values()),
    }
    unknown = [name for name in data if name not in known or newer.get(name)]
    unchanged = _sha256(_text(data)) == sha256
    if unchanged and unknown:
        entry = f"{unknown[0]}: {data[unknown[0]]}"
        problem = f"a newer version of taetpu froze the analysis plan: this version does not know {entry!r}"
        raise UserError(problem, path=("plan", unknown[0]), file=where, remedy="Update taetpu.")
    if unchanged and data.keys() >= {*FIRST_FIELDS}:
        values: dict[str, Any] = {k: tuple(value) if isinstance(value, list) else value for k, value in data.items()}
        plan = Plan(**values)
        if plan.sha256 == sha256:
            return plan
    problem = "the analysis plan differs from the plan that was frozen before the first run"
    remedy = "Restore study.yaml, or run the study again under another name."
    raise UserError(problem, path=("plan",), file=where, remedy=remedy)


def _text(plan: Mapping[str, Any]) -> str:
    return json.dumps(plan, sort_keys=True, default=str)


def _sha256(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()

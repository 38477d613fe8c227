"""Contrasts of the analysis plan: comparisons of arms or groups of arms, and of spreads.

A comparison is a weighted sum of the arms' means, estimated under the model of `stats.linear_model`.

A spread is the standard deviation of a metric over the arms that differ in one setting, computed for each seed. These
standard deviations are the values of another seed-blocked model, in which the levels of the second setting take the
place of arms. Noise between runs increases both spreads of a contrast, so it makes their ratio smaller but creates no
difference where there is none.
"""

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from types import MappingProxyType

import numpy as np

from taetpu.stats import divergence, linear_model
from taetpu.stats.divergence import Count
from taetpu.stats.formatting import list_names
from taetpu.stats.linear_model import Effect, Values
from taetpu.stats.outcomes import compare_shares
from taetpu.stats.plan import Plan
from taetpu.stats.results_table import Table
from taetpu.stats.verdict import Sides
from taetpu.store.frozen_study import PlannedContrast

PREFIX = "contrast:"
"""Start of a contrast's key among the keys of arms, whose names contain no colon."""


@dataclass(frozen=True)
class Contrast:
    """A contrast with its estimates.

    Attributes:
        name: the name in the study file.
        planned: the entry of the analysis plan.
        plan: the plan with the metric, direction and margin of this contrast.
        effect: the effect estimated from the finished runs.
        imputed: the effect if each diverged run counts with the worst value.
        counts: outcomes of the runs on the first and on the second side.
        means: mean of each side, or mean spread of each level; None without values.
        residual_sd: standard deviation of the noise in the model.
        number: number of effects in the model.
    """

    name: str
    planned: PlannedContrast
    plan: Plan
    effect: Effect
    imputed: Effect
    counts: tuple[Count, Count]
    means: tuple[float | None, float | None]
    residual_sd: float | None
    number: int

    @property
    def key(self) -> str:
        """The key of the contrast among the keys of arms."""
        return PREFIX + self.name

    def sides(self, seeds: int) -> Sides:
        """Return the names of both sides for the sentence on the evidence, with their numbers of runs."""
        first, second = self.planned["compare"], self.planned["to"]
        names = "the first group" if len(first) > 1 else first[0], list_names(second)
        if "spread" in self.planned:
            names = "this spread", "the baseline"
        return Sides((seeds * len(first), seeds * len(second)), *names)


def estimate_contrasts(
    plan: Plan,
    table: Table,
    against: Mapping[str, str],
    read: Callable[[str], Table],
    plans: Mapping[str, Plan] = MappingProxyType({}),
) -> list[Contrast]:
    """Estimate the contrasts of a plan. A contrast whose arms are not in the study is omitted.

    Args:
        plan: the analysis plan.
        table: the study's runs, with the values of the primary metric.
        against: the baseline of each arm that is not a baseline.
        read: function that returns the study's runs with the values of another metric.
        plans: the plan of each arm on its task; by default, `plan`.
    """
    estimated = []
    for name, entry in plan.contrasts.items():
        if any(arm not in table.cells for arm in (*entry["compare"], *entry["to"])):
            continue
        if "spread" in entry:
            measured = table if entry["spread"] == plan.primary and not plan.has_outcome else read(entry["spread"])
            estimated.append(_compare_spreads(name, entry, entry["spread"], plan, measured))
        else:
            estimated.append(_compare(name, entry, plans.get(entry["compare"][0], plan), table, against))
    return estimated


def _compare(name: str, entry: PlannedContrast, plan: Plan, table: Table, against: Mapping[str, str]) -> Contrast:
    sides = entry["compare"], entry["to"]
    counts = table.count(*sides[0]), table.count(*sides[1])
    weights = {arm: sign / len(side) for side, sign in zip(sides, (1.0, -1.0), strict=True) for arm in side}
    bases = {against.get(arm, arm) for arm in weights}
    arms = [arm for arm in table.cells if arm in weights or against.get(arm, arm) in bases]
    values = {arm: table.values(arm) for arm in arms}
    worst = divergence.impute_worst(values, {arm: table.diverged_seeds(arm) for arm in arms}, plan.better)
    means = _means([[value for arm in side for value in values[arm].values()] for side in sides])
    if plan.solved is not None:  # such a plan compares single arms
        shares = compare_shares({arm: values[arm] for side in sides for arm in side}, entry["to"][0])
        effect = shares.effects[entry["compare"][0]]
        return Contrast(name, entry, plan, effect, effect, counts, means, shares.residual_sd, 1)
    first = next(arm for arm in arms if arm in bases)
    fit = linear_model.fit_model(values, first, plan.bounds, plan.noise, table.block)
    effect, imputed = (
        linear_model.estimate_contrast(known, weights, plan.bounds, plan.noise, table.block)
        for known in (values, worst)
    )
    return Contrast(name, entry, plan, effect, imputed, counts, means, fit.residual_sd, len(arms) - 1)


def _compare_spreads(name: str, entry: PlannedContrast, metric: str, plan: Plan, table: Table) -> Contrast:
    sides = entry["compare"], entry["to"]
    judged = replace(
        plan,
        primary=f"the spread of {plan.metric(metric).label} with {entry.get('by')}={entry.get('level')}",
        direction="min",
        solved=None,
        reach=None,
        equivalence=plan.equivalence if metric == plan.primary else None,
    )
    arms = {arm: table.values(arm) for side in sides for arm in side}
    way = plan.direction if metric == plan.primary else plan.metric(metric).better
    worst = divergence.impute_worst(arms, {arm: table.diverged_seeds(arm) for arm in arms}, way)
    values, bounds, weights = _spreads(arms, entry), (0.0, math.inf), {"compare": 1.0, "to": -1.0}
    fit = linear_model.fit_model(values, "to", bounds, plan.noise)
    imputed = linear_model.estimate_contrast(_spreads(worst, entry), weights, bounds, plan.noise)
    means = _means([list(values[side].values()) for side in weights])
    counts, effect = (table.count(*sides[0]), table.count(*sides[1])), fit.effects["compare"]
    return Contrast(name, entry, judged, effect, imputed, counts, means, fit.residual_sd, 1)


def _spreads(values: Values, entry: PlannedContrast) -> dict[str, dict[int, float]]:
    """Return the standard deviation over the arms of each side, by side and by seed with all of these arms."""
    deviations: dict[str, dict[int, float]] = {}
    for side in ("compare", "to"):
        arms = entry[side]
        seeds = [seed for seed in values[arms[0]] if all(seed in values[arm] for arm in arms)]
        deviations[side] = {seed: float(np.std([values[arm][seed] for arm in arms], ddof=1)) for seed in seeds}
    return deviations


def _means(values: list[list[float]]) -> tuple[float | None, float | None]:
    first, second = (float(np.mean(side)) if side else None for side in values)
    return first, second

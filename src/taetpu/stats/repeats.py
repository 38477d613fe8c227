"""Arms on several tasks, or under several settings: pooled effects, and whether effects differ.

A pooled effect compares an arm with its baseline over all tasks. Values are normalised, so that the value of a uniform
guess is 0 and the best possible value is 1; if these are not known for all tasks, values are replaced by ranks. The
pooled effect is the mean over tasks of the effects on scores, or their interquartile mean (after Agarwal et al. 2021,
"Deep reinforcement learning at the edge of the statistical precipice"). Its interval is over seeds, for these tasks.

An effect has two standard errors, of which the more conservative counts: that of the averages of seeds, and one from
the noise of each task. For the interquartile mean, the latter has the noisiest tasks that could have been kept, because
which tasks are trimmed depends on noise. Trimming the scores of each run, or of each seed, is not used: where tasks
differ in noise, its mean is another than that of the effects.

Whether effects differ is tested by Welch's test of each pair, corrected for the number of pairs (Bonferroni). Welch's
analysis of variance has too many false rejections for six tasks and three seeds (docs/statistics.md).
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import combinations

import numpy as np
import scipy

from taetpu.stats import divergence
from taetpu.stats.blocked_anova import ROUNDING, Estimate, Values
from taetpu.stats.divergence import Count
from taetpu.stats.linear_model import Effect
from taetpu.stats.plan import Plan
from taetpu.stats.results import Across, AcrossArm, JudgedEffect, Robustness, TasksArm, TasksDesign
from taetpu.stats.results_table import Table
from taetpu.stats.verdict import holm
from taetpu.store.frozen_study import FrozenStudy, LadderDesign, Role

BASELINE = "baseline"
PREFIX = "pooled:"
"""Start of a pooled effect's key among the keys of arms, whose names contain no colon."""
TRIMMED = 0.25
"""Share of the values that the interquartile mean leaves out at each end."""
LEVELS = 21
"""Number of scores at which a performance profile is computed."""


def rung_of(role: Role) -> str:
    """Return the scale, task or setting of an arm; empty without one."""
    return role["ladder"]["rung"] if "ladder" in role else ""


def repeated_names(study: FrozenStudy) -> dict[str, dict[str, str]]:
    """Return the names of each arm by task or setting, the baseline's too, without matched and tuned arms."""
    design = study.get("design", {})
    ours = design.get("tasks") or design.get("across")
    arms: dict[str, dict[str, str]] = {BASELINE: {ours["own"]: BASELINE}} if ours else {}
    for arm in study["arms"]:
        role = study.get("roles", {}).get(arm, {})
        if "ladder" in role and not {"match", "tuned"} & {*role}:
            arms.setdefault(role["ladder"]["arm"], {})[role["ladder"]["rung"]] = arm
    return arms


def repeated_arms(study: FrozenStudy, table: Table) -> dict[str, dict[str, str]]:
    """Return those of `repeated_names` that are in the table."""
    kept = {arm: {rung: name for rung, name in rungs.items() if name in table.cells}
            for arm, rungs in repeated_names(study).items()}  # fmt: skip
    return {arm: rungs for arm, rungs in kept.items() if rungs}


# --- scores ----------------------------------------------------------------------------------------------------------


Scores = dict[str, dict[str, dict[int, float]]]
"""Scores by task, arm (without the task) and seed."""


def is_normalised(plan: Plan) -> bool:
    """Return whether the values of chance and of the best model are known for all tasks."""
    return all(task["chance"] is not None and task["best"] is not None for task in plan.tasks.values())


def _scores(values: Values, task: str, plan: Plan) -> dict[str, dict[int, float]]:
    """Return the scores on a task, by arm and seed: normalised values, or ranks from 0 (worst) to 1 (best)."""
    planned = plan.tasks[task]
    chance, best = planned["chance"], planned["best"]
    if is_normalised(plan) and chance is not None and best is not None:
        return {arm: {s: (x - chance) / (best - chance) for s, x in row.items()} for arm, row in values.items()}
    sign = -1 if planned["direction"] == "min" else 1
    ranks: dict[str, dict[int, float]] = {arm: {} for arm in values}
    for seed in {seed for row in values.values() for seed in row}:
        present = [arm for arm in values if seed in values[arm]]
        places = scipy.stats.rankdata([sign * values[arm][seed] for arm in present])
        for arm, place in zip(present, places, strict=True):
            ranks[arm][seed] = float((place - 1) / max(1, len(present) - 1))
    return ranks


def average(scores: Sequence[float], pool: str) -> float:
    """Return the mean, or the interquartile mean if `pool` is `iqm`."""
    return float(scipy.stats.trim_mean(scores, TRIMMED) if pool == "iqm" else np.mean(scores))


@dataclass(frozen=True)
class Pooled:
    """The effect of an arm over all tasks.

    Attributes:
        arm: the arm's name without the task.
        plan: the plan with the metric of pooled effects.
        effect: the effect estimated from the seeds on which all runs finished.
        imputed: the effect if each diverged run counts with the worst value of its task.
        counts: outcomes of the runs of the arm and of the baseline on all tasks.
        differences: the difference to the baseline's score, by task, for each seed.
        runs: number of planned runs of the arm.
    """

    arm: str
    plan: Plan
    effect: Effect
    imputed: Effect
    counts: tuple[Count, Count]
    differences: Mapping[str, Mapping[int, float]]
    runs: int

    @property
    def key(self) -> str:
        """The key of the effect among the keys of arms."""
        return PREFIX + self.arm


def task_scores(study: FrozenStudy, table: Table, plan: Plan, worst: bool = False) -> Scores:
    """Return the scores by task, arm (without the task) and seed.

    Args:
        study: the frozen study.
        table: the study's runs.
        plan: the analysis plan.
        worst: whether each diverged run has the worst value of its task.
    """
    arms, scores = repeated_arms(study, table), dict[str, dict[str, dict[int, float]]]()
    for task, planned in plan.tasks.items():
        names = {arm: rungs[task] for arm, rungs in arms.items() if task in rungs}
        values = {arm: table.values(name) for arm, name in names.items()}
        if worst:
            lost = {arm: table.diverged_seeds(name) for arm, name in names.items()}
            values = divergence.impute_worst(values, lost, planned["direction"])
        scores[task] = _scores(values, task, plan)
    return scores


def pool_effects(study: FrozenStudy, table: Table, plan: Plan) -> list[Pooled]:
    """Return the pooled effect of each arm that is on all tasks; none without tasks."""
    if not plan.tasks:
        return []
    judged = replace(plan, primary="the pooled score", metrics={"pooled": {}}, direction="max", equivalence=None)
    both = [task_scores(study, table, plan, worst) for worst in (False, True)]
    arms, pooled = repeated_arms(study, table), []
    for arm, names in arms.items():
        if arm == BASELINE or names.keys() != plan.tasks.keys():
            continue
        differences = [_differences(scores, arm) for scores in both]
        effect, imputed = (pooled_effect(each, plan.pool) for each in differences)
        first, other = (table.count(*(arms[of][task] for task in plan.tasks)) for of in (arm, BASELINE))
        runs = sum(len(table.cells[name]) for name in names.values())
        pooled.append(Pooled(arm, judged, effect, imputed, (first, other), differences[0], runs))
    return pooled


def _differences(scores: Mapping[str, Mapping[str, Mapping[int, float]]], arm: str) -> dict[str, dict[int, float]]:
    return {
        task: {seed: row[arm][seed] - row[BASELINE][seed] for seed in row[arm] if seed in row[BASELINE]}
        for task, row in scores.items()
    }


def pooled_effect(differences: Mapping[str, Mapping[int, float]], pool: str) -> Effect:
    """Return the mean, or the interquartile mean, over tasks of the mean differences over seeds that all tasks have."""
    seeds = sorted(set.intersection(*({*row} for row in differences.values())))
    y = np.array([[row[seed] for seed in seeds] for row in differences.values()])
    if not seeds:
        return Effect()
    cut = int(len(y) * TRIMMED) if pool == "iqm" else 0
    kept = y[np.argsort(y.mean(1), kind="stable")[cut : len(y) - cut]]
    by_seed = kept.mean(0)
    value, n = float(by_seed.mean()), len(seeds)
    if n < 2 or np.std(by_seed) <= ROUNDING * max(np.abs(y).max(), 1e-300):
        return Effect(value)
    shares = np.sort(y.var(1, ddof=1))[-len(kept) :] / n / len(kept) ** 2
    df = (n - 1) * shares.sum() ** 2 / (shares**2).sum()  # Satterthwaite 1946
    noisiest = Estimate(value, float(np.sqrt(shares.sum())), float(df))
    return Effect(value, (Estimate(value, float(scipy.stats.sem(by_seed)), n - 1), noisiest))


def differ_p(groups: Sequence[Sequence[float]]) -> float | None:
    """Return the p-value of equal means of all groups, from Welch's test of each pair, corrected for their number.

    A pair without noise has no test, but counts. The p-value is None if no pair has a test.

    Args:
        groups: the differences to the baseline on each task or under each setting.
    """
    pairs = list(combinations([np.asarray(group, float) for group in groups], 2))
    tested = [
        float(scipy.stats.ttest_ind_from_stats(*_moments(a), *_moments(b), equal_var=False)[1])
        for a, b in pairs
        if min(len(a), len(b)) > 1 and a.var() + b.var() > ROUNDING * max(np.abs(a).max(), np.abs(b).max()) ** 2
    ]
    return min(1.0, min(tested) * len(pairs)) if tested else None


def _moments(values: np.ndarray) -> tuple[float, float, int]:
    return float(values.mean()), float(values.std(ddof=1)), len(values)


# --- designs ---------------------------------------------------------------------------------------------------------


def analyse_tasks(
    design: LadderDesign, study: FrozenStudy, table: Table, plan: Plan, judged: Mapping[str, JudgedEffect]
) -> TasksDesign:
    """Return the scores of all arms, their pooled effects, and whether their effects differ between tasks.

    Args:
        design: the tasks.
        study: the frozen study.
        table: the study's runs.
        plan: the analysis plan.
        judged: the effect and verdict of each arm, and of each pooled effect by `Pooled.key`.
    """
    scores, names = task_scores(study, table, plan), repeated_arms(study, table)
    pooled = {entry.arm: entry for entry in pool_effects(study, table, plan)}
    p = {arm: differ_p([[*row.values()] for row in entry.differences.values()]) for arm, entry in pooled.items()}
    corrected, levels = holm(p), np.linspace(0, 1, LEVELS)
    arms: dict[str, TasksArm] = {}
    for arm, rungs in names.items():
        runs = {task: [*scores[task][arm].values()] for task in rungs}
        every = [score for row in runs.values() for score in row]
        whole = len(runs) == len(plan.tasks) and all(runs.values())
        arms[arm] = {
            "rungs": rungs,
            "scores": {task: float(np.mean(row)) if row else None for task, row in runs.items()},
            "mean": float(np.mean([np.mean(row) for row in runs.values()])) if whole else None,
            "iqm": average(every, "iqm") if whole else None,
            "pooled": judged.get(PREFIX + arm),
            "p_differs": p.get(arm),
            "p_differs_holm": corrected.get(arm),
            "profile": [float(np.mean([np.mean(np.array(row) >= level) for row in runs.values()])) for level in levels]
            if whole and is_normalised(plan)
            else None,
        }
    scale = "normalised" if is_normalised(plan) else "ranks"
    return {**design, "pool": plan.pool, "scale": scale, "levels": [float(level) for level in levels], "arms": arms}


def analyse_across(
    design: LadderDesign, study: FrozenStudy, table: Table, plan: Plan, judged: Mapping[str, JudgedEffect]
) -> Across:
    """Return whether the verdict on each arm holds under all settings (see `classify`). Arguments: `analyse_tasks`."""
    names = repeated_arms(study, table)
    bases, arms = names.get(BASELINE, {}), {arm: rungs for arm, rungs in names.items() if arm != BASELINE}
    p: dict[tuple[str, str], float | None] = {}
    for arm, rungs in arms.items():
        groups = dict[str, list[float]]()
        for rung, name in rungs.items():
            ours, theirs = table.values(name), table.values(bases[rung])
            groups[rung] = [ours[seed] - theirs[seed] for seed in ours if seed in theirs]
        for factor, changed in plan.across.items():
            p[arm, factor] = differ_p([groups.get(rung, []) for rung in (design["own"], *changed)])
    corrected, entries = holm(p), dict[str, AcrossArm]()
    for arm, rungs in arms.items():
        verdicts = {rung: judged[name]["verdict"] for rung, name in rungs.items() if name in judged}
        holm_p = {factor: corrected[arm, factor] for factor in plan.across}
        holds, on = classify(verdicts, design["own"], plan.across, holm_p, plan.alpha)
        tested = {factor: p[arm, factor] for factor in plan.across}
        entries[arm] = {"rungs": rungs, "holds": holds, "on": on, "p_differs": tested, "p_differs_holm": holm_p}
    return {**design, "factors": {factor: list(rungs) for factor, rungs in plan.across.items()}, "arms": entries}


def classify(
    verdicts: Mapping[str, str | None],
    first: str,
    factors: Mapping[str, Sequence[str]],
    p: Mapping[str, float | None],
    alpha: float,
) -> tuple[Robustness, list[str]]:
    """Return whether a verdict holds under other settings, and the settings on which it depends.

    The first matching class applies:

    - reverses: the arm is better under one setting and worse under another.
    - holds: the verdict is the same and not inconclusive under all settings.
    - depends: the effect differs significantly between the values of a setting.
    - unclear: no other class matches.

    Args:
        verdicts: the verdict under each setting.
        first: the baseline's setting.
        factors: the other settings, by the name of what they change.
        p: the corrected p-value of equal effects, by the name of what is changed.
        alpha: the level of the tests.
    """
    if {"better", "worse"} <= {*verdicts.values()}:
        pairs = {f: {verdicts.get(rung) for rung in (first, *rungs)} for f, rungs in factors.items()}
        within = [factor for factor, known in pairs.items() if {"better", "worse"} <= known]
        clear = [f for f, rungs in factors.items() if {verdicts.get(r) for r in rungs} & {"better", "worse"}]
        return "reverses", within or clear
    on = [factor for factor, value in p.items() if value is not None and value < alpha]
    if len(verdicts) > 1 and {*verdicts.values()} in ({"better"}, {"worse"}, {"equivalent"}):
        return "holds", on
    return ("depends", on) if on else ("unclear", [])

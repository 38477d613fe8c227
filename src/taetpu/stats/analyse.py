"""Computation of `results.json`. Its content is a deterministic function of a study's stored runs."""

import math
from collections.abc import Collection, Mapping
from dataclasses import dataclass, replace
from types import MappingProxyType
from typing import Any, cast

from taetpu.stats import divergence, formatting, linear_model, verdict
from taetpu.stats.arm_changes import baseline_settings, changes_of, format_changes
from taetpu.stats.components import arms_with_own_noise, format_component_arm
from taetpu.stats.contrasts import Contrast, estimate_contrasts
from taetpu.stats.designs import analyse_designs, design_limits
from taetpu.stats.deviations import find_departures
from taetpu.stats.goal import answer_goal, goal_arms, goal_metrics, read_levels
from taetpu.stats.goal_results import GoalAnswer
from taetpu.stats.goal_search import count_looks
from taetpu.stats.integrity import find_damage, raise_if_damaged
from taetpu.stats.item_effects import compare_scores
from taetpu.stats.load import read_study
from taetpu.stats.origin import add_origin, count_reused
from taetpu.stats.outcomes import Outcomes, compare_shares, describe_runs, log_rank_p, read_outcomes
from taetpu.stats.plan import Plan, read_plan
from taetpu.stats.post_hoc import compare_tables
from taetpu.stats.power import PowerAnalysis
from taetpu.stats.repeats import Pooled, pool_effects, rung_of
from taetpu.stats.results import (
    Arm,
    FrozenPlan,
    JudgedEffect,
    Label,
    Model,
    NoiseFloor,
    RepeatedRun,
    Results,
)
from taetpu.stats.results import Contrast as JudgedContrast
from taetpu.stats.results import Group as GroupEntry
from taetpu.stats.results_table import (
    Table,
    check_same_evaluation_set,
    count_devices,
    count_packs,
    mean_metrics,
    read_table,
    sd,
)
from taetpu.stats.secondary_analyses import alternative_analyses, bootstrap_effect, compute_efficiency, critical_value
from taetpu.stats.selection import choices_of
from taetpu.stats.verdict import Evidence
from taetpu.store.documents import finite
from taetpu.store.frozen_study import FrozenStudy, PlannedGoal
from taetpu.store.study import StudyFolder

BASELINE = "baseline"
SCREENING_SEEDS = 3
"""Maximum number of seeds for the label `screening`."""


@dataclass(frozen=True)
class Group:
    """Group of arms with the same baseline, and the model fitted to the group.

    Attributes:
        baseline: the baseline.
        arms: the arms.
        fit: the model of the finished runs.
        imputed: the model in which each diverged run counts with the worst value.
        effects: the number of arms with this baseline, for simultaneous intervals.
    """

    baseline: str
    arms: list[str]
    fit: linear_model.Fit
    imputed: linear_model.Fit
    effects: int

    def places(self, table: Table) -> int:
        """Return the number of decimal places for the arms' means. Effects have at least as many decimal places."""
        return formatting.mean_places(self.fit.residual_sd, table.mean(self.baseline))


def analyse(folder: StudyFolder) -> Results:
    """Compute the results of a study and store them as `results.json`.

    Raises:
        UserError: If `compute_results` raises an error.
    """
    results = compute_results(folder)
    folder.write_results(results)
    return results


def compute_results(folder: StudyFolder, *, checked: bool = False) -> Results:
    """Compute the results of a study from its stored runs, without storing them.

    Unless `checked` is true, the function first runs the cheap checks of `RunFolder.find_damage` on the completed runs.
    The results include verdicts only if all runs have ended and `has_verdicts` is true for the number of seeds.

    Args:
        folder: the study's folder.
        checked: whether the caller has checked the runs for damage.

    Raises:
        UserError: If no study is stored in the folder, the study's plan was changed, a run is damaged, a run's record
            contradicts its folder, a finished run lacks the primary metric, two runs have the same arm and seed, a run
            ended early, or evaluation sets differ.
    """
    if not checked:
        planned = folder.read_study().get("plan") or {}
        done = [run for run in folder.runs() if run.status() == "done"]
        raise_if_damaged(find_damage(done, contents="reach" in planned))  # times are read from the logs
    study = read_study(folder)
    plan = read_plan(study, folder.where)
    plans = {arm: plan.at(rung_of(study.get("roles", {}).get(arm, {}))) for arm in study["arms"]}
    measured = read_table(folder, study, {arm: plans[arm].primary for arm in plans})
    against = baselines(study)
    outcomes = read_outcomes(measured, against, plan)
    table = outcomes.table if outcomes else measured
    for group in filter(None, _compared(measured, against, plan)):
        check_same_evaluation_set(measured, [group], plans[group[0]].primary)
    groups = fit_groups(table, against, plan, arms_with_own_noise(study.get("roles", {})), plans)
    pooled = pool_effects(study, table, plan)
    contrasts = estimate_contrasts(plan, table, against, lambda metric: read_table(folder, study, metric), plans)
    evidence = _collect_evidence(groups, [*pooled, *contrasts], table, study, against, plans, plan)
    first, compared = groups[0], len(against) + len(contrasts) + len(pooled)
    final = table.complete and not table.searched and has_verdicts(plan, len(study["seeds"]))
    analysis = Analysis(len(study["seeds"]), final, compared)
    judged = {
        arm: _judge(evidence[arm], plans[arm], analysis, group.fit.residual_sd, group.effects, group.places(table),
                    _sides(table, arm, group.baseline, outcomes))
        for group in groups
        for arm in group.arms
    }  # fmt: skip
    judged |= {each.key: _judge_pooled(each, evidence[each.key], analysis) for each in pooled}
    results: Results = {
        "study": study["study"],
        "primary": plan.primary,
        "direction": plan.better,
        "plan": _frozen_plan(plan, study),
        "departures": find_departures(study, plan),
        "alpha": plan.alpha,
        "seeds": list(study["seeds"]),
        "complete": table.complete,
        "final": final,
        "label": _seed_label(len(study["seeds"])),
        "noise_floor": _noise_floor(table, first, plan, compared),
        "model": _model(first, table),
        "groups": [_group(g, table, outcomes) for g in groups],
        "packs": count_packs(table),
        "hardware": count_devices(table),
        "reused": count_reused(table, folder.read_audit() or {}),
        "tuning": study.get("tuning"),
        "designs": analyse_designs(study, table, plan, judged) if final else {"limits": design_limits(study)},
        "arms": [
            _arm(arm, study, measured, plans[arm], against, judged.get(arm, _NOT_JUDGED), outcomes)
            for arm in study["arms"]
        ],
    }
    add_origin(results, study, table)
    if (repeated := folder.read_repeat()) is not None:
        results["repeat"] = cast(RepeatedRun, repeated)
    if contrasts:
        results["contrasts"] = [_contrast(c, evidence[c.key], analysis, outcomes) for c in contrasts]
    if table.searched:
        results["searched"] = True
    if plan.goal:
        results["goal"] = _goal(cast(PlannedGoal, plan.goal), plan, study, folder, measured)
    if tables := compare_tables(study, measured, plan, against, final):
        results["post_hoc"] = tables
    if scores := compare_scores(measured, plan, against):
        results["scores"] = scores
    return finite(results)


def _goal(goal: PlannedGoal, plan: Plan, study: FrozenStudy, folder: StudyFolder, measured: Table) -> GoalAnswer:
    same = "tasks" not in goal and goal["metric"] == plan.primary
    table = measured if same else read_table(folder, study, goal_metrics(goal, study))
    looks = count_looks(folder.read_search(), goal, len(study["seeds"]))
    levels = read_levels(table, study.get("goal_costs", {}), goal_arms(goal, study))
    return answer_goal(goal, levels, plan.alpha, looks=looks)


def _frozen_plan(plan: Plan, study: FrozenStudy) -> FrozenPlan:
    rate = plan.error_rate(len(study["seeds"]), study.get("judged_at"))
    late = {"written_after": study["planned_after"]} if "planned_after" in study else {}
    return cast(FrozenPlan, {**plan.frozen(), "error_rate": rate, **late})


def baselines(study: FrozenStudy) -> dict[str, str]:
    """Return the baseline of each arm, by arm. Baselines themselves are omitted."""
    roles, main = study.get("roles", {}), study.get("baseline", BASELINE)
    against = {arm: roles.get(arm, {}).get("against", main) for arm in study["arms"]}
    return {arm: base for arm, base in against.items() if arm != base}


def _compared(table: Table, against: Mapping[str, str], plan: Plan) -> list[list[str]]:
    """Return the groups of arms that are compared by the primary metric: of each baseline, and of each contrast."""
    bases = dict.fromkeys([plan.arms[0], *against.values()])
    groups = [[base, *(arm for arm in against if against[arm] == base)] for base in bases]
    for entry in plan.contrasts.values():
        groups += [entry["compare"], entry["to"]] if "spread" in entry else [[*entry["compare"], *entry["to"]]]
    return [[arm for arm in group if arm in table.cells] for group in groups]


def has_verdicts(plan: Plan, seeds: int) -> bool:
    """Return whether a complete study with this number of seeds has verdicts.

    Verdicts are given at the number of seeds of each planned analysis, and at every number of seeds beyond the last
    planned analysis.
    """
    return plan.analysis_index(seeds) is not None or seeds > plan.looks[-1]


def fit_groups(
    table: Table,
    against: Mapping[str, str],
    plan: Plan,
    alone: Collection[str],
    plans: Mapping[str, Plan] = MappingProxyType({}),
) -> list[Group]:
    """Return the groups of arms, starting with the study's main baseline.

    Args:
        table: the study's runs.
        against: the baseline of each arm that is not a baseline.
        plan: the analysis plan.
        alone: the arms whose noise is not pooled with that of other arms. Each is a group.
        plans: the plan of each arm on its task; by default, `plan`.
    """
    fitted = []
    main = plan.arms[0]
    for baseline in dict.fromkeys([main, *against.values()]):
        every = [arm for arm, base in against.items() if base == baseline]
        pooled = [arm for arm in every if arm not in alone]
        groups = [pooled] if pooled or baseline == main else []
        fitted += [
            _fit_group(table, baseline, arms, len(every), plans.get(baseline, plan))
            for arms in [*groups, *([arm] for arm in every if arm in alone)]
        ]
    return fitted


def _fit_group(table: Table, baseline: str, arms: list[str], effects: int, plan: Plan) -> Group:
    values = {arm: table.values(arm) for arm in (baseline, *arms)}
    if plan.solved is not None:
        fit = compare_shares(values, baseline)
        return Group(baseline, arms, fit, fit, effects)
    worst = divergence.impute_worst(values, {arm: table.diverged_seeds(arm) for arm in values}, plan.better)
    more = plan.bounds, plan.noise, table.block, table.stratum
    fit = linear_model.fit_model(values, baseline, *more)
    imputed = fit if worst == values else linear_model.fit_model(worst, baseline, *more)
    return Group(baseline, arms, fit, imputed, effects)


# Fields of a baseline. A baseline has no verdict.
_NOT_JUDGED: JudgedEffect = {
    "effect": None, "ci95": None, "ci90": None, "ci_simultaneous": None, "effect_sd": None,
    "p": None, "p_holm": None, "p_equivalent": None, "divergence_p": None, "worst_case": None, "guarded": False,
    "verdict": None, "evidence": "What every other arm is compared with.", "more_seeds": None,
}  # fmt: skip


def _collect_evidence(
    groups: list[Group],
    others: list[Pooled | Contrast],
    table: Table,
    study: FrozenStudy,
    against: Mapping[str, str],
    plans: Mapping[str, Plan],
    plan: Plan,
) -> dict[str, Evidence]:
    """Return the evidence for each arm, contrast and pooled effect (by `key`), corrected for all of them together."""
    effects = {arm: effect for group in groups for arm, effect in group.fit.effects.items()}
    imputed = {arm: effect for group in groups for arm, effect in group.imputed.effects.items()}
    counts = {arm: table.count(arm) for arm in study["arms"]}
    sides, margins = dict(against), {arm: plans[arm].equivalence for arm in against}
    for entry in others:
        effects[entry.key], imputed[entry.key], margins[entry.key] = entry.effect, entry.imputed, entry.plan.equivalence
        sides[entry.key] = f"{entry.key}:other"
        counts[entry.key], counts[sides[entry.key]] = entry.counts
    return verdict.collect_evidence(effects, imputed, counts, sides, plan, len(study["seeds"]), margins)


@dataclass(frozen=True)
class Analysis:
    """What the verdicts of a study share.

    Attributes:
        seeds: number of seeds.
        final: whether the results include verdicts.
        compared: number of arms and contrasts in Holm's correction.
    """

    seeds: int
    final: bool
    compared: int


def _judge_pooled(pooled: Pooled, evidence: Evidence, analysis: Analysis) -> JudgedEffect:
    """Return a pooled effect with its verdict. Its noise is estimated from its seeds alone."""
    return _judge(evidence, pooled.plan, analysis, None, 1, 3, verdict.Sides((pooled.runs, pooled.runs)))


def _contrast(contrast: Contrast, evidence: Evidence, analysis: Analysis, outcomes: Outcomes | None) -> JudgedContrast:
    """Return the entry of a contrast in the results."""
    places, sides = formatting.mean_places(contrast.residual_sd, contrast.means[1]), contrast.sides(analysis.seeds)
    if outcomes and "spread" not in contrast.planned:
        ours, theirs = (sum(len(outcomes.reached[arm]) for arm in contrast.planned[side]) for side in ("compare", "to"))
        sides = replace(sides, reached=(ours, theirs))
    judged = _judge(evidence, contrast.plan, analysis, contrast.residual_sd, contrast.number, places, sides)
    return {"name": contrast.name, **contrast.planned, "means": list(contrast.means), **judged}


def _judge(
    evidence: Evidence,
    plan: Plan,
    analysis: Analysis,
    residual_sd: float | None,
    effects: int,
    places: int,
    sides: verdict.Sides,
) -> JudgedEffect:
    """Return the effect of an arm or a contrast with its verdict.

    Args:
        evidence: the evidence.
        plan: the analysis plan.
        analysis: what the verdicts of the study share.
        residual_sd: standard deviation of the noise in the model.
        effects: number of effects in the model.
        places: number of decimal places for the arms' means.
        sides: the compared sides.
    """
    if not analysis.final:  # readers might mistake unplanned p-values for verdicts
        evidence = replace(evidence, p=None, p_holm=None, p_equivalent=None, divergence_p=None)
    effect, decides = evidence.effect, analysis.final and analysis.seeds > 1  # a single seed shows no noise
    decision = verdict.decide_verdict(evidence, plan) if decides else None
    known, worst = effect.effect, evidence.imputed
    return {
        "effect": known,
        "ci95": effect.interval,
        "ci90": effect.interval_at(0.9),
        "ci_simultaneous": effect.interval_with(lambda df: critical_value(effects, df)),
        # in standard deviations of one run's noise
        "effect_sd": None if known is None or not residual_sd else known / residual_sd,
        "p": evidence.p,
        "p_holm": evidence.p_holm,
        "p_equivalent": evidence.p_equivalent,
        "divergence_p": evidence.divergence_p,
        "worst_case": None if worst is None else {"effect": worst.effect, "ci95": worst.interval},
        "guarded": effect.guarded,
        "verdict": decision,
        "evidence": verdict.format_evidence(evidence, plan, sides, places),
        "more_seeds": verdict.seeds_still_needed(evidence, analysis.compared, plan)
        if decision == "inconclusive"
        else None,
    }


def _noise_floor(table: Table, group: Group, plan: Plan, compared: int) -> NoiseFloor:
    """Return the baseline's standard deviation, and the smallest effect detected with 80 % power.

    Args:
        table: the study's runs.
        group: the arms compared with the study's main baseline.
        plan: the analysis plan.
        compared: number of arms in Holm's correction.
    """
    values, known, arms = table.values(group.baseline), group.fit.residual_sd, max(1, compared)
    if plan.solved is not None:  # the exact test counts runs, so shares need no estimate of noise
        return {"sd": None, "seeds": len(values), "resolves": None}
    if known and group.fit.sds:  # a noisy baseline takes part in every comparison, if any of its runs finished
        known = math.hypot(max(known, group.fit.sds.get(group.baseline, known)), known) / math.sqrt(2)
    level, together = plan.strictest_level(arms, len(values)), len(group.arms) or None
    design = PowerAnalysis(arms, level, df_a_seed=together, weighed=together if plan.noise == "moderated" else None)
    resolves = design.smallest_effect(known, len(values)) if known else None
    return {"sd": sd(values), "seeds": len(values), "resolves": resolves}


def _model(group: Group, table: Table) -> Model:
    fit = group.fit
    model: Model = {
        "residual_sd": fit.residual_sd,
        "df": fit.df,
        "levene_p": fit.levene_p,
        "noisy": sorted(fit.noisy),
        "copies": fit.copies,
        "completers_only": any(table.diverged_seeds(arm) for arm in (group.baseline, *group.arms)),
    }
    if fit.sds is not None and fit.apart is not None:
        model["sds"], model["apart"] = fit.sds, fit.apart
    return model


def _group(group: Group, table: Table, outcomes: Outcomes | None) -> GroupEntry:
    entry: GroupEntry = {"baseline": group.baseline, "arms": group.arms, **_model(group, table)}
    if outcomes and group.baseline in outcomes.horizons:
        entry["horizon"] = outcomes.horizons[group.baseline]
    return entry


def _arm(
    name: str,
    study: FrozenStudy,
    table: Table,
    plan: Plan,
    against: Mapping[str, str],
    judged: JudgedEffect,
    outcomes: Outcomes | None = None,
) -> Arm:
    """Return the entry of an arm. `outcomes` is None if arms are compared by the primary metric itself."""
    compared = outcomes.table if outcomes else table
    values, base, changes = compared.values(name), against.get(name), changes_of(study, name)
    costs = next(iter(table.results(name)), {})
    choices = choices_of([(cell.seed, cell.result) for cell in table.cells[name] if cell.result is not None])
    pair = (table.finished(name), table.finished(base)) if base and table.paired else None
    strata = table.effects_by_stratum(name, base) if base and table.stratum else []
    weighted = len({stratum["pairs"] for stratum in strata}) > 1  # the alternative analyses have no weights
    arm: Arm = {
        "name": name,
        "against": base,
        "planned": name in plan.arms,
        "role": study.get("roles", {}).get(name, {}),
        "diff": changes,
        "change": _format_change(name, changes, study),
        "runs": describe_runs(name, table, outcomes),
        "diverged": len(table.diverged_seeds(name)),
        "mean": compared.mean(name),
        "sd": sd(values),
        **judged,
        "params": costs.get("params"),
        "flops": _spent(table, name, "flops"),
        "tokens": _spent(table, name, "tokens"),
        "memory": costs.get("memory"),
        "sensitivity": (
            alternative_analyses(values, compared.values(base), plan.bounds)
            if base and judged["verdict"] and table.paired and not weighted and plan.solved is None
            else None
        ),
        "efficiency": compute_efficiency(*pair, plan) if pair else None,
        "evaluation_noise": bootstrap_effect(*pair, plan) if pair and not outcomes else None,
        "metrics": mean_metrics([cell.result["metrics"] for cell in table.finished(name) if cell.result]),
    }
    if choices:
        arm["choices"] = choices
    if outcomes:
        arm["reached"] = len(outcomes.reached[name])
    if outcomes and outcomes.horizons and base and arm["sensitivity"]:
        sides = ([(v, s in outcomes.reached[of]) for s, v in compared.values(of).items()] for of in (name, base))
        arm["sensitivity"]["log_rank_p"] = log_rank_p(*sides)
    if table.stratum:
        arm["strata"] = strata
    return arm


def _spent(table: Table, name: str, what: str) -> float | None:
    """Return what each of an arm's runs spent; the mean if runs differ, because some stopped."""
    spent = [result.get(what) for result in table.results(name)]
    known = [value for value in spent if value is not None]
    if not known or len(known) < len(spent):
        return spent[0] if spent else None
    return known[0] if len(set(known)) == 1 else sum(known) / len(known)


def _format_change(name: str, changes: Mapping[str, Any], study: FrozenStudy) -> str:
    role = study.get("roles", {}).get(name, {})
    if role.get("design") == "components" and (parts := study.get("design", {}).get("components")):
        return format_component_arm(role, changes, study["base"], parts["steps"])
    return format_changes(changes, baseline_settings(study), study.get("resets", {}).get(name))


def _sides(table: Table, arm: str, baseline: str, outcomes: Outcomes | None) -> verdict.Sides:
    reached = (len(outcomes.reached[arm]), len(outcomes.reached[baseline])) if outcomes else None
    return verdict.Sides((len(table.cells[arm]), len(table.cells[baseline])), reached=reached)


def _seed_label(seeds: int) -> Label | None:
    if seeds == 1:
        return "single seed"
    return "screening" if seeds <= SCREENING_SEEDS else None

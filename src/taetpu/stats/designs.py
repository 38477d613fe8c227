"""Analyses and limitations of a study's designs."""

from collections.abc import Iterable, Mapping

from taetpu.core.errors import UserError
from taetpu.stats import factorial, formatting, ladder, linear_model
from taetpu.stats.arm_changes import changes_of
from taetpu.stats.components import judge_components
from taetpu.stats.ladder_results import Ladder, Scale
from taetpu.stats.plan import Plan
from taetpu.stats.repeats import analyse_across, analyse_tasks, rung_of
from taetpu.stats.results import BothWays, Designs, Excess, Factorial, JudgedEffect, Parts, Results
from taetpu.stats.results_table import Table
from taetpu.stats.verdict import holm
from taetpu.stats.worth import Runs, analyse_worth
from taetpu.store.frozen_study import FactorialDesign, FrozenStudy, LadderDesign, OneByOne, Role

BASELINE = "baseline"
ONE_BY_ONE: tuple[OneByOne, ...] = ("leave_one_out", "add_one_in")
LIMITS = {
    "arms": "Each change was made alone: whether changes add up or depend on each other was not tried.",
    "together": "Several settings change at once in {arms}: which of them makes the difference is not known.",
    "combined": "Changes that were also made alone are combined in {arms}: whether they depend on each other was not "
    "tested (`factorial` tests it).",
    "leave_one_out": "Each part was removed alone. The joint effect shows whether parts can replace each other, but "
    "not which ones.",
    "add_one_in": "Each part was added alone. The joint effect shows whether parts need each other, but not which "
    "ones.",
    "factorial": "Interactions of three or more factors are assumed to be zero.",
    "fraction": "A fraction of the cells was trained: effects listed as aliases cannot be told apart, and the "
    "smaller of them are assumed to be zero.",
    "ladder": "Nothing was trained beyond the largest rung: statements about larger scales are extrapolated.",
    "tasks": "Intervals of pooled effects are over seeds: they hold for these tasks, and not for others.",
    "across": "One setting was changed at a time: whether settings depend on each other was not tried.",
    "ladder without a trend": "Effects have no trend over the rungs of the ladder: they are compared within rungs "
    "only.",
}


def analyse_designs(study: FrozenStudy, table: Table, plan: Plan, judged: Mapping[str, JudgedEffect]) -> Designs:
    """Analyse a study's designs for `results.json`.

    Args:
        study: the frozen study.
        table: the study's runs.
        plan: the study's analysis plan.
        judged: the effect and verdict of each arm.
    """
    roles, design = _original_roles(study), study.get("design", {})
    analyses: Designs = {"limits": design_limits(study)}
    for kind in ONE_BY_ONE:
        if parts := _parts(roles, kind):
            analysed: Parts = {"scales": {rung: _excess(table, arms, plan.at(rung)) for rung, arms in parts.items()}}
            others = {role.get("part_left"): arm for arm, role in roles.items() if role.get("design") == kind}
            if left := {part: arm for part, arm in others.items() if part is not None}:
                analysed = _both_ways(analysed, parts[""], left, table, plan)
            analyses[kind] = analysed
    if "factorial" in design:
        analyses["factorial"] = _factorial(design["factorial"], roles, table, plan)
    if "ladder" in design:
        climbed, measure = _ladder(design["ladder"], study, table, plan, judged)
        analyses["ladder"] = climbed
        analyses["limits"] += _ladder_limits(climbed, measure, plan)
    if "tasks" in design:
        analyses["tasks"] = analyse_tasks(design["tasks"], study, table, plan, judged)
    if "across" in design:
        analyses["across"] = analyse_across(design["across"], study, table, plan, judged)
    if "components" in design:
        analyses["components"] = {**design["components"], "rows": judge_components(roles, judged)}
    return analyses


def _original_roles(study: FrozenStudy) -> dict[str, Role]:
    """Return the roles of all arms except those added by matching or tuning. A role says how an arm was derived."""
    return {arm: role for arm, role in study.get("roles", {}).items() if not {"match", "tuned"} & set(role)}


def _parts(roles: Mapping[str, Role], kind: OneByOne) -> dict[str, dict[str | None, tuple[str, str]]]:
    """Return `{rung: {part: (arm, baseline)}}`. The key of the arm that changes all parts is None."""
    parts: dict[str, dict[str | None, tuple[str, str]]] = {}
    for arm, role in roles.items():
        if role.get("design") == kind and "part" in role:
            parts.setdefault(rung_of(role), {})[role.get("part")] = arm, role.get("against", BASELINE)
    return parts


def parts_that_matter(results: Results, most: int) -> list[str]:
    """Return the parts of `leave_one_out` or `add_one_in` with a verdict of better or worse, the largest effects first.

    With `both_ways`, the verdict and the effect may be those of the part alone or last.

    Args:
        results: the results of a study.
        most: the maximum number of parts.

    Raises:
        UserError: if fewer than two parts have such a verdict.
    """
    sizes: dict[str, float] = {}
    for arm in results["arms"]:
        part = arm["role"].get("part") or arm["role"].get("part_left")
        if arm["role"].get("design") in ONE_BY_ONE and part and arm["verdict"] in ("better", "worse"):
            sizes[part] = max(sizes.get(part, 0.0), abs(arm["effect"] or 0.0))
    if len(sizes) < 2:
        problem = (
            f"{len(sizes)} parts of {results['study']} are better or worse than the baseline, and a pair needs two"
        )
        remedy = "Run the study with more seeds." if results["final"] else "Finish the study with `taetpu run`."
        raise UserError(problem, remedy=remedy)
    return sorted(sizes, key=lambda part: -sizes[part])[:most]


def _excess(table: Table, parts: Mapping[str | None, tuple[str, str]], plan: Plan) -> Excess | None:
    """Return the joint effect of all parts minus the sum of the single effects; None if no arm changes all parts."""
    if None not in parts:
        return None
    (whole, baseline), single = parts[None], [arm for part, (arm, _) in parts.items() if part is not None]
    weights = {whole: 1.0, **dict.fromkeys(single, -1.0), baseline: len(single) - 1.0}
    effect = _contrast(table, weights, weights, plan)
    return {"arm": whole, "parts": single, "excess": effect.effect, "ci95": effect.interval, "p": effect.p}


def _contrast(table: Table, arms: Iterable[str], weights: Mapping[str, float], plan: Plan) -> linear_model.Effect:
    values = {arm: table.values(arm) for arm in arms}
    return linear_model.estimate_contrast(values, weights, plan.bounds, plan.noise, table.block)


def _both_ways(
    analysed: Parts,
    parts: Mapping[str | None, tuple[str, str]],
    left: Mapping[str, str],
    table: Table,
    plan: Plan,
) -> Parts:
    """Return the analysis of parts with the effects of parts that change alone and last.

    Args:
        analysed: the analysis without them.
        parts: see `_parts`.
        left: the arm of all other parts, by part.
        table: the study's runs.
        plan: the study's analysis plan.
    """
    whole = parts[None][0]
    ours, theirs = [BASELINE, *(arm for arm, _ in parts.values())], [whole, *left.values()]
    rows: list[BothWays] = []
    for part, others in left.items():
        alone = _contrast(table, ours, {parts[part][0]: 1.0, BASELINE: -1.0}, plan)
        last = _contrast(table, theirs, {whole: 1.0, others: -1.0}, plan)
        more = linear_model.subtract(last, alone)
        rows.append({"part": part, "alone": alone.effect, "last": last.effect, "difference": more.effect,
                     "ci95": more.interval, "p": more.p, "p_holm": None})  # fmt: skip
    corrected = holm({row["part"]: row["p"] for row in rows})
    together = _contrast(table, ours, {whole: 1.0, BASELINE: -1.0}, plan)
    total = _contrast(table, theirs, {whole: float(len(left)), **dict.fromkeys(left.values(), -1.0)}, plan)
    effect = linear_model.subtract(together, total)  # both contain `whole`, so the interval is rather too wide
    return {
        **analysed,
        "both_ways": [{**row, "p_holm": corrected[row["part"]]} for row in rows],
        "last": {"arm": whole, "parts": [*left.values()], "excess": effect.effect, "ci95": effect.interval,
                 "p": effect.p},
    }  # fmt: skip


def _factorial(design: FactorialDesign, roles: Mapping[str, Role], table: Table, plan: Plan) -> Factorial:
    scales: dict[str, dict[str, dict[str, int]]] = {}
    for arm, role in roles.items():
        if "levels" in role:
            cells = scales.setdefault(rung_of(role), {})
            cells.setdefault(role.get("against", BASELINE), dict.fromkeys(design["factors"], 0))
            cells[arm] = dict(role["levels"])
    levels = {factor: len(titles) for factor, titles in design["factors"].items()}
    analyses = {
        scale: factorial.analyse_factorial(
            factorial.Factorial(levels, cells), {arm: table.values(arm) for arm in cells}, plan.at(scale).bounds
        )
        for scale, cells in scales.items()
    }
    return {**design, "scales": analyses}


def _ladder(
    design: LadderDesign, study: FrozenStudy, table: Table, plan: Plan, judged: Mapping[str, JudgedEffect]
) -> tuple[Ladder, ladder.Measure | None]:
    """Return the analysis of the ladder, and the measure of its trend."""
    scales, sizes = dict[str, Scale](), list[ladder.Size]()
    for rung in design["rungs"]:
        scales[rung], size = _scale_facts(rung, study, table)
        sizes.append(size)
    # Rules 1 order scales by parameters alone.
    measure: ladder.Measure | None = ladder.trend_measure(sizes) if plan.rules > 1 else "params"
    arms: dict[str, list[ladder.Rung]] = {}
    names: dict[str, dict[str, str]] = {}
    for arm, role in _original_roles(study).items():
        note = role.get("ladder")
        if note is None or arm not in judged or arm not in table.cells:
            continue
        baseline = role.get("against", BASELINE)
        values, base = table.values(arm), table.values(baseline)
        measured = [result[measure] for result in table.results(baseline) if result.get(measure)] if measure else [0.0]
        if measured:
            differences = [values[seed] - base[seed] for seed in sorted(values.keys() & base.keys())]
            verdict = judged[arm]
            rung = ladder.Rung(note["rung"], measured[0], differences, verdict["effect"], verdict["verdict"])
            arms.setdefault(note["arm"], []).append(rung)
            names.setdefault(note["arm"], {})[note["rung"]] = arm
    analysis: Ladder = {
        **design,
        "scales": scales,
        "arms": {
            arm: {"rungs": names[arm], **ladder.analyse_ladder(climbed, plan, measure)} for arm, climbed in arms.items()
        },
    }
    if plan.worth:
        bases = {rung: _runs(table, scale["baseline"]) for rung, scale in scales.items()}
        climbers = {arm: {rung: _runs(table, name) for rung, name in rungs.items()} for arm, rungs in names.items()}
        analysis["worth"] = analyse_worth(bases, climbers)
    return analysis, measure


def _runs(table: Table, arm: str) -> Runs:
    """Return the runs of an arm for multipliers, with mean FLOPs if runs differ in them because some stopped."""
    spent = [result.get("flops") for result in table.results(arm)]
    known = [flops for flops in spent if flops]
    compute = sum(known) / len(known) if known and len(known) == len(spent) else None
    return Runs(arm, compute, table.values(arm), len(table.diverged_seeds(arm)))


def _ladder_limits(analysis: Ladder, measure: ladder.Measure | None, plan: Plan) -> list[str]:
    """Return the limitation of a ladder: its effects are extrapolated, or have no trend.

    Plans of rules 1 stored the limitation of extrapolated effects for every ladder.
    """
    if measure is None:
        return [LIMITS["ladder without a trend"]]
    extrapolated = any(arm["extrapolated"] for arm in analysis["arms"].values())
    return [LIMITS["ladder"]] if extrapolated or plan.rules == 1 else []


def _scale_facts(rung: str, study: FrozenStudy, table: Table) -> tuple[Scale, ladder.Size]:
    """Return the entry of a rung in the results, and its size."""
    role = {"rung": rung, "arm": BASELINE}
    baseline = next((arm for arm, other in study.get("roles", {}).items() if other.get("ladder") == role), BASELINE)
    ended = table.results(baseline) if baseline in table.cells else []
    first = ended[0] if ended else {}
    changed = changes_of(study, baseline) if baseline in study["arms"] else {}
    return (
        {"baseline": baseline, "params": first.get("params"),
         "tokens_per_parameter": ladder.tokens_per_parameter(first)},
        {"params": first.get("params"), "flops": first.get("flops"), "diff": changed},
    )  # fmt: skip


def design_limits(study: FrozenStudy) -> list[str]:
    """Return the limitations of a study's designs, one sentence per limitation, except those of its ladder."""
    roles, crossed = _original_roles(study), study.get("design", {}).get("factorial")
    limits: list[str] = [kind for kind in ONE_BY_ONE if any(None in parts for parts in _parts(roles, kind).values())]
    if crossed:
        limits += ["factorial"] * (len(crossed["factors"]) > 2) + ["fraction"] * bool(crossed["words"])
    limits += [name for name in ("tasks", "across") if name in study.get("design", {})]
    judged = study.get("judged")
    named = judged is not None and len(judged["arm"]) < 2  # the name of an arm does not say what it changes
    return [*([] if named else _limits_of_arms(study)), *(LIMITS[name] for name in limits)]


def _limits_of_arms(study: FrozenStudy) -> list[str]:
    """Return the limitations of the arms outside designs, based on the number of settings that each arm changes."""
    roles = study.get("roles", {})
    design = study.get("design", {})
    repeated = design.get("ladder") or design.get("tasks") or design.get("across")
    baseline_rung = repeated["own"] if repeated else ""
    written = {
        arm: changes_of(study, arm) for arm in study["arms"] if _is_written(arm, roles.get(arm, {}), baseline_rung)
    }
    alone = [changes for changes in written.values() if len(changes) == 1]
    several = {arm: changes for arm, changes in written.items() if len(changes) > 1}
    if not several:
        return [LIMITS["arms"]] if len(alone) > 1 else []
    combined = [arm for arm, changes in several.items() if all({path: v} in alone for path, v in changes.items())]
    named = {"together": [arm for arm in several if arm not in combined], "combined": combined}
    return [LIMITS[name].format(arms=formatting.list_names(arms)) for name, arms in named.items() if arms]


def _is_written(arm: str, role: Role, rung: str) -> bool:
    """Return whether the study file or its grid defines the arm, and the arm has the scale `rung`."""
    derived = {"design", "match", "tuned"} & set(role)
    return arm != BASELINE and not derived and rung_of(role) == rung

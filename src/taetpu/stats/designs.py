"""Analyses and limitations of a study's designs."""

from collections.abc import Mapping
from typing import Any

from taetpu.stats import factorial, formatting, ladder, linear_model
from taetpu.stats.arm_changes import changes_of
from taetpu.stats.components import judge_components
from taetpu.stats.plan import Plan
from taetpu.stats.results_table import Table
from taetpu.store.study import JUDGED

BASELINE = "baseline"
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
    "ladder without a trend": "Effects have no trend over the rungs of the ladder: they are compared within rungs "
    "only.",
}


def analyse_designs(
    study: Mapping[str, Any], table: Table, plan: Plan, judged: Mapping[str, Mapping[str, Any]]
) -> dict[str, Any]:
    """Analyse a study's designs for `results.json`.

    Args:
        study: the frozen study.
        table: the study's runs.
        plan: the study's analysis plan.
        judged: the effect and verdict of each arm.

    Returns:
        `limits`, and an entry for each design of the study: `leave_one_out`, `add_one_in`, `factorial`, `ladder`,
        `components`.
    """
    roles = _original_roles(study)
    analyses, limits = dict[str, Any](), design_limits(study)
    for kind in ("leave_one_out", "add_one_in"):
        if parts := _parts(roles, kind):
            analyses[kind] = {"scales": {rung: _excess(table, arms, plan) for rung, arms in parts.items()}}
    if "factorial" in study.get("design", {}):
        analyses["factorial"] = _factorial(study, table, plan)
    if "ladder" in study.get("design", {}):
        analyses["ladder"], measure = _ladder(study, table, plan, judged)
        limits += _ladder_limits(analyses["ladder"], measure, plan)
    if "components" in study.get("design", {}):
        analyses["components"] = {**study["design"]["components"], "rows": judge_components(roles, judged)}
    return {**analyses, "limits": limits}


def _original_roles(study: Mapping[str, Any]) -> dict[str, Mapping[str, Any]]:
    """Return the roles of all arms except those added by matching or tuning. A role says how an arm was derived."""
    return {arm: role for arm, role in study.get("roles", {}).items() if not {"match", "tuned"} & set(role)}


def _scale(role: Mapping[str, Any]) -> str:
    return role.get("ladder", {}).get("rung", "")


def _parts(roles: Mapping[str, Any], kind: str) -> dict[str, dict[str | None, tuple[str, str]]]:
    """Return `{rung: {part: (arm, baseline)}}`. The key of the arm that changes all parts is None."""
    parts: dict[str, dict[str | None, tuple[str, str]]] = {}
    for arm, role in roles.items():
        if role.get("design") == kind:
            parts.setdefault(_scale(role), {})[role["part"]] = arm, role.get("against", "baseline")
    return parts


def _excess(table: Table, parts: Mapping[str | None, tuple[str, str]], plan: Plan) -> dict[str, Any] | None:
    """Return the joint effect of all parts minus the sum of the single effects; None if no arm changes all parts."""
    if None not in parts:
        return None
    (whole, baseline), single = parts[None], [arm for part, (arm, _) in parts.items() if part is not None]
    weights = {whole: 1.0, **dict.fromkeys(single, -1.0), baseline: len(single) - 1.0}
    values = {arm: table.values(arm) for arm in weights}
    effect = linear_model.estimate_contrast(values, weights, plan.bounds, plan.noise, table.block)
    return {"arm": whole, "parts": single, "excess": effect.effect, "ci95": effect.interval, "p": effect.p}


def _factorial(study: Mapping[str, Any], table: Table, plan: Plan) -> dict[str, Any]:
    design, scales = study["design"]["factorial"], dict[str, dict[str, dict[str, int]]]()
    for arm, role in _original_roles(study).items():
        if role.get("design") == "factorial":
            cells = scales.setdefault(_scale(role), {})
            baseline = role.get("against", "baseline")
            cells.setdefault(baseline, dict.fromkeys(design["factors"], 0))
            cells[arm] = dict(role["levels"])
    levels = {factor: len(titles) for factor, titles in design["factors"].items()}
    analyses = {
        scale: factorial.analyse_factorial(
            factorial.Factorial(levels, cells), {arm: table.values(arm) for arm in cells}, plan.bounds
        )
        for scale, cells in scales.items()
    }
    return {**design, "scales": analyses}


def _ladder(
    study: Mapping[str, Any], table: Table, plan: Plan, judged: Mapping[str, Mapping[str, Any]]
) -> tuple[dict[str, Any], ladder.Measure | None]:
    """Return the analysis of the ladder, and the measure of its trend."""
    design, roles = study["design"]["ladder"], _original_roles(study)
    scales = {rung: _scale_facts(rung, study, table) for rung in design["rungs"]}
    # Rules 1 order scales by parameters alone.
    measure: ladder.Measure | None = ladder.trend_measure(list(scales.values())) if plan.rules > 1 else "params"
    arms: dict[str, list[ladder.Rung]] = {}
    names: dict[str, dict[str, str]] = {}
    for arm, role in roles.items():
        note = role.get("ladder")
        if note is None or arm not in judged or arm not in table.cells:
            continue
        baseline = role.get("against", "baseline")
        values, base = table.values(arm), table.values(baseline)
        sizes = [result[measure] for result in table.results(baseline) if result.get(measure)] if measure else [0.0]
        if sizes:
            differences = [values[seed] - base[seed] for seed in sorted(values.keys() & base.keys())]
            verdict = judged[arm]
            rung = ladder.Rung(note["rung"], sizes[0], differences, verdict["effect"], verdict["verdict"])
            arms.setdefault(note["arm"], []).append(rung)
            names.setdefault(note["arm"], {})[note["rung"]] = arm
    analysis = {
        **design,
        "scales": {
            rung: {name: facts[name] for name in ("baseline", "params", "tokens_per_parameter")}
            for rung, facts in scales.items()
        },
        "arms": {
            arm: {"rungs": names[arm], **ladder.analyse_ladder(climbed, plan, measure)} for arm, climbed in arms.items()
        },
    }
    return analysis, measure


def _ladder_limits(analysis: Mapping[str, Any], measure: ladder.Measure | None, plan: Plan) -> list[str]:
    """Return the limitation of a ladder: its effects are extrapolated, or have no trend.

    Plans of rules 1 stored the limitation of extrapolated effects for every ladder.
    """
    if measure is None:
        return [LIMITS["ladder without a trend"]]
    extrapolated = any(arm["extrapolated"] for arm in analysis["arms"].values())
    return [LIMITS["ladder"]] if extrapolated or plan.rules == 1 else []


def _scale_facts(rung: str, study: Mapping[str, Any], table: Table) -> dict[str, Any]:
    """Return the size of a rung's baseline and its changes to the study's baseline (see `ladder.trend_measure`)."""
    role = {"rung": rung, "arm": BASELINE}
    baseline = next((arm for arm, other in study.get("roles", {}).items() if other.get("ladder") == role), BASELINE)
    ended = table.results(baseline) if baseline in table.cells else []
    return {
        "baseline": baseline,
        "params": ended[0].get("params") if ended else None,
        "flops": ended[0].get("flops") if ended else None,
        "tokens_per_parameter": ladder.tokens_per_parameter(ended[0]) if ended else None,
        "diff": changes_of(study, baseline) if baseline in study["arms"] else {},
    }


def design_limits(study: Mapping[str, Any]) -> list[str]:
    """Return the limitations of a study's designs, one sentence per limitation, except those of its ladder."""
    design = study.get("design", {})
    roles = _original_roles(study)
    kinds = ("leave_one_out", "add_one_in")
    limits = [kind for kind in kinds if any(None in parts for parts in _parts(roles, kind).values())]
    limits += ["factorial"] if len(design.get("factorial", {}).get("factors", ())) > 2 else []
    limits += ["fraction"] if design.get("factorial", {}).get("words") else []
    judged = study.get(JUDGED)
    named = judged is not None and len(judged["arm"]) < 2  # the name of an arm does not say what it changes
    return [*([] if named else _limits_of_arms(study)), *(LIMITS[name] for name in limits)]


def _limits_of_arms(study: Mapping[str, Any]) -> list[str]:
    """Return the limitations of the arms outside designs, based on the number of settings that each arm changes."""
    roles = study.get("roles", {})
    baseline_rung = study.get("design", {}).get("ladder", {}).get("own", "")
    written = {
        arm: changes_of(study, arm) for arm in study["arms"] if _is_written(arm, roles.get(arm, {}), baseline_rung)
    }
    alone = [changes for changes in written.values() if len(changes) == 1]
    several = {arm: changes for arm, changes in written.items() if len(changes) > 1}
    if not several:
        return [LIMITS["arms"]] if len(alone) > 1 else []
    combined = [arm for arm, changes in several.items() if all({path: v} in alone for path, v in changes.items())]
    together = [arm for arm in several if arm not in combined]
    named = {"together": together, "combined": combined}
    return [LIMITS[name].format(arms=formatting.list_names(arms)) for name, arms in named.items() if arms]


def _is_written(arm: str, role: Mapping[str, Any], rung: str) -> bool:
    """Return whether the study file or its grid defines the arm, and the arm has the scale `rung`."""
    derived = {"design", "match", "tuned"} & set(role)
    return arm != BASELINE and not derived and _scale(role) == rung

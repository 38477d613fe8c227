"""The worth of arms in compute as sentences and tables. `report.worth_chart` has its charts."""

from taetpu.report.section_types import Section, Table
from taetpu.stats import formatting
from taetpu.stats.plan import describe_metric
from taetpu.stats.results import Results
from taetpu.stats.worth_results import RungWorth, ScalingLaw, Worth, WorthArm

LAW, MULTIPLIERS = "scaling law", "multipliers"
"""The names of the charts in `design_charts.draw_panels`."""
BOUNDS = {"at_least": "at least", "at_most": "at most"}


def worth_of(results: Results) -> Worth | None:
    """Return the worth of all arms; None if the plan does not ask for it, or results are not final."""
    ladder = results["designs"].get("ladder")
    return ladder.get("worth") if ladder else None


def describe_worth(results: Results) -> list[str]:
    """Return a sentence for each arm with its multiplier, or why there is none."""
    worth = worth_of(results)
    if worth is None:
        return []
    if reason := _refusal(worth, results):
        return [f"Worth in compute: no multipliers. {reason}"]
    lines = []
    for name, arm in worth["arms"].items():
        if arm["all"] is None:
            lines.append(f"{name} has no multiplier. {_arm_refusal(arm)}")
            continue
        sure = f" (95 % interval {_interval(arm['all'])})" if arm["all"]["ci95"] else ""
        lines.append(f"{name} {_number(arm['all'])}{sure}")
    return [f"Worth in compute, as a factor on the baseline's training FLOPs: {'; '.join(lines)}."]


def _refusal(worth: Worth, results: Results) -> str:
    """Return why the baseline has no law; empty if it has one."""
    label = describe_metric(results["plan"]).label
    if worth["refused"] == "rungs":
        return "A law needs four rungs, which all differ in their training FLOPs."
    if worth["refused"] == "diverged":
        return f"Runs of {formatting.list_names(worth['diverged'])} diverged."
    if worth["refused"] == "rising":
        return f"The baseline's {label} does not fall with training FLOPs."
    if worth["refused"] == "poor" and worth["law"]:
        rung = max(worth["law"]["rungs"], key=lambda rung: max(rung["off"], 1 / rung["off"]))
        return (
            f"The fit is poor: at {rung['rung']}, the law has the baseline's {label} at {rung['off']:.2f} times its "
            "training FLOPs, which is more than a quarter of the distance between rungs."
        )
    return ""


def _arm_refusal(arm: WorthArm) -> str:
    if arm["refused"] == "diverged":
        return f"Runs of {formatting.list_names(arm['diverged'])} diverged."
    return "It is not at all rungs."


def _number(worth: RungWorth) -> str:
    half = formatting.half_width(worth["ci95"])
    text = f"{worth['multiplier']:.{max(2, formatting.decimals(half)) if half else 2}f}"
    return f"{BOUNDS[worth['bound']]} {text}" if worth["bound"] else text


def _interval(worth: RungWorth) -> str:
    if worth["ci95"] is None:
        return "-"
    places = max(2, formatting.decimals(formatting.half_width(worth["ci95"])))
    return " to ".join(f"{end:.{places}f}" for end in worth["ci95"])


def formula(law: ScalingLaw) -> str:
    """Return a law as a formula, with C in training FLOPs."""
    return (
        f"{law['floor']:.4g} + {law['scale']:.4g} x ({formatting.amount(law['at'])} / C)^{law['exponent']:.3g}, with C "
        "in training FLOPs"
    )


def worth_section(results: Results) -> Section:
    """Return the section on the worth of arms in compute."""
    worth = worth_of(results)
    if worth is None:
        return Section("Worth in compute")
    metric, law = describe_metric(results["plan"]), worth["law"]
    tables = [_law_table(law)] if law else []
    if law is None or worth["refused"]:
        charts = [("The baseline and its law", LAW)] if law else []
        return Section("Worth in compute", "", tables, charts, describe_worth(results))
    lead = (
        f"A multiplier of 1.2 means that the baseline needs 1.2 times the training FLOPs of the arm for an equal "
        f"{metric.label}. It is read from a law fitted to the baseline: {metric.label} = {formula(law)}. Differences "
        "between arm and baseline are compared with the law, so what the runs of a seed share cancels."
    )
    tables = [_arms_table(worth), *tables]
    charts = [
        ("Multipliers of all rungs (large) and of single rungs, the smallest first", MULTIPLIERS),
        (f"{metric.label} over training FLOPs, with the law of the baseline", LAW),
    ]
    refused = [f"{name}: {_arm_refusal(arm)}" for name, arm in worth["arms"].items() if arm["all"] is None]
    return Section("Worth in compute", lead, tables, charts, [*refused, *_notes(law)])


def _arms_table(worth: Worth) -> Table:
    order = [rung["rung"] for rung in worth["law"]["rungs"]] if worth["law"] else []
    rows = []
    for name, arm in worth["arms"].items():
        if whole := arm["all"]:
            rows.append([name, _number(whole), _interval(whole), *(_cell(arm["rungs"][rung]) for rung in order)])
    return Table(("arm", "multiplier", "95 % interval", *(f"at {rung}" for rung in order)), rows)


def _cell(worth: RungWorth) -> str:
    star = "*" if worth["extrapolated"] else ""
    return f"{_number(worth)}{star}" + (f" ({_interval(worth)})" if worth["ci95"] else "")


def _law_table(law: ScalingLaw) -> Table:
    rows = [
        [
            rung["rung"],
            formatting.amount(rung["compute"]),
            formatting.number(rung["mean"], 4),
            formatting.number(rung["fitted"], 4),
            formatting.number(rung["error"], 4),
            f"{100 * (rung['off'] - 1):+.1f} %",
        ]
        for rung in law["rungs"]
    ]
    return Table(("rung", "training FLOPs", "baseline's mean", "law", "standard error", "deviation in FLOPs"), rows)


def _notes(law: ScalingLaw) -> list[str]:
    p = formatting.p_value(law["p_misfit"])
    return [
        "The interval is over seeds (jackknife of law and multiplier) and holds for one arm alone. It includes an "
        "allowance for the largest deviation of the baseline from the law. The multiplier of all rungs assumes that it "
        "is the same at every rung; those of single rungs do not.",
        "A star marks multipliers for which the law was read outside of the rungs. Beyond one rung, it is not "
        "extrapolated: then the multiplier is at least, or at most, the number.",
        "The deviation is how many more or fewer training FLOPs the law needs for the baseline's mean. "
        + (f"The p-value of deviations by noise alone is {p}." if law["p_misfit"] is not None else ""),
    ]

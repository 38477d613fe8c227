"""The answer to a goal as sentences and a table. `report.goal_chart` has its chart."""

from taetpu.report.section_types import Section, Table
from taetpu.stats import formatting
from taetpu.stats.goal_results import GoalAnswer, GoalCandidate
from taetpu.stats.plan import describe_metric
from taetpu.stats.results import Results
from taetpu.store.frozen_study import PlannedGoal

CHART = "goal"
"""The name of the chart in `design_charts.draw_panels`."""
COSTS = {
    "params": "parameters", "flops": "training FLOPs", "memory": "bytes of training memory",
    "cache_bytes": "bytes of cache per sequence", "step_time": "seconds per step",
}  # fmt: skip
MOST_CONFIDENT = 0.999


def describe_planned_goal(goal: PlannedGoal) -> str:
    """Return the question of a goal, without a full stop."""
    limit = f"{goal['metric']} {goal['side'].replace('_', ' ')} {goal['level']:g}"
    return f"the candidate of the lowest cost ({cost_title(goal['minimise'])}) that has {limit}"


def cost_title(minimise: str) -> str:
    """Return the words for a cost."""
    return COSTS.get(minimise, minimise)


def describe_goal(results: Results) -> list[str]:
    """Return the answer to the goal, its reasons, and what would make it surer; nothing without a goal."""
    if "goal" not in results:
        return []
    answer = results["goal"]
    return [part for part in (answer_text(answer), _range(answer), _more(answer)) if part]


def answer_text(answer: GoalAnswer) -> str:
    """Return the candidate that is or seems the smallest, with the confidence."""
    limit = f"{answer['metric']} {answer['side'].replace('_', ' ')} {answer['level']:g}"
    costs = {each["name"]: each["cost"] for each in answer["candidates"]}
    if not any(each["trained"] for each in answer["candidates"]):
        return f"Goal: no candidate is trained yet, so none is known to have {limit}."
    if answer["none"]:
        return f"Goal: no candidate has {limit}, with a confidence of at least {1 - answer['alpha']:.0%}."
    best = answer["smallest"] or answer["best"]
    if best is None:
        return f"Goal: no candidate seems to have {limit}."
    cost = f"{formatting.amount(costs[best])} {cost_title(answer['minimise'])}"
    how = "is" if answer["smallest"] else "seems to be"
    text = f"Goal: {best} ({cost}) {how} the smallest candidate with {limit}"
    if answer["meets"] is None or answer["no_smaller"] is None:
        return f"{text}."
    sure = f"confidence {_confidence(answer['meets'])} that it has"
    return f"{text}: {sure}, and {_confidence(answer['no_smaller'])} that no smaller one does."


def _confidence(value: float) -> str:
    return f"above {MOST_CONFIDENT:.1%}" if value > MOST_CONFIDENT else f"{max(0.0, value):.1%}"


def _range(answer: GoalAnswer) -> str:
    if answer["smallest"] or answer["none"]:
        return ""
    names = formatting.list_names(answer["possible"])
    last = ", or none of the candidates" if answer["none_possible"] else ""
    return f"At a confidence of {1 - answer['alpha']:.0%}, the smallest may be any of: {names}{last}."


def _more(answer: GoalAnswer) -> str:
    more = answer["more_seeds"]
    if more is None:
        return ""
    return f"About {more} more seed{'s' * (more > 1)} would settle it, if the true means are the observed ones."


def goal_section(results: Results) -> Section:
    """Return the section on the goal, with the chart of cost against the metric."""
    if "goal" not in results:
        return Section("Goal")
    answer = results["goal"]
    rows = [_row(each, answer["smallest"]) for each in answer["candidates"]]
    untrained = sum(not each["trained"] for each in answer["candidates"])
    lead = (
        f"The question is {describe_planned_goal(answer)}. Intervals are those of a candidate's mean, for it alone. "
        "Unlike effects, means include what all runs of a seed share. A side is decided at an error rate of "
        f"{answer['alpha']:.0%} for all candidates together (Holm)"
    )
    lead += ", where cheaper candidates than one that fails count as failing too." if answer["monotone"] else "."
    if untrained and "searched" in results:
        lead += f" The search left {untrained} of {len(rows)} candidates untrained, which the confidence includes."
    columns = (
        "candidate",
        cost_title(answer["minimise"]),
        "seeds",
        answer["metric"],
        "95 % interval",
        "side",
        "Holm p",
    )
    charts = (
        [(f"{describe_metric(results['plan'], answer['metric']).label} over cost", CHART)] if with_means(answer) else []
    )
    return Section("Goal", lead, [Table(columns, rows)], charts, describe_goal(results))


def _row(each: GoalCandidate, smallest: str | None) -> list[str]:
    places = _places(each)
    if each["trained"]:
        side = each["side"] or "not decided"
    else:
        side = f"{each['side']} (untrained)" if each["side"] else "untrained"
    return [
        f"{each['name']} (smallest)" if each["name"] == smallest else each["name"],
        formatting.amount(each["cost"]),
        str(each["seeds"]) + (f", {each['diverged']} diverged" if each["diverged"] else ""),
        formatting.number(each["mean"], places),
        " to ".join(formatting.number(end, places) for end in each["ci95"]) if each["ci95"] else "-",
        side,
        formatting.p_value(each["p"]),
    ]


def _places(each: GoalCandidate) -> int:
    return max(formatting.decimals(formatting.half_width(each["ci95"])), 3)


def with_means(answer: GoalAnswer) -> list[GoalCandidate]:
    """Return the candidates of which a run has a value."""
    return [each for each in answer["candidates"] if each["mean"] is not None]

"""The answer to a goal as sentences and a table. `report.goal_chart` has its chart."""

from collections.abc import Iterator

from taetpu.report.cost_columns import COLUMNS
from taetpu.report.section_types import Section, Table
from taetpu.stats import formatting
from taetpu.stats.goal_results import GoalAnswer, GoalCandidate, GoalLevel
from taetpu.stats.plan import describe_metric
from taetpu.stats.results import Results
from taetpu.store.frozen_study import PlannedGoal, PlannedThreshold

CHART = "goal"
"""The name of the chart in `design_charts.draw_panels`."""
COSTS = {name: column.title for name, column in COLUMNS.items()} | {"cache_bytes": "bytes of cache per sequence"}
OVER = " over cost"
MOST_CONFIDENT = 0.999


def describe_planned_goal(goal: PlannedGoal) -> str:
    """Return the question of a goal, without a full stop."""
    where = ", averaged over tasks" if "tasks" in goal else ""
    return f"the candidate of the lowest cost ({cost_title(goal['minimise'])}{where}) that has {_limit(goal)}"


def _limit(goal: PlannedGoal) -> str:
    """Return the threshold of a goal in words, or that of each task."""
    if "tasks" in goal:
        return " and ".join(f"{_words(threshold)} on {name}" for name, threshold in goal["tasks"].items())
    return _words(goal)


def _words(threshold: PlannedThreshold) -> str:
    return f"{threshold['metric']} {threshold['side'].replace('_', ' ')} {threshold['level']:g}"


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
    limit = _limit(answer)
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
    met = "all thresholds" if "tasks" in answer else "the threshold"
    sure = f"confidence {_confidence(answer['meets'])} that it meets {met}"
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
    rows = [_row(each, answer) for each in answer["candidates"]]
    untrained = sum(not each["trained"] for each in answer["candidates"])
    lead = (
        f"The question is {describe_planned_goal(answer)}. Intervals are those of a candidate's mean, for it alone. "
        "Unlike effects, means include what all runs of a seed share. A side is decided at an error rate of "
        f"{answer['alpha']:.0%} for all candidates together (Holm)"
    )
    lead += ", where cheaper candidates than one that fails count as failing too." if answer["monotone"] else "."
    if untrained and "searched" in results:
        lead += f" The search left {untrained} of {len(rows)} candidates untrained, which the confidence includes."
    if "tasks" in answer:
        lead += (
            " A candidate meets all thresholds if its mean is on the better side on every task (the largest p of the "
            "tasks), and fails if it is on the worse side on any (the smallest p times the number of tasks). "
            "The charts of single tasks show the same side."
        )
        measured = ("side", "Holm p", *(f"{each['metric']} on {name}" for name, each in answer["tasks"].items()))
    else:
        measured = (answer["metric"], "95 % interval", "side", "Holm p")
    columns = ("candidate", cost_title(answer["minimise"]), "seeds", *measured)
    charts = [(title, name) for name, title, part in charted(results) if with_means(part)]
    return Section("Goal", lead, [Table(columns, rows)], charts, describe_goal(results))


def candidate_table(answer: GoalAnswer) -> Table:
    """Return the trained candidates with the columns that fit a terminal."""
    measured = () if "tasks" in answer else (answer["metric"], "95 % interval")
    rows = [
        [each["name"], formatting.amount(each["cost"]), *(_mean(each) if measured else ()), each["side"] or "undecided"]
        for each in answer["candidates"]
        if each["trained"]
    ]
    return Table(("candidate", cost_title(answer["minimise"]), *measured, "side"), rows)


def _row(each: GoalCandidate, answer: GoalAnswer) -> list[str]:
    if each["trained"]:
        side = each["side"] or "not decided"
    else:
        side = f"{each['side']} (untrained)" if each["side"] else "untrained"
    decided = (side, formatting.p_value(each["p"]))
    parts = [_mean(part) for part in each.get("tasks", {}).values()]
    return [
        f"{each['name']} (smallest)" if each["name"] == answer["smallest"] else each["name"],
        formatting.amount(each["cost"]),
        str(each["seeds"]) + (f", {each['diverged']} diverged" if each["diverged"] else ""),
        *((*decided, *(f"{mean} ({interval})" for mean, interval in parts)) if parts else (*_mean(each), *decided)),
    ]


def _mean(each: GoalLevel) -> tuple[str, str]:
    """Return a mean and its interval."""
    places = _places(each)
    return formatting.number(each["mean"], places), formatting.ends(each["ci95"], places)


def _places(each: GoalLevel) -> int:
    return max(formatting.decimals(formatting.half_width(each["ci95"])), 3)


def charted(results: Results) -> Iterator[tuple[str, str, GoalAnswer]]:
    """Yield the name, the title and the data of each chart of the goal: one, or one for each task."""
    if (answer := results.get("goal")) is None:
        return
    if "tasks" not in answer:
        yield CHART, f"{describe_metric(results['plan'], answer['metric']).label}{OVER}", answer
    for name, threshold in answer.get("tasks", {}).items():
        candidates: list[GoalCandidate] = [{**each, **each.get("tasks", {})[name]} for each in answer["candidates"]]
        part: GoalAnswer = {**answer, **threshold, "candidates": candidates}
        yield f"{CHART} {name}", f"{threshold['metric']} on {name}{OVER}", part


def with_means(answer: GoalAnswer) -> list[GoalCandidate]:
    """Return the candidates of which a run has a value."""
    return [each for each in answer["candidates"] if each["mean"] is not None]

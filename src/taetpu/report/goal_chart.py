"""The chart of a goal: each candidate's mean over its cost, with the threshold."""

from collections.abc import Iterator
from typing import Any

import altair as alt

from taetpu.report.charts import Spec, chart, responsive_spec, tooltips, verdict_colour
from taetpu.report.goal import OVER, charted, cost_title, with_means
from taetpu.report.short_names import shorten_names
from taetpu.stats.goal_results import GoalAnswer, GoalCandidate
from taetpu.stats.plan import describe_metric
from taetpu.stats.results import Results

HEIGHT, POINT, REACH = 260, 22, 9
MOST_LABELS = 12
MARKS = {"meets": ("better", "triangle-up"), "fails": ("worse", "triangle-down"), None: ("inconclusive", "circle")}
"""The verdict whose colour a side has, and its shape."""
LOG_FROM = 8.0
"""Ratio of the largest to the smallest cost from which on the axis is logarithmic."""


def goal_charts(results: Results) -> dict[str, Spec]:
    """Return the charts of each candidate's mean over its cost, with the threshold; one for each task of the goal."""
    charts: dict[str, Spec] = {}
    for name, title, answer in charted(results):
        if shown := with_means(answer):
            plain = "tasks" not in answer
            words = describe_metric(results["plan"], answer["metric"]).title if plain else title.removesuffix(OVER)
            charts[name] = _goal_chart(answer, shown, words)
    return charts


def _goal_chart(answer: GoalAnswer, shown: list[GoalCandidate], title: str) -> Spec:
    rows = [*_rows(answer, shown)]
    spread = [row["cost"] for row in rows]
    kind = "log" if min(spread) > 0 and max(spread) / min(spread) >= LOG_FROM else "linear"
    x = alt.X("cost:Q", title=cost_title(answer["minimise"]),
              scale=alt.Scale(type=kind, zero=False, nice=False, padding=24),
              axis=alt.Axis(format=".3~s", tickCount=4, grid=False))  # fmt: skip
    y = alt.Y("mean:Q", title=title, scale=alt.Scale(zero=False, padding=24),
              axis=alt.Axis(tickCount=5, domain=False, ticks=False))  # fmt: skip
    base = chart(rows).encode(x=x, tooltip=tooltips(
        "candidate:N", alt.Tooltip("cost:Q", format=".4~s"), alt.Tooltip("mean:Q", format=".4f"), "decided:N",
    ))  # fmt: skip
    shapes = [MARKS[side][1] for side in MARKS]
    layers = [
        chart([{"level": answer["level"]}]).mark_rule(style="goal").encode(y=alt.Y("level:Q")),
        base.mark_rule(strokeWidth=2).encode(y=alt.Y("low:Q"), y2=alt.Y2("high:Q"), color=verdict_colour()),
        base.mark_point(filled=True, size=90, opacity=1).encode(
            y=y,
            color=verdict_colour(),
            shape=alt.Shape("decided:N", scale=alt.Scale(domain=["meets", "fails", "not decided"], range=shapes),
                            title="all tasks" if "tasks" in answer else None, legend=alt.Legend(orient="top")),
        ),
        *(
            base.transform_filter(f"datum.label_at === '{align}'")
            .mark_text(align=align, dx=REACH if align == "left" else -REACH, style="note")
            .encode(y=y, text=alt.Text("label:N"))
            for align in ("left", "right")
        ),
    ]  # fmt: skip
    return responsive_spec(layers, height=HEIGHT)


def _rows(answer: GoalAnswer, shown: list[GoalCandidate]) -> Iterator[dict[str, Any]]:
    """Yield the points of the chart. Labels are beside them: above and below are the intervals.

    If there are many candidates, only those near the answer have a label.
    """
    names = shorten_names([each["name"] for each in shown], POINT)
    near = {answer["smallest"], answer["best"], *answer["possible"]} if len(shown) > MOST_LABELS else set()
    middle = (shown[0]["cost"] + shown[-1]["cost"]) / 2
    for each, name in zip(shown, names, strict=True):
        verdict, _ = MARKS[each["side"]]
        low, high = each["ci95"] or (each["mean"], each["mean"])
        label = name if each["name"] in near or len(shown) <= MOST_LABELS else ""
        place = {"label": label, "label_at": "left" if each["cost"] <= middle else "right"}
        facts = {"candidate": each["name"], "verdict": verdict, "decided": each["side"] or "not decided"}
        yield {**facts, **place, "cost": each["cost"], "mean": each["mean"], "low": low, "high": high}

"""Shares of solved runs and times to a value, as tables and a picture (see `stats.outcomes`)."""

import altair as alt

from taetpu.report.charts import Spec, chart, label_options, responsive_spec, tooltips
from taetpu.report.outcome_text import has_outcome, is_timed
from taetpu.report.section_types import Section, Table
from taetpu.stats import formatting
from taetpu.stats.plan import COSTS, describe_metric
from taetpu.stats.results import Results

ARRIVALS = "share of runs that have arrived"
"""The name of the chart of arrivals."""
HEIGHT, LEGEND, MAX_ARMS = 220, 40, 20


def outcome_section(results: Results) -> Section:
    """Return the section on solved runs, or on the time to a value."""
    if is_timed(results):
        return _time_section(results)
    spec = describe_metric(results["plan"])
    rows = []
    for arm in results["arms"] if has_outcome(results) else ():
        measured = [value for run in arm["runs"] if (value := run.get("measured")) is not None]
        ends = [min(measured), max(measured)] if measured else []
        shown = (f"{value:.4g}" for value in ends) if ends else ("-", "-")
        rows.append(
            [arm["name"], f"{arm.get('reached', 0)} of {len(arm['runs'])}", *shown, formatting.p_value(arm["p"])]
        )
    metric = describe_metric(results["plan"], results["primary"]).label
    lead = (
        f"A run solves its task if it does not diverge, with {spec.unit}. Boschloo's exact test compares shares; p is "
        "not corrected. The intervals of shares are Newcombe's."
    )
    return Section("Solved runs", lead, [Table(("arm", "solved", f"lowest {metric}", "highest", "p"), rows)])


def _time_section(results: Results) -> Section:
    places = formatting.mean_places(results["model"]["residual_sd"], results["arms"][0]["mean"])
    horizons = {group["baseline"]: group.get("horizon") for group in results["groups"]}
    rows = []
    for arm in results["arms"]:
        horizon = horizons.get(arm["against"] or arm["name"])
        times = sorted(run["value"] for run in arm["runs"] if run["value"] is not None)
        half = -(-len(times) // 2)
        reached = arm.get("reached", 0)
        median = formatting.number(times[half - 1], places) if times and reached >= half else "-"
        test = formatting.p_value((arm["sensitivity"] or {}).get("log_rank_p"))
        mean = formatting.number(arm["mean"], places)
        rows.append([arm["name"], f"{reached} of {len(arm['runs'])}", mean, median, formatting.amount(horizon), test])
    plan = results["plan"]
    unit, every = COSTS[plan.get("by", "steps")], plan.get("eval_every")
    often = "when the program reports it" if every is None else f"every {every} steps"
    lead = (
        f"A run arrives at the first evaluation at which {results['primary']} has reached {plan.get('reach'):g}; there "
        f"is one {often}. Verdicts compare restricted mean times: a run that does not arrive, because "
        "training ends, it stops or it diverges, counts with the horizon. The log-rank test of an arm and its baseline "
        "is for comparison: it ignores that seeds are shared, and is not corrected."
    )
    columns = ("arm", "arrived", f"mean {unit}", f"median {unit}", "horizon", "log-rank p")
    charts = [(f"Share of runs that have arrived (Kaplan-Meier) over {unit}", ARRIVALS)]
    return Section("Time to the value", lead, [Table(columns, rows).without_empty_columns()], charts)


def arrival_chart(results: Results) -> Spec | None:
    """Return the picture of the share of runs that have arrived over time, with a step line for each arm.

    It is None unless arms are compared by the time to a value, and runs have ended.
    """
    horizons = {group["baseline"]: group.get("horizon") for group in results["groups"]}
    rows, names = [], []
    for arm in results["arms"][:MAX_ARMS] if is_timed(results) else ():
        horizon = horizons.get(arm["against"] or arm["name"])
        ended = [run for run in arm["runs"] if run["value"] is not None]
        if horizon is None or not ended:
            continue
        names.append(arm["name"])
        times = sorted(run["value"] or 0.0 for run in ended if run.get("reached"))
        points = [(0.0, 0), *((time, number) for number, time in enumerate(times, 1)), (horizon, len(times))]
        rows += [
            {"arm": arm["name"], "baseline": arm["against"] is None, "time": time, "share": number / len(ended)}
            for time, number in points
        ]
    if not rows:
        return None
    unit = COSTS[results["plan"].get("by", "steps")]
    legend = alt.Legend(symbolOpacity=1, symbolType="stroke", **label_options(names, LEGEND))
    scale = alt.Scale(scheme="tableau20" if len(names) > 10 else "tableau10")
    base = chart(rows).encode(
        x=alt.X("time:Q", title=unit, axis=alt.Axis(grid=False, format="~s" if unit != "steps" else ",~r")),
        y=alt.Y("share:Q", title=ARRIVALS, scale=alt.Scale(domain=[0, 1]), axis=alt.Axis(format="%", tickCount=5)),
        color=alt.Color("arm:N", title=None, sort=names, legend=legend, scale=scale),
        tooltip=tooltips("arm:N", "time:Q", alt.Tooltip("share:Q", format=".0%")),
    )
    arms = base.transform_filter("!datum.baseline").mark_line(interpolate="step-after", strokeWidth=2)
    baselines = base.transform_filter("datum.baseline").mark_line(
        interpolate="step-after", strokeWidth=2.4, strokeDash=[5, 3]
    )
    return responsive_spec([arms, baselines], height=HEIGHT)

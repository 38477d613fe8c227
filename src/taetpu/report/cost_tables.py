"""Tables of costs as ratios to the baseline, with verdicts, for terminals and for the report."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from taetpu.report import summary
from taetpu.report.cost_columns import COLUMNS, COUNTED, TIMED
from taetpu.report.costs import MachineTimes, Measured, Ratio, Values
from taetpu.report.section_types import Table
from taetpu.stats import formatting
from taetpu.stats.results import Arm, Results

MARK = "*"
"""Follows a ratio that was measured while the machine was busy."""
NEGLIGIBLE = 5e-4
"""Relative difference below which a cost counts as that of the baseline."""


def counted_table(results: Results, costs: Values, arms: Sequence[Arm]) -> Table:
    """Return the table of counted costs with verdicts: those of baselines, and the ratios of arms to them.

    Args:
        results: the content of `results.json`.
        costs: the result of `costs.read_costs`.
        arms: the arms, in the order of the rows.
    """
    rows = []
    for arm in arms:
        ours, theirs = costs.get(arm["name"], {}), costs.get(summary.baseline_of(results, arm)["name"], {})
        rows.append([arm["name"], *(_cell(arm, name, ours, theirs) for name in COUNTED), summary.verdict_label(arm)])
    return Table(("arm", *(COLUMNS[name].header for name in COUNTED), "verdict"), rows).without_empty_columns()


def _cell(arm: Arm, name: str, ours: Mapping[str, float | None], theirs: Mapping[str, float | None]) -> str:
    value, base = ours.get(name), theirs.get(name)
    if value is None:
        return "-"
    if arm["against"] is None:
        return COLUMNS[name].text(value)
    return ratio_text(value / base) if base else "-"


def ratio_text(ratio: float) -> str:
    """Format a ratio with two decimal places, or three significant digits where they are more or hide zeros."""
    return f"{ratio:.2f}" if 0.1 <= ratio < 100 else formatting.amount(float(f"{ratio:.3g}"))


def differing_costs(results: Results, costs: Values) -> list[str]:
    """Return the counted costs in which an arm differs from its baseline."""

    def differs(arm: Arm, name: str) -> bool:
        ours, theirs = (costs.get(each["name"], {}).get(name) for each in (arm, summary.baseline_of(results, arm)))
        return bool(ours and theirs and abs(ours / theirs - 1) > NEGLIGIBLE)

    return [name for name in COUNTED if any(differs(arm, name) for arm in results["arms"])]


def timed_table(results: Results, times: MachineTimes, arms: Sequence[Arm], header: str = "arm") -> Table:
    """Return the table of times on a machine with verdicts: those of baselines, and the ratios of arms to them.

    `header` is that of the column of arms.
    """
    rows = []
    for arm in arms:
        name, values = arm["name"], times.values.get(arm["name"], {})
        if arm["against"] is None:
            cells = [COLUMNS[cost].text(values.get(cost)) for cost in TIMED]
        elif name in times.same:
            cells = ["same program" if cost in values else "-" for cost in TIMED]
        else:
            cells = [_spread_text(times.ratios.get(name, {}).get(cost)) for cost in TIMED]
        if set(cells) != {"-"}:
            rows.append([name, *cells, summary.verdict_label(arm)])
    return Table((header, *(COLUMNS[cost].header for cost in TIMED), "verdict"), rows).without_empty_columns()


def _spread_text(ratio: Ratio | None) -> str:
    if ratio is None:
        return "-"
    low, high = ratio_text(ratio.least), ratio_text(ratio.most)
    return f"{ratio_text(ratio.median)} ({low}-{high}){MARK if ratio.busy else ''}"


def frontier_table(points: Sequence[Mapping[str, Any]], x: str, y: str, results: Results) -> Table:
    """Return the table of arms in two columns, with those on the front.

    Args:
        points: the result of `frontier.front_points`.
        x: the name of the first column.
        y: the name of the second column.
        results: the content of `results.json`.
    """

    def text(name: str, value: float) -> str:
        return COLUMNS[name].text(value) if name in COLUMNS else formatting.number(value, summary.mean_places(results))

    rows = [
        [
            point["arm"],
            text(x, point["cost"]),
            text(y, point["mean"]),
            "yes" if point["front"] else "",
            point["verdict"],
        ]
        for point in sorted(points, key=lambda point: point["cost"])
    ]
    headers = [COLUMNS[name].header if name in COLUMNS else name for name in (x, y)]
    return Table(("arm", *headers, "front", "verdict"), rows)


def counted_note(measured: Measured, columns: Sequence[str]) -> str:
    """Return what the counted costs in the given columns of the table are."""
    memory = "that of the compiled train step of one run" if measured.memory else "an upper estimate"
    text = "Rows of arms show ratios to the baseline."
    text += f" Memory is {memory}." if COLUMNS["memory"].header in columns else ""
    text += " A cache has 16 bits per number." if COLUMNS["cache_bytes"].header in columns else ""
    if measured.cycles:
        text += f" Cycles are the compiler's for {measured.tpu}, of a run alone."
    return text


def timed_notes(results: Results, times: MachineTimes) -> Iterator[str]:
    """Yield how times on a machine were measured, and whether it was busy."""
    yield (
        f"Times of one run alone on {times.where}, {times.date}: ratios to the baseline within a round, their median "
        f"and range over {times.rounds} rounds. Decoding continues one sequence."
    )
    if any(ratio.busy for each in times.ratios.values() for ratio in each.values()):
        yield (
            f"{MARK} The machine was busy: other processes used up to {times.others:.0%} of its cores. Repeat "
            f"`taetpu costs {results['study']} --time` while it is idle."
        )
    elif times.others is None and times.ratios:
        yield "Whether other processes used this machine is not known."
    if times.same:
        yield f"The same program as the baseline, so not timed: {formatting.list_names(times.same)}."
    yield from (f"{formatting.list_names(arms)}: {reason}." for reason, arms in times.missing.items())


def how_to_time(results: Results) -> str:
    """Return how times are measured, if there are none."""
    command = f"taetpu costs {results['study']} --time"
    return f"Train step and decoding were not timed. `{command}` times each arm in turns with its baseline."

"""The results of a study as plain text for a terminal with 80 columns."""

import textwrap
from collections.abc import Iterator, Sequence

from taetpu.report import factors, summary
from taetpu.report.contrasts import contrast_cells
from taetpu.report.cost_tables import (
    counted_note,
    counted_table,
    differing_costs,
    how_to_time,
    timed_notes,
    timed_table,
)
from taetpu.report.costs import Measured, Values
from taetpu.report.designs import WAYS, both_ways, joint_effects
from taetpu.report.goal import candidate_table, describe_goal
from taetpu.report.judged import strata_sentences
from taetpu.report.post_hoc import describe_verdicts
from taetpu.report.repeats import LEGEND, SYMBOLS, across_sentences, pooled_cells
from taetpu.report.rungs import in_order
from taetpu.report.short_names import shorten_names
from taetpu.report.verdict_style import PENDING, VERDICTS
from taetpu.report.worth import describe_worth
from taetpu.stats import formatting
from taetpu.stats.results import Arm, FactorialScale, Parts, Results, TasksDesign

COLUMNS = 80
MAX_TERMS = 12
"""Maximum number of the terms of a factorial design that are shown. The report shows all terms."""


def table_text(results: Results) -> str:
    """Return the study's headline, notices, verdicts, joint effects and remarks for a terminal with 80 columns."""
    rows = [(row.arm, row.mean, row.effect, row.interval, row.p, row.verdict) for _, row in _sorted_rows(results)]
    table = text_table(("arm", "mean", "effect", "95 % interval", "Holm p", "verdict"), rows)
    searched = summary.is_search(results)
    if searched and "goal" in results:
        candidates = candidate_table(results["goal"])
        table = text_table(candidates.columns, candidates.rows)
    above = [f"{results['study']}: {summary.headline(results)}", *summary.notices(results)]
    below = [
        *_undecided_beyond_zero(results),
        *strata_sentences(results),
        *(line for line in describe_goal(results) if line != summary.headline(results)),
        *describe_worth(results),
        "" if searched else summary.describe_noise(results),
        summary.describe_repeat(results),
        *describe_verdicts(results),
        summary.describe_reuse(results),
    ]
    parts = [
        [*map(_wrap, above)],
        table,
        *_joint_effects(results),
        *_repeated(results),
        [*map(_wrap, filter(None, below))],
    ]
    return "\n\n".join("\n".join(lines) for lines in parts if lines)


def cost_text(results: Results, costs: Values, measured: Measured) -> str:
    """Return the costs of arms beside their verdicts for a terminal with 80 columns; "" without known costs."""
    arms = [arm for arm, _ in _sorted_rows(results)]
    counted, parts = counted_table(results, costs, arms), list[list[str]]()
    if set(counted.columns) <= {"arm", "verdict"}:
        return ""
    if differing_costs(results, costs):
        parts.append([*text_table(counted.columns, counted.rows), _wrap(counted_note(measured, counted.columns))])
    elif any(arm["against"] for arm in arms):
        headers = [name for name in counted.columns if name not in ("arm", "verdict")]
        parts.append([_wrap(f"Costs: all arms equal their baseline in {summary.join_and(headers)}.")])
    for times in measured.machines[:1]:
        table = timed_table(results, times, arms)
        shown = text_table(table.columns, table.rows) if table.columns else []  # all arms may share a program
        parts.append([*shown, *map(_wrap, timed_notes(results, times))])
    if others := [f"{times.where} ({times.date})" for times in measured.machines[1:]]:
        parts.append([_wrap(f"The report has times on other machines too: {', '.join(others)}.")])
    if not measured.machines and len(arms) > 1 and not summary.is_untrained(results):
        parts.append([_wrap(how_to_time(results))])
    return "\n\n".join("\n".join(lines) for lines in parts)


def text_table(header: Sequence[str], rows: Sequence[Sequence[str]]) -> list[str]:
    """Return the lines of a table with at most 80 columns.

    If the table is too wide, small figures get a power of ten. If it still is, the first column is shortened, and a
    legend below the table has the full names.

    Args:
        header: the names of the columns, of which the first and the last contain words and the others numbers.
        rows: the cells.
    """
    widths, gaps = _widths(header, rows), 2 * (len(header) - 1)
    if sum(widths) + gaps > COLUMNS:
        rows = [(name, *map(formatting.scientific, figures), last) for name, *figures, last in rows]
        widths = _widths(header, rows)
    widths[0] = max(8, min(widths[0], COLUMNS - gaps - sum(widths[1:])))
    rule = tuple("-" * width for width in widths)
    full = [cells[0] for cells in rows]
    names = shorten_names(full, widths[0])
    shown = [(name, *cells[1:]) for name, cells in zip(names, rows, strict=True)]
    cut = [f"{name} = {whole}" for name, whole in zip(names, full, strict=True) if name != whole]
    legend = [textwrap.fill(line, COLUMNS, subsequent_indent="  ", break_on_hyphens=False) for line in cut]
    return [*(_line(cells, widths) for cells in (header, rule, *shown)), *([""] if cut else []), *legend]


def _widths(header: Sequence[str], rows: Sequence[Sequence[str]]) -> list[int]:
    return [max(map(len, column)) for column in zip(header, *rows, strict=True)]


def _wrap(text: str) -> str:
    return textwrap.fill(text, COLUMNS, break_long_words=False, break_on_hyphens=False)


def _line(cells: Sequence[str], widths: Sequence[int]) -> str:
    """Format a table row with left-aligned first and last cells and right-aligned numbers."""
    name, *figures, last = cells
    middle = [f"{cell:>{width}}" for cell, width in zip(figures, widths[1:-1], strict=True)]
    return "  ".join([f"{name:<{widths[0]}}", *middle, last]).rstrip()


# --- verdicts ---------------------------------------------------------------------------------------------------------


def _sorted_rows(results: Results) -> list[tuple[Arm, summary.Row]]:
    """Return arms and rows of the verdict table: after each baseline its arms, by verdict and size of the effect."""
    order = [*VERDICTS, *PENDING]
    places = {arm["name"]: number for number, arm in enumerate(results["arms"])}

    def rank(pair: tuple[Arm, summary.Row]) -> tuple[int, bool, int, float]:
        arm, row = pair
        compared = arm["against"] is not None
        return places[arm["against"] or arm["name"]], compared, order.index(row.verdict), -abs(arm["effect"] or 0.0)

    return sorted(zip(results["arms"], summary.verdict_rows(results), strict=True), key=rank)


def _undecided_beyond_zero(results: Results) -> Iterator[str]:
    """Yield sentences that explain why an arm is inconclusive although the 95 % interval of its effect excludes 0."""
    arms = [arm for arm in results["arms"] if arm["verdict"] == "inconclusive" and excludes_zero(arm["ci95"])]
    corrected = [arm for arm in arms if arm["p_holm"] is not None and arm["p_holm"] >= results["alpha"]]
    if corrected:
        figures = ", ".join(f"{formatting.p_value(arm['p_holm'])} for {arm['name']}" for arm in corrected)
        yield (
            f"An interval above is for one arm alone, and verdicts are corrected for the number of comparisons: the "
            f"corrected p is {figures}. So the verdict is inconclusive although the interval excludes 0."
        )
    yield from (f"{arm['name']}: {arm['evidence']}" for arm in arms if arm not in corrected)


def excludes_zero(bounds: Sequence[float] | None) -> bool:
    """Return whether an interval excludes 0."""
    return bounds is not None and not bounds[0] <= 0 <= bounds[1]


# --- joint effects ----------------------------------------------------------------------------------------------------


def _joint_effects(results: Results) -> Iterator[list[str]]:
    """Yield paragraphs on factors and their interactions, on parts left out or added together, and on contrasts."""
    designs = results["designs"]
    for rung, entry in designs["factorial"]["scales"].items() if "factorial" in designs else ():
        if rows := _factor_rows(entry, results):
            yield text_table((f"factor at {rung}" if rung else "factor", "effect", "95 % interval", "Holm p", ""), rows)
    for parts, done in ((designs.get("leave_one_out"), "left out"), (designs.get("add_one_in"), "added")):
        lines = [_wrap(text) for text in _parts_sentences(parts, results, done)] if parts else []
        yield from [lines] if lines else []
        if parts and "both_ways" in parts:
            yield text_table(WAYS, [*both_ways(parts, results)])
    if contrasts := results.get("contrasts"):
        rows = [(entry["name"], *contrast_cells(entry), entry["verdict"] or "interim") for entry in contrasts]
        yield text_table(("contrast", "effect", "95 % interval", "Holm p", "verdict"), rows)


def _repeated(results: Results) -> Iterator[list[str]]:
    """Yield tables of arms by tasks and of pooled effects, and whether verdicts hold under other settings."""
    designs = results["designs"]
    if tasks := designs.get("tasks"):
        yield [*_picture(tasks, results), _wrap(f"Verdicts by task: {LEGEND}. {summary.describe_metrics(results)}")]
        rows = [(name, *pooled_cells(entry)) for name, entry in in_order(results, tasks["arms"]) if entry["pooled"]]
        rows = [(name, effect, interval, p, differ, verdict) for name, effect, interval, p, verdict, differ in rows]
        header = ("arm", "pooled", "95 % interval", "Holm p", "tasks differ p", "verdict")
        yield [*text_table(header, rows), _wrap("Intervals of pooled effects hold for these tasks.")]
    if across := designs.get("across"):
        yield [*map(_wrap, ["Whether verdicts hold under other settings:", *across_sentences(results, across)])]


def _picture(tasks: TasksDesign, results: Results) -> list[str]:
    """Return the table of scores and verdicts, arms by tasks."""
    verdicts = {arm["name"]: arm["verdict"] for arm in results["arms"]}
    arms = dict(in_order(results, tasks["arms"]))
    names = shorten_names([*arms], 16)
    width = max(4, (COLUMNS - 16 - 2 - 8) // len(tasks["rungs"]) - 2)
    rows = []
    for name, entry in zip(names, arms.values(), strict=True):
        cells = []
        for task in tasks["rungs"]:
            symbol = SYMBOLS[verdicts.get(entry["rungs"].get(task, ""))] if entry["pooled"] else ""
            cells.append(f"{formatting.number(entry['scores'].get(task), 2)}{symbol:>2}")
        rows.append((name, *cells, formatting.number(entry["mean"], 3)))
    columns = shorten_names(tasks["rungs"], width)
    cut = [f"{name} = {task}" for name, task in zip(columns, tasks["rungs"], strict=True) if name != task]
    return [*text_table(("score", *columns, "mean"), rows), *([_wrap(f"{', '.join(cut)}.")] if cut else [])]


def _factor_rows(entry: FactorialScale, results: Results) -> list[tuple[str, ...]]:
    """Return the rows of the terms with the largest effects. A term of two factors is their interaction."""
    terms = sorted(factors.single_effects(entry["terms"]), key=lambda term: -abs(term["effect"] or 0.0))
    significant = factors.significant_terms(terms, results["alpha"])
    return [
        (
            factors.term_with_aliases(term),
            *summary.effect_cells(term, results),
            "significant" if term in significant else "",
        )
        for term in terms[:MAX_TERMS]
    ]


def _parts_sentences(parts: Parts, results: Results, done: str) -> Iterator[str]:
    """Yield a sentence that compares the effect of all parts together with the sum of their single effects."""
    for arm, number, total, single, more, interval, p in joint_effects(parts, results):
        if number.endswith("last"):
            beginning = f"Each part {done} last, after all others, the effects sum to {single}."
        else:
            beginning = (
                f"{arm}: {number} parts {done} together have an effect of {total}; the sum of their single effects is "
                f"{single}."
            )
        yield f"{beginning} The difference is {more} (95 % interval {interval}, p {p})."

"""What a study's designs tell, as sections of the report: parts together, factors, scales, tuning."""

from collections.abc import Iterator, Mapping
from typing import Any

from taetpu.report import factors, summary
from taetpu.report.comparison import Results
from taetpu.report.sections import Section, Table
from taetpu.stats import formatting
from taetpu.stats.deviations import tuning_metric

ONE_BY_ONE = {"leave_one_out": "taken out", "add_one_in": "put in"}
MOST_COLUMNS = 8
"""Of a table; what was tuned in more combinations is listed by its best alone."""


def design_sections(results: Results) -> Iterator[Section]:
    """A section for each design that the study has."""
    designs = results["designs"]
    for kind, done in ONE_BY_ONE.items():
        if kind in designs and any(designs[kind]["scales"].values()):  # a single part has no whole to add up to
            yield _parts_section(results, designs[kind]["scales"], done)
    if "factorial" in designs:
        yield _factorial_section(results, designs["factorial"])
    if "ladder" in designs:
        yield _ladder_section(results, designs["ladder"])
    if results["tuning"]:
        yield _tuning_section(results, results["tuning"])


def describe_designs(results: Results) -> list[str]:
    """The designs in a sentence each, for the terminal and above the tables."""
    designs = results["designs"]
    found = [
        _describe_excess(results, done, rung, entry)
        for kind, done in ONE_BY_ONE.items()
        for rung, entry in designs.get(kind, {}).get("scales", {}).items()
        if entry and entry["excess"] is not None
    ]
    for rung, entry in designs.get("factorial", {}).get("scales", {}).items():
        clear = [
            factors.term_with_aliases(term) for term in factors.significant_terms(entry["terms"], results["alpha"])
        ]
        what = summary.join_and(clear) if clear else "no factor and no pair of them"
        found.append(f"Factorial{_at(rung)}: {what} made a clear difference.")
    fates = {arm: entry["fate"] for arm, entry in designs.get("ladder", {}).get("arms", {}).items()}
    if fates:
        found.append("From the smallest scale to the largest: " + ", ".join(f"{a} {f}" for a, f in fates.items()) + ".")
    return found


# --- one part at a time ----------------------------------------------------------------------------------------------


def _parts_section(results: Results, scales: Mapping[str, Any], done: str) -> Section:
    arms = {arm["name"]: arm for arm in results["arms"]}
    rows, notes = [], []
    for rung, entry in scales.items():
        if entry is None or entry["excess"] is None:
            continue
        whole = arms[entry["arm"]]["effect"]
        single = None if whole is None else whole - entry["excess"]
        places = formatting.effect_places(entry["excess"], entry["ci95"], summary.mean_places(results))
        figures = (formatting.number(value, places, sign=True) for value in (whole, single, entry["excess"]))
        interval, p = summary.format_interval(entry["ci95"], results), formatting.p_value(entry["p"])
        rows.append([entry["arm"], str(len(entry["parts"])), *figures, interval, p])
        notes.append(_describe_excess(results, done, rung, entry))
    lead = (
        f"Each part was {done} alone, and all of them at once. If parts stand in for each other or need each other, "
        "the effect of all is not the sum of the single ones."
    )
    columns = ("all at once", "parts", "effect of all", "sum of the single", "excess", "95 % interval", "p")
    return Section(f"Parts {done} one by one", lead, [Table(columns, rows)] if rows else [], notes=notes)


def _describe_excess(results: Results, done: str, rung: str, entry: Mapping[str, Any]) -> str:
    size = formatting.effect(abs(entry["excess"]), entry["ci95"], summary.mean_places(results)).lstrip("+")
    more = "more" if entry["excess"] > 0 else "less"
    text = f"All parts {done} at once{_at(rung)} have an effect {size} {more} than their single effects add up to"
    if entry["ci95"] is None:
        return f"{text}; there is no noise to judge that by."
    told = "which is told from 0" if entry["ci95"][0] * entry["ci95"][1] > 0 else "which cannot be told from 0"
    return f"{text} (95 % interval of the difference {summary.format_interval(entry['ci95'], results)}), {told}."


def _at(rung: str) -> str:
    return f" at {rung}" if rung else ""


# --- factorial -------------------------------------------------------------------------------------------------------


def _factorial_section(results: Results, found: Mapping[str, Any]) -> Section:
    scales: Mapping[str, Any] = found["scales"]
    tables = [
        _terms_table(rung, entry, len(scales) > 1, summary.mean_places(results)) for rung, entry in scales.items()
    ]
    levels = [f"{factor} ({len(titles)} levels)" for factor, titles in found["factors"].items()]
    lead = (
        f"{summary.join_and(levels)} were crossed. The effect of a factor is the mean at its other level minus the "
        "baseline's, over all levels of the others; the effect of a pair is by how much the one changes the other's: "
        "below 0, both together come to so much less than the sum of the two. The share is of the variance that is "
        "not the seeds'."
    )
    notes = [f"Without a value: {', '.join(entry['missing'])}." for entry in scales.values() if entry["missing"]]
    if found["words"]:
        constant = "; ".join(" x ".join(word) for word in found["words"])
        notes.append(
            f"This is {found['fraction']} of the full design, of resolution {found['resolution']}: the product of "
            f"{constant} is the same in every cell, which makes the aliases in the table."
        )
    drawn = [rung for rung, entry in scales.items() if factors.single_effects(entry["terms"])]
    charts = [(rung or "Pairs; on the diagonal each factor alone", heatmap_name(rung)) for rung in drawn]
    return Section("Factors and how they change each other", lead, tables, charts, notes)


def heatmap_name(rung: str) -> str:
    """Under which name the heatmap of a scale (`""` without a ladder) is asked for."""
    return f"interactions {rung}"


def _terms_table(rung: str, entry: Mapping[str, Any], several: bool, places: int) -> Table:
    first = rung if several else ""
    columns = (f"term{_at(first)}", "effect", "95 % interval", "Holm p", "share", "cannot be told from")
    rows = []
    for term in entry["terms"]:
        share = "-" if term["share"] is None else f"{term['share']:.1%}"
        aliases = ", ".join(factors.aliases(term)) or "-"
        figures = formatting.effect(term["effect"], term["ci95"], places), formatting.interval(term["ci95"], places)
        rows.append([factors.term_title(term), *figures, formatting.p_value(term["p_holm"]), share, aliases])
    kept = range(len(columns) if any(term["aliases"] for term in entry["terms"]) else len(columns) - 1)
    return Table([columns[i] for i in kept], [[row[i] for i in kept] for row in rows])


# --- ladder ----------------------------------------------------------------------------------------------------------


def _ladder_section(results: Results, found: Mapping[str, Any]) -> Section:
    arms = {arm["name"]: arm for arm in results["arms"]}
    scales = sorted(found["scales"].items(), key=lambda rung: rung[1]["params"] or 0)
    sizes = [[rung, formatting.amount(s["params"]), _ratio(s["tokens_per_parameter"])] for rung, s in scales]
    rungs = [name for name, _ in scales]
    fates = [
        [arm, *(_effect_at_rung(arms.get(climbed["rungs"].get(rung, "")), results) for rung in rungs), climbed["fate"]]
        for arm, climbed in found["arms"].items()
    ]
    tables = [
        Table(("scale", "params", "tokens per parameter"), sizes),
        Table(("arm", *rungs, "fate"), fates),
        Table(
            (
                "arm",
                "change a doubling",
                "95 % interval",
                "p",
                "scales differ, p",
                "extrapolated to",
                "effect there",
                "95 %",
            ),
            [[arm, *_trend_cells(climbed, summary.mean_places(results))] for arm, climbed in found["arms"].items()],
        ),
    ]
    lead = (
        "Every verdict at every scale, each against the baseline of its scale. The fate compares the smallest scale "
        "with the largest; the trend is a straight line over the logarithm of the baseline's parameters."
    )
    notes = [
        "An effect holds where it is clear at both ends in one direction; grows or shrinks where it is clear at the "
        "largest scale and the trend is, too; vanishes where it is clear at the smallest alone, and shown to be small "
        "or on its way to zero at the largest; reverses where it is better at one end and worse at the other. Unclear "
        "means that the runs do not say, not that nothing happens.",
        "The p of a trend, and that of whether scales differ, is of one arm alone: neither is corrected for the number "
        "of arms. All scales are trained on the same seeds, so that what a seed does at one it may do at another.",
        'What stands under "extrapolated to" was not trained: it is the line, carried on to a model four times as '
        "large as the largest, and its interval says nothing about whether the line goes on.",
        "About 20 tokens a parameter are compute-optimal (Hoffmann et al. 2022); effects of models that are trained "
        "far less may be of another kind.",
    ]
    charts = [(arm, f"ladder {arm}") for arm in found["arms"]]
    return Section("Does it hold at scale?", lead, tables, charts, notes)


def _ratio(value: float | None) -> str:
    return "-" if value is None else f"{value:.3g}"


def _effect_at_rung(arm: Mapping[str, Any] | None, results: Results) -> str:
    if arm is None:
        return "-"
    return f"{summary.format_effect(arm, results)} {summary.verdict_label(arm)}"


def _trend_cells(climbed: Mapping[str, Any], places: int) -> list[str]:
    trend, ahead = climbed["trend"], climbed["extrapolated"]
    differs = formatting.p_value(climbed["p_differs"])
    if trend is None:
        return ["-", "-", "-", differs, "-", "-", "-"]
    line = (
        formatting.effect(trend["per_doubling"], trend["ci95"], places),
        formatting.interval(trend["ci95"], places),
        formatting.p_value(trend["p"]),
    )
    there = formatting.effect(ahead["effect"], ahead["ci95"], places), formatting.interval(ahead["ci95"], places)
    return [*line, differs, f"{formatting.amount(ahead['params'])} params", *there]


# --- tuning ----------------------------------------------------------------------------------------------------------


def _tuning_section(results: Results, found: Mapping[str, Any]) -> Section:
    arms = {arm["name"]: arm for arm in results["arms"]}
    best = {arm["role"]["tuned"]["of"]: arm for arm in results["arms"] if "tuned" in arm["role"]}
    rows = [
        [
            name,
            entry["best"] or "-",
            *_shared_and_tuned(arms.get(name), best.get(name), results),
            ", ".join(entry["edge"]) or "-",
        ]
        for name, entry in found["arms"].items()
    ]
    columns = ["arm", "found best", "shared effect", "verdict", "tuned effect", "verdict", "at the edge"]
    if all(row[-1] == "-" for row in rows):
        columns, rows = columns[:-1], [row[:-1] for row in rows]
    tried = "; ".join(f"{path}: {', '.join(map(str, values))}" for path, values in found["values"].items())
    by, seeds = tuning_metric(found, results["primary"]), ", ".join(map(str, found["seeds"]))
    lead = (
        f"Every arm tried {tried}, on seeds {seeds}, which no verdict uses, and kept what was best by {by}. Shared is "
        "the effect with the values of the study file, tuned the effect with what each found best."
    )
    charts = [(name, f"tuning {name}") for name in found["arms"]] if numeric_path(found) else []
    tables = [Table(columns, rows, left=2), *_trials_table(results, found)]
    return Section("Each at its best", lead, tables, charts, summary.edge_warnings(results))


def _shared_and_tuned(shared: Mapping[str, Any] | None, tuned: Mapping[str, Any] | None, results: Results) -> list[str]:
    found = []
    for arm in (shared, tuned):
        known = arm is not None and arm["against"] is not None
        found += [summary.format_effect(arm, results), summary.verdict_label(arm)] if arm and known else ["-", "-"]
    return found


def _trials_table(results: Results, found: Mapping[str, Any]) -> list[Table]:
    """The mean over tuning seeds of the metric that tuning chose by, for every arm and combination."""
    cells = list(dict.fromkeys(cell for entry in found["arms"].values() for cell in entry["trials"]))
    if len(cells) > MOST_COLUMNS:
        return []
    places = summary.mean_places(results)
    rows = []
    for name, entry in found["arms"].items():
        rows.append([name, *(_trial_cell(entry, cell, places) for cell in cells)])
    return [Table((summary.metric_with_unit(tuning_metric(found, results["primary"])), *cells), rows)]


def _trial_cell(entry: Mapping[str, Any], cell: str, places: int) -> str:
    if cell not in entry["trials"]:
        return "-"
    mean = entry["trials"][cell]["mean"]
    text = "diverged" if mean is None else formatting.number(mean, places)
    return f"{text} (best)" if cell == entry["best"] else text


def numeric_path(found: Mapping[str, Any]) -> str | None:
    """The one path that was tuned, if it has numbers, so that a curve can be drawn over it."""
    paths = list(found["values"])
    numeric = all(type(value) in (int, float) for value in found["values"][paths[0]])
    return paths[0] if len(paths) == 1 and numeric else None

"""Report sections for a study's designs: leave-one-out and add-one-in, factorial, ladder and tuning."""

from collections.abc import Iterator, Mapping
from typing import Any

from taetpu.report import factors, summary
from taetpu.report.comparison import Results
from taetpu.report.sections import Section, Table
from taetpu.stats import formatting
from taetpu.stats.deviations import tuning_metric

ONE_BY_ONE = {"leave_one_out": "taken out", "add_one_in": "put in"}
MOST_COLUMNS = 8
"""Maximum number of combinations of tuned values in the table of trials. With more, the table is omitted."""


def design_sections(results: Results) -> Iterator[Section]:
    """Yield a section for each design of the study."""
    designs = results["designs"]
    for kind, done in ONE_BY_ONE.items():
        # The entry of a scale is None without an arm for all parts.
        if kind in designs and any(designs[kind]["scales"].values()):
            yield _parts_section(results, designs[kind]["scales"], done)
    if "factorial" in designs:
        yield _factorial_section(results, designs["factorial"])
    if "ladder" in designs:
        yield _ladder_section(results, designs["ladder"])
    if results["tuning"]:
        yield _tuning_section(results, results["tuning"])


def describe_designs(results: Results) -> list[str]:
    """Return sentences on the results of each design, for the terminal."""
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
        what = summary.join_and(clear) if clear else "no factor and no pair of factors"
        found.append(f"Factorial{_at(rung)}: {what} had a significant effect.")
    fates = {arm: entry["fate"] for arm, entry in designs.get("ladder", {}).get("arms", {}).items()}
    if fates:
        found.append("From the smallest to the largest scale: " + ", ".join(f"{a} {f}" for a, f in fates.items()) + ".")
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
        f"Each part was {done} alone, and all parts together. The excess, the effect of all parts minus the sum of the "
        "single effects, differs from 0 if parts substitute or depend on each other."
    )
    columns = ("all parts", "parts", "effect of all", "sum of single effects", "excess", "95 % interval", "p")
    return Section(f"Parts {done} one by one", lead, [Table(columns, rows)] if rows else [], notes=notes)


def _describe_excess(results: Results, done: str, rung: str, entry: Mapping[str, Any]) -> str:
    size = formatting.effect(abs(entry["excess"]), entry["ci95"], summary.mean_places(results)).lstrip("+")
    more = "more" if entry["excess"] > 0 else "less"
    text = f"All parts {done} together{_at(rung)} have an effect {size} {more} than the sum of the single effects"
    if entry["ci95"] is None:
        return f"{text}; without noise there is no test of this."
    excludes = "excludes" if entry["ci95"][0] * entry["ci95"][1] > 0 else "includes"
    return f"{text} (95 % interval {summary.format_interval(entry['ci95'], results)}, which {excludes} 0)."


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
        "mean at the baseline's level, averaged over the levels of the other factors. The effect of a pair is how much "
        "one factor changes the other's effect; below 0, the two together have less than the sum of their effects. The "
        "share is the share of the variance that is not explained by seeds."
    )
    notes = [f"Arms without a value: {', '.join(entry['missing'])}." for entry in scales.values() if entry["missing"]]
    if found["words"]:
        constant = "; ".join(" x ".join(word) for word in found["words"])
        notes.append(
            f"This is a {found['fraction']} fraction of the full design, of resolution {found['resolution']}: the "
            f"product of {constant} is constant over cells, which causes the aliases in the table."
        )
    drawn = [rung for rung, entry in scales.items() if factors.single_effects(entry["terms"])]
    charts = [(rung or "Pairs of factors, with single factors on the diagonal", heatmap_name(rung)) for rung in drawn]
    return Section("Factors and interactions", lead, tables, charts, notes)


def heatmap_name(rung: str) -> str:
    """Return the name of the heatmap for a scale (`""` without a ladder)."""
    return f"interactions {rung}"


def _terms_table(rung: str, entry: Mapping[str, Any], several: bool, places: int) -> Table:
    first = rung if several else ""
    columns = (f"term{_at(first)}", "effect", "95 % interval", "Holm p", "share", "aliases")
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
                "change per doubling",
                "95 % interval",
                "p",
                "p of scales differ",
                "extrapolated to",
                "extrapolated effect",
                "95 %",
            ),
            [[arm, *_trend_cells(climbed, summary.mean_places(results))] for arm, climbed in found["arms"].items()],
        ),
    ]
    lead = (
        "Each arm is compared with the baseline of its scale. The fate compares the smallest with the largest scale; "
        "the trend is linear in the logarithm of the baseline's parameter count."
    )
    notes = [
        "Holds: significant at both ends in the same direction. Grows, shrinks: significant at the largest scale, with "
        "a significant trend. Vanishes: significant at the smallest scale only, and equivalent or with a significant "
        "trend to zero at the largest. Reverses: better at one end and worse at the other. Unclear: these runs do not "
        "decide, which does not mean that there is no trend.",
        "The p-values of the trend and of the difference between scales are not corrected for the number of arms. All "
        "scales use the same seeds, so their noise may be correlated.",
        "Extrapolated effects were not measured: the trend is extended to a model four times the largest. The interval "
        "assumes that the trend continues.",
        "About 20 tokens per parameter are compute-optimal (Hoffmann et al. 2022). Effects in models trained on far "
        "fewer may not transfer.",
    ]
    charts = [(arm, f"ladder {arm}") for arm in found["arms"]]
    return Section("Effects by scale", lead, tables, charts, notes)


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
    columns = ["arm", "best values", "shared effect", "verdict", "tuned effect", "verdict", "at the grid's edge"]
    if all(row[-1] == "-" for row in rows):
        columns, rows = columns[:-1], [row[:-1] for row in rows]
    tried = "; ".join(f"{path}: {', '.join(map(str, values))}" for path, values in found["values"].items())
    by, seeds = tuning_metric(found, results["primary"]), ", ".join(map(str, found["seeds"]))
    lead = (
        f"Every arm was tuned over {tried}, on seeds {seeds} that no verdict uses, and its best values were selected "
        f"by {by}. The shared effect uses the values of the study file, the tuned effect the best values of each arm."
    )
    charts = [(name, f"tuning {name}") for name in found["arms"]] if numeric_path(found) else []
    tables = [Table(columns, rows, left=2), *_trials_table(results, found)]
    return Section("Tuning", lead, tables, charts, summary.edge_warnings(results))


def _shared_and_tuned(shared: Mapping[str, Any] | None, tuned: Mapping[str, Any] | None, results: Results) -> list[str]:
    found = []
    for arm in (shared, tuned):
        known = arm is not None and arm["against"] is not None
        found += [summary.format_effect(arm, results), summary.verdict_label(arm)] if arm and known else ["-", "-"]
    return found


def _trials_table(results: Results, found: Mapping[str, Any]) -> list[Table]:
    """Return the table of trials, which shows the mean over tuning seeds for every arm and combination of values.

    The list is empty if there are more than `MOST_COLUMNS` combinations.
    """
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
    """Return the tuned path if exactly one path is tuned and all its values are numbers, else None."""
    paths = list(found["values"])
    numeric = all(type(value) in (int, float) for value in found["values"][paths[0]])
    return paths[0] if len(paths) == 1 and numeric else None

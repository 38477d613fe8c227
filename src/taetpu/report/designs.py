"""Report sections for a study's designs: leave-one-out and add-one-in, factorial, ladder and tuning."""

from collections.abc import Iterator, Mapping

from taetpu.report import factors, rungs, summary
from taetpu.report.components import components_section
from taetpu.report.repeats import across_section, tasks_section
from taetpu.report.section_types import Section, Table
from taetpu.report.worth import worth_section
from taetpu.stats import formatting
from taetpu.stats.deviations import tuning_metric
from taetpu.stats.ladder import Measure, size_measure
from taetpu.stats.ladder_results import ArmTrend, Ladder
from taetpu.stats.plan import describe_metric
from taetpu.stats.results import BothWays, Factorial, FactorialScale, Parts, Results
from taetpu.store.frozen_study import OneByOne, TunedArm, Tuning

ONE_BY_ONE: Mapping[OneByOne, str] = {"leave_one_out": "removed", "add_one_in": "added"}
WAYS = ("part", "alone", "last", "change", "95 % interval", "Holm p", "last is")
"""The columns of `both_ways`."""
COMPUTE_OPTIMAL = (
    "About 20 tokens per parameter are compute-optimal (Hoffmann et al. 2022). Effects in models trained on far fewer "
    "tokens may not transfer."
)
MOST_COLUMNS = 8
"""Maximum number of combinations of tuned values in the table of trials. With more combinations, it is omitted."""


def design_sections(results: Results) -> Iterator[Section]:
    """Yield a section for each design of the study."""
    designs = results["designs"]
    if "components" in designs:
        yield components_section(results, designs["components"])
    for kind, done in ONE_BY_ONE.items():
        if parts := designs.get(kind):
            yield _parts_section(results, parts, done)
    if "factorial" in designs:
        yield _factorial_section(results, designs["factorial"])
    if "ladder" in designs:
        yield worth_section(results)
        yield _ladder_section(results, designs["ladder"])
    if "tasks" in designs:
        yield tasks_section(results, designs["tasks"])
    if "across" in designs:
        yield across_section(results, designs["across"])
    if results["tuning"]:
        yield _tuning_section(results, results["tuning"])


# --- one part at a time ----------------------------------------------------------------------------------------------


def _parts_section(results: Results, parts: Parts, done: str) -> Section:
    lead = (
        f"Each part was {done} alone, and all parts were {done} together. The excess is the effect of all parts minus "
        "the sum of the single effects. An excess other than 0 means that parts substitute for or depend on each other."
    )
    columns = ("all parts", "parts", "effect of all", "sum of single effects", "excess", "95 % interval", "p")
    tables = [Table(columns, [*joint_effects(parts, results)])]
    if "both_ways" in parts:
        lead += (
            f" An effect is that of a part {done} alone, to the baseline, or last, when all others have been {done}. "
            "The change, last minus alone, is the interaction of the part with all others. If it is significant, the "
            "last column says whether the effect is weaker or stronger than alone, or has the opposite sign."
        )
        tables.append(Table(WAYS, [*both_ways(parts, results)]))
    return Section(f"Parts {done} one by one", lead, tables)


def joint_effects(parts: Parts, results: Results) -> Iterator[list[str]]:
    """Yield a row for each arm of all parts, as text.

    A row has the arm, the number of parts (with `last` if the effect of each is that of the last change), the effect of
    all, the sum of the single effects, the excess, its interval and its p-value.
    """
    effects = {arm["name"]: arm["effect"] for arm in results["arms"]}
    for entry in filter(None, [*parts["scales"].values(), parts.get("last")]):
        last = " last" if entry is parts.get("last") else ""
        whole, excess = effects[entry["arm"]], entry["excess"]
        if whole is not None and excess is not None:
            places = formatting.effect_places(excess, entry["ci95"], summary.mean_places(results))
            figures = [formatting.number(value, places, sign=True) for value in (whole, whole - excess, excess)]
            interval, p = summary.format_interval(entry["ci95"], results), formatting.p_value(entry["p"])
            yield [entry["arm"], f"{len(entry['parts'])}{last}", *figures, interval, p]


def both_ways(parts: Parts, results: Results) -> Iterator[list[str]]:
    """Yield a row of `WAYS` for each part, as text, by the size of the interaction."""
    for row in sorted(parts.get("both_ways", ()), key=lambda row: -abs(row["difference"] or 0.0)):
        places = formatting.effect_places(row["difference"], row["ci95"], summary.mean_places(results))
        figures = [formatting.number(row[key], places, sign=True) for key in ("alone", "last", "difference")]
        interval, p = summary.format_interval(row["ci95"], results), formatting.p_value(row["p_holm"])
        significant = row["p_holm"] is not None and row["p_holm"] < results["alpha"]
        yield [row["part"], *figures, interval, p, _compare_last(row) if significant else "-"]


def _compare_last(row: BothWays) -> str:
    """Return how the effect of a part that changes last differs from its effect alone."""
    alone, last = row["alone"] or 0.0, row["last"] or 0.0
    if alone * last < 0:
        return "opposite"
    return "weaker" if abs(last) < abs(alone) else "stronger"


# --- factorial -------------------------------------------------------------------------------------------------------


def _factorial_section(results: Results, design: Factorial) -> Section:
    scales = design["scales"]
    tables = [_terms_table(rung, entry, results) for rung, entry in scales.items()]
    levels = [f"{factor} ({len(titles)} levels)" for factor, titles in design["factors"].items()]
    lead = (
        f"{summary.join_and(levels)} were crossed. The effect of a factor is the mean at its other level minus the "
        "mean at the baseline's level, averaged over the levels of the other factors. The effect of a pair is the "
        "amount by which one factor changes the effect of the other. If the effect of a pair is negative, the joint "
        "effect of the two factors is less than the sum of the effects that each factor has alone. The share is the "
        "term's share of the variance that seeds do not explain."
    )
    notes = [f"Arms without a value: {', '.join(entry['missing'])}." for entry in scales.values() if entry["missing"]]
    if design["words"]:
        constant = "; ".join(" x ".join(word) for word in design["words"])
        notes.append(
            f"This is a {design['fraction']} fraction of the full design, with resolution {design['resolution']}. Each "
            f"of these products is constant over all cells, which causes the aliases in the table: {constant}."
        )
    drawn = [rung for rung, entry in scales.items() if factors.single_effects(entry["terms"])]
    charts = [(rung or "Pairs of factors, with single factors on the diagonal", heatmap_name(rung)) for rung in drawn]
    return Section("Factors and interactions", lead, tables, charts, notes)


def heatmap_name(rung: str) -> str:
    """Return the name of the heatmap for a scale. Without a ladder, the scale's name is `""`."""
    return f"interactions {rung}"


def _terms_table(rung: str, entry: FactorialScale, results: Results) -> Table:
    columns = (f"term at {rung}" if rung else "term", "effect", "95 % interval", "Holm p", "share", "aliases")
    rows = [
        [
            factors.term_title(term),
            *summary.effect_cells(term, results),
            "-" if term["share"] is None else f"{term['share']:.1%}",
            ", ".join(factors.aliases(term)) or "-",
        ]
        for term in entry["terms"]
    ]
    return Table(columns, rows).without_empty_columns()


# --- ladder ----------------------------------------------------------------------------------------------------------


def _ladder_section(results: Results, ladder: Ladder) -> Section:
    arms = {arm["name"]: arm for arm in results["arms"]}
    measure, scales = rungs.trend_measure(results), [(rung, ladder["scales"][rung]) for rung in rungs.ordered(results)]
    flops = {rung: base["flops"] for rung, base in rungs.baselines(results).items()}
    sizes = [
        [
            rung,
            formatting.amount(at["params"]),
            formatting.amount(flops[rung]),
            f"{ratio:.3g}" if (ratio := at["tokens_per_parameter"]) else "-",
        ]
        for rung, at in scales
    ]
    fates = [
        (
            arm,
            *(summary.effect_and_verdict(arms.get(climbed["rungs"].get(rung, "")), results) for rung, _ in scales),
            climbed["fate"],
        )
        for arm, climbed in ladder["arms"].items()
    ]
    tables = [
        Table(("scale", "params", "training FLOPs", "tokens per parameter"), sizes),
        Table(("arm", *(rung for rung, _ in scales), "fate"), fates),
    ]
    lead = "Each arm is compared with the baseline of its scale. "
    charts = [(arm, f"ladder {arm}") for arm in ladder["arms"]]
    if measure is None:
        sized = size_measure(list(rungs.baselines(results).values()))
        why = "differ in their data or in values that are not numbers" if sized else "do not differ in size"
        lead += f"The scales {why}, so effects have no trend over them."
        notes = [
            "Holds: significant at every scale in the same direction. Reverses: better at one scale and worse at "
            "another. Unclear: neither.",
            "All scales use the same seeds, so their noise may be correlated.",
        ]
        return Section("Effects by scale", lead, tables, charts, [*notes, COMPUTE_OPTIMAL])
    trends = [
        [arm, *_trend_cells(climbed, measure, summary.mean_places(results))] for arm, climbed in ladder["arms"].items()
    ]
    columns = (
        "arm", "change per doubling", "95 % interval", "p", "p of scales differ", "extrapolated to",
        "extrapolated effect", "95 %",
    )  # fmt: skip
    tables.append(Table(columns, trends))
    lead += (
        "The fate classifies how the effect changes from the smallest to the largest scale. The trend is a line fitted "
        f"to the effects over the logarithm of the baseline's {rungs.NAMES[measure]}."
    )
    notes = [
        "Holds: significant at the smallest and at the largest scale in the same direction, without a significant "
        "trend. Grows, shrinks: significant at the largest scale, with a significant trend away from zero (grows) or "
        "towards zero (shrinks). Vanishes: significant only at the smallest scale; at the largest scale, the effect is "
        "equivalent to zero, or the trend towards zero is significant. Reverses: better at one of these scales and "
        "worse at the other. Unclear: none of these cases.",
        "The p-values of the trend and of the difference between scales are not corrected for the number of arms. All "
        "scales use the same seeds, so their noise may be correlated.",
        f"Extrapolated effects were not measured. The trend is extended to four times the {rungs.NAMES[measure]} of "
        "the largest scale, and the interval assumes that the trend continues.",
        COMPUTE_OPTIMAL,
    ]
    return Section("Effects by scale", lead, tables, charts, notes)


def _trend_cells(climbed: ArmTrend, measure: Measure, places: int) -> list[str]:
    trend, ahead = climbed["trend"], climbed["extrapolated"]
    differs = formatting.p_value(climbed["p_differs"])
    size = ahead.get(measure) if ahead else None
    if trend is None or ahead is None or size is None:  # plans of rules 1 have trends over parameters only
        return ["-", "-", "-", differs, "-", "-", "-"]
    return [
        formatting.effect(trend["per_doubling"], trend["ci95"], places),
        formatting.interval(trend["ci95"], places),
        formatting.p_value(trend["p"]),
        differs,
        f"{formatting.amount(size)} {rungs.UNITS[measure]}",
        formatting.effect(ahead["effect"], ahead["ci95"], places),
        formatting.interval(ahead["ci95"], places),
    ]


# --- tuning ----------------------------------------------------------------------------------------------------------


def _tuning_section(results: Results, tuning: Tuning) -> Section:
    arms = {arm["name"]: arm for arm in results["arms"] if arm["against"]}
    best = {arm["role"]["tuned"]["of"]: arm for arm in arms.values() if "tuned" in arm["role"]}
    rows = [
        [
            name,
            entry["best"] or "-",
            *(summary.effect_and_verdict(arm, results) for arm in (arms.get(name), best.get(name))),
            ", ".join(entry["edge"]) or "-",
        ]
        for name, entry in tuning["arms"].items()
    ]
    columns = ("arm", "best values", "shared effect", "tuned effect", "at the grid's edge")
    tried = "; ".join(f"{path}: {', '.join(map(str, values))}" for path, values in tuning["values"].items())
    by = describe_metric(results["plan"], tuning_metric(tuning, results["primary"])).label
    seeds = ", ".join(map(str, tuning["seeds"]))
    lead = (
        f"Every arm was tuned over these values: {tried}. Tuning used seeds {seeds}, which no verdict uses. The best "
        f"values of each arm were selected by {by}. The shared effect is measured with the values of the study file, "
        "and the tuned effect with the best values of each arm."
    )
    tables = [Table(columns, rows, left=2).without_empty_columns(), *_trials_table(results, tuning)]
    return Section("Tuning", lead, tables, notes=summary.edge_warnings(results))


def _trials_table(results: Results, tuning: Tuning) -> list[Table]:
    """Return a list with one table of trials: the mean over tuning seeds for every arm and combination of values.

    The list is empty if there are more than `MOST_COLUMNS` combinations.
    """
    cells = list(dict.fromkeys(cell for entry in tuning["arms"].values() for cell in entry["trials"]))
    if len(cells) > MOST_COLUMNS:
        return []
    places = summary.mean_places(results)
    rows = [[name, *(_trial_cell(entry, cell, places) for cell in cells)] for name, entry in tuning["arms"].items()]
    metric = describe_metric(results["plan"], tuning_metric(tuning, results["primary"]))
    return [Table((metric.title, *cells), rows)]


def _trial_cell(entry: TunedArm, cell: str, places: int) -> str:
    if cell not in entry["trials"]:
        return "-"
    mean = entry["trials"][cell]["mean"]
    text = "diverged" if mean is None else formatting.number(mean, places)
    return f"{text} (best)" if cell == entry["best"] else text

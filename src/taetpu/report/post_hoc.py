"""Report sections on the post-hoc ablation tables of a study: comparisons of arms, and a picture of their effects."""

from collections.abc import Iterator
from typing import Any

import altair as alt

from taetpu.report.charts import Spec, chart, named_axis, responsive_spec, tooltips
from taetpu.report.section_types import Section, Table
from taetpu.report.token_charts import SIGNED
from taetpu.stats import formatting
from taetpu.stats.post_hoc import EFFECTIVE, LARGEST, MAX_RANKS
from taetpu.stats.results import PostHoc, Results, TableArm, TableMeasure

ROW, GAP = 20, 8
"""Height of a layer in the picture, and of the gap between two arms, in pixels."""
MAX_PLACES = 6
"""Maximum number of decimal places in a table."""
MIDDLE = "#f4f5f6"
"""The colour of an effect of 0."""
REPLACEMENTS = {
    "zero": "replaced by zeros",
    "mean": "replaced by its mean activation",
    "resample": "replaced by its activation in another window",
    "noise": "disturbed by noise",
    "optimal": "replaced by the constant with the smallest loss",
}
KINDS = ("heads", "kv-groups", "mixers", "ffns", "layers", "neurons", "experts", "states")
"""The kinds of parts; others are sites."""
COLUMNS = ("measure", "arm", "runs", "mean", "effect", "95 % interval", "Holm p", "verdict")


def post_hoc_sections(results: Results) -> list[Section]:
    """Return a section for each post-hoc ablation table."""
    return [_section(ablation, results) for ablation in results.get("post_hoc", ())]


def post_hoc_charts(results: Results) -> dict[str, Spec]:
    """Return the picture of each post-hoc ablation table with effects, by its name in the sections."""
    charts = {_title(ablation): effect_picture(ablation) for ablation in results.get("post_hoc", ())}
    return {title: spec for title, spec in charts.items() if spec is not None}


def describe_verdicts(results: Results) -> Iterator[str]:
    """Yield a sentence for each post-hoc ablation table with its verdicts of higher and lower."""
    for ablation in results.get("post_hoc", ()):
        decided = [
            f"{_label(measure)} of {arm['name']} {arm['values'][measure]['verdict']}"
            for arm in ablation["arms"]
            for measure in ablation["measures"]
            if arm["values"][measure]["verdict"] in ("higher", "lower")
        ]
        nothing = "inconclusive for all arms" if ablation["compared"] else "nothing to compare"
        if len(results["seeds"]) == 1 or not ablation["final"]:
            nothing = "no verdicts from a single seed" if len(results["seeds"]) == 1 else "no verdicts yet"
        yield f"{_title(ablation)}: {', '.join(decided) or nothing}."


def _section(ablation: PostHoc, results: Results) -> Section:
    title, parts = _title(ablation), _parts(ablation)
    rows = [_row(measure, arm, results, ablation) for measure in ablation["measures"] for arm in ablation["arms"]
            if arm["values"][measure]["mean"] is not None]  # fmt: skip
    caption = f"Mean effect of {parts} over seeds: a row for each layer, the first below, sorted by size"
    charts = [(caption, title)] if any(arm["ranked"] for arm in ablation["arms"]) else []
    return Section(title, _lead(ablation), [Table(COLUMNS, rows, left=2)], charts, [*_notes(ablation, results)])


def _title(ablation: PostHoc) -> str:
    """Return the title of a section, with the settings in the table's name."""
    settings = ablation["name"].removeprefix(f"{ablation['knockout']}-{ablation['how']}").split("-")
    return f"Post-hoc ablation: {ablation['knockout']} ({', '.join([ablation['how'], *filter(None, settings)])})"


def _parts(ablation: PostHoc) -> str:
    known = ablation["knockout"]
    return known if known in KINDS else f"activations at {known}"


def _lead(ablation: PostHoc) -> str:
    parts = _parts(ablation)
    what = "skipped" if ablation["knockout"] == "layers" else REPLACEMENTS[ablation["how"]]
    text = (
        f"In each trained model, {parts} are removed one at a time: each is {what}. An effect is the rise of the loss "
        f"without the part, in nats per token, on at most {ablation['documents']:,} windows of {ablation['split']}. "
    )
    if len({*ablation["measures"]} & {LARGEST, EFFECTIVE}) == 2:
        text += (
            f"A part has no identity between seeds, so arms are compared by the sum of the effects in each layer, the "
            f"largest effect, and the effective number of {parts}: the squared sum of the positive effects divided by "
            "the sum of their squares. "
        )
    return text + (
        "The effect of a part alone is a lower bound of what it does, because later parts may compensate for it. In "
        "the table, an effect is the difference of an arm to its baseline, in a model with an effect of each seed."
    )


def _row(measure: str, arm: TableArm, results: Results, ablation: PostHoc) -> list[str]:
    value, places = arm["values"][measure], _places(measure, ablation)
    figures = [
        formatting.number(value["mean"], places),
        formatting.number(value["effect"], places, sign=True),
        formatting.ends(value["ci95"], places, sign=True),
        formatting.p_value(value["p_holm"]),
    ]
    return [_label(measure), arm["name"], str(value["number"]), *figures, _verdict(value, arm, results, ablation)]


def _label(measure: str) -> str:
    return f"sum of {measure}" if measure.startswith("layer") else measure


def _places(measure: str, ablation: PostHoc) -> int:
    """Return the number of decimal places of a measure: that of its narrowest interval."""
    values = [arm["values"][measure] for arm in ablation["arms"]]
    widths = [formatting.half_width(value["ci95"]) for value in values if value["ci95"]]
    means = [abs(value["mean"]) for value in values if value["mean"] is not None]
    return min(formatting.decimals(min(filter(None, widths), default=None), max(means, default=0.0)), MAX_PLACES)


def _verdict(value: TableMeasure, arm: TableArm, results: Results, ablation: PostHoc) -> str:
    if arm["against"] is None:
        return "baseline"
    if value["effect"] is None:
        return "-"
    if value["verdict"] is None and results["final"] and not ablation["final"]:
        return "incomplete"
    return value["verdict"] or ("interim" if len(results["seeds"]) > 1 else "single seed")


def _notes(ablation: PostHoc, results: Results) -> Iterator[str]:
    if ablation["compared"]:
        yield (
            f"The p-values of the {ablation['compared']} comparisons of this table are corrected together (Holm), "
            f"separately from the verdicts on arms: if no change had any effect, the chance of one or more verdicts of "
            f"higher or lower in this table would be at most about {100 * results['alpha']:g} %."
        )
    if not ablation["planned"]:
        yield "This table is not in the analysis plan: it was added after the study was first run."
    sizes = {arm["name"]: arm["components"] for arm in ablation["arms"] if arm["components"]}
    if len({*sizes.values()}) > 1:
        counts = ", ".join(f"{name} {size:,}" for name, size in sizes.items())
        yield f"The models have different numbers of parts, which bound the effective number: {counts}."
    for arm in ablation["arms"]:
        if arm["absent"]:
            yield f"{arm['name']} is not compared: {arm['absent']}."
        unfinished = arm["runs"] - arm["finished"] - arm["diverged"]
        lost = [f"{number} {what}" for number, what in ((arm["diverged"], "diverged"), (unfinished, "unfinished"))
                if number]  # fmt: skip
        if lost:
            yield f"{arm['name']}: of {arm['runs']} runs, {' and '.join(lost)}. Only finished runs are compared."
        if EFFECTIVE in ablation["measures"] and (none := arm["tables"] - arm["values"][EFFECTIVE]["number"]):
            runs = f"{none} of {arm['tables']} runs have"
            yield f"{arm['name']}: {runs} no effective number, because no effect is above 0."
        missing = 0 if arm["absent"] else arm["finished"] - arm["tables"]
        if missing:
            yield f"{arm['name']}: {missing} of {arm['finished']} finished runs lack this table. Repeat `taetpu run`."


# --- picture ----------------------------------------------------------------------------------------------------------


def effect_picture(ablation: PostHoc) -> Spec | None:
    """Return the picture of the effects of all arms, with one scale of colours; None without effects.

    Each arm has a row for each layer, and a column for each rank of a part within its layer.
    """
    cells = [
        {"arm": arm["name"], "layer": layer["layer"] or 0, "rank": rank + 1, "effect": effect}
        for arm in ablation["arms"]
        for layer in arm["ranked"]
        for rank, effect in enumerate(layer["effects"])
    ]
    if not cells:
        return None
    most = max(abs(cell["effect"]) for cell in cells) or 1.0
    arms, layers, ranks = ([*dict.fromkeys(cell[name] for cell in cells)] for name in ("arm", "layer", "rank"))
    layers, ranks = sorted(layers, reverse=True), range(1, max(ranks) + 1)
    height = len(arms) * (ROW * len(layers) + GAP)
    y = alt.Y("arm:N", sort=arms, title=None, scale=alt.Scale(paddingInner=GAP * len(arms) / height, paddingOuter=0),
              axis=named_axis(arms, labelPadding=26))  # fmt: skip
    shown = "rank of the part in its layer" + (f" (the first {MAX_RANKS})" if len(ranks) == MAX_RANKS else "")
    x = alt.X("rank:O", title=shown, scale=alt.Scale(domain=[*ranks]), axis=alt.Axis(labelAngle=0, ticks=False))
    base = chart(cells).encode(x=x, y=y, yOffset=alt.YOffset("layer:O", scale=alt.Scale(domain=layers)))
    colours = alt.Scale(domain=[-most, 0, most], range=[SIGNED[0], MIDDLE, SIGNED[2]], interpolate="rgb")
    legend = alt.Legend(title="nats per token", orient="top", gradientLength=160, tickCount=4)
    tooltip = tooltips("arm:N", "layer:O", "rank:O", alt.Tooltip("effect:Q", format="+.4~g"))
    drawn: list[Any] = [
        base.mark_rect().encode(color=alt.Color("effect:Q", scale=colours, legend=legend), tooltip=tooltip),
        base.transform_filter("datum.rank == 1").mark_text(align="right", style="note").encode(
            text=alt.Text("layer:O"), x=alt.XValue(-8)),
    ]  # fmt: skip
    return responsive_spec(drawn, height=height)

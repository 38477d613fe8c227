"""Report section on the planned contrasts of a study."""

from collections.abc import Mapping
from typing import Any

from taetpu.report.section_types import Section, Table
from taetpu.report.summary import Results
from taetpu.stats import formatting

LEAD = (
    "These comparisons were planned before the first run, and their p-values are corrected together with those of the "
    "arms. The effect is the value of the first side minus that of the second."
)
SPREADS = (
    " A spread is the standard deviation of a metric over the values of a setting, computed for each seed. Noise "
    "between runs is part of both spreads, so the true difference may be larger."
)


def contrasts_section(results: Results) -> Section:
    """Return the section with the planned contrasts; empty if there are none."""
    found = results.get("contrasts", ())
    rows = [_row(one, results) for one in found]
    lead = LEAD + SPREADS * any("spread" in one for one in found)
    columns = ("contrast", "comparison", "first", "second", "effect", "95 % interval", "Holm p", "verdict")
    notes = [f"{one['name']}: {one['evidence']}" for one in found]
    return Section("Planned contrasts", lead, [Table(columns, rows, left=2)], notes=notes)


def describe_contrast(one: Mapping[str, Any]) -> str:
    """Return what a contrast of `results.json` or of a plan compares, in words."""
    if "spread" in one:
        return f"spread of {one['spread']} over {one['over']}, {one['by']}={one['level']} against the baseline's"
    return f"{' and '.join(one['compare'])} against {' and '.join(one['to'])}"


def _row(one: Mapping[str, Any], results: Results) -> list[str]:
    places = formatting.effect_places(one["effect"] or 0.0, one["ci95"])
    figures = [formatting.number(value, places) for value in one["means"]]
    interval = "-" if one["ci95"] is None else formatting.interval(one["ci95"], places)
    effect = formatting.number(one["effect"], places, sign=True)
    verdict = one["verdict"] or ("interim" if len(results["seeds"]) > 1 else "single seed")
    return [one["name"], describe_contrast(one), *figures, effect, interval, formatting.p_value(one["p_holm"]), verdict]

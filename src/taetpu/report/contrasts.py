"""Report section on the planned contrasts of a study."""

from taetpu.report.section_types import Section, Table
from taetpu.stats import formatting
from taetpu.stats.results import Contrast, Results
from taetpu.store.frozen_study import PlannedContrast

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
    contrasts = results.get("contrasts", ())
    rows = [_row(contrast, results) for contrast in contrasts]
    lead = LEAD + SPREADS * any("spread" in contrast for contrast in contrasts)
    columns = ("contrast", "comparison", "first", "second", "effect", "95 % interval", "Holm p", "verdict")
    notes = [f"{contrast['name']}: {contrast['evidence']}" for contrast in contrasts]
    return Section("Planned contrasts", lead, [Table(columns, rows, left=2)], notes=notes)


def describe_contrast(contrast: PlannedContrast) -> str:
    """Return what a contrast of `results.json` or of a plan compares, in words."""
    if "spread" in contrast:
        level = f"{contrast.get('by')}={contrast.get('level')}"
        return f"spread of {contrast['spread']} over {contrast.get('over')}, {level} against the baseline's"
    return f"{' and '.join(contrast['compare'])} against {' and '.join(contrast['to'])}"


def _row(contrast: Contrast, results: Results) -> list[str]:
    places = formatting.effect_places(contrast["effect"], contrast["ci95"])
    figures = [formatting.number(value, places) for value in contrast["means"]]
    verdict = contrast["verdict"] or ("interim" if len(results["seeds"]) > 1 else "single seed")
    return [contrast["name"], describe_contrast(contrast), *figures, *contrast_cells(contrast), verdict]


def contrast_cells(contrast: Contrast) -> list[str]:
    """Return the effect of a contrast, its interval and its corrected p-value as text."""
    effect, interval = contrast["effect"], contrast["ci95"]
    places = formatting.effect_places(effect, interval)
    return [
        formatting.effect(effect, interval), formatting.interval(interval, places),
        formatting.p_value(contrast["p_holm"]),
    ]  # fmt: skip

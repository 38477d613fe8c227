"""The sections on scores on items: by arm, compared on the same items, and by group of items."""

from collections.abc import Mapping, Sequence

from taetpu.report.section_types import Section, Table
from taetpu.stats import formatting
from taetpu.stats.item_results import ItemScore, ItemScoreArm
from taetpu.stats.results import Results

LEAD = (
    "Scores on the items of a file, averaged over seeds and items. Intervals are over seeds and items together, since "
    "both are samples. Effects compare an arm with its baseline on the same seeds and the same items, so that the "
    "difficulty of an item cancels. Noise from items is the share of an effect's variance that more items would "
    "reduce. Items needed is the number of items at which these seeds would detect a true effect of this size with "
    "80 % power, or none if no number suffices. Verdicts do not use these intervals."
)


MOST_ARMS, MOST_POINTS = 20, 400
"""Maximum number of arms and of points in a chart."""


def item_score_sections(results: Results) -> list[Section]:
    """Return the section on scores on items, and that on groups of items."""
    by_entry: dict[str, list[ItemScore]] = {}
    for score in results.get("scores", ()):
        by_entry.setdefault(score["name"].partition("/")[0], []).append(score)
    tables = [_entry_table(entry, scores) for entry, scores in by_entry.items()]
    chances = {entry: scores[0]["chance"] for entry, scores in by_entry.items()}
    known = [f"{entry} {chance:.3g}" for entry, chance in chances.items() if chance is not None]
    notes = [f"Accuracy of a guess: {', '.join(known)}."] if known else []
    groups = [_group_table(scores[0]) for scores in by_entry.values() if scores[0]["arms"][0]["groups"]]
    lead = "The first score of each file by group of items, such as a phenomenon, with effects on the same items."
    charts = [(f"{score['name']} with 95 % intervals", chart_name(score)) for score in charted_scores(results)]
    return [Section("Scores on items", LEAD, tables, charts, notes=notes if tables else ()),
            Section("Scores by group of items", lead, groups, folded=True)]  # fmt: skip


def charted_scores(results: Results) -> list[ItemScore]:
    """Return the scores that have a chart: the first one of each file, unless it has too many arms or groups."""
    firsts = {score["name"].partition("/")[0]: score for score in reversed(results.get("scores", ()))}
    return [
        score for score in results.get("scores", ())
        if score is firsts[score["name"].partition("/")[0]] and len(score["arms"]) <= MOST_ARMS
        and len(score["arms"]) * (1 + len(score["arms"][0]["groups"])) <= MOST_POINTS
    ]  # fmt: skip


def chart_name(score: ItemScore) -> str:
    """Return the name of a score's chart in `page.chart_data`."""
    return f"items {score['name']}"


def _entry_table(entry: str, scores: Sequence[ItemScore]) -> Table:
    """Return the table of the scores on one file, with a row for each score and arm."""
    rows = []
    for score in scores:
        name, places = score["name"].partition("/")[2], _places(score)
        label = f"{name} ({score['unit']})" if score["unit"].startswith("nats") else name
        rows += [[label, *_arm_cells(arm, places)] for arm in score["arms"]]
    columns = (f"{entry}, {scores[0]['items']:,} items", "arm", "mean", "95 % interval", "effect", "95 % interval",
               "noise from items", "items needed")  # fmt: skip
    return Table(columns, rows, left=2).without_empty_columns()


def _arm_cells(arm: ItemScoreArm, places: int) -> list[str]:
    compared = arm["comparison"]
    cells = [arm["name"], formatting.number(arm["mean"], places), formatting.ends(arm["ci95"], places)]
    if compared is None:
        return [*cells, "-", "-", "-", "-"]
    share, needed = compared["item_share"], compared["items_needed"]
    return [
        *cells,
        formatting.number(compared["effect"], places, sign=True),
        formatting.ends(compared["ci95"], places, sign=True),
        "-" if share is None else f"{share:.0%}",
        ("-" if share is None else "none") if needed is None else f"{needed:,}",
    ]


def _group_table(score: ItemScore) -> Table:
    """Return the table of one score by group, with a row for each group and arm."""
    places, rows = _places(score), []
    for number, group in enumerate(score["arms"][0]["groups"]):
        for arm in score["arms"]:
            entry: Mapping = arm["groups"][number]
            rows.append([
                group["group"], arm["name"], f"{group['items']:,}", formatting.number(entry["mean"], places),
                formatting.ends(entry["ci95"], places), formatting.number(entry["effect"], places, sign=True),
                formatting.ends(entry["effect_ci95"], places, sign=True),
            ])  # fmt: skip
    columns = (f"{score['name']} by group", "arm", "items", "mean", "95 % interval", "effect", "95 % interval")
    return Table(columns, rows, left=2).without_empty_columns()


def _places(score: ItemScore) -> int:
    """Return the number of decimal places of a score: those that its items resolve."""
    return 2 if score["items"] < 1000 else 3

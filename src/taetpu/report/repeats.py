"""Report sections and terminal tables on arms that are repeated on several tasks or under several settings."""

from collections.abc import Iterator, Mapping

from taetpu.report import summary
from taetpu.report.rungs import describe_robustness, in_order
from taetpu.report.section_types import Section, Table
from taetpu.stats import formatting
from taetpu.stats.results import Across, Arm, JudgedEffect, Results, TasksArm, TasksDesign

PLACES = 3
HEATMAP, PROFILES, ELSEWHERE = "arms by tasks", "performance profiles", "arms by settings"
SYMBOLS: Mapping[str | None, str] = {"better": "+", "worse": "-", "equivalent": "=", "inconclusive": "?", None: "."}
LEGEND = "+ better, - worse, = equivalent, ? inconclusive"
WAYS = {"iqm": "interquartile mean", "mean": "mean"}


def tasks_section(results: Results, design: TasksDesign) -> Section:
    """Return the section on arms on several tasks: their scores, pooled effects and performance profiles."""
    arms, way = {arm["name"]: arm for arm in results["arms"]}, WAYS[design["pool"]]
    scores = [
        [name, *(_cell(entry, task, arms) for task in design["rungs"]), *_number(entry["mean"], entry["iqm"])]
        for name, entry in in_order(results, design["arms"])
    ]
    pooled = [[name, *pooled_cells(entry)] for name, entry in in_order(results, design["arms"]) if entry["pooled"]]
    if design["scale"] == "normalised":
        what = "A score is 0 for a uniform guess (or the value that the plan names) and 1 for the best possible value."
    else:
        what = (
            "The values of chance and of the best model are not known for all tasks, so scores are ranks among the "
            "arms on each seed, from 0 (worst) to 1 (best). They depend on which arms are in the study."
        )
    lead = (
        f"Each arm is compared with the baseline of its task. {what} The pooled effect is the {way} over tasks of the "
        "effects on the score."
    )
    tables = [
        Table(("score of", *design["rungs"], "mean", "IQM of runs"), scores),
        Table(("arm", "pooled effect", "95 % interval", "Holm p", "verdict", "p of tasks differ"), pooled),
    ]
    charts = [("Difference to the baseline's score", HEATMAP)]
    if any(entry["profile"] for entry in design["arms"].values()):
        charts.append(("Share of runs that reach a score", PROFILES))
    notes = [
        "Intervals of pooled effects are over seeds with the tasks fixed: they hold for these tasks. Their p-values "
        "are corrected together with those of the arms on each task.",
        "Tasks differ: Welch's tests of equal effects for each pair of tasks, corrected for the number of pairs and of "
        "arms.",
        *(
            f"{name}: {entry['pooled']['evidence']}"
            for name, entry in in_order(results, design["arms"])
            if entry["pooled"]
        ),
    ]
    return Section("Arms on several tasks", lead, tables, charts, notes)


def _cell(entry: TasksArm, task: str, arms: Mapping[str, Arm]) -> str:
    score, arm = entry["scores"].get(task), arms.get(entry["rungs"].get(task, ""))
    verdict = f" {summary.verdict_label(arm)}" if arm and arm["against"] else ""
    return f"{formatting.number(score, PLACES)}{verdict}"


def _number(*values: float | None) -> list[str]:
    return [formatting.number(value, PLACES) for value in values]


def pooled_cells(entry: TasksArm) -> list[str]:
    """Return a pooled effect, its interval, its corrected p-value, its verdict and the p-value of equal effects."""
    effect: JudgedEffect | None = entry["pooled"]
    if effect is None:
        return []
    return [
        formatting.effect(effect["effect"], effect["ci95"], PLACES),
        formatting.interval(effect["ci95"], PLACES),
        formatting.p_value(effect["p_holm"]),
        effect["verdict"] or "interim",
        formatting.p_value(entry["p_differs_holm"]),
    ]


def score_differences(design: TasksDesign) -> Iterator[dict[str, object]]:
    """Yield the difference of each arm's score to the baseline's on each task, for the heatmap."""
    base = design["arms"]["baseline"]["scores"]
    for name, entry in design["arms"].items():
        for task, score in entry["scores"].items():
            if entry["pooled"] and score is not None and (of := base.get(task)) is not None:
                text = formatting.number(score - of, 2, sign=True)
                yield {"row": name, "column": task, "effect": score - of, "text": text}


# --- settings --------------------------------------------------------------------------------------------------------


def across_section(results: Results, design: Across) -> Section:
    """Return the section on arms under several settings."""
    arms = {arm["name"]: arm for arm in results["arms"]}
    rows = [
        [
            name,
            *(summary.effect_and_verdict(arms.get(entry["rungs"].get(rung, "")), results) for rung in design["rungs"]),
            describe_robustness(entry),
        ]
        for name, entry in in_order(results, design["arms"])
    ]
    tests = [[name, *(formatting.p_value(entry["p_differs_holm"][f]) for f in design["factors"])]
             for name, entry in in_order(results, design["arms"])]  # fmt: skip
    lead = (
        "Every arm is compared with the baseline under each setting. One setting differs from the baseline as written "
        "at a time."
    )
    notes = [
        "Holds: the same clear verdict under all settings. Reverses: better under one setting and worse under another. "
        "Depends: effects differ significantly between the values of a setting. Unclear: none of these.",
        "The p-values are those of Welch's test of equal effects for each pair of values, corrected for the numbers of "
        "pairs, arms and settings.",
    ]
    tables = [
        Table(("arm", *design["rungs"], "verdict on the verdict"), rows),
        Table(("p of equal effects", *design["factors"]), tests),
    ]
    return Section("Does it hold elsewhere?", lead, tables, [("Effect under each setting", ELSEWHERE)], notes)


def across_cells(results: Results, design: Across) -> Iterator[dict[str, object]]:
    """Yield the effect of each arm under each setting, for the heatmap."""
    arms = {arm["name"]: arm for arm in results["arms"]}
    for name, entry in design["arms"].items():
        for rung, of in entry["rungs"].items():
            if (effect := arms[of]["effect"]) is not None:
                text = summary.format_effect(arms[of], results)
                yield {"row": name, "column": rung, "effect": effect, "text": text}


def across_sentences(results: Results, design: Across) -> Iterator[str]:
    """Yield a sentence for each arm: the verdict on its verdict, and its settings by verdict."""
    verdicts = {arm["name"]: summary.verdict_label(arm) for arm in results["arms"]}
    for name, entry in in_order(results, design["arms"]):
        groups: dict[str, list[str]] = {}
        for rung, arm in entry["rungs"].items():
            groups.setdefault(verdicts[arm], []).append(rung)
        listed = "; ".join(f"{verdict}: {', '.join(rungs)}" for verdict, rungs in groups.items())
        yield f"{name}: {describe_robustness(entry)} ({listed})."

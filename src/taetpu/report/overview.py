"""Overview of a study: the training setup and cost, effects sorted by size, limitations, and a reading guide."""

import math
import shlex
from collections import Counter
from collections.abc import Mapping
from typing import Any

from taetpu.report import summary
from taetpu.report.judged import (
    describe_source,
    is_single_judged,
    judged_blocks,
    judged_limits,
    removed_effect,
)
from taetpu.report.outcome_text import has_outcome
from taetpu.report.verdict_style import MARKS, VERDICTS
from taetpu.stats import formatting
from taetpu.stats.load import OUTCOMES
from taetpu.stats.plan import describe_metric
from taetpu.stats.results import Arm, Results
from taetpu.store.study import StudyFolder

WEIGHED = (
    "The remaining noise of an arm is estimated between that of most arms and its own, so a noisy arm has a wider "
    "interval. Noise of the baseline widens all intervals."
)
POOLED = (
    "The remaining noise is pooled over arms, so most intervals have the same width. An arm that seems noisier than "
    "the others (F-test at 15 %) is tested with its own noise."
)
SHARED_START = (
    "Arms with the same seed have the same initial weights, except where the change affects them, and are evaluated on "
    "the same data."
)
SHARED = (
    "Arms with the same seed see the same data in the same order and start from the same weights, except where the "
    "change affects them."
)
SHARED_BY_PROGRAM = "Runs with the same seed are compared. What they share beside the seed depends on the program."
SIMPLE_RULES = {
    "chance": "a uniform guess",
    "decoy": "predicting from the current token alone",
    "constant": "a prediction without input",
}
OTHER_SIZE = 0.1
"""Relative difference in parameter count above which an arm's size counts as different from its baseline's size."""


def rank_effects(results: Results) -> list[str]:
    """Return a sentence for each verdict that lists the arms with this verdict, sorted by the size of the effect."""
    if not results["final"] or len(results["seeds"]) == 1:
        return []
    arms = [arm for arm in summary.counted_arms(results) if arm["effect"] is not None]
    arms.sort(key=lambda arm: -abs(arm["effect"] or 0.0))
    sentences = []
    for verdict in ("worse", "better", "equivalent", "inconclusive"):
        named = [f"{arm['name']} ({_effect(arm, results)})" for arm in arms if arm["verdict"] == verdict]
        sentences += [f"{verdict.capitalize()}: {', '.join(named)}."] if named else []
    return sentences


def count_labels(results: Results) -> list[tuple[str, int]]:
    """Return the number of arms in the forest plot by `summary.verdict_label`, in the order of `verdict_style`.

    The list includes the verdicts that no arm has, except `equivalent` without a margin in the plan. It is empty if
    there are no verdicts.
    """
    counts = Counter(summary.verdict_label(arm) for arm in results["arms"] if arm["against"])
    possible = {verdict for verdict in VERDICTS if verdict != "equivalent" or results["plan"]["equivalence"]}
    if not counts.keys() & {*VERDICTS}:
        return []
    return [(label, counts[label]) for label in MARKS if label in possible | counts.keys()]


def _effect(arm: Arm, results: Results) -> str:
    """Format an effect, with its interval if the verdict is inconclusive."""
    effect = summary.format_effect(arm, results)
    if arm["verdict"] != "inconclusive" or not arm["ci95"]:
        return effect
    return f"{effect}, 95 % interval {summary.format_interval(arm['ci95'], results)}"


def describe_training(results: Results, folder: StudyFolder, baseline: Mapping[str, Any]) -> list[str]:
    """Return sentences on the baseline, its data, and the cost of the study.

    Args:
        results: the content of `results.json`.
        folder: the study's folder, which stores the times of packs.
        baseline: the baseline's settings by path.
    """
    base = results["arms"][0]
    training = {
        "batch size": baseline.get("train.batch_size"),
        "tokens": formatting.amount(base["tokens"]) if base["tokens"] else None,
        "optimizer": baseline.get("train.optimizer.kind"),
        "learning rate": baseline.get("train.optimizer.lr"),
    }
    what = {
        "data": " ".join(str(baseline[path]) for path in ("task.kind", "task.source") if baseline.get(path)),
        "tokenizer": baseline.get("task.tokenizer.kind"),
        "layers": baseline.get("model.num_layers"),
        "dim": baseline.get("model.dim"),
        "heads": baseline.get("model.mixer.num_heads"),
        "parameters": formatting.amount(base["params"]) if base["params"] else None,
        "context": baseline.get("task.seq_len"),
        "steps": baseline.get("train.steps"),
        **({} if summary.is_untrained(results) else training),
    }
    facts = ", ".join(f"{name} {value}" for name, value in what.items() if value not in (None, ""))
    if (program := results.get("program")) is not None:
        return [f"Program: {shlex.join(program['command'])}.", _describe_cost(results, folder)]
    return [
        *([f"Baseline: {facts}."] if facts else []),
        *(describe_source(results) or [_describe_cost(results, folder)]),
    ]


def _describe_cost(results: Results, folder: StudyFolder) -> str:
    """Return a sentence on the total cost of the study's runs that have ended."""
    ended = [sum(run["outcome"] in OUTCOMES for run in arm["runs"]) for arm in results["arms"]]
    flops = sum(count * (arm["flops"] or 0) for arm, count in zip(results["arms"], ended, strict=True))
    seconds = sum(pack.get("seconds", 0.0) for pack in folder.read_pack_times().values())
    cost = [f"{sum(ended)} runs"]
    cost += [f"{formatting.amount(flops)} training FLOPs"] if flops else []
    cost += [f"{formatting.seconds(seconds)} including compilation, evaluation and storage"] if seconds else []
    cost += [f"on {kind['device']}" for kind in results["hardware"]]
    return f"Total: {', '.join(cost)}."


def learning_cautions(results: Results, data: Mapping[str, Any]) -> list[str]:
    """Return warnings about arms that do not beat the loss of a simple rule, which needs no model.

    Args:
        results: the content of `results.json`.
        data: the task's reference losses. `chance_loss` is the loss of a uniform guess, `decoy_loss` is the loss of a
            rule that sees only the current token, `constant_loss` that of one that sees no input, and `decoy` and
            `constant` describe them. If these facts differ on an evaluation set `val@N`, they are under its name.
    """
    split, _, what = results["primary"].partition("/")
    if what != "loss" or not split.startswith("val") or has_outcome(results):
        return []
    data = data.get(split, data)
    ends = {arm["name"]: arm["mean"] for arm in results["arms"] if arm["mean"] is not None}
    cautions = []
    for rule, what in SIMPLE_RULES.items():
        loss = data.get(f"{rule}_loss")
        worse = [name for name, end in ends.items() if loss is not None and end >= loss]
        if rule == "chance":  # the other rules say no more of these arms
            ends = {name: end for name, end in ends.items() if name not in worse}
        if worse:
            about = f"; {data[rule]}" if rule in data else ""
            cautions.append(f"No better than {what} (loss {loss:.4g}{about}): {summary.join_and(worse)}.")
    return cautions


def describe_excess(results: Results, data: Mapping[str, Any]) -> list[str]:
    """Return a sentence on the distance of the arms' losses from the lowest possible loss, if it is known and not 0.

    Args:
        results: the content of `results.json`.
        data: the task's reference losses, of which `bayes_loss` is the lowest possible one; see `learning_cautions`.
    """
    split, _, what = results["primary"].partition("/")
    known = what == "loss" and split.startswith("val") and not has_outcome(results)
    lowest = data.get(split, data).get("bayes_loss") if known else None
    excess = {arm["name"]: arm["mean"] - lowest for arm in results["arms"] if arm["mean"] is not None} if lowest else {}
    if not excess:
        return []
    places = summary.mean_places(results)
    excess = sorted(excess.items(), key=lambda item: item[1])
    arms = ", ".join(f"{name} {formatting.number(value, places, sign=True)}" for name, value in excess)
    return [
        f"The lowest possible loss is {formatting.number(lowest, places)} in expectation. Distance from it: {arms}."
    ]


def study_limits(results: Results) -> list[str]:
    """Return sentences on the limitations of the study's designs and training."""
    arms, untrained = [arm for arm in results["arms"] if arm["against"]], summary.is_untrained(results)
    limits = list(results["designs"]["limits"])
    if len(arms) > 1:
        what = "the baseline" if len({arm["against"] for arm in arms}) == 1 else "their baselines"
        limits.append(f"Arms were compared with {what}, not with each other, so their ranking was not tested.")
    limits += judged_limits(results)
    if arms and not results["tuning"] and "judged" not in results and not untrained:
        limits.append("No arm was tuned, so other training settings may suit an arm better (see `tune`).")
    sizes = {arm["name"]: _size_difference(results, arm) for arm in arms}
    others = [f"{name} ({share:+.0%})" for name, share in sizes.items() if abs(share) > OTHER_SIZE]
    if others and not any(map(summary.matched_to, arms)):
        text = "The effects of these arms include the change in size."
        text += "" if untrained else " Use `match: params` to separate the two."
        limits.append(f"Arms whose parameter count differs from the baseline's: {', '.join(others)}. {text}")
    if arms:
        limits.append(
            "Nothing was trained. Effects on trained models, with other data or other model sizes may differ."
            if untrained
            else "Effects may grow, shrink or reverse with longer training, other data or other model sizes."
        )
    return limits


def _size_difference(results: Results, arm: Arm) -> float:
    base = summary.baseline_of(results, arm)
    return arm["params"] / base["params"] - 1 if arm["params"] and base["params"] else 0.0


def reading_guide(results: Results) -> list[str]:
    """Return explanations of the report's numbers for readers who do not use statistics daily."""
    if is_single_judged(results):
        return []
    alpha, planned, margin = results["alpha"], results["plan"]["looks"], results["plan"]["equivalence"]
    arms = sum(arm["against"] is not None for arm in results["arms"])
    corrected = f"{arms} comparison{'' if arms == 1 else 's'}"
    corrected += f" and {len(planned)} planned analyses" if len(planned) > 1 else ""
    metric = describe_metric(results["plan"])
    shared = SHARED_START if summary.is_untrained(results) else SHARED
    shared = SHARED_BY_PROGRAM if "program" in results else shared
    shared = judged_blocks(results) if "judged" in results else shared
    effect = removed_effect(results)
    removed = f" The effect of the {effect} is removed before arms are compared." if effect else ""
    solved = "solved" in results["plan"]
    guide = [
        summary.describe_noise(results),
        *filter(None, [summary.describe_repeat(results)]),
        "The exact test takes runs as independent. Shared seeds make it more conservative."
        if solved
        else f"{shared}{removed} {WEIGHED if summary.is_weighed(results) else POOLED}",
        f"Better or worse: p, after Holm's correction for {corrected}, is below {alpha:g}. If no change had any "
        f"effect, the chance of one or more of these verdicts would be at most about {100 * alpha:g} %.",
        "Inconclusive means that these seeds do not suffice for a verdict, not that the arms are equal.",
        "An interval in the table is not corrected for the number of arms, so it may exclude zero although the verdict "
        'is inconclusive. Simultaneous intervals are under "Sensitivity to the analysis".',
        "Effect / sd: the effect divided by the standard deviation of one run.",
    ]
    if margin:
        guide.append(
            f"Equivalent: the 90 % interval is within {margin:g} of zero, the margin"
            f"{'' if 'judged' in results else ' set before the first run'}."
        )
    low, high = metric.bounds
    if math.isfinite(high - low) and not solved:
        guide.append(
            f"{metric.label} lies between {low:g} and {high:g}. Effects are differences of means, and their "
            "intervals are clipped to the possible range. Near a bound, tests have less power, and intervals cover the "
            "true effect less often than 95 %."
        )
    return guide

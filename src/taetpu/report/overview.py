"""Overview of a study: the training setup and cost, effects sorted by size, limitations, and a reading guide."""

import math
from collections.abc import Mapping, Sequence
from typing import Any

from taetpu.report import summary
from taetpu.report.comparison import Results, baseline_of, matched_to
from taetpu.stats import formatting
from taetpu.stats.plan import metric_bounds
from taetpu.store.study import StudyFolder

BATCHES = ("task.", "train.batch_size")
"""Prefixes of the settings that determine the batches."""
OTHER_SIZE = 0.1
"""Relative difference in parameter count above which an arm's size counts as different from its baseline's size."""


def rank_effects(results: Results) -> list[str]:
    """Return a sentence for each verdict that lists the arms with this verdict, sorted by the size of the effect."""
    if not results["final"] or len(results["seeds"]) == 1:
        return []
    arms = [arm for arm in summary.counted_arms(results) if arm["effect"] is not None]
    arms.sort(key=lambda arm: -abs(arm["effect"]))
    found = []
    for verdict, title in (("worse", "Worse"), ("better", "Better"), ("equivalent", "Equivalent")):
        if named := [_with_effect(arm, results) for arm in arms if arm["verdict"] == verdict]:
            found.append(f"{title}: {', '.join(named)}.")
    open_ones = [
        f"{_with_effect(arm, results)}, 95 % interval {summary.format_interval(arm['ci95'], results)}"
        for arm in arms
        if arm["verdict"] == "inconclusive" and arm["ci95"]
    ]
    return [*found, *([f"Inconclusive: {'; '.join(open_ones)}."] if open_ones else [])]


def _with_effect(arm: Mapping[str, Any], results: Results) -> str:
    return f"{arm['name']} ({summary.format_effect(arm, results)})"


def describe_training(results: Results, folder: StudyFolder, baseline: Mapping[str, Any]) -> list[str]:
    """Return sentences on the baseline, its data, and the cost of the study.

    Args:
        results: the content of `results.json`.
        folder: the study's folder, which stores the times of packs.
        baseline: the baseline's settings by path.
    """
    base = results["arms"][0]
    data = [baseline.get("task.kind"), baseline.get("task.source")]
    what = [
        ("data", " ".join(str(part) for part in data if part)),
        ("tokenizer", baseline.get("task.tokenizer.kind")),
        ("layers", baseline.get("model.num_layers")),
        ("dim", baseline.get("model.dim")),
        ("heads", baseline.get("model.mixer.num_heads")),
        ("parameters", formatting.amount(base["params"]) if base["params"] else None),
        ("context", baseline.get("task.seq_len")),
        ("steps", baseline.get("train.steps")),
        ("batch size", baseline.get("train.batch_size")),
        ("tokens", formatting.amount(base["tokens"]) if base["tokens"] else None),
        ("optimizer", baseline.get("train.optimizer.kind")),
        ("learning rate", baseline.get("train.optimizer.lr")),
    ]
    facts = ", ".join(f"{name} {value}" for name, value in what if value not in (None, ""))
    return [f"Baseline: {facts}.", _describe_cost(results, folder)] if facts else [_describe_cost(results, folder)]


def _describe_cost(results: Results, folder: StudyFolder) -> str:
    """Return a sentence on the total cost of the study's runs that have ended."""
    ended = [sum(run["outcome"] != "unfinished" for run in arm["runs"]) for arm in results["arms"]]
    flops = sum(count * (arm["flops"] or 0) for arm, count in zip(results["arms"], ended, strict=True))
    packs = folder.read_pack_times().values()
    cost = [f"{sum(ended)} runs"]
    cost += [f"{formatting.amount(flops)} training FLOPs"] if flops else []
    cost += (
        [f"{formatting.seconds(sum(pack['seconds'] for pack in packs))} including compilation, evaluation and storage"]
        if packs
        else []
    )
    where = summary.join_and([str(kind["device"]) for kind in results["hardware"]])
    return f"Total: {', '.join(cost)}{f', on {where}' if where else ''}."


def learning_cautions(results: Results, data: Mapping[str, Any]) -> list[str]:
    """Return warnings for the arms whose loss is no better than that of a simple rule without a model.

    Args:
        results: the content of `results.json`.
        data: the task's reference losses. `chance_loss` is the loss of a uniform guess, `decoy_loss` is the loss of a
            rule that sees only the current token, and `decoy` describes this rule.
    """
    if results["primary"] != "val/loss":
        return []
    chance, decoy = (data.get(f"{rule}_loss") for rule in ("chance", "decoy"))
    ends = {arm["name"]: arm["mean"] for arm in results["arms"] if arm["mean"] is not None}
    nothing = [name for name, end in ends.items() if chance is not None and end >= chance]
    no_more = [name for name, end in ends.items() if decoy is not None and end >= decoy and name not in nothing]
    found = []
    if nothing:
        found.append(
            f"{summary.join_and(nothing)}: at or above {chance:.4g}, the loss of a uniform guess. "
            f"{'This arm' if len(nothing) == 1 else 'These arms'} learned nothing."
        )
    if no_more:
        found.append(
            f"{summary.join_and(no_more)}: at or above {decoy:.4g}, the loss of a rule that sees only the current "
            f"token ({data['decoy']}). {'Its' if len(no_more) == 1 else 'Their'} loss shows no learning beyond it."
        )
    return found


def study_limits(results: Results) -> list[str]:
    """Return sentences on the limitations of the study's designs and training."""
    arms = [arm for arm in results["arms"] if arm["against"]]
    found = list(results["designs"]["limits"])
    if len(arms) > 1:
        what = "the baseline" if len({arm["against"] for arm in arms}) == 1 else "their baselines"
        found.append(f"Arms were compared with {what}, not with each other: the order of arms is not tested.")
    if arms and not results["tuning"]:
        found.append(_tuning_limit(results, arms))
    sized = [(arm, _size_difference(results, arm)) for arm in arms]
    others = [f"{arm['name']} ({share:+.0%})" for arm, share in sized if abs(share) > OTHER_SIZE]
    if others and not any(map(matched_to, arms)):
        text = "Their effects mix the change with the change in size; use `match: params` to separate the two"
        found.append(f"Parameter counts differ from the baseline: {', '.join(others)}. {text}.")
    if arms:
        found.append("Effects may grow, shrink or reverse with longer training, other data or other model sizes.")
    return found


def _tuning_limit(results: Results, arms: Sequence[Mapping[str, Any]]) -> str:
    """Return the limitation of a study without `tune`, including which arms use the baseline's training settings."""
    changed = {arm["name"]: _changes_in(results, arm, "train.") for arm in arms}
    others = [name for name, paths in changed.items() if paths]
    if not others:
        return "No arm was tuned: all use the baseline's training settings, which may favour the baseline (see `tune`)."
    paths = formatting.list_names(list(dict.fromkeys(path for paths in changed.values() for path in paths)))
    if len(others) == len(arms):
        return f"No arm was tuned: each has its own {paths}, and no other value was tried (see `tune`)."
    own = "has its own" if len(others) == 1 else "have their own"
    return (
        f"No arm was tuned: {formatting.list_names(others)} {own} {paths}, and all others use the baseline's training "
        "settings, which may favour the baseline (see `tune`)."
    )


def _changes_in(results: Results, arm: Mapping[str, Any], *sections: str) -> list[str]:
    """Return the paths of the settings in the given sections that differ between an arm and its baseline."""
    return [path for path in summary.changed_settings(results, arm) if path.startswith(sections)]


def _size_difference(results: Results, arm: Mapping[str, Any]) -> float:
    base = baseline_of(results, arm)
    return arm["params"] / base["params"] - 1 if arm["params"] and base["params"] else 0.0


def _other_batches(results: Results) -> str:
    """Return a remark on the arms trained on different batches from their baseline; empty if there are no such arms."""
    others = [arm["name"] for arm in results["arms"] if arm["against"] and _changes_in(results, arm, *BATCHES)]
    return f" ({formatting.list_names(others)} {'sees' if len(others) == 1 else 'see'} other batches)" if others else ""


def reading_guide(results: Results) -> Sequence[str]:
    """Return explanations of the report's numbers for readers who do not use statistics daily."""
    alpha, planned = results["alpha"], results["plan"]["looks"]
    arms = sum(arm["against"] is not None for arm in results["arms"])
    corrected = f"{arms} comparison{'' if arms == 1 else 's'}"
    corrected += f" and {len(planned)} planned analyses" if len(planned) > 1 else ""
    equal, (low, high) = results["plan"]["equivalence"], metric_bounds(results["primary"])
    cut = (
        f"{results['primary']} lies between {low:g} and {high:g}. Effects are differences of means in the metric's "
        "unit, and their intervals are clipped to the possible range. Near a bound the values of an arm are skewed: "
        "tests then have less power, and intervals cover the true effect less often than 95 %."
    )
    small = "Equivalent: the 90 % interval lies within {:g} of zero, the margin set before the first run."
    return [
        summary.describe_noise(results),
        f"Arms with the same seed see the same data in the same order{_other_batches(results)} and start from the same "
        "weights except where the change affects them. The effect of the seed is removed before arms are compared. The "
        "remaining noise is pooled over arms, so most intervals have the same width; an arm flagged as noisier is "
        "tested with its own noise. An arm is flagged if its values, without the effects of the seeds, vary so much "
        "more than those of the other arms that equal noise would produce this in 15 of 100 arms. Its "
        "differences from the baseline are not used for this.",
        f"Better or worse: p, after Holm's correction for {corrected}, is below {alpha:g}. If no change had any "
        f"effect, the chance of one or more such verdicts would be at most about {100 * alpha:g} %.",
        *([small.format(equal)] if equal else []),
        *([cut] if math.isfinite(high) else []),
        "Inconclusive does not mean equal: these seeds do not suffice for a verdict.",
        "An interval in the table is not corrected for the number of arms, so it may exclude zero although the verdict "
        'is inconclusive. Simultaneous intervals are under "Sensitivity to the analysis".',
        "In noise sd: the effect divided by the standard deviation of one run.",
        "Effects are specific to this model size, data and number of steps.",
    ]

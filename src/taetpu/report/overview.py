"""What a reader asks first: what was trained and at what cost, how large each effect is, and what is not known."""

import math
from collections.abc import Mapping, Sequence
from typing import Any

from taetpu.report import summary
from taetpu.report.comparison import Results, baseline_of, matched_to
from taetpu.stats import formatting
from taetpu.stats.plan import metric_bounds
from taetpu.store.study import StudyFolder

BATCHES = ("task.", "train.batch_size")
"""Settings that decide which data a step sees."""
OTHER_SIZE = 0.1
"""An arm whose parameters differ by a larger share is of another size than its baseline."""


def rank_effects(results: Results) -> list[str]:
    """The arms with their effects, the largest first, in a sentence for each verdict."""
    if not results["final"] or len(results["seeds"]) == 1:
        return []
    arms = [arm for arm in summary.counted_arms(results) if arm["effect"] is not None]
    arms.sort(key=lambda arm: -abs(arm["effect"]))
    found = []
    for verdict, title in (("worse", "Worse"), ("better", "Better"), ("equivalent", "No difference that matters")):
        if named := [_with_effect(arm, results) for arm in arms if arm["verdict"] == verdict]:
            found.append(f"{title}: {', '.join(named)}.")
    open_ones = [
        f"{_with_effect(arm, results)}, which may be anything from {summary.format_interval(arm['ci95'], results)}"
        for arm in arms
        if arm["verdict"] == "inconclusive" and arm["ci95"]
    ]
    return [*found, *([f"Not told from the baseline: {'; '.join(open_ones)}."] if open_ones else [])]


def _with_effect(arm: Mapping[str, Any], results: Results) -> str:
    return f"{arm['name']} ({summary.format_effect(arm, results)})"


def describe_training(results: Results, folder: StudyFolder, baseline: Mapping[str, Any]) -> list[str]:
    """What the baseline is, on what it was trained, and what the whole study cost.

    Args:
        baseline: its settings by path.
    """
    base = results["arms"][0]
    data = [baseline.get("task.kind"), baseline.get("task.source")]
    what = [
        ("data", " ".join(str(part) for part in data if part)),
        ("tokens by", baseline.get("task.tokenizer.kind")),
        ("layers", baseline.get("model.num_layers")),
        ("dim", baseline.get("model.dim")),
        ("heads", baseline.get("model.mixer.num_heads")),
        ("parameters", formatting.amount(base["params"]) if base["params"] else None),
        ("context", baseline.get("task.seq_len")),
        ("steps", baseline.get("train.steps")),
        ("sequences a step", baseline.get("train.batch_size")),
        ("tokens", formatting.amount(base["tokens"]) if base["tokens"] else None),
        ("optimizer", baseline.get("train.optimizer.kind")),
        ("learning rate", baseline.get("train.optimizer.lr")),
    ]
    facts = ", ".join(f"{name} {value}" for name, value in what if value not in (None, ""))
    return [f"The baseline: {facts}.", _describe_cost(results, folder)] if facts else [_describe_cost(results, folder)]


def _describe_cost(results: Results, folder: StudyFolder) -> str:
    """All runs together, as far as they ended."""
    ended = [sum(run["outcome"] != "unfinished" for run in arm["runs"]) for arm in results["arms"]]
    flops = sum(count * (arm["flops"] or 0) for arm, count in zip(results["arms"], ended, strict=True))
    packs = folder.read_pack_times().values()
    cost = [f"{sum(ended)} runs"]
    cost += [f"{formatting.amount(flops)} training FLOPs"] if flops else []
    cost += (
        [f"{formatting.seconds(sum(pack['seconds'] for pack in packs))} with compiling, evaluating and storing"]
        if packs
        else []
    )
    where = summary.join_and([str(kind["device"]) for kind in results["hardware"]])
    return f"All of it: {', '.join(cost)}{f', on {where}' if where else ''}."


def learning_cautions(results: Results, data: Mapping[str, Any]) -> list[str]:
    """Arms that are no better than a rule that needs no model, by the losses that the task measured itself against.

    Args:
        data: what the task says of itself: the `chance_loss` of a uniform guess, and the `decoy_loss` of a rule that
            sees the current token alone, with the `decoy` in words.
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
            f"{summary.join_and(nothing)}: at or above {chance:.4g}, the loss of a uniform guess. Trained so, "
            f"{'it' if len(nothing) == 1 else 'they'} learned nothing."
        )
    if no_more:
        found.append(
            f"{summary.join_and(no_more)}: at or above {decoy:.4g}, which a rule that sees the current token alone "
            f"reaches without a model ({data['decoy']}). {'Its' if len(no_more) == 1 else 'Their'} loss shows nothing "
            "learned beyond that rule."
        )
    return found


def study_limits(results: Results) -> list[str]:
    """What the study cannot tell: of its designs, and of how its arms were trained."""
    arms = [arm for arm in results["arms"] if arm["against"]]
    found = list(results["designs"]["limits"])
    if len(arms) > 1:
        what = "the baseline" if len({arm["against"] for arm in arms}) == 1 else "their baselines"
        found.append(f"Arms were compared with {what}, not with each other: their order is not tested.")
    if arms and not results["tuning"]:
        found.append(_tuning_limit(results, arms))
    sized = [(arm, _size_difference(results, arm)) for arm in arms]
    others = [f"{arm['name']} ({share:+.0%})" for arm, share in sized if abs(share) > OTHER_SIZE]
    if others and not any(map(matched_to, arms)):
        text = "of another size than the baseline, so that size and part cannot be told apart (`match: params`)"
        found.append(f"Parameters: {', '.join(others)}; {text}.")
    if arms:
        found.append("What longer training, other data or other sizes would show: gaps may grow, shrink or turn round.")
    return found


def _tuning_limit(results: Results, arms: Sequence[Mapping[str, Any]]) -> str:
    """Of a study without `tune`, whose training settings its arms have."""
    changed = {arm["name"]: _changes_in(results, arm, "train.") for arm in arms}
    others = [name for name, paths in changed.items() if paths]
    if not others:
        return "No arm was tuned: all have the baseline's training settings, which may suit it best (`tune`)."
    paths = formatting.list_names(list(dict.fromkeys(path for paths in changed.values() for path in paths)))
    if len(others) == len(arms):
        return f"No arm was tuned: each has a {paths} of its own, and tried no other (`tune`)."
    own = "has its own" if len(others) == 1 else "have their own"
    return (
        f"No arm was tuned: {formatting.list_names(others)} {own} {paths}, and all others have the baseline's training "
        "settings, which may suit it best (`tune`)."
    )


def _changes_in(results: Results, arm: Mapping[str, Any], *sections: str) -> list[str]:
    """The settings in these sections by which an arm differs from what it is compared with."""
    return [path for path in summary.changed_settings(results, arm) if path.startswith(sections)]


def _size_difference(results: Results, arm: Mapping[str, Any]) -> float:
    base = baseline_of(results, arm)
    return arm["params"] / base["params"] - 1 if arm["params"] and base["params"] else 0.0


def _other_batches(results: Results) -> str:
    """The arms that are trained on other batches than their baseline, as an exception to that all see the same."""
    others = [arm["name"] for arm in results["arms"] if arm["against"] and _changes_in(results, arm, *BATCHES)]
    return f" ({formatting.list_names(others)} {'sees' if len(others) == 1 else 'see'} other batches)" if others else ""


def reading_guide(results: Results) -> Sequence[str]:
    """How to read the figures, for whoever last had statistics years ago."""
    alpha, looks = results["alpha"], results["plan"]["looks"]
    arms = sum(arm["against"] is not None for arm in results["arms"])
    corrected = f"{arms} comparison{'' if arms == 1 else 's'}"
    corrected += f" and for {len(looks)} planned looks" if len(looks) > 1 else ""
    equal, (low, high) = results["plan"]["equivalence"], metric_bounds(results["primary"])
    cut = (
        f"{results['primary']} lies between {low:g} and {high:g}. Effects are differences of means in its own unit, "
        "and their intervals are cut to what such a difference can be, which excludes no true effect. Where the runs "
        "of an arm come close to a bound, they scatter to one side: then verdicts of better or worse are rarer than "
        "they could be, and intervals cover less often than they say."
    )
    small = "Equivalent is called when the 90 % interval lies within {:g} of no effect: too small to matter."
    return [
        summary.describe_noise(results),
        f"Arms of one seed see the same data in the same order{_other_batches(results)} and start from the same "
        "weights wherever the change leaves them alone. What the seeds share is taken out before arms are compared, "
        "and the noise that is left is "
        "pooled over arms, which is why most intervals are of one width; an arm that looks noisier is judged by its "
        "own. It looks noisier when its values scatter about what their seeds have in common so much more than the "
        "other arms' do that equal noise would do so in 15 of 100 arms; how it lies to the baseline on each seed does "
        "not enter.",
        f"Better or worse is called when p, after Holm's correction for {corrected}, is below {alpha:g}. If no change "
        f"mattered, a study would call any of them with a chance of at most about {100 * alpha:g} %.",
        *([small.format(equal)] if equal else []),
        *([cut] if math.isfinite(high) else []),
        "Inconclusive does not mean equal. It means that these seeds cannot tell.",
        "An interval in the table is for its arm alone. It may exclude zero although the verdict is inconclusive. The "
        'intervals for all arms at once stand under "Would another analysis say the same?".',
        "In noise sd: the effect in standard deviations of one run.",
        "An effect holds for this model size, this data and this many steps.",
    ]

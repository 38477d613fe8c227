"""What a reader asks first: what was trained and at what cost, how large each effect is, and what is not known."""

from collections.abc import Mapping, Sequence
from typing import Any

from taetpu.report import words
from taetpu.report.terms import Results, baseline_of, matches
from taetpu.stats import numbers
from taetpu.store.study import StudyFolder

OTHER_SIZE = 0.1
"""An arm whose parameters differ by a larger share is of another size than its baseline."""


def ranking(results: Results) -> list[str]:
    """The arms with their effects, the largest first, in a sentence for each verdict."""
    if not results["final"] or len(results["seeds"]) == 1:
        return []
    arms = [arm for arm in words.judged(results) if arm["effect"] is not None]
    arms.sort(key=lambda arm: -abs(arm["effect"]))
    found = []
    for verdict, title in (("worse", "Worse"), ("better", "Better"), ("equivalent", "No difference that matters")):
        if named := [_with_effect(arm) for arm in arms if arm["verdict"] == verdict]:
            found.append(f"{title}: {', '.join(named)}.")
    open_ones = [
        f"{_with_effect(arm)}, which may be anything from {numbers.interval(arm['ci95'])}"
        for arm in arms
        if arm["verdict"] == "inconclusive" and arm["ci95"]
    ]
    return [*found, *([f"Not told from the baseline: {'; '.join(open_ones)}."] if open_ones else [])]


def _with_effect(arm: Mapping[str, Any]) -> str:
    return f"{arm['name']} ({numbers.effect(arm['effect'], arm['ci95'])})"


def trained(results: Results, folder: StudyFolder, baseline: Mapping[str, Any]) -> list[str]:
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
        ("parameters", numbers.amount(base["params"]) if base["params"] else None),
        ("context", baseline.get("task.seq_len")),
        ("steps", baseline.get("train.steps")),
        ("sequences a step", baseline.get("train.batch_size")),
        ("tokens", numbers.amount(base["tokens"]) if base["tokens"] else None),
        ("optimizer", baseline.get("train.optimizer.kind")),
        ("learning rate", baseline.get("train.optimizer.lr")),
    ]
    facts = ", ".join(f"{name} {value}" for name, value in what if value not in (None, ""))
    return [f"The baseline: {facts}.", _cost(results, folder)] if facts else [_cost(results, folder)]


def _cost(results: Results, folder: StudyFolder) -> str:
    """All runs together, as far as they ended."""
    ended = [sum(run["outcome"] != "unfinished" for run in arm["runs"]) for arm in results["arms"]]
    flops = sum(count * (arm["flops"] or 0) for arm, count in zip(results["arms"], ended, strict=True))
    packs = (folder.read_times() or {"packs": {}})["packs"].values()
    cost = [f"{sum(ended)} runs"]
    cost += [f"{numbers.amount(flops)} training FLOPs"] if flops else []
    cost += (
        [f"{numbers.seconds(sum(pack['seconds'] for pack in packs))} with compiling, evaluating and storing"]
        if packs
        else []
    )
    where = words.joined([str(kind["device"]) for kind in results["hardware"]])
    return f"All of it: {', '.join(cost)}{f', on {where}' if where else ''}."


def cautions(results: Results, data: Mapping[str, Any]) -> list[str]:
    """Arms that learned next to nothing, by the rule of thumb that the task measured itself against.

    Args:
        data: what the task says of itself, with `decoy_loss` and the `decoy` that reaches it.
    """
    bar = data.get("decoy_loss")
    if bar is None or results["primary"] != "val/loss":
        return []
    lost = [arm["name"] for arm in results["arms"] if arm["mean"] is not None and arm["mean"] >= bar]
    if not lost:
        return []
    verb = "ends" if len(lost) == 1 else "end"
    return [
        f"{words.joined(lost)} {verb} at or above {bar:.4g}, which a rule without a model reaches ({data['decoy']}): "
        f"trained so, {'it' if len(lost) == 1 else 'they'} learned next to nothing."
    ]


def limits(results: Results) -> list[str]:
    """What the study cannot tell: of its designs, and of how its arms were trained."""
    arms = [arm for arm in results["arms"] if arm["against"]]
    found = list(results["designs"]["limits"])
    if len(arms) > 1:
        found.append("Arms were compared with the baseline, not with each other: their order is not tested.")
    if arms and not results["tuning"]:
        found.append("No arm was tuned: all have the baseline's settings, which may suit it best (`tune`).")
    sized = [(arm, _size(results, arm)) for arm in arms]
    others = [f"{arm['name']} ({share:+.0%})" for arm, share in sized if abs(share) > OTHER_SIZE]
    if others and not any(map(matches, arms)):
        text = "of another size than the baseline, so that size and part cannot be told apart (`match: params`)"
        found.append(f"Parameters: {', '.join(others)}; {text}.")
    if arms:
        found.append("What longer training, other data or other sizes would show: gaps may grow, shrink or turn round.")
    return found


def _size(results: Results, arm: Mapping[str, Any]) -> float:
    base = baseline_of(results, arm)
    return arm["params"] / base["params"] - 1 if arm["params"] and base["params"] else 0.0


def reading(results: Results) -> Sequence[str]:
    """How to read the figures, for whoever last had statistics years ago."""
    alpha, looks = results["alpha"], results["plan"]["looks"]
    arms = sum(arm["against"] is not None for arm in results["arms"])
    corrected = f"{arms} comparison{'' if arms == 1 else 's'}"
    corrected += f" and for {len(looks)} planned looks" if len(looks) > 1 else ""
    equal = results["plan"]["equivalence"]
    small = "Equivalent is called when the 90 % interval lies within {:g} of no effect: too small to matter."
    return [
        words.noise(results),
        "Arms of one seed see the same data in the same order and start from the same weights wherever the change "
        "leaves them alone. What the seeds share is taken out before arms are compared, and the noise that is left is "
        "pooled over arms, which is why most intervals are of one width; an arm that looks noisier is judged by its "
        "own. It looks noisier when its values scatter about what their seeds have in common so much more than the "
        "other arms' do that equal noise would do so in 15 of 100 arms; how it lies to the baseline on each seed does "
        "not enter.",
        f"Better or worse is called when p, after Holm's correction for {corrected}, is below {alpha:g}. If no change "
        f"mattered, a study would call any of them with a chance of at most about {100 * alpha:g} %.",
        *([small.format(equal)] if equal else []),
        "Inconclusive does not mean equal. It means that these seeds cannot tell.",
        "An interval in the table is for its arm alone. It may exclude zero although the verdict is inconclusive. The "
        'intervals for all arms at once stand under "Would another analysis say the same?".',
        "In noise sd: the effect in standard deviations of one run.",
        "An effect holds for this model size, this data and this many steps.",
    ]

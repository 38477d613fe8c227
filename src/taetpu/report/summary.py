"""What a report says in words and figures, the same in HTML, Markdown and the terminal: all from the results."""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from taetpu.report import factors
from taetpu.report.comparison import NOT_TIMED, Costs, Results, baseline_of, comparison_terms
from taetpu.stats import formatting
from taetpu.stats.deviations import tuning_metric
from taetpu.stats.plan import metric_bounds
from taetpu.store.metrics import SAMPLED

UNITS = {"loss": "nats per token", "accuracy": "share of tokens", "bits_per_byte": "bits per byte"}
MARKS = {
    "better": "\u25c6",
    "worse": "\u25a0",
    "equivalent": "\u25b2",
    "inconclusive": "\u25cf",
    "interim": "",
    "single seed": "",
    "baseline": "",
}
"""A sign for each verdict, for who cannot tell colours apart; the forest plot has the same shapes."""


@dataclass(frozen=True)
class Row:
    """One line of the verdict table, as text."""

    arm: str
    change: str
    mean: str
    effect: str
    interval: str
    p: str
    noise_sd: str
    """The effect in standard deviations of a run."""
    verdict: str
    """A verdict, `interim` before there is one, `single seed` where there will be none, or `baseline`."""
    terms: str
    """On which terms the arm is compared, where these are not the study's own: `at equal FLOPs`."""
    evidence: str
    more_seeds: int | None


def verdict_rows(results: Results, costs: Costs = NOT_TIMED) -> list[Row]:
    """The verdict table, in the study's order: the baseline first."""
    return [_row(arm, results, costs) for arm in results["arms"]]


def mean_places(results: Results) -> int:
    """Decimal places of all means that a table shows, and the fewest of its effects, intervals and differences.

    As many as the noise of the runs supports; with several baselines, those of the one with the least noise.
    """
    means = {found["name"]: found["mean"] for found in results["arms"]}
    groups = results["groups"] or [{**results["model"], "baseline": "baseline"}]
    return max(formatting.mean_places(group["residual_sd"], means.get(group["baseline"])) for group in groups)


def format_effect(found: Mapping[str, Any], results: Results) -> str:
    """The `effect` of an arm, or of a term, with the decimals of the means at least."""
    return formatting.effect(found["effect"], found["ci95"], mean_places(results))


def format_interval(bounds: Sequence[float] | None, results: Results) -> str:
    """The interval of an effect, with the decimals of the means at least."""
    return formatting.interval(bounds, mean_places(results))


def _row(arm: Mapping[str, Any], results: Results, costs: Costs) -> Row:
    on = comparison_terms(arm, results, costs)
    return Row(
        arm=arm["name"],
        change=arm["change"],
        mean=formatting.number(arm["mean"], mean_places(results)),
        effect=format_effect(arm, results),
        interval=format_interval(arm["ci95"], results),
        p=formatting.p_value(arm["p_holm"]),
        noise_sd=formatting.number(arm["effect_sd"], 1, sign=True),
        verdict=verdict_label(arm),
        terms=on,
        evidence=f"{on[:1].upper()}{on[1:]}: {arm['evidence']}" if on else arm["evidence"],
        more_seeds=arm["more_seeds"],
    )


def verdict_label(arm: Mapping[str, Any]) -> str:
    """An arm's verdict; `interim` where there is none yet, `single seed` where no more seeds come to give one,
    `baseline` where there is nothing to compare it with.
    """
    waiting = "single seed" if len(arm["runs"]) == 1 else "interim"
    return arm["verdict"] or ("baseline" if arm["against"] is None else waiting)


def metric_with_unit(name: str) -> str:
    """A metric with its unit, where that is known: `val/loss (nats per token)`."""
    unit = UNITS.get(name.rpartition("/")[2])
    return f"{name} ({unit})" if unit else name


def sample_note(name: str) -> str:
    """What a metric that is no metric of a whole split is of; empty for others."""
    return "on a sample of the validation split" if name.startswith(f"{SAMPLED}/") else ""


def headline(results: Results) -> str:
    """What the study found, in one sentence."""
    baseline, name = results["arms"][0], results["primary"]
    arms = counted_arms(results)
    if not any(run["outcome"] == "finished" for run in baseline["runs"]):
        if all(map(_all_diverged, results["arms"])):
            return "Every run diverged: there is nothing to compare."
        why = "diverged on every seed" if _all_diverged(baseline) else "has no finished run yet"
        return f"The baseline {why}: there is nothing to compare with."
    if not arms:
        return f"The baseline alone: {name} is {verdict_rows(results)[0].mean}."
    if all(map(_all_diverged, arms)):
        return _every_arm_diverged(arms, results)
    if len(results["seeds"]) == 1:
        return f"{_count_arms(arms, results)} on a single seed: effects without error bars, so no verdicts."
    if not results["final"]:
        return f"Interim: effects of {_count_arms(arms, results)} on {name} so far, and no verdicts yet."
    tuned = "Each at its best: " if any("tuned" in arm["role"] for arm in arms) else ""
    crossed = factors.describe_factorial(results, largest_scale(results) or "")
    if crossed is None:
        return f"{_at_largest_scale(results) or tuned}{_count_verdicts(arms, results)}"
    others = [arm for arm in arms if arm["role"].get("design") != "factorial"]
    besides = f" Besides: {tuned}{_count_verdicts(others, results)}" if others else ""
    return f"{_at_largest_scale(results)}{crossed}{besides}"


def _all_diverged(arm: Mapping[str, Any]) -> bool:
    """Did all runs of an arm diverge?"""
    return arm["diverged"] == len(arm["runs"])


def _every_arm_diverged(arms: list[Mapping[str, Any]], results: Results) -> str:
    noun = _noun(arms, results)
    text = f"The {noun} diverged on every seed" if len(arms) == 1 else f"All {len(arms)} {noun}s diverged on every seed"
    if not results["final"]:
        return f"{text}."
    worse = sum(arm["verdict"] == "worse" for arm in arms)
    if not worse:
        return f"{text}, too few to call that worse than the baseline."
    of = "" if worse == len(arms) else f" for {worse} of them"
    return f"{text}, which is clearly worse than the baseline{of}."


def _noun(arms: list[Mapping[str, Any]], results: Results) -> str:
    """What arms are: each a change, unless one changes several settings at once; a named part of a design is one."""
    own = [
        set(changed_settings(results, arm)) - set(arm["role"].get("tuned", ()))
        for arm in arms
        if "part" not in arm["role"]
    ]
    return "change" if all(len(paths) < 2 for paths in own) else "arm"


def changed_settings(results: Results, arm: Mapping[str, Any]) -> list[str]:
    """The settings in which an arm differs from what it is compared with."""
    ours, theirs = arm["diff"], baseline_of(results, arm)["diff"]
    return [path for path in {**theirs, **ours} if (path in ours, ours.get(path)) != (path in theirs, theirs.get(path))]


def _count_arms(arms: list[Mapping[str, Any]], results: Results) -> str:
    return _count(len(arms), _noun(arms, results))


def _count_verdicts(arms: list[Mapping[str, Any]], results: Results) -> str:
    name, all_arms = results["primary"], _count_arms(arms, results)
    found = Counter(arm["verdict"] for arm in arms)
    clear = [(verdict, found[verdict]) for verdict in ("worse", "better") if found[verdict]]
    if not clear and not found["equivalent"]:
        return f"None of {all_arms} could be told from the baseline in {name}."
    if clear:
        first, *others = clear
        parts = [f"{first[1]} of {all_arms} made {name} {first[0]}"]
        parts += [f"{number} made it {verdict}" for verdict, number in others]
        parts += [f"{found['equivalent']} made no difference that matters"] if found["equivalent"] else []
    else:
        parts = [f"{found['equivalent']} of {all_arms} made no difference to {name} that matters"]
    if found["inconclusive"]:
        parts.append(f"{found['inconclusive']} could not be told from the baseline")
    return join_and(parts) + "."


def counted_arms(results: Results) -> list[Mapping[str, Any]]:
    """The arms that the headline counts: of those that are compared with something, the ones at the largest scale, each
    at what it found best if it was tuned, and none twice because it was matched as well.
    """
    arms = [arm for arm in results["arms"] if arm["against"] and "match" not in arm["role"]]
    top = largest_scale(results)
    arms = [arm for arm in arms if top is None or arm["role"].get("ladder", {}).get("rung") == top]
    tuned = [arm for arm in arms if "tuned" in arm["role"]]
    return tuned or arms


def largest_scale(results: Results) -> str | None:
    """The largest scale of a ladder; None without one."""
    scales = results["designs"].get("ladder", {}).get("scales", {})
    return max(scales, key=lambda rung: scales[rung]["params"] or 0, default=None)


def _at_largest_scale(results: Results) -> str:
    top = largest_scale(results)
    return "" if top is None else f"At {top}, the largest of {len(results['designs']['ladder']['scales'])} scales: "


def notices(results: Results) -> list[str]:
    """What a reader must know before trusting the verdicts."""
    arms = results["arms"]
    outcomes = Counter(run["outcome"] for arm in arms for run in arm["runs"])
    total, seeds = sum(outcomes.values()), len(results["seeds"])
    found = []
    if not results["complete"]:
        found.append(f"Not final: {outcomes['unfinished']} of {_count(total, 'run')} have not ended.")
    elif not results["final"]:
        looks = ", ".join(map(str, results["plan"]["looks"]))
        found.append(f"Not final: verdicts were planned at {looks} seeds an arm, and there are {seeds}.")
    if results["plan"]["error_rate"] > results["alpha"]:
        found.append(
            f"Seeds were added beyond those planned: the chance of a false verdict is not "
            f"{results['alpha']:.0%} but up to {results['plan']['error_rate']:.0%}."
        )
    late = [arm["name"] for arm in arms if not arm["planned"]]
    if late:
        found.append(f"Added to the study after its first run: {', '.join(late)}.")
    compared = any(arm["against"] and not _all_diverged(arm) for arm in arms) and not _all_diverged(arms[0])
    if results["label"] == "screening" and compared:
        found.append(f"Screening: {_count(seeds, 'seed')} an arm find large effects; confirm what matters with more.")
    if outcomes["diverged"]:
        worst = ", ".join(f"{arm['name']} {arm['diverged']} of {seeds}" for arm in arms if arm["diverged"])
        found.append(f"Diverged runs: {worst}. Means and effects are over the runs that finished.")
    for pack in results.get("packs", ()):
        if "halved_from" in pack:
            runs, first = _count(pack["runs"], "run"), pack["halved_from"]
            found.append(f"Out of memory: {runs} had to be trained in packs of {pack['width']} instead of {first}.")
    if len(results["hardware"]) > 1:
        where = ", ".join(f"{_count(kind['runs'], 'run')} on {kind['device']}" for kind in results["hardware"])
        found.append(
            f"Mixed hardware: {where}. Devices round differently; small effects between them are not the arms'."
        )
    found += edge_warnings(results)
    if len(test_split_analyses(results)) > 1:
        found.append(test_split_note(results))
    if results["tuning"] and split_of(tuning_metric(results["tuning"], results["primary"])) == "test":
        found.append(
            "Tuning chose by the test split, on which arms are compared: the effects of tuned arms are too good."
        )
    noisy = sorted({arm for group in results["groups"] for arm in group["noisy"]})
    if any(group["copies"] for group in results["groups"]):
        found.append(
            "Arms of this study copy each other's noise, as near relatives do: all effects are judged more cautiously."
        )
    if noisy:
        found.append(f"Perhaps noisier than the other arms, and so judged more cautiously: {', '.join(noisy)}.")
    return found


def test_split_analyses(results: Results) -> list[int]:
    """The numbers of seeds an arm at which verdicts were given on the test split."""
    if split_of(results["primary"]) != "test":
        return []
    seeds, plan = len(results["seeds"]), results["plan"]
    looks = [look for look in plan["looks"] if len(plan["seeds"]) <= look < seeds]
    return [*looks, seeds] if results["final"] else looks


def test_split_note(results: Results) -> str:
    """How often the test split was looked at, in a sentence; empty where it was not measured."""
    if split_of(results["primary"]) != "test":
        measured = any(split_of(name) == "test" for arm in results["arms"] for name in arm["metrics"])
        return "The test split was measured at the end of every run, and decided nothing." if measured else ""
    looks = test_split_analyses(results)
    if not looks:
        return "No verdict has been given on the test split yet; the interim effects here are measured on it."
    at = join_and([str(look) for look in looks])
    times = "once" if len(looks) == 1 else f"{len(looks)} times"
    return f"Verdicts were given on the test split {times}, at {at} seeds an arm."


def split_of(metric: str) -> str:
    """Of which split a metric is."""
    return metric.rpartition("/")[0]


def edge_warnings(results: Results) -> list[str]:
    """Arms whose best value is the least or the most that was tried."""
    tuned = results["tuning"]["arms"] if results["tuning"] else {}
    return [
        f"The best {path} of {name} lies at the edge of what was tried: a wider grid may find a better one."
        for name, entry in tuned.items()
        for path in entry["edge"]
    ]


def describe_reuse(results: Results) -> str:
    """How many runs were taken over from elsewhere, and what speaks for them; empty if none was."""
    found = results["reused"]
    if not found["runs"]:
        return ""
    text = f"{_count(found['runs'], 'run')} of this study {_were(found['runs'])} trained elsewhere and taken over"
    if not found["audited"]:
        return f"{text}; none was trained again to prove them."
    return f"{text}; {found['audited']} of them {_were(found['audited'])} trained again and came out the same."


def _were(number: int) -> str:
    return "was" if number == 1 else "were"


def describe_noise(results: Results) -> str:
    """The noise floor in one sentence."""
    floor, model = results["noise_floor"], results["model"]
    if floor["sd"] is None:
        return "The baseline has fewer than two finished runs, so its noise is unknown."
    text = f"Over {_count(floor['seeds'], 'seed')}, the baseline's {results['primary']} has a standard deviation of"
    text = f"{text} {formatting.spread(floor['sd'])}"
    if not model["residual_sd"]:
        return f"{text}."
    pooled = f"over all arms it is {formatting.spread(model['residual_sd'])} once each seed's own effect is taken out"
    return f"{text}; {pooled}{_smallest_effect(results)}."


def _smallest_effect(results: Results) -> str:
    """The smallest true effect that the study finds, or that no possible one is large enough."""
    floor, mean = results["noise_floor"], results["arms"][0]["mean"]
    if not floor["resolves"]:
        return ""
    seeds = _count(floor["seeds"], "seed")
    most = largest_effect(results["primary"], mean)
    if floor["resolves"] > most:
        return (
            f"; with {seeds} no effect on {results['primary']} is found four times in five: from the baseline's "
            f"{formatting.number(mean, mean_places(results))} none can be larger than {formatting.spread(most)}"
        )
    return f"; with {seeds} a true effect of {formatting.spread(floor['resolves'])} is found four times in five"


def largest_effect(metric: str, mean: float | None) -> float:
    """The largest difference, either way, from a baseline of this mean, which may be unknown."""
    low, high = metric_bounds(metric)
    return high - low if mean is None else max(mean - low, high - mean)


def describe_packing(results: Results) -> list[str]:
    """How runs were packed, an entry for each kind of pack: `24 runs in packs of 8 on 2 devices (measured)`."""
    return [
        f"{_count(pack['runs'], 'run')} {_describe_layout(pack)}{_describe_compute(pack)} ({pack['chosen']})"
        for pack in results.get("packs", ())
        if "chosen" in pack
    ]


def _describe_layout(pack: Mapping[str, Any]) -> str:
    filled = ", filled up with repeats" if pack["width"] > 1 and pack["runs"] % pack["width"] else ""
    where = f" on {pack['devices']} devices" if pack["devices"] > 1 else ""
    loop = f", {pack['unroll']} layers at once" if pack["unroll"] > 1 else ""
    return (f"in packs of {pack['width']}" if pack["width"] > 1 else "alone") + where + loop + filled


def _describe_compute(pack: Mapping[str, Any]) -> str:
    """How numbers were computed, where that was not the plain way."""
    return "".join(
        f", {name.replace('_', ' ')} {pack[name]}" for name in ("attention", "remat", "loss_chunk") if name in pack
    )


def seeds_needed(results: Results) -> list[str]:
    """For inconclusive arms, how many more seeds would decide if the observed effect were the true one."""
    return [f"{arm['name']}: about {arm['more_seeds']} more" for arm in results["arms"] if arm["more_seeds"]]


def _count(number: int, noun: str) -> str:
    return f"{number} {noun}{'' if number == 1 else 's'}"


def join_and(parts: list[str]) -> str:
    """`a, b, and c`."""
    if len(parts) < 3:
        return " and ".join(parts)
    return f"{', '.join(parts[:-1])}, and {parts[-1]}"

"""Summary of a study for all output formats: headline, notices, and the rows of the verdict table."""

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
"""Symbol for each verdict, so that readers do not need colour. The forest plot uses the same shapes."""


@dataclass(frozen=True)
class Row:
    """Row in the verdict table, as text."""

    arm: str
    change: str
    mean: str
    effect: str
    interval: str
    p: str
    noise_sd: str
    """Effect divided by the standard deviation of one run's noise."""
    verdict: str
    """Verdict, or `interim`, `single seed` or `baseline`, as returned by `verdict_label`."""
    terms: str
    """Terms of the comparison that differ from the default, e.g. `at equal training FLOPs`."""
    evidence: str
    more_seeds: int | None


def verdict_rows(results: Results, costs: Costs = NOT_TIMED) -> list[Row]:
    """Return the rows of the verdict table in the study's order, the baseline first."""
    return [_row(arm, results, costs) for arm in results["arms"]]


def mean_places(results: Results) -> int:
    """Return the number of decimal places for a study's means, which is also the minimum for its effects and intervals.

    The noise of the runs determines the number. With several baselines, the largest number over all baselines is used.
    """
    means = {arm["name"]: arm["mean"] for arm in results["arms"]}
    groups = results["groups"] or [{**results["model"], "baseline": "baseline"}]
    return max(formatting.mean_places(group["residual_sd"], means.get(group["baseline"])) for group in groups)


def format_effect(entry: Mapping[str, Any], results: Results) -> str:
    """Format the `effect` of an arm or a factorial term with at least as many decimal places as the means."""
    return formatting.effect(entry["effect"], entry["ci95"], mean_places(results))


def format_interval(bounds: Sequence[float] | None, results: Results) -> str:
    """Format the interval of an effect with at least as many decimal places as the means."""
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
    """Return an arm's verdict. If the arm has no verdict, return `interim`, `single seed` or `baseline`."""
    pending = "single seed" if len(arm["runs"]) == 1 else "interim"
    return arm["verdict"] or ("baseline" if arm["against"] is None else pending)


def metric_with_unit(name: str) -> str:
    """Return a metric's name, with its unit if the unit is known, e.g. `val/loss (nats per token)`."""
    unit = UNITS.get(name.rpartition("/")[2])
    return f"{name} ({unit})" if unit else name


def sample_note(name: str) -> str:
    """Return a note if a metric is evaluated on a sample of the validation split, else an empty string."""
    return "on a sample of the validation split" if name.startswith(f"{SAMPLED}/") else ""


def headline(results: Results) -> str:
    """Return the study's main finding."""
    baseline, name = results["arms"][0], results["primary"]
    arms = counted_arms(results)
    if not any(run["outcome"] == "finished" for run in baseline["runs"]):
        if all(map(_all_diverged, results["arms"])):
            return "Every run diverged: there is nothing to compare."
        why = "diverged on every seed" if _all_diverged(baseline) else "has no finished run yet"
        return f"The baseline {why}: there is nothing to compare the arms with."
    if not arms:
        return f"Baseline only: {name} is {verdict_rows(results)[0].mean}."
    if all(map(_all_diverged, arms)):
        return _every_arm_diverged(arms, results)
    if len(results["seeds"]) == 1:
        return f"{_count_arms(arms, results)} on a single seed: effects have no error bars, so there are no verdicts."
    if not results["final"]:
        return f"Interim: effects of {_count_arms(arms, results)} on {name} so far; no verdicts yet."
    tuned = "Each arm tuned: " if any("tuned" in arm["role"] for arm in arms) else ""
    crossed = factors.describe_factorial(results, largest_scale(results) or "")
    if crossed is None:
        return f"{_at_largest_scale(results) or tuned}{_count_verdicts(arms, results)}"
    others = [arm for arm in arms if arm["role"].get("design") != "factorial"]
    besides = f" Other arms: {tuned}{_count_verdicts(others, results)}" if others else ""
    return f"{_at_largest_scale(results)}{crossed}{besides}"


def _all_diverged(arm: Mapping[str, Any]) -> bool:
    """Return whether all runs of an arm diverged."""
    return arm["diverged"] == len(arm["runs"])


def _every_arm_diverged(arms: list[Mapping[str, Any]], results: Results) -> str:
    noun = _noun(arms, results)
    text = f"The {noun} diverged on every seed" if len(arms) == 1 else f"All {len(arms)} {noun}s diverged on every seed"
    if not results["final"]:
        return f"{text}."
    worse = sum(arm["verdict"] == "worse" for arm in arms)
    if not worse:
        return f"{text}, but on too few seeds to call that worse than the baseline."
    part = "" if worse == len(arms) else f" for {worse} of them"
    return f"{text}, which is significantly worse than the baseline{part}."


def _noun(arms: list[Mapping[str, Any]], results: Results) -> str:
    """Return `change` if every arm, except arms that add or remove parts, changes at most one setting, else `arm`.

    Tuned settings do not count.
    """
    own = [
        set(changed_settings(results, arm)) - set(arm["role"].get("tuned", ()))
        for arm in arms
        if "part" not in arm["role"]
    ]
    return "change" if all(len(paths) < 2 for paths in own) else "arm"


def changed_settings(results: Results, arm: Mapping[str, Any]) -> list[str]:
    """Return the paths of the settings in which an arm differs from its baseline."""
    ours, theirs = arm["diff"], baseline_of(results, arm)["diff"]
    return [path for path in {**theirs, **ours} if (path in ours, ours.get(path)) != (path in theirs, theirs.get(path))]


def _count_arms(arms: list[Mapping[str, Any]], results: Results) -> str:
    return _count(len(arms), _noun(arms, results))


def _count_verdicts(arms: list[Mapping[str, Any]], results: Results) -> str:
    name, all_arms = results["primary"], _count_arms(arms, results)
    counts = Counter(arm["verdict"] for arm in arms)
    clear = [(verdict, counts[verdict]) for verdict in ("worse", "better") if counts[verdict]]
    if not clear and not counts["equivalent"]:
        return f"None of {all_arms} differs significantly from the baseline in {name}."
    if clear:
        first, *others = clear
        parts = [f"{first[1]} of {all_arms} made {name} {first[0]}"]
        parts += [f"{number} made it {verdict}" for verdict, number in others]
        parts += [_be(counts["equivalent"], "equivalent to the baseline")] if counts["equivalent"] else []
    else:
        be = "is" if counts["equivalent"] == 1 else "are"
        parts = [f"{counts['equivalent']} of {all_arms} {be} equivalent to the baseline in {name}"]
    if counts["inconclusive"]:
        parts.append(_be(counts["inconclusive"], "inconclusive"))
    return join_and(parts) + "."


def _be(number: int, what: str) -> str:
    return f"{number} {'is' if number == 1 else 'are'} {what}"


def counted_arms(results: Results) -> list[Mapping[str, Any]]:
    """Return the arms that the headline counts.

    These are the compared arms at the largest scale without matched copies. If the study has tuned arms, only the tuned
    arms are counted.
    """
    arms = [arm for arm in results["arms"] if arm["against"] and "match" not in arm["role"]]
    top = largest_scale(results)
    arms = [arm for arm in arms if top is None or arm["role"].get("ladder", {}).get("rung") == top]
    tuned = [arm for arm in arms if "tuned" in arm["role"]]
    return tuned or arms


def largest_scale(results: Results) -> str | None:
    """Return the name of the ladder's largest scale; None without a ladder."""
    scales = results["designs"].get("ladder", {}).get("scales", {})
    return max(scales, key=lambda rung: scales[rung]["params"] or 0, default=None)


def _at_largest_scale(results: Results) -> str:
    top = largest_scale(results)
    return "" if top is None else f"At {top}, the largest of {len(results['designs']['ladder']['scales'])} scales: "


def notices(results: Results) -> list[str]:
    """Return the caveats that a reader must know before relying on the verdicts."""
    arms = results["arms"]
    outcomes = Counter(run["outcome"] for arm in arms for run in arm["runs"])
    total, seeds = sum(outcomes.values()), len(results["seeds"])
    found = []
    if not results["complete"]:
        found.append(f"Not final: {outcomes['unfinished']} of {_count(total, 'run')} have not finished.")
    elif not results["final"]:
        planned = ", ".join(map(str, results["plan"]["looks"]))
        found.append(f"Not final: analyses are planned at {planned} seeds per arm; this study has {seeds}.")
    if results["plan"]["error_rate"] > results["alpha"]:
        found.append(
            f"Seeds were added beyond the plan: the chance of a false verdict is up to "
            f"{results['plan']['error_rate']:.0%} instead of {results['alpha']:.0%}."
        )
    late = [arm["name"] for arm in arms if not arm["planned"]]
    if late:
        found.append(f"Arms added after the first run: {', '.join(late)}.")
    compared = any(arm["against"] and not _all_diverged(arm) for arm in arms) and not _all_diverged(arms[0])
    if results["label"] == "screening" and compared:
        found.append(f"Screening: {seeds} seeds per arm detect only large effects; confirm findings with more seeds.")
    if outcomes["diverged"]:
        worst = ", ".join(f"{arm['name']} {arm['diverged']} of {seeds}" for arm in arms if arm["diverged"])
        found.append(f"Diverged runs: {worst}. Means and effects are computed from the runs that finished.")
    for pack in results.get("packs", ()):
        if "halved_from" in pack:
            runs, first = _count(pack["runs"], "run"), pack["halved_from"]
            found.append(f"Out of memory: {runs} were trained in packs of {pack['width']} instead of {first}.")
    if len(results["hardware"]) > 1:
        where = ", ".join(f"{_count(kind['runs'], 'run')} on {kind['device']}" for kind in results["hardware"])
        found.append(
            f"Mixed hardware: {where}. Devices round differently, so small effects may come from the hardware."
        )
    found += edge_warnings(results)
    if len(test_split_analyses(results)) > 1:
        found.append(test_split_note(results))
    if results["tuning"] and split_of(tuning_metric(results["tuning"], results["primary"])) == "test":
        found.append(
            "Tuning selected by the test split, on which arms are compared: tuned arms look better than they are."
        )
    noisy = sorted({arm for group in results["groups"] for arm in group["noisy"]})
    if any(group["copies"] for group in results["groups"]):
        found.append(
            "Noise is correlated between arms, as in nearly identical arms: all effects are tested more cautiously."
        )
    if noisy:
        found.append(f"Possibly noisier than the other arms, and tested more cautiously: {', '.join(noisy)}.")
    return found


def test_split_analyses(results: Results) -> list[int]:
    """Return the number of seeds at each analysis with verdicts on the test split; empty if it was not used."""
    if split_of(results["primary"]) != "test":
        return []
    seeds, plan = len(results["seeds"]), results["plan"]
    earlier = [number for number in plan["looks"] if len(plan["seeds"]) <= number < seeds]
    return [*earlier, seeds] if results["final"] else earlier


def test_split_note(results: Results) -> str:
    """Return a sentence on the use of the test split, or an empty string if the test split was not evaluated."""
    if split_of(results["primary"]) != "test":
        measured = any(split_of(name) == "test" for arm in results["arms"] for name in arm["metrics"])
        return "The test split was evaluated at the end of every run and not used for verdicts." if measured else ""
    analyses = test_split_analyses(results)
    if not analyses:
        return "No verdict was given on the test split yet; the interim effects are measured on it."
    times = "once" if len(analyses) == 1 else f"{len(analyses)} times"
    return f"Verdicts were given on the test split {times}, at {join_and(list(map(str, analyses)))} seeds per arm."


def split_of(metric: str) -> str:
    """Return the name of the split on which a metric is evaluated."""
    return metric.rpartition("/")[0]


def edge_warnings(results: Results) -> list[str]:
    """Return a warning for each tuned setting of an arm whose best value is the smallest or largest tried value."""
    tuned = results["tuning"]["arms"] if results["tuning"] else {}
    return [
        f"The best {path} of {name} is at the edge of the grid: a wider grid may contain a better value."
        for name, entry in tuned.items()
        for path in entry["edge"]
    ]


def describe_reuse(results: Results) -> str:
    """Return text on the numbers of reused and replicated runs, or an empty string if no run was reused."""
    found = results["reused"]
    if not found["runs"]:
        return ""
    was = "was" if found["runs"] == 1 else "were"
    text = f"{_count(found['runs'], 'run')} {was} reused from other studies"
    if not found["audited"]:
        return f"{text}; none was trained again as a check."
    again = "was" if found["audited"] == 1 else "were"
    return f"{text}; {found['audited']} of them {again} trained again with identical results."


def describe_noise(results: Results) -> str:
    """Return a sentence on the noise floor and the smallest detectable effect."""
    floor, model = results["noise_floor"], results["model"]
    if floor["sd"] is None:
        return "The baseline has fewer than two finished runs, so its noise is unknown."
    text = f"Across {_count(floor['seeds'], 'seed')}, the baseline's {results['primary']} has a standard deviation of"
    text = f"{text} {formatting.spread(floor['sd'])}"
    if not model["residual_sd"]:
        return f"{text}."
    pooled = f"pooled over arms and without the effect of the seed it is {formatting.spread(model['residual_sd'])}"
    return f"{text}; {pooled}{_smallest_effect(results)}."


def _smallest_effect(results: Results) -> str:
    """Return a clause on the smallest effect that the study detects with 80 % power.

    The clause is empty if this effect is unknown. If the effect exceeds the possible range, the clause says so.
    """
    floor, mean = results["noise_floor"], results["arms"][0]["mean"]
    if not floor["resolves"]:
        return ""
    seeds = _count(floor["seeds"], "seed")
    most = largest_effect(results["primary"], mean)
    if floor["resolves"] > most:
        return (
            f"; {seeds} detect no possible effect on {results['primary']} with 80 % power: from the baseline's "
            f"{formatting.number(mean, mean_places(results))}, no effect can exceed {formatting.spread(most)}"
        )
    return f"; {seeds} detect a true effect of {formatting.spread(floor['resolves'])} with 80 % power"


def largest_effect(metric: str, mean: float | None) -> float:
    """Return the largest possible size of an effect for a baseline with this mean; None means an unknown mean."""
    low, high = metric_bounds(metric)
    return high - low if mean is None else max(mean - low, high - mean)


def describe_packing(results: Results) -> list[str]:
    """Return a description of each pack layout, e.g. `24 runs in packs of 8 on 2 devices (measured)`."""
    return [
        f"{_count(pack['runs'], 'run')} {_describe_layout(pack)}{_describe_compute(pack)} ({pack['chosen']})"
        for pack in results.get("packs", ())
        if "chosen" in pack
    ]


def _describe_layout(pack: Mapping[str, Any]) -> str:
    padded = ", padded with copies" if pack["width"] > 1 and pack["runs"] % pack["width"] else ""
    where = f" on {pack['devices']} devices" if pack["devices"] > 1 else ""
    loop = f", {pack['unroll']} layers unrolled" if pack["unroll"] > 1 else ""
    return (f"in packs of {pack['width']}" if pack["width"] > 1 else "alone") + where + loop + padded


def _describe_compute(pack: Mapping[str, Any]) -> str:
    """Return a description of the recorded compute options, each preceded by a comma."""
    return "".join(
        f", {name.replace('_', ' ')} {pack[name]}" for name in ("attention", "remat", "loss_chunk") if name in pack
    )


def seeds_needed(results: Results) -> list[str]:
    """Return the number of additional seeds needed to detect the observed effect of each inconclusive arm, as text."""
    return [f"{arm['name']}: about {arm['more_seeds']} more" for arm in results["arms"] if arm["more_seeds"]]


def _count(number: int, noun: str) -> str:
    return f"{number} {noun}{'' if number == 1 else 's'}"


def join_and(parts: list[str]) -> str:
    """Join parts into a list such as `a and b` or `a, b, and c`."""
    if len(parts) < 3:
        return " and ".join(parts)
    return f"{', '.join(parts[:-1])}, and {parts[-1]}"

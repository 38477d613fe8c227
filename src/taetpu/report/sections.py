"""What a report says beyond verdicts, section by section: plain tables and sentences for every format."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from taetpu.report import overview, summary
from taetpu.report.comparison import MATCHED, Costs, Results, baseline_of, matched_to
from taetpu.report.frontier import describe_frontiers, frontiers
from taetpu.stats import formatting

Arm = Mapping[str, Any]


@dataclass(frozen=True)
class Table:
    """A table of text.

    Attributes:
        left: how many of the first columns are names, to be set to the left; the others are figures.
    """

    columns: Sequence[str]
    rows: Sequence[Sequence[str]]
    left: int = 1


@dataclass(frozen=True)
class Section:
    """A part of the report with a heading.

    Attributes:
        lead: what the reader needs to know of the tables.
        charts: captions with names of drawings (see `page.drawings`).
        notes: sentences below the tables.
        folded: for who asks: closed at first, where the format can do that.
    """

    title: str
    lead: str = ""
    tables: Sequence[Table] = ()
    charts: Sequence[tuple[str, str]] = ()
    notes: Sequence[str] = ()
    folded: bool = False


def costs_section(results: Results, measured: Costs) -> Section:
    """What each arm costs beside what it brings. Times are given where they are `measured`."""
    rows = [_cost_row(arm, baseline_of(results, arm), measured, results) for arm in results["arms"]]
    lead = (
        "Parameters, training FLOPs and memory are counted from the program. Runs are trained several at once, in "
        "packs; a time is a run's share of its pack, the median over seeds, on the machine that trained the study."
    )
    if any(_width(arm, measured) != _width(baseline_of(results, arm), measured) for arm in results["arms"]):
        lead += (
            " Where an arm's packs held another number of runs than the baseline's, times cannot be compared, and no "
        )
        lead += "percentage is given."
    if any(path.rpartition(".")[2].startswith("drop") for arm in results["arms"] for path in arm["diff"]):
        lead += " What is dropped is masked, not removed from the program, and so saves nothing here."
    columns = (
        "arm",
        "effect",
        "params",
        "FLOPs",
        "tokens",
        "train time",
        "inference/token",
        "train memory",
        "KV cache",
    )
    kept = [i for i in range(len(columns)) if i < 2 or any(row[i] != "-" for row in rows)]
    table = Table([columns[i] for i in kept], [[row[i] for i in kept] for row in rows])
    costs = frontiers(results, measured)
    charts = [(f"{results['primary']} over {title}", title) for title in costs]
    return Section("What each arm costs", lead, [table], charts, describe_frontiers(costs))


def _cost_row(arm: Arm, base: Arm, measured: Costs, results: Results) -> list[str]:
    ours, theirs = measured.get(arm["name"], {}), measured.get(base["name"], {})
    memory, other = arm["memory"] or {}, base["memory"] or {}
    return [
        arm["name"],
        summary.format_effect(arm, results),
        *(formatting.with_change(arm[what], base[what], formatting.amount) for what in ("params", "flops", "tokens")),
        *(_time(ours, theirs, what) for what in ("train_seconds", "inference_seconds")),
        *(formatting.with_change(memory.get(w), other.get(w), formatting.size) for w in ("training", "kv_cache")),
    ]


def _width(arm: Arm, measured: Costs) -> float | None:
    return measured.get(arm["name"], {}).get("width")


def _time(ours: Mapping[str, float | None], theirs: Mapping[str, float | None], what: str) -> str:
    """A time, and how far it lies from the baseline's where both were measured in packs of one width."""
    if ours.get("width") != theirs.get("width"):
        return formatting.seconds(ours.get(what))
    return formatting.with_change(ours.get(what), theirs.get(what), formatting.seconds)


def matching_section(results: Results) -> Section | None:
    """Each arm at equal steps beside the same arm at equal parameters, FLOPs or time."""
    arms = {arm["name"]: arm for arm in results["arms"]}
    rows = [
        [
            of["name"],
            f"equal {MATCHED[match['by']]}",
            _matched_settings(match),
            *_effect_and_verdict(of, results),
            *_effect_and_verdict(arm, results),
        ]
        for arm in arms.values()
        for match in matched_to(arm)
        if "tuned" not in arm["role"] and (of := arms.get(match["of"]))
    ]
    if not rows:
        return None
    lead = (
        "At equal steps, an arm that computes more per token may win by that alone. So each stands here once more, "
        "given as much as its baseline has."
    )
    columns = ("arm", "matched to", "by training with", "effect at equal steps", "verdict", "matched effect", "verdict")
    return Section("Matched arms", lead, [Table(columns, rows, left=3)])


def _matched_settings(match: Mapping[str, Any]) -> str:
    changed = {path: value for path, value in match.items() if path not in ("of", "by") and value is not None}
    return ", ".join(f"{path} {value}" for path, value in changed.items())


def _effect_and_verdict(arm: Arm, results: Results) -> tuple[str, str]:
    return summary.format_effect(arm, results), summary.verdict_label(arm)


def divergence_section(results: Results) -> Section | None:
    """The worst case for runs that diverged, beside what the others say."""
    arms = [arm for arm in results["arms"] if arm["worst_case"]]
    if not arms:
        return None
    rows = []
    for arm in arms:
        base, worst = baseline_of(results, arm), arm["worst_case"]
        lost = f"{arm['diverged']} of {len(arm['runs'])}", f"{base['diverged']} of {len(base['runs'])}"
        counted = (
            summary.format_effect(worst, results),
            summary.format_interval(worst["ci95"], results),
        )
        test = formatting.p_value(arm["divergence_p"])
        rows.append([arm["name"], *lost, test, summary.format_effect(arm, results), *counted])
    lead = (
        "Diverging is an outcome. Beside the effect among the runs that finished stands the effect with the worst "
        "finished value of all in place of each run that diverged. The p is of equal chances to diverge (Boschloo's "
        "exact test)."
    )
    columns = ("arm", "diverged", "baseline's", "p", "effect of the finished", "worst case", "95 % interval")
    return Section("Diverged runs", lead, [Table(columns, rows)])


def sensitivity_section(results: Results) -> Section | None:
    """Other analyses than the planned one."""
    arms = [arm for arm in results["arms"] if arm["against"] and arm["ci95"]]
    if not arms:
        return None
    lead = (
        "None of these decides anything: the plan named one analysis beforehand. The interval for all arms holds for "
        "all of them at once. The paired t-test looks at one arm alone; the sign-flip test is exact and needs six "
        "seeds; the next column is the least and the most that the effect becomes when a seed is left out. The "
        "correlation of arm and baseline over seeds says how much sharing them helps."
    )
    columns = (
        "arm", "effect", "in noise sd", "95 % for all arms", "paired 95 %", "paired p", "sign-flip p", "without a seed",
        "correlation",
    )  # fmt: skip
    return Section(
        "Would another analysis say the same?",
        lead,
        [Table(columns, [_sensitivity_row(arm, results) for arm in arms])],
        folded=True,
    )


def _sensitivity_row(arm: Arm, results: Results) -> list[str]:
    found = arm["sensitivity"] or {}
    paired, least = found.get("paired"), found.get("without_a_seed")
    places = formatting.effect_places(arm["effect"], arm["ci95"], summary.mean_places(results))
    return [
        arm["name"],
        summary.format_effect(arm, results),
        formatting.number(arm["effect_sd"], 1, sign=True),
        summary.format_interval(arm["ci_simultaneous"], results),
        summary.format_interval(paired["ci95"] if paired else None, results),
        formatting.p_value(paired["p"] if paired else None),
        formatting.p_value(found.get("sign_flip_p")),
        " to ".join(formatting.number(bound, places, sign=True) for bound in least) if least else "-",
        formatting.number(found.get("correlation"), 2),
    ]


def evaluation_noise_section(results: Results) -> Section | None:
    """How much effects owe to the evaluation text."""
    arms = [arm for arm in results["arms"] if arm["evaluation_noise"]]
    if not arms:
        return None
    rows = []
    for arm in arms:
        noise = arm["evaluation_noise"]
        figures = (
            summary.format_effect(arm, results),
            *(summary.format_interval(ci, results) for ci in (arm["ci95"], noise["ci95"])),
        )
        rows.append([arm["name"], *figures, formatting.spread(noise["sd"]), str(noise["blocks"])])
    lead = (
        "A verdict is about the evaluation set at hand, which all arms share. This says how far it carries to another "
        "text of the same size: the effect over resampled blocks of the set, the same for arm and baseline. It is not "
        "part of the seeds' noise, and no verdict counts it."
    )
    columns = ("arm", "effect", "95 % over seeds", "95 % over texts", "sd over texts", "blocks")
    return Section("Noise of the evaluation", lead, [Table(columns, rows)], folded=True)


def efficiency_section(results: Results) -> Section | None:
    """How soon arms get where the baseline ends."""
    arms = [arm for arm in results["arms"] if arm["efficiency"]]
    if not arms:
        return None
    rows = [
        [arm["name"], f"{found['reached']} of {found['seeds']}", *_ratio(found["steps"]), *_ratio(found["flops"])]
        for arm in arms
        if (found := arm["efficiency"])
    ]
    lead = (
        "An arm's cost of reaching the baseline's last value, over the baseline's cost of its whole training; below 1 "
        "is sooner. Read with care where the learning rate decays: a value in the middle of a schedule says little "
        "about what a schedule that ended there would have reached."
    )
    columns = ("arm", "seeds that got there", "steps", "95 % interval", "FLOPs", "95 % interval")
    return Section("How soon", lead, [Table(columns, rows)], folded=True)


def _ratio(found: Mapping[str, Any] | None) -> tuple[str, str]:
    if found is None:
        return "-", "-"
    interval = found["ci95"]
    return f"{found['ratio']:.3g}", "-" if interval is None else f"{interval[0]:.3g} to {interval[1]:.3g}"


def limits_section(results: Results) -> Section | None:
    """What the study cannot tell."""
    notes = overview.study_limits(results)
    return Section("What this study cannot tell", notes=notes) if notes else None


def reading_section(results: Results) -> Section:
    """How to read the figures."""
    return Section("How to read this", notes=overview.reading_guide(results))


def plan_section(results: Results) -> Section:
    """The analysis plan."""
    frozen, alpha = results["plan"], results["alpha"]
    looks = summary.join_and([str(number) for number in frozen["looks"]])
    better = "less" if results["direction"] == "min" else "more"
    first = f"{summary.metric_with_unit(results['primary'])} decides, {better} is better, at {looks} seeds an arm."
    said = [first, f"All arms and planned looks together call a false effect with a chance of at most {alpha:.0%}."]
    if frozen["error_rate"] > alpha:
        said.append(f"With the seeds that were added since, it is up to {frozen['error_rate']:.0%}.")
    if frozen["equivalence"] is not None:
        small = f"{frozen['equivalence']:g}"
        said.append(
            f"A difference below {small} does not matter; equivalent means shown to be smaller, at {alpha:.0%}."
        )
    else:
        said.append("No difference was named as too small to matter, so nothing can be called equivalent.")
    late = [arm["name"] for arm in results["arms"] if not arm["planned"]]
    if late:
        said.append(f"Not in the plan, and added after the first run: {', '.join(late)}.")
    said += [text for text in (summary.test_split_note(results),) if text]
    said.append(f"The plan's SHA-256 is {frozen['sha256']}; taetpu report DIR --verify computes all of this anew.")
    written_late = "written_after" in frozen
    return Section(f"What was decided {'after runs had ended' if written_late else 'before the first run'}", notes=said)

"""Sections that follow the verdicts in the report, as tables and sentences for every output format."""

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
    """Table with cells of text.

    Attributes:
        columns: the header cells.
        rows: the cells of each row.
        left: number of leading columns that are left-aligned. The other columns contain numbers.
    """

    columns: Sequence[str]
    rows: Sequence[Sequence[str]]
    left: int = 1


@dataclass(frozen=True)
class Section:
    """Section of the report.

    Attributes:
        title: the heading.
        lead: introduction to the tables.
        tables: the tables, in order.
        charts: pairs of a chart's caption and its name in `page.chart_data`.
        notes: sentences below the tables.
        folded: whether the section is initially collapsed in formats that support it.
    """

    title: str
    lead: str = ""
    tables: Sequence[Table] = ()
    charts: Sequence[tuple[str, str]] = ()
    notes: Sequence[str] = ()
    folded: bool = False


def costs_section(results: Results, measured: Costs) -> Section:
    """Return the section on effects and costs. Columns without values, such as unmeasured times, are omitted."""
    rows = [_cost_row(arm, baseline_of(results, arm), measured, results) for arm in results["arms"]]
    lead = (
        "Parameters, training FLOPs and memory are computed from the program. Runs are trained in packs, several at "
        "once; a time is a run's share of its pack, the median over seeds, on the machine that trained the study."
    )
    if any(_width(arm, measured) != _width(baseline_of(results, arm), measured) for arm in results["arms"]):
        lead += (
            " Times are not comparable, and no percentage is shown, where an arm's packs have another width than the "
            "baseline's."
        )
    if any(path.rpartition(".")[2].startswith("drop") for arm in results["arms"] for path in arm["diff"]):
        lead += " Dropped parts are masked, not removed from the program, so they save no cost here."
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
    return Section("Costs", lead, [table], charts, describe_frontiers(costs))


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
    """Format a time, with its difference from the baseline's time if both arms were trained at the same pack width."""
    if ours.get("width") != theirs.get("width"):
        return formatting.seconds(ours.get(what))
    return formatting.with_change(ours.get(what), theirs.get(what), formatting.seconds)


def matching_section(results: Results) -> Section | None:
    """Return the section that compares arms at equal steps with their matched copies; None without matched arms."""
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
        "At equal steps, an arm that computes more per token may win for that reason alone. Each arm was therefore "
        "trained again with the budget of its baseline."
    )
    columns = ("arm", "matched to", "by training with", "effect at equal steps", "verdict", "matched effect", "verdict")
    return Section("Matched arms", lead, [Table(columns, rows, left=3)])


def _matched_settings(match: Mapping[str, Any]) -> str:
    changed = {path: value for path, value in match.items() if path not in ("of", "by") and value is not None}
    return ", ".join(f"{path} {value}" for path, value in changed.items())


def _effect_and_verdict(arm: Arm, results: Results) -> tuple[str, str]:
    return summary.format_effect(arm, results), summary.verdict_label(arm)


def divergence_section(results: Results) -> Section | None:
    """Return the section on diverged runs and worst-case effects; None if no compared run diverged."""
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
        "Divergence is an outcome. The worst case replaces the value of each diverged run by the worst value of any "
        "finished run. The p-value tests equal rates of divergence (Boschloo's exact test)."
    )
    columns = ("arm", "diverged", "baseline's", "p", "effect of finished runs", "worst case", "95 % interval")
    return Section("Diverged runs", lead, [Table(columns, rows)])


def sensitivity_section(results: Results) -> Section | None:
    """Return the section on alternative analyses; None if no arm has an interval."""
    arms = [arm for arm in results["arms"] if arm["against"] and arm["ci95"]]
    if not arms:
        return None
    lead = (
        "Verdicts use only the planned analysis; these are for comparison. The simultaneous interval holds for all "
        "arms jointly. The paired t-test uses one arm and the baseline; the sign-flip test is exact and needs six "
        "seeds; the next column is the range of the effect when one seed is left out. The correlation of arm and "
        "baseline over seeds shows how much shared seeds reduce the noise."
    )
    columns = (
        "arm", "effect", "in noise sd", "95 % simultaneous", "paired 95 %", "paired p", "sign-flip p",
        "one seed left out", "correlation",
    )  # fmt: skip
    return Section(
        "Sensitivity to the analysis",
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
    """Return the section on the noise caused by the choice of evaluation text; None if it was not estimated."""
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
        "Verdicts hold for the evaluation set, which all arms share. The interval over texts shows how much an effect "
        "would vary with another text of the same size: a bootstrap over blocks of the set, the same blocks for arm "
        "and baseline. Verdicts do not include this noise."
    )
    columns = ("arm", "effect", "95 % over seeds", "95 % over texts", "sd over texts", "blocks")
    return Section("Evaluation noise", lead, [Table(columns, rows)], folded=True)


def efficiency_section(results: Results) -> Section | None:
    """Return the section on the cost of reaching the baseline's final value; None if it was not computed."""
    arms = [arm for arm in results["arms"] if arm["efficiency"]]
    if not arms:
        return None
    rows = [
        [arm["name"], f"{found['reached']} of {found['seeds']}", *_ratio(found["steps"]), *_ratio(found["flops"])]
        for arm in arms
        if (found := arm["efficiency"])
    ]
    lead = (
        "The cost at which an arm reaches the baseline's final value, divided by the baseline's total cost; below 1 is "
        "faster. Interpret with care if the learning rate decays: the loss in the middle of a schedule is worse than "
        "that of a schedule that ends there."
    )
    columns = ("arm", "seeds that reach it", "steps", "95 % interval", "FLOPs", "95 % interval")
    return Section("Training efficiency", lead, [Table(columns, rows)], folded=True)


def _ratio(found: Mapping[str, Any] | None) -> tuple[str, str]:
    if found is None:
        return "-", "-"
    interval = found["ci95"]
    return f"{found['ratio']:.3g}", "-" if interval is None else f"{interval[0]:.3g} to {interval[1]:.3g}"


def limits_section(results: Results) -> Section | None:
    """Return the section on limitations; None if there are no limitations."""
    notes = overview.study_limits(results)
    return Section("Limitations", notes=notes) if notes else None


def reading_section(results: Results) -> Section:
    """Return the section that explains the numbers in the report."""
    return Section("How to read this report", notes=overview.reading_guide(results))


def plan_section(results: Results) -> Section:
    """Return the section on the frozen analysis plan."""
    frozen, alpha = results["plan"], results["alpha"]
    planned = summary.join_and([str(number) for number in frozen["looks"]])
    better = "lower" if results["direction"] == "min" else "higher"
    notes = [
        f"The primary metric is {summary.metric_with_unit(results['primary'])}; {better} is better. Verdicts are given "
        f"at {planned} seeds per arm.",
        f"The chance of any false verdict, over all arms and planned analyses, is at most {alpha:.0%}.",
    ]
    if frozen["error_rate"] > alpha:
        notes.append(f"With the seeds added since, it is up to {frozen['error_rate']:.0%}.")
    if frozen["equivalence"] is not None:
        margin = f"{frozen['equivalence']:g}"
        notes.append(f"Differences below {margin} count as equivalent; equivalence is tested at {alpha:.0%}.")
    else:
        notes.append("The plan sets no equivalence margin, so no arm can be called equivalent.")
    late = [arm["name"] for arm in results["arms"] if not arm["planned"]]
    if late:
        notes.append(f"Not in the plan, and added after the first run: {', '.join(late)}.")
    notes += [text for text in (summary.test_split_note(results),) if text]
    notes.append(f"The plan's SHA-256 is {frozen['sha256']}; `taetpu report DIR --verify` recomputes this report.")
    when = "after runs had ended" if "written_after" in frozen else "before the first run"
    return Section(f"Analysis plan, frozen {when}", notes=notes)

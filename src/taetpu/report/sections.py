"""Sections that follow the verdicts in the report, as tables and sentences for every output format."""

from collections.abc import Mapping, Sequence

from taetpu.report import overview, summary
from taetpu.report.contrasts import contrasts_section
from taetpu.report.cost_columns import COLUMNS
from taetpu.report.cost_tables import how_to_time, timed_notes, timed_table
from taetpu.report.costs import NOT_MEASURED, Measured
from taetpu.report.designs import design_sections
from taetpu.report.frontier import column_title, describe_frontiers, front_columns, frontiers
from taetpu.report.goal import goal_section
from taetpu.report.item_scores import item_score_sections
from taetpu.report.judged import is_paired, is_single_judged, strata_section
from taetpu.report.outcomes import outcome_section
from taetpu.report.place_curves import PlaceCurves, place_sections
from taetpu.report.post_hoc import post_hoc_sections
from taetpu.report.priors import Prior, priors_section
from taetpu.report.section_types import Section, Table
from taetpu.report.summary import Costs, baseline_of, format_effect, format_interval, verdict_label
from taetpu.stats import formatting
from taetpu.stats.plan import describe_metric
from taetpu.stats.results import Arm, Ratio, Results
from taetpu.store.frozen_study import MatchRole


def build_sections(
    results: Results,
    costs: Costs,
    priors: Mapping[str, Prior],
    places: Sequence[PlaceCurves] = (),
    measured: Measured = NOT_MEASURED,
    spent: str = "",
) -> list[Section]:
    """Return all sections that follow the verdicts in the report, in order, without empty sections."""
    limits = Section("Limitations", notes=overview.study_limits(results))
    sections = [
        *([goal_section(results), limits] if summary.is_search(results) else [limits, goal_section(results)]),
        outcome_section(results),
        costs_section(results, costs, measured, spent),
        strata_section(results),
        contrasts_section(results),
        *post_hoc_sections(results),
        *design_sections(results),
        *item_score_sections(results),
        metrics_section(results),
        *place_sections(results, places),
        priors_section(results, priors),
        matching_section(results),
        divergence_section(results),
        choices_section(results),
        sensitivity_section(results),
        evaluation_noise_section(results),
        efficiency_section(results),
        plan_section(results),
        Section("How to read this report", notes=overview.reading_guide(results)),
    ]
    return [section for section in sections if not section.is_empty]


def costs_section(results: Results, costs: Costs, measured: Measured = NOT_MEASURED, spent: str = "") -> Section:
    """Return the section on effects and costs. Columns without values, such as unmeasured times, are omitted."""
    rows = [_cost_row(arm, baseline_of(results, arm), costs, results) for arm in results["arms"]]
    untrained = summary.is_untrained(results)
    memory = "the memory of the compiled train step of one run" if measured.memory else "memory"
    lead = (
        f"Parameters, training FLOPs and {memory} are computed from the program. Train time and inference are "
        "measured on the machine that trained the study, and are medians over seeds. The time of a pack, which trains "
        "several runs at once, is divided evenly among its runs."
    )
    if untrained:
        lead = "Parameters and the cache are computed from the program. Nothing was trained, so training has no costs."
    elif len({costs.get(arm["name"], {}).get("width") for arm in results["arms"]}) > 1:
        lead += (
            " If the packs of an arm and its baseline differ in width, their times are not comparable, and no "
            "percentage is shown."
        )
    if any(path.rpartition(".")[2].startswith("drop") for arm in results["arms"] for path in arm["diff"]):
        lead += " Dropped parts are masked, not removed from the program, so dropping them saves no cost."
    columns = (
        "arm", "effect", "params", "FLOPs", "tokens", "train time", "inference/token", "train memory", "KV cache",
        COLUMNS["cycles"].header,
    )  # fmt: skip
    fronts, table = frontiers(results, costs), Table(columns, rows).without_empty_columns()
    if set(table.columns) <= {"arm", "effect"}:  # the costs of a judged table are not known
        return Section("Costs")
    metric = describe_metric(results["plan"])
    if measured.cycles:
        lead += f" Cycles of a train step are the compiler's estimate for {measured.tpu}, of one run alone."
    timed = [timed_table(results, times, results["arms"], f"arm, on {times.where}") for times in measured.machines]
    notes = [note for times in measured.machines for note in timed_notes(results, times)]
    if not timed and len(rows) > 1 and not untrained:
        notes = [how_to_time(results)]
    notes += [f"Where the time of the packs went: {spent}."] if spent else []
    names = front_columns(results, costs)
    return Section(
        "Costs",
        lead,
        [table, *(each for each in timed if each.columns)],
        [(f"{metric.label} over {title}", title) for title in fronts],
        [*notes, *describe_frontiers(fronts, metric.label)],
        frontier=[(name, column_title(name, results)) for name in names] if len(names) > 2 else [],
    )


def _cost_row(arm: Arm, base: Arm, costs: Costs, results: Results) -> list[str]:
    ours, theirs = costs.get(arm["name"], {}), costs.get(base["name"], {})
    memory, other = arm["memory"] or {}, base["memory"] or {}
    trained = ours.get("memory", memory.get("training")), theirs.get("memory", other.get("training"))
    timed = theirs if ours.get("width") == theirs.get("width") else {}  # without a time, no difference is shown
    return [
        arm["name"],
        format_effect(arm, results),
        *(
            formatting.with_change(arm[what] or None, base[what], formatting.amount)
            for what in ("params", "flops", "tokens")
        ),
        *(
            formatting.with_change(ours.get(what), timed.get(what), formatting.seconds)
            for what in ("train_seconds", "inference_seconds")
        ),
        formatting.with_change(*trained, formatting.size),
        formatting.with_change(memory.get("kv_cache"), other.get("kv_cache"), formatting.size),
        formatting.with_change(ours.get("cycles"), theirs.get("cycles"), formatting.amount),
    ]


def matching_section(results: Results) -> Section:
    """Return the section that compares arms at equal steps with their matched copies."""
    arms = {arm["name"]: arm for arm in results["arms"]}
    rows = [
        [
            of["name"],
            f"equal {summary.MATCHED[match['by']]}",
            _matched_settings(match),
            *(text for each in (of, arm) for text in (format_effect(each, results), verdict_label(each))),
        ]
        for arm in arms.values()
        for match in summary.matched_to(arm)
        if "tuned" not in arm["role"] and (of := arms.get(match["of"]))
    ]
    lead = (
        "At equal steps, an arm that computes more per token may win for that reason alone. Each arm was therefore "
        "trained again with the budget of its baseline."
    )
    columns = ("arm", "matched to", "by training with", "effect at equal steps", "verdict", "matched effect", "verdict")
    return Section("Matched arms", lead, [Table(columns, rows, left=3)])


def _matched_settings(match: MatchRole) -> str:
    changed = {path: value for path, value in match.items() if path not in ("of", "by") and value is not None}
    return ", ".join(f"{path} {value}" for path, value in changed.items())


def metrics_section(results: Results) -> Section:
    """Return the section on the other metrics of the primary metric's evaluation set, without those of its parts."""
    primary = results["primary"]
    split = primary.partition("/")[0] + "/"
    names = sorted({name for arm in results["arms"] for name in arm["metrics"]} - {primary})
    names = [name for name in names if name.startswith(split) and "." not in name]
    rows = [
        [arm["name"], *("-" if value is None else f"{value:.4g}" for value in map(arm["metrics"].get, names))]
        for arm in results["arms"]
        if names and arm["metrics"]
    ]
    lead = (
        f"Means over the finished runs. Verdicts are given on {primary} only: the metric on which arms differ most is "
        "found in noise, too."
    )
    return Section("Other metrics", lead, [Table(("arm", *names), rows)], folded=True)


def divergence_section(results: Results) -> Section:
    """Return the section on diverged runs and worst-case effects."""
    rows = []
    for arm in results["arms"]:
        if worst := arm["worst_case"]:
            lost = [f"{each['diverged']} of {len(each['runs'])}" for each in (arm, baseline_of(results, arm))]
            effects = format_effect(arm, results), format_effect(worst, results)
            test = formatting.p_value(arm["divergence_p"])
            rows.append([arm["name"], *lost, test, *effects, format_interval(worst["ci95"], results)])
    lead = (
        "Divergence is an outcome. The worst case replaces the value of each diverged run by the worst value of any "
        "finished run. The p-value tests equal rates of divergence (Boschloo's exact test)."
    )
    columns = ("arm", "diverged", "baseline's", "p", "effect of finished runs", "worst case", "95 % interval")
    return Section("Diverged runs", lead, [Table(columns, rows)])


def choices_section(results: Results) -> Section:
    """Return the section on the runs that stopped, and on the models that were chosen by validation data."""
    rows = []
    for arm in results["arms"]:
        for choice in arm.get("choices", ()):
            evaluated = "" if choice["averaged"] is None else f"mean of {choice['averaged']}"
            chosen = choice["chosen"]
            if chosen is not None:
                evaluated = f"step {chosen:,}" if chosen >= 0 else f"step {choice['steps']:,}, without a choice"
            factor = "" if choice["factor"] is None else f"{choice['factor']:.3g}"
            end = (
                f"stopped after step {choice['steps']:,}" if choice["stopped"] else f"trained {choice['steps']:,} steps"
            )
            rows.append([arm["name"], str(choice["seed"]), end, evaluated, factor])
    lead = (
        "Runs chose by the loss on windows of the validation split. The values of arms are those of the evaluated "
        "models on test data, by which no run chose; values on the validation split are not comparable. A run that "
        "stopped was trained for fewer steps than others, with a learning rate that does not depend on the number of "
        "steps. The table of training efficiency compares the steps that arms need for the same value."
    )
    columns = ("arm", "seed", "training", "evaluated model", "factor of the learning rate")
    return Section("Stopping and chosen models", lead, [Table(columns, rows).without_empty_columns()])


def sensitivity_section(results: Results) -> Section:
    """Return the section on alternative analyses."""
    rows = [_sensitivity_row(arm, results) for arm in results["arms"] if arm["ci95"]]
    lead = (
        "Verdicts use only the planned analysis. The analyses in this table are for comparison. The simultaneous "
        "interval holds for all arms jointly. The paired t-test uses one arm and the baseline. The sign-flip test is "
        "exact and needs six seeds. The column after the sign-flip test shows the range of the effect if one seed is "
        "left out. The correlation of arm and baseline over seeds shows how much shared seeds reduce the noise."
    )
    columns = (
        "arm", "effect", "effect / sd", "95 % simultaneous", "paired 95 %", "paired p", "sign-flip p",
        "one seed left out", "correlation",
    )  # fmt: skip
    table = Table(columns, rows)
    if not is_paired(results):
        lead = (
            "Verdicts use only the planned analysis. The simultaneous interval holds for all arms jointly. There is no "
            "paired test, since runs are not paired."
        )
        table = table.without_empty_columns()
    return Section("Sensitivity to the analysis", lead, [table], folded=True)


def _sensitivity_row(arm: Arm, results: Results) -> list[str]:
    sensitivity = arm["sensitivity"] or {}
    paired, least = sensitivity.get("paired") or {"ci95": None, "p": None}, sensitivity.get("without_a_seed")
    places = formatting.effect_places(arm["effect"], arm["ci95"], summary.mean_places(results))
    return [
        arm["name"],
        format_effect(arm, results),
        formatting.number(arm["effect_sd"], 1, sign=True),
        format_interval(arm["ci_simultaneous"], results),
        format_interval(paired["ci95"], results),
        formatting.p_value(paired["p"]),
        formatting.p_value(sensitivity.get("sign_flip_p")),
        " to ".join(formatting.number(bound, places, sign=True) for bound in least) if least else "-",
        formatting.number(sensitivity.get("correlation"), 2),
    ]


def evaluation_noise_section(results: Results) -> Section:
    """Return the section on the noise caused by the choice of evaluation text."""
    rows = []
    for arm in results["arms"]:
        if noise := arm["evaluation_noise"]:
            intervals = [format_interval(bounds, results) for bounds in (arm["ci95"], noise["ci95"])]
            sd, blocks = formatting.spread(noise["sd"]), str(noise["blocks"])
            rows.append([arm["name"], format_effect(arm, results), *intervals, sd, blocks])
    lead = (
        "Verdicts hold for the evaluation set, which all arms share. The interval over texts shows how much an effect "
        "would vary with another text of the same size. This interval is from a bootstrap over blocks of the "
        "evaluation set, with the same blocks for arm and baseline. Verdicts do not include this noise."
    )
    columns = ("arm", "effect", "95 % over seeds", "95 % over texts", "sd over texts", "blocks")
    return Section("Evaluation noise", lead, [Table(columns, rows)], folded=True)


def efficiency_section(results: Results) -> Section:
    """Return the section on the cost of reaching the baseline's final value."""
    rows = [
        [
            arm["name"],
            f"{efficiency['reached']} of {efficiency['seeds']}",
            *_ratio(efficiency["steps"]),
            *_ratio(efficiency["flops"]),
        ]
        for arm in results["arms"]
        if (efficiency := arm["efficiency"])
    ]
    lead = (
        "The table shows the cost at which an arm reaches the baseline's final value, divided by the baseline's total "
        "cost. An arm with a ratio below 1 is faster. Interpret the ratios with care if the learning rate decays, "
        "because the loss in the middle of a schedule is worse than the final loss of a schedule that ends at the same "
        "step."
    )
    columns = ("arm", "seeds that reach it", "steps", "95 % interval", "FLOPs", "95 % interval")
    return Section("Training efficiency", lead, [Table(columns, rows).without_empty_columns()], folded=True)


def _ratio(estimate: Ratio | None) -> tuple[str, str]:
    if estimate is None:
        return "-", "-"
    return f"{estimate['ratio']:.3g}", " to ".join(f"{bound:.3g}" for bound in estimate["ci95"] or ()) or "-"


def plan_section(results: Results) -> Section:
    """Return the section on the frozen analysis plan."""
    frozen, alpha, margin = results["plan"], results["alpha"], results["plan"]["equivalence"]
    planned = summary.join_and([str(number) for number in frozen["looks"]])
    better = "lower" if results["direction"] == "min" else "higher"
    late = "written_after" in frozen or "judged" in results
    over = (
        "arms and looks at this question, choices made in view of the results apart," if late else "arms and analyses,"
    )
    if is_single_judged(results):
        return Section("Analysis plan")
    notes = [
        f"The primary metric is {describe_metric(frozen).title}, and {better} values are better. "
        f"Verdicts are given at {planned} seeds per arm.",
        f"The chance of any false verdict, over all {over} is at most {frozen['error_rate']:.0%}.",
        "The plan sets no equivalence margin, so no arm can be called equivalent."
        if margin is None
        else f"Differences below {margin:g} count as equivalent, and equivalence is tested at {alpha:.0%}.",
        *(f"Departure from the plan: {departure}." for departure in results["departures"]),
        f"The plan's SHA-256 is {frozen['sha256']}. `taetpu report DIR --verify` recomputes this report.",
    ]
    return Section(f"Analysis plan, frozen {'after runs had ended' if late else 'before the first run'}", notes=notes)

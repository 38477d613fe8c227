"""Summary of a study for all output formats: headline, notices, and the rows of the verdict table."""

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType

from taetpu.report import factors, goal, rungs
from taetpu.report.judged import block_noun, is_single_judged, judged_notices, removed_effect
from taetpu.report.outcome_text import describe_shares, format_mean
from taetpu.report.verdict_style import VERDICTS
from taetpu.stats import formatting
from taetpu.stats.deviations import tuning_metric
from taetpu.stats.formatting import join_and
from taetpu.stats.plan import describe_metric
from taetpu.stats.results import Arm, EstimatedEffect, Results, Term
from taetpu.store.frozen_study import MatchRole
from taetpu.store.metrics import SAMPLED

Costs = Mapping[str, Mapping[str, float | None]]
"""Measured costs by arm, as returned by `costs.read_costs`."""
NOT_TIMED: Costs = MappingProxyType({})

LENGTH = {"train.steps", "train.epochs"}
MATCHED = {"flops": "training FLOPs", "params": "parameters", "time": "training time"}
TIME_TOLERANCE = 0.1
"""Relative difference in training time above which the `terms` of a time-matched arm mention the difference."""


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

    @property
    def verdict_on_terms(self) -> str:
        """Verdict, followed by the terms of the comparison if they differ from the default."""
        return ", ".join(filter(None, (self.verdict, self.terms)))


def is_untrained(results: Results) -> bool:
    """Return whether models were evaluated as they were initialised, with `train.steps: 0`."""
    spent = [tokens for arm in results["arms"] if (tokens := arm.get("tokens")) is not None]
    return bool(spent) and not any(spent) and "program" not in results


# --- arms -------------------------------------------------------------------------------------------------------------


def verdict_rows(results: Results, costs: Costs = NOT_TIMED) -> list[Row]:
    """Return the rows of the verdict table in the study's order, the baseline first."""
    return [_row(arm, results, costs) for arm in results["arms"]]


def _row(arm: Arm, results: Results, costs: Costs) -> Row:
    terms = comparison_terms(arm, results, costs)
    return Row(
        arm=arm["name"],
        change=with_arrows(shown_change(arm, results)),
        mean=format_mean(arm, results, mean_places(results)),
        effect=format_effect(arm, results),
        interval=format_interval(arm["ci95"], results),
        p=formatting.p_value(arm["p_holm"]),
        noise_sd=formatting.number(arm["effect_sd"], 1, sign=True),
        verdict=verdict_label(arm),
        terms=terms,
        evidence=(f"{terms[:1].upper()}{terms[1:]}: {arm['evidence']}" if terms else arm["evidence"])
        + _seeds_needed(arm),
    )


def shown_change(arm: Arm, results: Results) -> str:
    """Return an arm's change: what it lacks if it is another arm without some of its changes, else all of its changes.

    An arm from which one of nine differences is removed would otherwise show the eight others.
    """
    whole = next((other for other in results["arms"] if other["name"] == arm["against"]), None)
    if whole is None or whole["against"] is None:
        return arm["change"]
    lacking = [path for path in whole["diff"] if path not in arm["diff"]]
    kept = all(whole["diff"].get(path) == value for path, value in arm["diff"].items())
    return f"{whole['name']} without {join_and(lacking)}" if lacking and kept else arm["change"]


def with_arrows(change: str) -> str:
    """Return a change with the arrow of pages and documents in place of the arrow of terminals, `->`."""
    return change.replace(" -> ", " \u2192 ")


def _seeds_needed(arm: Arm) -> str:
    """Return a sentence on the number of additional seeds that would detect the observed effect, or an empty string."""
    more = arm["more_seeds"]
    return (
        f" If the true effect equals the observed effect, about {_count(more, 'more seed')} would detect it."
        if more
        else ""
    )


def comparison_terms(arm: Arm, results: Results, costs: Costs = NOT_TIMED) -> str:
    """Return the terms of an arm's comparison that differ from the default: matches, tuning or another baseline.

    If the study has matched arms, an unmatched arm is described as compared at equal steps, unless it changes the
    training length.
    """
    role, terms = arm["role"], []
    if by := [match["by"] for match in matched_to(arm)]:
        terms.append(f"at equal {' and '.join(MATCHED[kind] for kind in by)}")
        terms += _time_mismatch(arm, results, costs) if "time" in by else []
    elif arm["against"] and not LENGTH & set(arm["diff"]) and any(map(matched_to, results["arms"])):
        terms.append("at equal steps")
    if "tuned" in role:
        terms.append("both tuned" if arm["against"] else "tuned")
    elif arm["against"] not in (None, results["arms"][0]["name"]):
        terms.append(f"against {arm['against']}")
    if arm["against"] is None and rungs.mixes_metrics(results):
        terms.append(f"by {rungs.planned_task(results, arm)['primary']}")
    return ", ".join(terms)


def _time_mismatch(arm: Arm, results: Results, costs: Costs) -> list[str]:
    """Return a remark if the actual training time differs from the baseline's training time.

    The times may differ, because matching by `time` uses times that were measured before the first run.
    """
    ours, theirs = (costs.get(a["name"], {}).get("train_seconds") for a in (arm, baseline_of(results, arm)))
    share = ours / theirs - 1 if ours and theirs else 0.0
    if abs(share) <= TIME_TOLERANCE:
        return []
    return [f"as timed before training (training took {abs(share):.0%} {'longer' if share > 0 else 'less'})"]


def matched_to(arm: Arm) -> list[MatchRole]:
    """Return the matches of an arm."""
    role = arm["role"]
    return [*([role["match"]] if "match" in role else []), *role.get("also", ())]


def baseline_of(results: Results, arm: Arm) -> Arm:
    """Return the baseline of an arm. A baseline is its own baseline."""
    return next((other for other in results["arms"] if other["name"] == arm["against"]), arm)


def verdict_label(arm: Arm) -> str:
    """Return an arm's verdict. If the arm has no verdict, return `interim`, `single seed` or `baseline`."""
    pending = "single seed" if len(arm["runs"]) == 1 else "interim"
    return arm["verdict"] or ("baseline" if arm["against"] is None else pending)


def mean_places(results: Results) -> int:
    """Return the number of decimal places for a study's means. It is also the minimum for effects and intervals.

    The noise of the runs determines the number. With several baselines, the largest number over all baselines is used.
    """
    means = {arm["name"]: arm["mean"] for arm in results["arms"]}
    groups = results["groups"]
    return max(formatting.mean_places(group["residual_sd"], means.get(group["baseline"])) for group in groups)


def format_effect(entry: EstimatedEffect, results: Results) -> str:
    """Format the `effect` of an arm or a factorial term with at least as many decimal places as the means."""
    return formatting.effect(entry["effect"], entry["ci95"], mean_places(results))


def effect_and_verdict(arm: Arm | None, results: Results) -> str:
    """Return the cell of a table with the effect and the verdict of an arm, or a hyphen if the arm is missing."""
    return f"{format_effect(arm, results)} {verdict_label(arm)}" if arm else "-"


def format_interval(bounds: Sequence[float] | None, results: Results) -> str:
    """Format the interval of an effect with at least as many decimal places as the means."""
    return formatting.interval(bounds, mean_places(results))


def effect_cells(term: Term, results: Results) -> list[str]:
    """Return the effect of a factorial term, its interval and its corrected p-value as text."""
    effect, interval = format_effect(term, results), format_interval(term["ci95"], results)
    return [effect, interval, formatting.p_value(term["p_holm"])]


def describe_effects(results: Results) -> str:
    """Return a sentence on the primary metric and the meaning of effects."""
    better = "lower" if results["direction"] == "min" else "higher"
    seeds = _count(len(results["seeds"]), block_noun(results))
    metric = f"{describe_metric(results['plan']).title}, {better} is better."
    if rungs.mixes_metrics(results):
        metric = describe_metrics(results)
    if is_single_judged(results):
        return f"{metric} The mean is over {seeds}."
    return f"{metric} Effects are arm minus baseline over {seeds}."


def describe_metrics(results: Results) -> str:
    """Return a sentence on the metric of each task; empty without tasks."""
    by: dict[str, list[str]] = {}
    for name, task in results["plan"].get("tasks", {}).items():
        title = describe_metric({"primary": task["primary"], "metrics": task["metrics"]}).title
        joined = f"{title[:-1]}, " if title.endswith(")") else f"{title} ("
        words = f"{joined}{'lower' if task['direction'] == 'min' else 'higher'} is better)"
        by.setdefault(words, []).append(name)
    if len(by) == 1:
        return f"All tasks are compared by {next(iter(by))}."
    parts = [f"{join_and(names)} by {metric}" for metric, names in by.items()]
    return f"Tasks are compared by their own metrics: {'; '.join(parts)}." if parts else ""


def sample_note(name: str) -> str:
    """Return a note if a metric is evaluated on a sample of the validation split, else an empty string."""
    return "on a sample of the validation split" if name.startswith(f"{SAMPLED}/") else ""


# --- the study --------------------------------------------------------------------------------------------------------


def is_search(results: Results) -> bool:
    """Return whether a search left arms without effects, so that the goal is all that the study answers."""
    return "goal" in results and "searched" in results and all(arm["effect"] is None for arm in results["arms"])


def headline(results: Results) -> str:
    """Return the study's main finding, and the arms that diverged on every seed."""
    baseline, arms = results["arms"][0], counted_arms(results)
    if "goal" in results and ("searched" in results or not arms):
        return goal.answer_text(results["goal"])
    if baseline["mean"] is None:
        why = "diverged on every seed" if all_diverged(baseline) else "has no finished run yet"
        return f"The baseline {why}, so the arms cannot be compared with it."
    mean = f"{describe_metric(results['plan']).label} is {verdict_rows(results)[0].mean}"
    if is_single_judged(results):
        return f"{mean} over {_count(len(baseline['runs']), 'run')} of a single configuration."
    if not arms:
        return f"Baseline only: {mean}."
    lost = [arm["name"] for arm in arms if all_diverged(arm)]
    if len(lost) == len(arms):
        return f"Every run of {_count_arms(arms, results)} diverged."
    diverged = f" Diverged on every seed: {formatting.list_names(lost)}." if lost else ""
    return f"{_main_finding(arms, results)}{diverged}"


def _main_finding(arms: list[Arm], results: Results) -> str:
    name, total = _metric_name(results), _count_arms(arms, results)
    known = sum(arm["effect"] is not None for arm in arms)
    if not results["complete"]:
        shown = total if known == len(arms) else f"{known} of {_count(len(arms), 'arm')}"
        so_far = f"effects of {shown} on {name} so far, without verdicts" if known else f"no effects on {name} yet"
        return f"Interim: {so_far}."
    if len(results["seeds"]) == 1:
        return f"{total} on a single seed. Effects have no error bars, so there are no verdicts."
    if not results["final"]:
        return f"Interim: effects of {total} on {name} so far, without verdicts."
    top, scales = rungs.largest(results), len(rungs.baselines(results))
    tuned = "Each arm tuned: " if any("tuned" in arm["role"] for arm in arms) else ""
    at = f"At {top}, the largest of {scales} scales: " if top else f"Over {scales} scales: " if scales else ""
    crossed = factors.describe_factorial(results, top or "")
    if crossed is None:
        counts = _after(at if top else tuned, _count_verdicts(arms, name, results))
        return " ".join(filter(None, (rungs.describe_elsewhere(results), counts)))
    others = [arm for arm in arms if arm["role"].get("design") != "factorial"]
    return f"{_after(at, crossed)}{f' Other arms: {tuned}{_count_verdicts(others, name, results)}' if others else ''}"


def _after(colon: str, sentence: str) -> str:
    """Return a sentence after words that end with a colon, or alone if there are none."""
    return colon + (f"n{sentence[1:]}" if colon and sentence.startswith("None ") else sentence)


def all_diverged(arm: Arm) -> bool:
    """Return whether all runs of an arm diverged."""
    return arm["diverged"] == len(arm["runs"])


def _metric_name(results: Results) -> str:
    """Return the name of the primary metric; with tasks of different metrics, words for all of them."""
    return "the metric of its task" if rungs.mixes_metrics(results) else describe_metric(results["plan"]).label


def _count_arms(arms: list[Arm], results: Results) -> str:
    """Return the number of arms. An arm at several scales of a ladder counts once, as in `1 arm at 3 scales`."""
    notes = [arm["role"].get("ladder", {"arm": arm["name"], "rung": ""}) for arm in arms]
    names, scales = ({note[part] for note in notes} for part in ("arm", "rung"))
    if len(scales) < 2:
        return _count(len(arms), "arm")
    plan = results["plan"]
    where = "on {} tasks" if plan.get("tasks") else "under {} settings" if plan.get("across") else "at {} scales"
    return f"{_count(len(names), 'arm')} {where.format(len(scales))}"


def _count_verdicts(arms: list[Arm], metric: str, results: Results) -> str:
    """Return a sentence with the number of arms, or of arms at a scale, for each verdict."""
    counts = Counter(arm["verdict"] for arm in arms)
    total, plain = _count_arms(arms, results), _count(len(arms), "arm")
    (first, number), *others = [(verdict, counts[verdict]) for verdict in VERDICTS if counts[verdict]]
    if first == "inconclusive":
        none = f"None of {plain} differs" if total == plain else f"{total}: none differs"
        none = f"{arms[0]['name']} does not differ" if len(arms) == 1 else none
        return f"{none} significantly from the baseline in {metric}."
    which = f"{number} of {plain}" if total == plain else f"{total}: {number} of {len(arms)}"
    which = arms[0]["name"] if len(arms) == 1 else which
    compared = "equivalent to" if first == "equivalent" else f"{first} than"
    parts = [f"{which} {_be(number)} {compared} the baseline in {metric}"]
    return f"{join_and([*parts, *(f'{number} {_be(number)} {verdict}' for verdict, number in others)])}."


def _be(number: int) -> str:
    return "is" if number == 1 else "are"


def counted_arms(results: Results) -> list[Arm]:
    """Return the arms that the headline counts.

    These are the arms that are compared with a baseline and are not matched copies of other arms: those at the largest
    scale of a ladder, or at all of its scales if effects have no trend over them. If the study has tuned arms, only the
    tuned arms are counted.
    """
    arms = [arm for arm in results["arms"] if arm["against"] and "match" not in arm["role"]]
    top = rungs.largest(results)
    arms = [arm for arm in arms if top is None or arm["role"].get("ladder", {}).get("rung") == top]
    return [arm for arm in arms if "tuned" in arm["role"]] or arms


def notices(results: Results) -> list[str]:
    """Return the caveats that a reader must know before relying on the verdicts."""
    arms = results["arms"]
    outcomes = Counter(run["outcome"] for arm in arms for run in arm["runs"])
    seeds, texts = len(results["seeds"]), [*judged_notices(results)]
    if not results["complete"]:
        texts.append(f"Not final: {outcomes['unfinished']} of {_count(outcomes.total(), 'run')} have not finished.")
    elif "searched" in results:
        left = outcomes["untrained"]
        texts.append(
            f"The search left {left} of {_count(outcomes.total(), 'run')} untrained, so arms have no verdicts. `taetpu "
            "run` without --search trains them."
        )
    elif not results["final"]:
        planned = ", ".join(map(str, results["plan"]["looks"]))
        texts.append(f"Not final: analyses are planned at {planned} seeds per arm, but this study has {seeds}.")
    if results["plan"]["error_rate"] > results["alpha"]:
        texts.append(
            f"Seeds were added beyond the plan, so the chance of a false verdict is up to "
            f"{results['plan']['error_rate']:.0%} instead of {results['alpha']:.0%}."
        )
    if late := [arm["name"] for arm in arms if not arm["planned"]]:
        texts.append(f"Arms added after the first run: {', '.join(late)}.")
    if outcomes["diverged"]:
        worst = ", ".join(f"{arm['name']} {arm['diverged']} of {seeds}" for arm in arms if arm["diverged"])
        texts.append(f"Diverged runs: {worst}. Means and effects are computed from the runs that finished.")
    if outcomes["stopped"]:
        texts.append(
            f"Runs that stopped before their last step: {outcomes['stopped']} of {outcomes.total()}. They are compared "
            "by the chosen models, not after equal numbers of steps."
        )
    if results["label"] == "screening":
        texts.append(f"Screening: {seeds} seeds per arm detect only large effects. Confirm findings with more seeds.")
    if len(results["hardware"]) > 1:
        where = ", ".join(f"{_count(kind['runs'], 'run')} on {kind['device']}" for kind in results["hardware"])
        texts.append(
            f"Mixed hardware: {where}. Devices round differently, so small effects may come from the hardware."
        )
    if "program" in results and (same := [arm["name"] for arm in arms if _equals_baseline(arm, results)]):
        texts.append(
            f"Equal to the baseline in every run: {', '.join(same)}. The program may not read the changed settings."
        )
    if "program" in results and all(_is_constant(arm) for arm in arms):
        texts.append("Each arm has one value on all seeds. If the program ignores the seed, the verdicts mean nothing.")
    texts += [*edge_warnings(results), *_test_split_notices(results)]
    if any(group["copies"] for group in results["groups"]):
        texts.append("The noise of runs is correlated between arms, so all effects are tested more conservatively.")
    if noisy := sorted({arm for group in results["groups"] for arm in group["noisy"]}):
        more = (
            "Comparisons with them have wider intervals"
            if is_weighed(results)
            else "They are tested more conservatively"
        )
        texts.append(f"Arms that seem noisier than the others: {', '.join(noisy)}. {more}.")
    return texts


def _test_split_notices(results: Results) -> Iterator[str]:
    """Yield caveats on repeated verdicts on the test split, and on tuning by it, as in studies of earlier versions."""
    seeds, plan = len(results["seeds"]), results["plan"]
    if results["primary"].startswith("test/"):
        earlier = [str(number) for number in plan["looks"] if len(plan["seeds"]) <= number < seeds]
        analyses = [*earlier, str(seeds)] if results["final"] else earlier
        if len(analyses) > 1:
            yield f"Verdicts were given on the test split at {join_and(analyses)} seeds per arm."
    if results["tuning"] and tuning_metric(results["tuning"], results["primary"]).startswith("test/"):
        yield "Tuning used the test split, on which arms are also compared, so tuned arms look better than they are."


def edge_warnings(results: Results) -> list[str]:
    """Return a warning for each tuned setting of an arm whose best value is the smallest or largest tried value."""
    tuned = results["tuning"]["arms"] if results["tuning"] else {}
    return [
        f"The best {path} of {name} is at the edge of the grid, so a wider grid may contain a better value."
        for name, entry in tuned.items()
        for path in entry["edge"]
    ]


def _is_constant(arm: Arm) -> bool:
    """Return whether an arm has the same value on all of several seeds."""
    values = [run["value"] for run in arm["runs"] if run["value"] is not None]
    return len(values) > 1 and len({*values}) == 1


def _equals_baseline(arm: Arm, results: Results) -> bool:
    """Return whether an arm has exactly the values of its baseline on all seeds that both have."""
    base = baseline_of(results, arm)
    theirs = {run["seed"]: run["value"] for run in base["runs"] if run["value"] is not None}
    pairs = [(run["value"], theirs[run["seed"]]) for run in arm["runs"] if run["seed"] in theirs and run["value"]]
    return arm is not base and bool(pairs) and all(value == other for value, other in pairs)


def describe_reuse(results: Results) -> str:
    """Return a sentence on the numbers of reused and replicated runs, or an empty string if no run was reused."""
    reused = results["reused"]
    if not reused["runs"]:
        return ""
    return f"Reused from other studies: {_count(reused['runs'], 'run')}; trained again as a check: {reused['audited']}."


def describe_repeat(results: Results) -> str:
    """Return a sentence on the noise that remains with equal seeds; empty if no run was repeated."""
    if (repeat := results.get("repeat")) is None:
        return ""
    run = f"the run of {repeat['arm']} on seed {repeat['seed']}"
    first, second = repeat["values"]
    if first is None or second is None:
        return "" if first == second else f"Repeated with the same seed, {run} has a value once, and diverged once."
    if first == second:
        return f"Repeated with the same seed, {run} has the same {repeat['metric']} again."
    return (
        f"Repeated with the same seed, {run} has a {repeat['metric']} of {second:.6g} instead of {first:.6g}. This "
        f"difference of {abs(second - first):.2g} is noise that equal seeds do not remove."
    )


def describe_noise(results: Results) -> str:
    """Return a sentence on the noise floor and, if it is within the metric's range, the smallest detectable effect."""
    floor, model = results["noise_floor"], results["model"]
    if "solved" in results["plan"]:
        return describe_shares(results)
    if floor["sd"] is None:
        return "The baseline has fewer than two finished runs, so its noise is unknown."
    seeds, metric = _count(floor["seeds"], block_noun(results)), describe_metric(results["plan"])
    whose = "" if is_single_judged(results) else "the baseline's "
    text = f"Across {seeds}, {whose}{metric.label} has a standard deviation of"
    text = f"{text} {formatting.spread(floor['sd'])}"
    if model["residual_sd"]:
        spread, effect = formatting.spread(model["residual_sd"]), removed_effect(results)
        removed = f" without the effect of the {effect}" if effect else ""
        if is_weighed(results):
            text += f". The standard deviation common to most arms{f',{removed},' if removed else ''} is {spread}"
        else:
            text += f". Pooled over arms{f' and{removed}' if removed else ''}, the standard deviation is {spread}"
    if floor["resolves"] and floor["resolves"] <= metric.bounds[1] - metric.bounds[0]:
        text += f". With 80 % power, {seeds} detect a true effect of {formatting.spread(floor['resolves'])}"
    return f"{text}."


def is_weighed(results: Results) -> bool:
    """Return whether the plan weighs the noise of arms (`stats.moderated`), instead of pooling it."""
    return results["plan"].get("noise") == "moderated"


def _count(number: int, noun: str) -> str:
    return f"{number} {noun}{'' if number == 1 else 's'}"

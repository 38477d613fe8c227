"""What reports say of a study that was made from a table of results: what the table does not tell.

The functions return nothing for studies that taetpu trained.
"""

from collections import Counter
from collections.abc import Iterator, Sequence
from typing import Any, Literal, get_args

from taetpu.report.rungs import mixes_metrics
from taetpu.report.section_types import Section, Table
from taetpu.stats import formatting
from taetpu.stats.load import OUTCOMES
from taetpu.stats.results import Arm, JudgedTable, Results, Stratum
from taetpu.store.frozen_study import EarlierQuestion

LISTED = 6
"""Maximum number of missing runs, or of effects by block, of an arm that are listed."""
UNFOLDED = 24
"""Maximum number of effects by block that the report shows at first sight."""
Rule = Literal["primary", "direction", "equivalence", "alpha", "table"]
RULES: tuple[Rule, ...] = get_args(Rule)
"""The rules of verdicts that are part of a plan, except the baseline."""


def is_single_judged(results: Results) -> bool:
    """Return whether the table has a single arm, so that nothing is compared."""
    return "judged" in results and len(results["arms"]) == 1


def is_paired(results: Results) -> bool:
    """Return whether runs with equal seeds are compared with each other."""
    return "blocks" not in (results.get("judged") or {})


def block_noun(results: Results) -> str:
    """Return the noun for what `seeds` in the results are: `seed`; `block` if a block has other columns; or `run`."""
    if not is_paired(results):
        return "run"
    return "block" if (results.get("judged") or {}).get("block") else "seed"


def removed_effect(results: Results) -> str:
    """Return the name of the effect that is removed before arms are compared, such as `seed`; empty if none is."""
    table = results.get("judged")
    if table is None or is_paired(results):
        return block_noun(results)
    return _join_columns(table) if table["block"] else ""


def noise_band(results: Results) -> tuple[float | None, str]:
    """Return the standard deviation that the forest plot shows as a band, and what it is.

    That of the baseline across blocks would show how much blocks differ, such as datasets, rather than noise.
    """
    table = results.get("judged")
    if table is not None and table["block"]:
        return results["model"]["residual_sd"], "a run within its block"
    if mixes_metrics(results):
        return 1.0, "a run's noise"
    return results["noise_floor"]["sd"], f"the baseline across {block_noun(results)}s"


def block_label(results: Results, seed: int) -> str:
    """Return the name of a seed or block: the values of its columns in the table."""
    return ", ".join(map(str, seed_cells(results, seed)))


def seed_columns(results: Results) -> list[str]:
    """Return the names of the columns that `seed_cells` fills: those of blocks and `seed`, or `seed` alone."""
    table = results.get("judged") or {"block": (), "seed": "seed"}
    return [*table["block"], *(["seed"] if table["seed"] or not table["block"] or not is_paired(results) else [])]


def seed_cells(results: Results, seed: int) -> list[str | int]:
    """Return a seed, or the values in the table of the columns that make up a block."""
    label = (results.get("judged") or {}).get("labels", {}).get(str(seed), [])
    return [*label, *([seed] if not label or not is_paired(results) else [])]


def judged_notices(results: Results) -> Iterator[str]:
    """Yield the caveats that a reader must know before relying on the verdicts."""
    table = results.get("judged")
    if table is None:
        return
    if any(arm["against"] for arm in results["arms"]):
        yield (
            f"Exploratory: this analysis of {table['source']} was chosen after the runs had ended, so its error rate "
            "does not cover choices that were made with the results in view."
        )
    yield from _history_notices(results, table.get("history", ()))
    if missing := table["missing"]:
        listed = "; ".join(f"{arm} {_list_blocks(results, seeds)}" for arm, seeds in missing.items())
        yield (
            f"Missing runs: {listed}. Effects are computed from the other runs, and are biased if runs are missing "
            "because of their results."
        )
    if lacking := _lacking_strata(results):
        listed = "; ".join(f"{arm} ({', '.join(names)})" for arm, names in lacking.items())
        yield (
            f"Arms without runs on all values of {' and '.join(table['block'])}: {listed}. Their means are over other "
            "values than those of other arms, and effects are averages over the values that an arm shares with the "
            "baseline."
        )
    if apart := [arm["name"] for arm in results["arms"] if arm["against"] and arm.get("strata") == []]:
        what = " and ".join(table["block"])
        yield f"Not compared, since they share no value of {what} with the baseline: {', '.join(apart)}."
    if table.get("disjoint"):
        yield "An arm shares fewer than two seeds with the baseline, so runs are compared without pairing."
    if ends := table.get("ends"):
        listed = ", ".join(f"{arm} {first}" + f" to {last}" * (last > first) for arm, (first, last) in ends.items())
        yield f"Runs ended at different steps: {listed}. Values after unequal training may not be comparable."
    if empty := table.get("empty"):
        yield f"Runs without a value: {', '.join(f'{arm} {number}' for arm, number in empty.items())}."
    if titles := table.get("titles"):
        yield f"Arms that were renamed: {', '.join(f'{title} to {name}' for name, title in titles.items())}."


def judged_limits(results: Results) -> Iterator[str]:
    """Yield sentences on what the table does not tell."""
    table = results.get("judged")
    if table is None:
        return
    if is_single_judged(results):
        yield "A table does not tell whether runs with bad results were left out."
        return
    yield "A table does not tell whether arms were tuned, nor whether runs with bad results were left out."
    if table["block"]:
        yield (
            f"Effects are averages over the table's values of {' and '.join(table['block'])}, and verdicts are about "
            "these. Each value has the same weight, however many seeds it has. Effects that differ between values "
            "count as noise, so they widen intervals."
        )
    if not is_paired(results):
        yield (
            "Runs are not paired: if runs with equal seeds share the order of the data or initial weights, pairing "
            "them would need fewer runs for the same effect."
        )
    elif table["seed"]:
        yield (
            f"Runs with the same {_join_columns(table)} are compared with each other. A table does not tell whether "
            "they share the order of the data or initial weights. If they share nothing, verdicts hold, but more "
            "seeds would be needed."
        )


def judged_blocks(results: Results) -> str:
    """Return a sentence for readers on what is compared with what; empty for studies that taetpu trained."""
    table = results.get("judged")
    if table is None:
        return ""
    columns = _join_columns(table)
    if not is_paired(results):
        within = f" within each {columns}" if columns else ""
        return f"All runs of an arm are compared with all runs of the baseline{within}, whatever their seeds."
    if block_noun(results) == "block":
        return (
            f"A block is a combination of {columns}, and what this report says of seeds is meant of blocks. Arms are "
            "compared within blocks."
        )
    return f"Runs with the same {columns} are compared with each other." if columns else ""


def strata_section(results: Results) -> Section:
    """Return the section on the effects on each value of the block's columns, such as each data set."""
    table = results.get("judged")
    strata = table.get("strata") if table else None
    if not table or not strata:
        return Section("Effects by block")
    name, number = ", ".join(table["block"]), "pairs" if is_paired(results) else "runs"
    rows = [
        [arm["name"], strata[entry["stratum"]], _format_stratum(entry, arm, results), str(entry["pairs"])]
        for arm in results["arms"]
        for entry in arm.get("strata", ())
    ]
    lead = (
        f"The effect of an arm is the mean of its effects by {name}. These are means of the differences between runs, "
        f"and were not tested: with few {number}, they vary by chance."
    )
    return Section(
        f"Effects by {name}", lead, [Table(("arm", name, "effect", number), rows, left=2)], folded=len(rows) > UNFOLDED
    )


def strata_sentences(results: Results) -> Iterator[str]:
    """Yield a sentence for each arm with its effects on each value of the block's columns, or on the extreme ones."""
    table = results.get("judged")
    strata = table.get("strata") if table else None
    if not table or not strata:
        return
    for arm in results["arms"]:
        entries, name = sorted(arm.get("strata", ()), key=lambda entry: entry["effect"]), ", ".join(table["block"])
        shown = [f"{_format_stratum(e, arm, results)} ({strata[e['stratum']]})" for e in entries]
        if len(shown) > LISTED:
            yield f"{arm['name']} on {len(shown)} values of {name}: from {shown[0]} to {shown[-1]}."
        elif shown:
            yield f"{arm['name']} by {name}: {', '.join(shown)}."


def _format_stratum(entry: Stratum, arm: Arm, results: Results) -> str:
    places = formatting.mean_places(results["model"]["residual_sd"], arm["mean"])
    return formatting.effect(entry["effect"], arm["ci95"], places)


def _lacking_strata(results: Results) -> dict[str, list[str]]:
    """Return the values of the block's columns on which an arm has no finished run, by arm."""
    table, lacking = results.get("judged"), {}
    names, stratum_of = (table.get("strata", []), table.get("stratum_of", {})) if table else ([], {})
    for arm in results["arms"] if names else ():
        known = {stratum_of[str(run["seed"])] for run in arm["runs"] if run["value"] is not None}
        if missing := [name for number, name in enumerate(names) if number not in known]:
            lacking[arm["name"]] = [*missing[:LISTED], *(["..."] if len(missing) > LISTED else [])]
    return lacking


def _history_notices(results: Results, history: Sequence[EarlierQuestion]) -> Iterator[str]:
    """Yield sentences on earlier verdicts by other rules, and on judged values that have changed since."""
    plan = results["plan"]
    ours = {"baseline": plan["arms"][0], "table": {}, **{name: plan.get(name) for name in RULES if name in plan}}
    others = [past for past in history if {name: past[name] for name in (*RULES, "baseline")} != ours]
    if others:
        asked = "once" if len(others) == 1 else f"{len(others)} times"
        yield f"The table was judged {asked} before by other rules: {'; '.join(map(_format_rules, others))}."
    changed: Counter[str] = Counter()
    for past in history:
        changed.update(past.get("changed", {}))
    if changed:
        listed = ", ".join(f"{arm} {number}" for arm, number in changed.items())
        yield f"Values that have changed or were removed since they were judged: {listed}."


def _join_columns(table: JudgedTable) -> str:
    return " and ".join([*table["block"], *([table["seed"]] if table["seed"] and "blocks" not in table else [])])


def _list_blocks(results: Results, seeds: Sequence[int]) -> str:
    shown = [block_label(results, seed) for seed in seeds[:LISTED]]
    more = f" and {len(seeds) - LISTED} more" if len(seeds) > LISTED else ""
    return f"({'; '.join(shown)}{more})" if block_noun(results) == "block" else f"{', '.join(shown)}{more}"


def _format_rules(asked: EarlierQuestion) -> str:
    margin = "" if asked["equivalence"] is None else f", margin {asked['equivalence']:g}"
    level = f", alpha {asked['alpha']:g}"
    against = f" against {asked['baseline']}" if asked["baseline"] else ""
    columns = "".join(f", {_format_option(name, value)}" for name, value in asked["table"].items())
    return f"{asked['primary']} ({asked['direction']}){against}{margin}{level}{columns}, {asked['seeds']} seeds"


def _format_option(name: str, value: Any) -> str:
    return name if value is True else f"{name} {' and '.join(value) if isinstance(value, list) else value}"


def describe_source(results: Results) -> list[str]:
    """Return a sentence on the table and its runs."""
    table = results.get("judged")
    if table is None:
        return []
    counts = [run["outcome"] for arm in results["arms"] for run in arm["runs"]]
    ended = sum(outcome in OUTCOMES for outcome in counts)
    runs, arms = (
        f"{number} {noun}{'s' * (number != 1)}" for number, noun in ((ended, "run"), (len(results["arms"]), "arm"))
    )
    chosen = f", chosen by {' and '.join(table['where'])}" if "where" in table else ""
    return [f"{runs} of {arms}, read from {table['source']}{chosen}. taetpu did not train them."]

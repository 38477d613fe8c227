"""Shares of solved runs and times to a value, in sentences and cells of tables (see `stats.outcomes`)."""

from collections.abc import Mapping
from typing import Any

from taetpu.stats import formatting
from taetpu.stats.results import Arm, Results

VALUE_PLACES = 4


def is_timed(results: Results) -> bool:
    """Return whether arms are compared by the time to a value."""
    return "reach" in results["plan"]


def has_outcome(results: Results) -> bool:
    """Return whether arms are compared by an outcome other than the primary metric itself."""
    return is_timed(results) or "solved" in results["plan"]


def value_places(results: Results, places: int) -> int:
    """Return the decimal places of the primary metric's values, where `places` are those of what arms are compared by.

    Steps to a value have no decimal places, but the losses that lead there have.
    """
    return VALUE_PLACES if has_outcome(results) else places


def format_mean(arm: Arm, results: Results, places: int) -> str:
    """Format the mean of an arm: the number of its solved runs, or its mean time with the number of arrivals."""
    mean = formatting.number(arm["mean"], places)
    if "reached" not in arm or arm["mean"] is None:
        return mean
    reached = f"{arm['reached']} of {len(arm['runs'])}"
    return f"{mean} ({reached})" if is_timed(results) else reached


def describe_shares(results: Results) -> str:
    """Return a sentence on the smallest p-value of a study whose arms are compared by shares of solved runs."""
    from taetpu.stats.outcomes import smallest_p  # scipy.stats takes a second to import

    seeds = len(results["seeds"])
    if (least := smallest_p(seeds)) is None:
        return "The exact test of shares needs two seeds."
    return (
        f"With {seeds} seeds, the exact test reaches a p of {formatting.p_value(least)} at best, without a correction, "
        "if all runs of an arm solve the task and none of the baseline."
    )


def describe_exact_test(shares: Mapping[str, Any]) -> str:
    """Return a note for `taetpu plan` on the p-values that the exact test of shares can reach.

    Args:
        shares: the entry `shares` of `study.resolution.resolution`.
    """
    seeds, arms, least, needed = (shares[name] for name in ("seeds", "arms", "smallest_p", "needed"))
    if least is None:
        return "a single seed gives no test of shares of solved runs"
    reached = f"reaches a p of {least:.2g} at best (all runs of an arm solve the task, none of the baseline)"
    comparisons = f"{arms} comparison{'s' * (arms != 1)}"
    more = f"{needed} seeds at least" if needed else "more seeds than can be counted"
    return (
        f"the exact test of solved runs with {seeds} seeds {reached}. A verdict takes a p below {shares['level']:.2g}, "
        f"because of {comparisons} and the planned analyses; this needs {more}"
    )

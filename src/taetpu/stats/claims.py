"""Checking of claims such as `nope is worse by at least 0.02`, `nope is above 1.9`, against a study's results."""

import math
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np
import scipy

from taetpu.core.errors import KeyPath, UserError, check_known, suggest
from taetpu.core.number_parsing import parse_float
from taetpu.stats import formatting
from taetpu.stats.outcomes import count_solved, wilson
from taetpu.stats.plan import describe_metric
from taetpu.stats.results import Results

CLAIM = re.compile(
    r"(?P<arm>.+?) is (?P<negated>not )?(?P<verdict>better|worse|equivalent|inconclusive)"
    r"(?: (?:than|to) (?P<other>.+?))?"
    r"(?: by (?P<bound>at least|at most) (?P<size>\S+))?"
)
LEVEL = re.compile(r"(?P<arm>.+?) is (?P<side>above|below) (?P<level>\S+)")
MEASURE = re.compile(r"(?P<measure>.+) of (?P<table>\S+) in (?P<arm>\S+)")
REPETITIONS = re.compile(r"at most (?P<most>\d+) of (?P<number>\d+) repetitions have a false verdict")
EXAMPLES = (
    "Write e.g. `nope is worse by at least 0.02`, `layernorm is equivalent`, `one-head is not better`, `baseline is "
    "below 1.9`, or `swiglu is better than relu` for a contrast of measure.contrasts."
)
OPPOSITE = {"better": "worse", "worse": "better"}

MIN_PLACES = 4
"""Minimum number of decimal places for the end of an interval in a finding."""


@dataclass(frozen=True)
class Claim:
    """Claim about an arm or a contrast.

    Attributes:
        text: the claim as written.
        arm: the name of the arm or the contrast.
        verdict: the claimed verdict.
        negated: whether the claim says that the verdict does not hold.
        bound: `at least` or `at most` if the claim bounds the size of the effect, else None.
        size: the bound on the effect's size. The claim holds only if the whole 95 % interval satisfies the bound.
        other: the arm that the claim compares with; None for the arm's baseline, or for a contrast.
    """

    text: str
    arm: str
    verdict: str
    negated: bool = False
    bound: str | None = None
    size: float = 0.0
    other: str | None = None


@dataclass(frozen=True)
class LevelClaim:
    """Claim about the primary metric of an arm, which may be the baseline. It holds if the whole interval satisfies it.

    Attributes:
        text: the claim as written.
        arm: the name of the arm.
        side: on which side of the level the arm's mean is.
        level: the level.
        measure: a measure of a post-hoc table, such as `effective number`, that the claim is about in place of the
            primary metric; "" for the primary metric.
        table: the name of the table, such as `heads-mean`.
    """

    text: str
    arm: str
    side: str
    level: float
    measure: str = ""
    table: str = ""


@dataclass(frozen=True)
class RepetitionClaim:
    """Claim about a study in which no arm matters; see `stats.repetitions`.

    Attributes:
        text: the claim as written.
        most: the claimed maximum number of repetitions with a verdict of better or worse.
        number: the number of repetitions into which the seeds are divided.
    """

    text: str
    most: int
    number: int


AnyClaim: TypeAlias = Claim | LevelClaim | RepetitionClaim


@dataclass(frozen=True)
class Finding:
    """Result of checking a claim, with the evidence."""

    claim: AnyClaim
    holds: bool
    evidence: str


def parse_claim(text: Any, where: KeyPath) -> AnyClaim:
    """Parse a claim.

    Args:
        text: the claim as written.
        where: the claim's location in the claims file, for messages.

    Raises:
        UserError: If the claim does not have the expected form, if the size in the claim is not a number of at least 0,
            if the level is not a number, or if the claim gives a size for a negated or inconclusive verdict.
    """
    words = " ".join(str(text).split())
    if isinstance(text, str) and (parts := REPETITIONS.fullmatch(words)):
        return RepetitionClaim(text, int(parts["most"]), int(parts["number"]))
    if isinstance(text, str) and (parts := LEVEL.fullmatch(words)):
        of = MEASURE.fullmatch(parts["arm"])
        subject = (of["arm"], of["measure"], of["table"]) if of else (parts["arm"], "", "")
        try:
            return LevelClaim(text, subject[0], parts["side"], parse_float(parts["level"]), *subject[1:])
        except ValueError:
            problem = f"the level must be a number, got {parts['level']!r}"
            raise UserError(problem, path=where, remedy="Use e.g. 1.9.") from None
    parts = CLAIM.fullmatch(words)
    if not isinstance(text, str) or parts is None:
        raise UserError(f"{text!r} is not a valid claim", path=where, remedy=EXAMPLES)
    if parts["bound"] and (parts["negated"] or parts["verdict"] == "inconclusive"):
        problem = f"{text!r} gives a size for a negated or inconclusive verdict"
        raise UserError(problem, path=where, remedy=EXAMPLES)
    size = _parse_size(parts["size"], where) if parts["bound"] else 0.0
    return Claim(text, parts["arm"], parts["verdict"], bool(parts["negated"]), parts["bound"], size, parts["other"])


def _parse_size(text: str, where: KeyPath) -> float:
    try:
        size = parse_float(text)
    except ValueError:
        size = -1.0
    if size < 0:
        problem = f"the size of an effect must be a number of at least 0, got {text!r}"
        raise UserError(problem, path=where, remedy="Use e.g. 0.02.")
    return size


def check_claim(claim: Claim | LevelClaim, results: Results, where: KeyPath) -> Finding:
    """Check a claim against a study's results. No claim holds if its arm or contrast has no verdict.

    The level of an arm is compared with the 95 % interval of its mean, Student's t over its seeds. Such a claim does
    not hold for fewer than two seeds, or if runs of the arm are missing or diverged.

    Args:
        claim: the claim.
        results: the content of `results.json`.
        where: the claim's location in the claims file, for messages.

    Raises:
        UserError: If the study has no such arm or contrast, the arm is a baseline, or two arms are compared that no
            planned contrast compares.
    """
    if isinstance(claim, LevelClaim):
        return _check_level(claim, results, where)
    arm, verdict = _judged(claim, results, where)
    if arm["verdict"] is None:
        why = "a single seed gives no verdict" if results["label"] == "single seed" else "there is no verdict yet"
        return Finding(claim, False, f"{why}. {arm['evidence']}")
    evidence = f"{arm['verdict']}. {arm['evidence']}"
    if (arm["verdict"] == verdict) == claim.negated:
        return Finding(claim, False, evidence)
    least, most = _effect_sizes(arm["ci95"])
    places = max(formatting.decimals(formatting.half_width(arm["ci95"])), MIN_PLACES)
    if claim.bound == "at least" and least < claim.size:
        size = formatting.number(least, places)
        return Finding(claim, False, f"the 95 % interval contains effects as small as {size}. {evidence}")
    if claim.bound == "at most" and most > claim.size:
        size = formatting.number(most, places)
        return Finding(claim, False, f"the 95 % interval contains effects as large as {size}. {evidence}")
    return Finding(claim, True, evidence)


def _check_level(claim: LevelClaim, results: Results, where: KeyPath) -> Finding:
    arms = {arm["name"]: arm for arm in results["arms"]}
    check_known(claim.arm, arms, f"study {results['study']!r} has no arm {claim.arm!r}", path=where)
    if claim.table:
        return _check_measure(claim, results, where)
    runs = arms[claim.arm]["runs"]
    values = [run["value"] for run in runs if run["value"] is not None]
    if len(values) < len(runs):
        return Finding(claim, False, f"{len(runs) - len(values)} of {len(runs)} runs have no final value")
    if len(values) < 2:
        return Finding(claim, False, "a single seed gives no interval")
    plan = results.get("plan", {})
    if "solved" in plan:
        mean, low, high = wilson(count_solved(values), float(scipy.stats.norm.isf(0.025)))
    else:
        mean = sum(values) / len(values)
        half = _half_width(float(np.std(values, ddof=1)), len(values))
        low, high = mean - half, mean + half
    rung = arms[claim.arm].get("role", {}).get("ladder", {}).get("rung", "")
    task = plan.get("tasks", {}).get(rung, {"primary": results["primary"]})
    what = describe_metric(plan).label if {"solved", "reach"} & {*plan} else task["primary"]
    return _compare_level(claim, what, mean, low, high)


def _check_measure(claim: LevelClaim, results: Results, where: KeyPath) -> Finding:
    """Check a claim about a measure of a post-hoc table. The interval is Student's t over seeds."""
    tables = {table["name"]: table for table in results.get("post_hoc", ())}
    check_known(claim.table, tables, f"study {results['study']!r} has no table {claim.table!r}", path=where)
    arm = next(arm for arm in tables[claim.table]["arms"] if arm["name"] == claim.arm)
    measures = arm["values"]
    check_known(claim.measure, measures, f"table {claim.table!r} has no measure {claim.measure!r}", path=where)
    value = measures[claim.measure]
    if value["number"] < arm["runs"]:
        return Finding(claim, False, f"{arm['runs'] - value['number']} of {arm['runs']} runs lack this measure")
    if value["mean"] is None or value["sd"] is None:
        return Finding(claim, False, "a single seed gives no interval")
    half = _half_width(value["sd"], value["number"])
    return _compare_level(claim, claim.measure, value["mean"], value["mean"] - half, value["mean"] + half)


def _half_width(sd: float, number: int) -> float:
    """Return half of the width of Student's 95 % interval of a mean."""
    return float(scipy.stats.t.ppf(0.975, number - 1)) * sd / math.sqrt(number)


def _compare_level(claim: LevelClaim, what: str, mean: float, low: float, high: float) -> Finding:
    """Return whether the interval of a mean is on the claimed side of the level."""
    places = max(formatting.decimals((high - low) / 2), MIN_PLACES)
    ends = " to ".join(formatting.number(end, places) for end in (low, high))
    holds = low > claim.level if claim.side == "above" else high < claim.level
    return Finding(claim, holds, f"{what} is {formatting.number(mean, places)}, 95 % interval {ends}")


def _judged(claim: Claim, results: Results, where: KeyPath) -> tuple[Mapping[str, Any], str]:
    """Return the entry of the arm or contrast that a claim is about, and the claimed verdict on this entry."""
    contrasts = {entry["name"]: entry for entry in results.get("contrasts", ())}
    arms = {arm["name"]: arm for arm in results["arms"] if arm["against"]}
    if claim.other is None:
        known = arms | contrasts
        if claim.arm not in known:
            what = "arm or contrast" if contrasts else "arm"
            problem = f"study {results['study']!r} has no {what} {claim.arm!r}"
            raise UserError(problem, path=where, remedy=suggest(claim.arm, known))
        return known[claim.arm], claim.verdict
    names = [arm["name"] for arm in results["arms"]]
    for name in (claim.arm, claim.other):
        check_known(name, names, f"study {results['study']!r} has no arm {name!r}", path=where)
    if claim.arm in arms and arms[claim.arm]["against"] == claim.other:
        return arms[claim.arm], claim.verdict
    for planned in (entry for entry in contrasts.values() if "spread" not in entry):
        if (planned["compare"], planned["to"]) == ([claim.arm], [claim.other]):
            return planned, claim.verdict
        if (planned["compare"], planned["to"]) == ([claim.other], [claim.arm]):
            return planned, OPPOSITE.get(claim.verdict, claim.verdict)
    contrast = f"{{{claim.arm}-vs-{claim.other}: {{compare: {claim.arm}, to: {claim.other}}}}}"
    remedy = f"Plan it before the first run of a study: measure: {{contrasts: {contrast}}}."
    raise UserError(f"no planned contrast compares {claim.arm!r} with {claim.other!r}", path=where, remedy=remedy)


def _effect_sizes(interval: list[float] | None) -> tuple[float, float]:
    """Return the smallest and the largest absolute value in an effect's interval."""
    if interval is None:
        return 0.0, math.inf
    low, high = interval
    sizes = sorted((abs(low), abs(high)))
    return (0.0 if low <= 0 <= high else sizes[0]), sizes[1]

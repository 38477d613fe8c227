"""Claims about a study, checked against its results: `nope is worse by at least 0.02`."""

import math
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from taetpu.core.errors import KeyPath, UserError, suggest
from taetpu.core.numerals import parse_float
from taetpu.stats import formatting

CLAIM = re.compile(
    r"(?P<arm>\S+) is (?P<negated>not )?(?P<verdict>better|worse|equivalent|inconclusive)"
    r"(?: by (?P<bound>at least|at most) (?P<size>\S+))?"
)
EXAMPLES = "e.g. `nope is worse by at least 0.02`, `layernorm is equivalent`, `one-head is not better`"

MIN_PLACES = 4
"""Decimals of an interval's end in a finding."""


@dataclass(frozen=True)
class Claim:
    """What is said of an arm.

    Attributes:
        at_least, at_most: of the size of the effect; the whole 95 % interval must keep to it.
    """

    text: str
    arm: str
    verdict: str
    negated: bool = False
    at_least: float | None = None
    at_most: float | None = None


@dataclass(frozen=True)
class Finding:
    """Whether a claim holds, and what the results say instead or in addition."""

    claim: Claim
    holds: bool
    evidence: str


def parse_claim(text: Any, where: KeyPath) -> Claim:
    """A claim as it is written.

    Raises:
        UserError: it has another form, or its number is none.
    """
    found = CLAIM.fullmatch(" ".join(str(text).split()))
    if not isinstance(text, str) or found is None:
        raise UserError(f"{text!r} is not a claim that can be checked", path=where, remedy=EXAMPLES)
    bounds = {}
    if found["bound"]:
        bounds[found["bound"].replace(" ", "_")] = _parse_size(found["size"], where)
        if found["negated"] or found["verdict"] == "inconclusive":
            raise UserError(f"{text!r} puts a size on what has none", path=where, remedy=EXAMPLES)
    return Claim(text, found["arm"], found["verdict"], bool(found["negated"]), **bounds)


def _parse_size(text: str, where: KeyPath) -> float:
    try:
        size = parse_float(text)
    except ValueError:
        size = -1.0
    if size < 0:
        raise UserError(f"{text!r} is not the size of an effect", path=where, remedy="a number of 0 or more, e.g. 0.02")
    return size


def check_claim(claim: Claim, results: Mapping[str, Any], where: KeyPath) -> Finding:
    """Does a claim hold in these results? Not before they are final.

    Raises:
        UserError: the study has no such arm.
    """
    arms = {arm["name"]: arm for arm in results["arms"] if arm["against"]}
    if claim.arm not in arms:
        raise UserError(
            f"study {results['study']!r} has no arm {claim.arm!r}", path=where, remedy=suggest(claim.arm, arms)
        )
    arm = arms[claim.arm]
    if arm["verdict"] is None:
        why = "a single seed gives no verdict" if results.get("label") == "single seed" else "there is no verdict yet"
        return Finding(claim, False, f"{why}. {arm['evidence']}")
    said = f"{arm['verdict']}. {arm['evidence']}"
    if (arm["verdict"] == claim.verdict) == claim.negated:
        return Finding(claim, False, said)
    least, most = _effect_sizes(arm["ci95"])
    places = max(formatting.decimals(formatting.half_width(arm["ci95"])), MIN_PLACES)
    if claim.at_least is not None and least < claim.at_least:
        return Finding(
            claim, False, f"the interval reaches down to a size of {formatting.number(least, places)}. {said}"
        )
    if claim.at_most is not None and most > claim.at_most:
        return Finding(claim, False, f"the interval reaches up to a size of {formatting.number(most, places)}. {said}")
    return Finding(claim, True, said)


def _effect_sizes(interval: list[float] | None) -> tuple[float, float]:
    """The smallest and the largest size of an effect within its interval."""
    if interval is None:
        return 0.0, math.inf
    low, high = interval
    sizes = sorted((abs(low), abs(high)))
    return (0.0 if low <= 0 <= high else sizes[0]), sizes[1]

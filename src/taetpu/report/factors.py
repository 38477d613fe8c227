"""A factorial in a sentence: which factors, and which pairs of them, made a clear difference."""

from collections.abc import Mapping, Sequence
from typing import Any

from taetpu.report.comparison import Results

Term = Mapping[str, Any]
"""A factor, or two that interact, as `stats.factorial` has it."""


def term_title(term: Term) -> str:
    """What a term is called: `norm x ffn`."""
    return " x ".join(term["factors"])


def aliases(term: Term) -> list[str]:
    """What was measured as one with a term."""
    return [" x ".join(other) for other in term["aliases"]]


def term_with_aliases(term: Term) -> str:
    """A term with what it cannot be told from: `norm or position x ffn`."""
    return " or ".join([term_title(term), *aliases(term)])


def single_effects(terms: Sequence[Term]) -> list[Term]:
    """The terms of one factor or two that come to one number; a factor of three levels has none."""
    return [term for term in terms if len(term["factors"]) < 3 and term["effect"] is not None]


def significant_terms(terms: Sequence[Term], alpha: float) -> list[Term]:
    """The terms that are told from nothing, corrected for their number."""
    return [term for term in terms if term["p_holm"] is not None and term["p_holm"] < alpha]


def describe_factorial(results: Results, rung: str) -> str | None:
    """What the factors did at one scale (`""` without a ladder), counted by terms rather than by cells: of a single
    factor that matters, half the cells differ from the baseline. None where there is no factorial, or no noise to
    judge it by.
    """
    entry = results["designs"].get("factorial", {}).get("scales", {}).get(rung)
    terms = [term for term in entry["terms"] if term["p_holm"] is not None] if entry else []
    if not terms:
        return None
    single = [term for term in terms if len(term["factors"]) == 1]
    pairs = [term for term in terms if len(term["factors"]) > 1]
    first, second = significant_terms(single, results["alpha"]), significant_terms(pairs, results["alpha"])
    many = f"{len(first)} of {len(single)}" if first else f"None of {len(single)}"
    which = ", ".join(f"{term_with_aliases(term)}{_direction(term, results['direction'])}" for term in first)
    text = f"{many} factors made a clear difference to {results['primary']}{f' ({which})' if first else ''}"
    if len(pairs) == 1:
        told = "is told from none" if second else "could not be told from none"
        text += f", and their interaction {told}"
    elif pairs:
        many = f"{len(second)} of {len(pairs)}" if second else f"none of {len(pairs)}"
        which = f" ({', '.join(map(term_with_aliases, second))})" if second else ""
        text += f", and {many} pairs clearly changed each other's effect{which}"
    return f"{text}."


def _direction(term: Term, direction: str) -> str:
    """Better or worse, where a single effect says it of a single factor."""
    if not term["effect"] or term["aliases"]:
        return ""
    return " better" if (term["effect"] < 0) == (direction == "min") else " worse"

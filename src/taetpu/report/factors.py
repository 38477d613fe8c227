"""Sentences on the factors and pairs of factors with significant effects in a factorial design."""

from collections.abc import Sequence

from taetpu.stats.plan import describe_metric
from taetpu.stats.results import Results, Term


def term_title(term: Term) -> str:
    """Return a term's name, e.g. `norm x ffn`."""
    return " x ".join(term["factors"])


def aliases(term: Term) -> list[str]:
    """Return the names of a term's aliases."""
    return [" x ".join(other) for other in term["aliases"]]


def term_with_aliases(term: Term) -> str:
    """Return a term's name with the names of its aliases, e.g. `norm or position x ffn`."""
    return " or ".join([term_title(term), *aliases(term)])


def single_effects(terms: Sequence[Term]) -> list[Term]:
    """Return the terms whose effect is a single number. Terms with a factor of three or more levels are excluded."""
    return [term for term in terms if len(term["factors"]) < 3 and term["effect"] is not None]


def significant_terms(terms: Sequence[Term], alpha: float) -> list[Term]:
    """Return the terms that are significant after Holm's correction for the number of terms."""
    return [term for term in terms if term["p_holm"] is not None and term["p_holm"] < alpha]


def describe_factorial(results: Results, rung: str) -> str | None:
    """Return a sentence on the significant terms at one scale, or None if no term was tested.

    The sentence counts terms instead of cells, since a single factor with an effect changes half of all cells.

    Args:
        results: the content of `results.json`.
        rung: name of the scale, or `""` without a ladder.
    """
    crossed = results["designs"].get("factorial")
    entry = crossed["scales"].get(rung) if crossed else None
    terms = [term for term in entry["terms"] if term["p_holm"] is not None] if entry else []
    if not terms:
        return None
    single = [term for term in terms if len(term["factors"]) == 1]
    pairs = [term for term in terms if len(term["factors"]) > 1]
    first, second = significant_terms(single, results["alpha"]), significant_terms(pairs, results["alpha"])
    metric = describe_metric(results["plan"]).label
    many = f"{len(first)} of {len(single)}" if first else f"None of {len(single)}"
    which = ", ".join(f"{term_with_aliases(term)}{_direction(term, results['direction'])}" for term in first)
    text = f"{many} factors had a significant effect on {metric}{f' ({which})' if first else ''}"
    if len(pairs) == 1:
        text += f", and their interaction is {'' if second else 'not '}significant"
    elif pairs:
        many = f"{len(second)} of {len(pairs)}" if second else f"none of {len(pairs)}"
        which = f" ({', '.join(map(term_with_aliases, second))})" if second else ""
        text += f", and {many} interactions are significant{which}"
    return f"{text}."


def _direction(term: Term, direction: str) -> str:
    """Return ` better` or ` worse` for a term with a nonzero effect and no aliases, else an empty string."""
    if not term["effect"] or term["aliases"]:
        return ""
    return " better" if (term["effect"] < 0) == (direction == "min") else " worse"

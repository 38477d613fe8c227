"""Factorial designs: main effects and two-factor interactions.

Effects are coded as deviations from the mean, so the terms of a balanced design are orthogonal. In a fractional
two-level design, some terms are aliases of each other. Aliased terms are estimated as one term with the name of the
first alias.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations

import numpy as np
import scipy

from taetpu.core.metric_spec import UNBOUNDED
from taetpu.stats.linear_model import CONFIDENCE, ROUNDING, Values, clip
from taetpu.stats.results import FactorialScale
from taetpu.stats.results import Term as AnalysedTerm
from taetpu.stats.verdict import holm

Term = tuple[str, ...]
"""A factor, or a pair of factors."""


@dataclass(frozen=True)
class Factorial:
    """Factorial design.

    Attributes:
        levels: number of levels for each factor. Level 0 is the level of the baseline.
        cells: mapping from each arm to its level of every factor.
    """

    levels: Mapping[str, int]
    cells: Mapping[str, Mapping[str, int]]

    def columns(self, term: Term) -> np.ndarray:
        """Return the term's columns of the design matrix, `(arms, columns)`, with sum-to-zero coding."""
        columns = np.ones((len(self.cells), 1))
        for factor in term:
            levels = self.levels[factor]
            code = np.vstack([-np.ones(levels - 1), np.eye(levels - 1)])  # sums to zero over levels
            coded = code[[cell[factor] for cell in self.cells.values()]]
            columns = np.einsum("ij,ik->ijk", columns, coded).reshape(len(self.cells), -1)
        return columns

    def terms(self) -> list[Term]:
        """Return every factor and every pair of factors."""
        return [*((factor,) for factor in self.levels), *combinations(self.levels, 2)]

    def aliases(self) -> dict[Term, list[Term]]:
        """Return the estimable terms with their aliases. A full design has no aliases."""
        known: dict[Term, list[Term]] = {}
        for term in self.terms():
            columns = self.columns(term)
            twin = next((other for other in known if _same(columns, self.columns(other))), None)
            if twin is None:
                known[term] = []
            else:
                known[twin].append(term)
        return known


def _same(a: np.ndarray, b: np.ndarray) -> bool:
    return a.shape == b.shape and bool(np.allclose(a, b) or np.allclose(a, -b))


def analyse_factorial(design: Factorial, values: Values, bounds: tuple[float, float] = UNBOUNDED) -> FactorialScale:
    """Return an analysis of variance (marginal tests, "type III") with Holm's correction over terms.

    Each term is estimated separately for each seed and tested against the variation of these estimates, as in a
    repeated-measures analysis. Pooling over cells would underestimate the noise. Cells that share a level also share
    initial weights and data, so their noise is correlated.

    Args:
        design: the factorial design.
        values: values by arm and seed. Only the seeds with a value for every arm are used. Nothing is estimated if
            there are no such seeds or if the design does not identify all terms.
        bounds: smallest and largest possible value. Intervals are clipped to the effects that these bounds allow.

    Returns:
        The analysis of each term. The effect of a factor is the mean at its other level minus the mean at the
        baseline's level. The effect of a pair is the change in the effect of one factor that the other factor causes.
        Effects and their intervals are None unless all factors in the term have two levels. P-values and intervals are
        None with fewer than two seeds or without noise.
    """
    aliases = design.aliases()
    missing = [arm for arm in design.cells if not values.get(arm)]
    rows = [values.get(arm, {}) for arm in design.cells]
    seeds = sorted(set.intersection(*(set(row) for row in rows))) if rows else []
    y = np.array([[row[seed] for seed in seeds] for row in rows], dtype=np.float64)
    columns = {term: design.columns(term) for term in aliases}
    whole = np.hstack([np.ones((len(rows), 1)), *columns.values()])
    known = bool(seeds) and np.linalg.matrix_rank(whole) == whole.shape[1]
    terms = [_term(term, aliases[term], design, columns, y if known else None, bounds) for term in aliases]
    corrected = holm({str(i): entry["p"] for i, entry in enumerate(terms)})
    for i, entry in enumerate(terms):
        entry["p_holm"] = corrected[str(i)]
    return {"terms": terms, "seeds": len(seeds), "missing": missing}


def _term(
    term: Term,
    aliases: Sequence[Term],
    design: Factorial,
    columns: Mapping[Term, np.ndarray],
    y: np.ndarray | None,
    bounds: tuple[float, float],
) -> AnalysedTerm:
    """Return the analysis of one term, without Holm's correction.

    `y` has the shape `(arms, seeds)`; it is None if nothing can be estimated.
    """
    df = columns[term].shape[1]
    row: AnalysedTerm = {
        "factors": list(term), "aliases": [list(other) for other in aliases], "df": df,
        "effect": None, "ci95": None, "p": None, "p_holm": None, "share": None,
    }  # fmt: skip
    if y is None:
        return row
    others = np.hstack([np.ones((len(y), 1)), *(part for other, part in columns.items() if other != term)])
    alone = columns[term] - others @ np.linalg.lstsq(others, columns[term], rcond=None)[0]
    directions, sizes, _ = np.linalg.svd(alone, full_matrices=False)
    on_seeds, total = directions.T @ y, float(((y - y.mean(0)) ** 2).sum())  # (columns, seeds)
    seeds, mean = y.shape[1], on_seeds.mean(1)
    between = float(seeds * mean @ mean)
    row["share"] = between / total if total else None
    within = float(((on_seeds - mean[:, None]) ** 2).sum())
    noise = within / (df * (seeds - 1)) if seeds > 1 else 0.0
    if noise <= (ROUNDING * float(np.abs(y).max())) ** 2:
        noise = 0.0
    if noise:
        row["p"] = float(scipy.stats.f.sf(between / df / noise, df, df * (seeds - 1)))
    if df == 1 and all(design.levels[factor] == 2 for factor in term):
        # Codes are -1 and 1, so a factor's effect is 2 times its coefficient, and a pair's effect is 4 times.
        scale = 2.0 ** len(term) / float(sizes[0]) * float(np.sign(directions[:, 0] @ alone[:, 0]))
        row["effect"] = scale * float(mean[0])
        if noise:
            half = abs(scale) * float(scipy.stats.t.isf((1 - CONFIDENCE) / 2, seeds - 1)) * (noise / seeds) ** 0.5
            # A factor's effect is a difference of two means. A pair's effect is a difference of two such differences.
            most = 2.0 ** (len(term) - 1) * (bounds[1] - bounds[0])
            row["ci95"] = [clip(row["effect"] + side, (-most, most)) for side in (-half, half)]
    return row

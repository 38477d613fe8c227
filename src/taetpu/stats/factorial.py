"""Factorial designs: what each factor does on average over the others, and which of them change each other's effect.

Each factor and each pair of factors has an effect, coded as deviations from the mean, so that terms of a balanced
design do not mix. In a fraction of a two-level design some terms cannot be told apart: they are aliases of each other,
and are estimated as one under the name of the first.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations
from typing import Any

import numpy as np
from scipy import stats

from taetpu.stats.model import CONFIDENCE, ROUNDING, UNBOUNDED, Values, clip
from taetpu.stats.verdict import holm

Term = tuple[str, ...]
"""One factor, or two that interact."""


@dataclass(frozen=True)
class Factorial:
    """A design.

    Attributes:
        levels: how many each factor has; level 0 is the baseline's.
        cells: each arm's level of each factor.
    """

    levels: Mapping[str, int]
    cells: Mapping[str, Mapping[str, int]]

    def columns(self, term: Term) -> np.ndarray:
        """`(arms, columns)`: the term's indicators, coded so that each sums to 0 over a factor's levels."""
        columns = np.ones((len(self.cells), 1))
        for factor in term:
            levels = self.levels[factor]
            code = np.vstack([-np.ones(levels - 1), np.eye(levels - 1)])  # the baseline's level is minus all others
            own = code[[cell[factor] for cell in self.cells.values()]]
            columns = np.einsum("ij,ik->ijk", columns, own).reshape(len(self.cells), -1)
        return columns

    def terms(self) -> list[Term]:
        """Every factor, and every pair of them."""
        return [*((factor,) for factor in self.levels), *combinations(self.levels, 2)]

    def aliases(self) -> dict[Term, list[Term]]:
        """The terms that can be told apart, each with those that cannot be told from it: none in a full design."""
        found: dict[Term, list[Term]] = {}
        for term in self.terms():
            own = self.columns(term)
            twin = next((other for other in found if _same(own, self.columns(other))), None)
            if twin is None:
                found[term] = []
            else:
                found[twin].append(term)
        return found


def _same(a: np.ndarray, b: np.ndarray) -> bool:
    return a.shape == b.shape and bool(np.allclose(a, b) or np.allclose(a, -b))


def analyse_factorial(design: Factorial, values: Values, bounds: tuple[float, float] = UNBOUNDED) -> dict[str, Any]:
    """The analysis of variance (marginal tests, "type III"), with Holm's correction over its terms.

    Each term is measured once on every seed and judged by how that varies over seeds, as in an analysis of repeated
    measures. Noise pooled over cells would not do: cells that share a level start from the same weights and read the
    same data, so that they copy each other's noise and are no independent measurements of it.

    Args:
        values: of the design's arms. Seeds on which one is missing are left out; where an arm has none, or the arms
            that are there leave terms that cannot be told apart, nothing is estimated.
        bounds: the least and the most that a value can be; intervals are cut to what an effect then can be.

    Returns:
        `terms`: for each its `factors`, `aliases`, `df`, `p`, `p_holm`, `share` of the variance that is not the seeds',
        and, where all its factors have two levels, the `effect` with its `ci95`: of a factor, the mean at its other
        level less that at the baseline's; of a pair, by how much the effect of the one changes when the other is
        changed too.
        `seeds`, the number of those that all arms have; and `missing`, the arms without a value. Tests are None with
        fewer than two seeds, or without noise.
    """
    aliases = design.aliases()
    missing = [arm for arm in design.cells if not values.get(arm)]
    rows = [values.get(arm, {}) for arm in design.cells]
    seeds = sorted(set.intersection(*(set(row) for row in rows))) if rows else []
    y = np.array([[row[seed] for seed in seeds] for row in rows], dtype=np.float64)
    columns = {term: design.columns(term) for term in aliases}
    whole = np.hstack([np.ones((len(rows), 1)), *columns.values()])
    known = bool(seeds) and np.linalg.matrix_rank(whole) == whole.shape[1]
    found = [_term(term, aliases[term], design, columns, y if known else None, bounds) for term in aliases]
    corrected = holm({str(i): entry["p"] for i, entry in enumerate(found)})
    return {
        "terms": [{**entry, "p_holm": corrected[str(i)]} for i, entry in enumerate(found)],
        "seeds": len(seeds),
        "missing": missing,
    }


def _term(
    term: Term,
    aliases: Sequence[Term],
    design: Factorial,
    columns: Mapping[Term, np.ndarray],
    y: np.ndarray | None,
    bounds: tuple[float, float],
) -> dict[str, Any]:
    """One term. `y` is `(arms, seeds)`, or None where nothing can be estimated."""
    own = columns[term].shape[1]
    found: dict[str, Any] = {"factors": list(term), "aliases": [list(other) for other in aliases], "df": own}
    found |= {"effect": None, "ci95": None, "p": None, "share": None}
    if y is None:
        return found
    others = np.hstack([np.ones((len(y), 1)), *(part for other, part in columns.items() if other != term)])
    alone = columns[term] - others @ np.linalg.lstsq(others, columns[term], rcond=None)[0]
    directions, sizes, _ = np.linalg.svd(alone, full_matrices=False)
    on_seeds, total = directions.T @ y, float(((y - y.mean(0)) ** 2).sum())  # (columns, seeds)
    seeds, mean = y.shape[1], on_seeds.mean(1)
    between = float(seeds * mean @ mean)
    found["share"] = between / total if total else None
    within = float(((on_seeds - mean[:, None]) ** 2).sum())
    noise = within / (own * (seeds - 1)) if seeds > 1 else 0.0
    if noise <= (ROUNDING * float(np.abs(y).max())) ** 2:
        noise = 0.0
    if noise:
        found["p"] = float(stats.f.sf(between / own / noise, own, own * (seeds - 1)))
    if own == 1 and all(design.levels[factor] == 2 for factor in term):
        # Codes run from -1 to 1, so a factor's effect is twice its coefficient; and so for a pair, once more.
        scale = 2.0 ** len(term) / float(sizes[0]) * float(np.sign(directions[:, 0] @ alone[:, 0]))
        found["effect"] = scale * float(mean[0])
        if noise:
            half = abs(scale) * float(stats.t.isf((1 - CONFIDENCE) / 2, seeds - 1)) * (noise / seeds) ** 0.5
            # The effect of a factor is a difference of two means, that of a pair one of two such differences.
            most = 2.0 ** (len(term) - 1) * (bounds[1] - bounds[0])
            found["ci95"] = [clip(found["effect"] + side, (-most, most)) for side in (-half, half)]
    return found

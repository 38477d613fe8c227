"""Factorial designs: what each factor does on average over the others, and which of them change each other's effect.

The model has an effect for each seed, each factor and each pair of factors, coded as deviations from the mean, so that
terms of a balanced design do not mix. In a fraction of a two-level design some terms cannot be told apart: they are
aliases of each other, and are estimated as one under the name of the first.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations
from typing import Any

import numpy as np
from scipy import stats
from statsmodels.regression.linear_model import OLS, RegressionResultsWrapper

from taetpu.stats.model import CONFIDENCE, ROUNDING, Values
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


def analyse(design: Factorial, values: Values) -> dict[str, Any]:
    """The analysis of variance (marginal tests, "type III"), with Holm's correction over its terms.

    Args:
        values: of the design's arms. Where arms without one leave terms that cannot be told apart, none is estimated.

    Returns:
        `terms`: for each its `factors`, `aliases`, `df`, `p`, `p_holm`, `share` of the variance that is not the seeds',
        and, where all its factors have two levels, the `effect` with its `ci95`: of a factor, the mean at its other
        level less that at the baseline's; of a pair, by how much the effect of the one changes when the other is
        changed too.
        `residual_sd`, `df`; and `missing`, the arms without a value. Tests are None without residual noise.
    """
    aliases = design.aliases()
    y, blocks, rows = _cells(design, values)
    missing = [arm for arm in design.cells if not values.get(arm)]
    parts = {term: design.columns(term)[rows] for term in aliases} if len(y) else {}
    columns = np.hstack([blocks, *parts.values()]) if parts else np.zeros((0, 1))
    known = np.linalg.matrix_rank(columns) == columns.shape[1]  # else arms are missing without which terms are mixed
    full = OLS(y, columns).fit() if known else None
    noise = full is not None and full.df_resid > 0 and full.ssr > len(y) * (ROUNDING * np.abs(y).max()) ** 2
    total = _total(y, blocks) if full is not None else 0.0
    found = [_term(term, aliases[term], design, parts, blocks, full if noise else None, total) for term in aliases]
    corrected = holm({str(i): entry["p"] for i, entry in enumerate(found)})
    return {
        "terms": [{**entry, "p_holm": corrected[str(i)]} for i, entry in enumerate(found)],
        "residual_sd": float(np.sqrt(full.mse_resid)) if noise and full is not None else None,
        "df": int(full.df_resid) if full is not None else 0,
        "missing": missing,
    }


def _cells(design: Factorial, values: Values) -> tuple[np.ndarray, np.ndarray, list[int]]:
    """Values, an indicator for each seed, and each value's row of the design."""
    cells = [(i, seed, value) for i, arm in enumerate(design.cells) for seed, value in values.get(arm, {}).items()]
    seeds = sorted({seed for _, seed, _ in cells})
    blocks = np.array([[float(seed == other) for other in seeds] for _, seed, _ in cells])
    return np.array([value for *_, value in cells]), blocks, [i for i, *_ in cells]


def _total(y: np.ndarray, blocks: np.ndarray) -> float:
    """The sum of squares that is not the seeds'."""
    return float(OLS(y, blocks).fit().ssr)


def _term(
    term: Term,
    aliases: Sequence[Term],
    design: Factorial,
    parts: Mapping[Term, np.ndarray],
    blocks: np.ndarray,
    full: RegressionResultsWrapper | None,
    total: float,
) -> dict[str, Any]:
    own = design.columns(term).shape[1]
    found: dict[str, Any] = {"factors": list(term), "aliases": [list(other) for other in aliases], "df": own}
    found |= {"effect": None, "ci95": None, "p": None, "share": None}
    if full is None:
        return found
    start = blocks.shape[1] + sum(parts[other].shape[1] for other in list(parts)[: list(parts).index(term)])
    contrast = np.eye(full.model.exog.shape[1])[start : start + own]
    test = full.f_test(contrast)
    squares = float(np.squeeze(test.fvalue)) * own * full.mse_resid
    found |= {"p": float(np.squeeze(test.pvalue)), "share": squares / total if total else None}
    if own == 1 and all(design.levels[factor] == 2 for factor in term):
        scale = 2.0 ** len(term)  # codes run from -1 to 1, so a factor's effect is twice its coefficient
        half = float(stats.t.isf((1 - CONFIDENCE) / 2, full.df_resid)) * float(full.bse[start]) * scale
        effect = float(full.params[start]) * scale
        found |= {"effect": effect, "ci95": [effect - half, effect + half]}
    return found

"""Analysis of divergence as an outcome: counts, a test of equal divergence rates, and worst-case values."""

from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache

import scipy

from taetpu.stats.blocked_anova import Values
from taetpu.stats.plan import Direction

DivergedSeeds = Mapping[str, frozenset[int]]
"""Seeds with a diverged run, by arm."""


@dataclass(frozen=True)
class Count:
    """Number of an arm's runs with each outcome."""

    finished: int
    diverged: int

    @property
    def ended(self) -> int:
        """Number of runs that finished or diverged."""
        return self.finished + self.diverged


@lru_cache(maxsize=4096)  # each call searches over the nuisance parameter
def boschloo_p(arm: Count, baseline: Count) -> float | None:
    """Return the two-sided p-value of Boschloo's exact test for equal divergence rates.

    The p-value is None if either arm has fewer than two ended runs or if all runs have the same outcome.

    Source: Boschloo (1970), Raised conditional level of significance for the 2x2-table.
    """
    if min(arm.ended, baseline.ended) < 2:
        return None
    if not arm.diverged + baseline.diverged or not arm.finished + baseline.finished:
        return None
    table = [[arm.diverged, baseline.diverged], [arm.finished, baseline.finished]]
    return float(scipy.stats.boschloo_exact(table).pvalue)


def impute_worst(values: Values, lost: DivergedSeeds, direction: Direction) -> dict[str, dict[int, float]]:
    """Return the values, with the worst value of any finished run imputed for each diverged run."""
    known = [value for row in values.values() for value in row.values()]
    if not known:
        return {arm: dict(row) for arm, row in values.items()}
    worst = max(known) if direction == "min" else min(known)
    return {arm: {**row, **dict.fromkeys(sorted(lost.get(arm, ())), worst)} for arm, row in values.items()}

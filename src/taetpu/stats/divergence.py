"""Divergence is an outcome: counted, tested, and never a reason for an arm to look better than it is."""

from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache

from scipy import stats

from taetpu.stats.model import Values
from taetpu.stats.plan import Direction

DivergedSeeds = Mapping[str, frozenset[int]]
"""The seeds on which an arm diverged, by arm."""


@dataclass(frozen=True)
class Count:
    """How an arm's runs ended."""

    finished: int
    diverged: int

    @property
    def ended(self) -> int:
        return self.finished + self.diverged


@lru_cache(maxsize=4096)  # a search over the nuisance parameter each time
def boschloo_p(arm: Count, baseline: Count) -> float | None:
    """The p of equal chances to diverge, two-sided; None where nothing can be compared.

    Source: Boschloo (1970), Raised conditional level of significance for the 2x2-table.
    """
    if min(arm.ended, baseline.ended) < 2:
        return None
    if not arm.diverged + baseline.diverged or not arm.finished + baseline.finished:
        return None
    table = [[arm.diverged, baseline.diverged], [arm.finished, baseline.finished]]
    return float(stats.boschloo_exact(table).pvalue)


def impute_worst(values: Values, lost: DivergedSeeds, direction: Direction) -> dict[str, dict[int, float]]:
    """The values with the worst of any finished run in place of each that diverged: those were at least as bad."""
    known = [value for row in values.values() for value in row.values()]
    if not known:
        return {arm: dict(row) for arm, row in values.items()}
    worst = max(known) if direction == "min" else min(known)
    return {arm: {**row, **dict.fromkeys(sorted(lost.get(arm, ())), worst)} for arm, row in values.items()}

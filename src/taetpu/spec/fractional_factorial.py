"""Fractional two-level factorial designs: the cells to run and the effects that are aliased.

Source: Box, Hunter and Hunter (2005), Statistics for Experimenters, chapter 6.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import reduce
from itertools import combinations, product

Word = frozenset[str]
"""Factors whose product is constant over the cells of a fraction."""


@dataclass(frozen=True)
class Fraction:
    """A fraction of a factorial design.

    Attributes:
        factors: The names of the factors.
        cells: The level of each factor, cell by cell. The baseline's cell, all zeros, comes first.
        words: The defining words: products of factors that are constant. Empty for a full design.
    """

    factors: tuple[str, ...]
    cells: tuple[dict[str, int], ...]
    words: frozenset[Word]

    @property
    def resolution(self) -> int | None:
        """The length of the shortest defining word; None for a full design.

        At 3, factors are aliased with pairs; at 4, pairs with pairs; from 5 on, neither.
        """
        return min(map(len, self.words), default=None)


def build_fraction(factors: Sequence[str], halvings: int) -> Fraction:
    """Return one cell in `2 ** halvings`, with the highest resolution and then the fewest shortest words.

    The first factors are crossed in full. The level of each remaining factor makes its product with a subset of the
    first ones constant. The baseline's cell, all zeros, is always included.
    """
    crossed, derived = tuple(factors[: len(factors) - halvings]), tuple(factors[len(factors) - halvings :])
    subsets = [Word(c) for size in range(len(crossed), 1, -1) for c in combinations(crossed, size)]
    choices = ([s | {f} for s, f in zip(chosen, derived, strict=True)] for chosen in combinations(subsets, halvings))
    words = min((_products(chosen) for chosen in choices), key=_badness)
    makers = {next(iter(word & set(derived))): word - set(derived) for word in words if len(word & set(derived)) == 1}
    cells = []
    for levels in product((0, 1), repeat=len(crossed)):
        cell = dict(zip(crossed, levels, strict=True))
        cell |= {factor: sum(cell[other] for other in makers[factor]) % 2 for factor in derived}
        cells.append({factor: cell[factor] for factor in factors})
    return Fraction(tuple(factors), tuple(cells), words)


def _products(words: Sequence[Word]) -> frozenset[Word]:
    """Return all products of words, in which a factor cancels itself."""
    return frozenset(
        reduce(lambda a, b: a ^ b, chosen) for size in range(1, len(words) + 1) for chosen in combinations(words, size)
    )


def _badness(words: frozenset[Word]) -> list[int]:
    """Return the number of words of each length from 1 on, to be compared lexicographically."""
    lengths = [len(word) for word in words]
    return [lengths.count(size) for size in range(1, max(lengths, default=0) + 1)]

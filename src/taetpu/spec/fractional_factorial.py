"""Fractional two-level factorial designs: the cells to run and the effects that are aliased.

Source: Box, Hunter and Hunter (2005), Statistics for Experimenters, chapter 6.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import reduce
from itertools import combinations, product

Word = frozenset[str]
"""A set of factors whose product is constant over all cells of a fraction."""


@dataclass(frozen=True)
class Fraction:
    """A fraction of a factorial design.

    Attributes:
        factors: The names of the factors.
        cells: The levels of all factors in each cell. The first cell is the baseline's, in which all levels are 0.
        words: The defining words: the sets of factors whose product is constant. Empty for a full design.
    """

    factors: tuple[str, ...]
    cells: tuple[dict[str, int], ...]
    words: frozenset[Word]

    @property
    def resolution(self) -> int | None:
        """The length of the shortest defining word; None for a full design.

        At resolution 3, factors are aliased with pairs of factors. At resolution 4, pairs are aliased with other pairs.
        From resolution 5 on, neither factors nor pairs are aliased with factors or pairs.
        """
        return min(map(len, self.words), default=None)


def build_fraction(factors: Sequence[str], halvings: int) -> Fraction:
    """Return a fraction with one of every `2 ** halvings` cells of the full design.

    Of all possible fractions, the one with the highest resolution is selected. If several fractions have this
    resolution, the one with the fewest words of the shortest length is selected.

    The last `halvings` factors are derived, and all other factors are crossed in full. The level of a derived factor is
    the sum modulo 2 of the levels of a subset of the crossed factors. The baseline's cell, in which all levels are 0,
    is always included.

    Args:
        factors: The names of the factors.
        halvings: The number of times that the full design is halved.
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
    """Return the products of all non-empty subsets of words. A factor that occurs twice in a product cancels out."""
    return frozenset(
        reduce(lambda a, b: a ^ b, chosen) for size in range(1, len(words) + 1) for chosen in combinations(words, size)
    )


def _badness(words: frozenset[Word]) -> list[int]:
    """Return the number of words of each length from 1 on. A lexicographically smaller list is better."""
    lengths = [len(word) for word in words]
    return [lengths.count(size) for size in range(1, max(lengths, default=0) + 1)]

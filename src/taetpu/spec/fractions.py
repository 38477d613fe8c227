"""Fractions of two-level factorial designs: which cells to keep, and what can then not be told apart.

Source: Box, Hunter and Hunter (2005), Statistics for Experimenters, chapter 6.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import reduce
from itertools import combinations, product

Word = frozenset[str]
"""Factors whose product is constant over the cells that are kept."""


@dataclass(frozen=True)
class Fraction:
    """Some cells of a two-level design.

    Attributes:
        cells: each factor's level (0 or 1), cell by cell; the cell of zeros comes first.
        words: all products of factors that are constant; empty in a full design.
    """

    factors: tuple[str, ...]
    cells: tuple[dict[str, int], ...]
    words: frozenset[Word]

    @property
    def resolution(self) -> int | None:
        """The length of the shortest word: from 5 on no pair is mixed with a factor or a pair, with 4 pairs are mixed
        among themselves, with 3 factors are mixed with pairs. None for a full design.
        """
        return min(map(len, self.words), default=None)


def build_fraction(factors: Sequence[str], halvings: int) -> Fraction:
    """One cell in `2 ** halvings`, chosen for the highest resolution and then for the fewest shortest words.

    The first factors are crossed in full; each of the others takes the level that makes its product with some of the
    first constant. The cell of zeros, the baseline, is always among the cells.
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
    """All products of words; a factor twice is 1."""
    return frozenset(
        reduce(lambda a, b: a ^ b, chosen) for size in range(1, len(words) + 1) for chosen in combinations(words, size)
    )


def _badness(words: frozenset[Word]) -> list[int]:
    """How many words there are of each length from 1 on: the first that differs decides."""
    lengths = [len(word) for word in words]
    return [lengths.count(size) for size in range(1, max(lengths, default=0) + 1)]

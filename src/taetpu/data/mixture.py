"""Training windows that are drawn from several sources with given shares.

The windows of all sources are numbered, source after source. A run draws them in blocks. At the end of each block,
the number of windows from each source is its share of all windows so far, rounded up or down, so realised shares do not
drift from the weights. The order within a block is random. Each source has its own epochs, so a small source is read
more often than a large one.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from fractions import Fraction
from functools import cached_property
from itertools import accumulate
from pathlib import Path
from typing import Any

import numpy as np

from taetpu.core.errors import UserError
from taetpu.data.base import Source, epoch_rows
from taetpu.data.feistel import permuted

Weights = dict[str, float]
"""A mixture as it is written: a weight for each file, pattern or folder."""
BLOCK = 2**10
"""Number of windows in a block, if every source has at least one window in each block."""
LEAST = Fraction(1, 2**20)
"""Smallest share of a source."""
ORDERS = 2**15
"""Number of the random order of blocks among the random orders of a seed, beyond the number of any source."""


@dataclass(frozen=True)
class Mixture:
    """The sources of training windows.

    Attributes:
        names: the name of each source.
        shares: the share of training windows of each source; their sum is 1.
        windows: the number of different windows of each source.
        tokens: the number of training tokens of each source.
    """

    names: tuple[str, ...]
    shares: tuple[Fraction, ...]
    windows: tuple[int, ...]
    tokens: tuple[int, ...]

    @cached_property
    def firsts(self) -> list[int]:
        """The number of the first window of each source."""
        return [*accumulate(self.windows, initial=0)][:-1]

    @cached_property
    def block(self) -> int:
        """The number of windows in a block: a power of 2 in which each source has at least one window."""
        return max(BLOCK, 1 << (-(-1 // min(self.shares)) - 1).bit_length())

    @property
    def facts(self) -> dict[str, dict[str, Any]]:
        """The share (`weight`) and the numbers of `windows` and `tokens` of each source, by name."""
        rows = zip(self.names, self.shares, self.windows, self.tokens, strict=True)
        return {
            name: {"weight": float(share), "windows": count, "tokens": tokens} for name, share, count, tokens in rows
        }

    def __str__(self) -> str:
        """Return shares and sizes without names, for a fingerprint."""
        return ", ".join(f"{share} of {count}" for share, count in zip(self.shares, self.tokens, strict=True))

    def source_of(self, row: int) -> str:
        """Return the name of the source of a window."""
        return self.names[int(np.searchsorted(self.firsts, row, "right")) - 1]

    def divide(self, rows: np.ndarray) -> list[tuple[np.ndarray, np.ndarray]]:
        """Return, for each source, the places of its windows in `rows` and their numbers within the source."""
        source = np.searchsorted(self.firsts, rows, "right") - 1
        return [(at := np.flatnonzero(source == i), rows[at] - first) for i, first in enumerate(self.firsts)]

    def rows(self, seed: int, start: int, count: int, batch_size: int) -> np.ndarray:
        """See `data.base.Source.rows`. Only the blocks of these steps are computed."""
        low, high = start * batch_size, (start + count) * batch_size
        rows = np.empty(high - low, np.int32)
        for block in range(low // self.block, -(-high // self.block)):
            first = block * self.block
            order = self._order(seed, block)
            part = slice(max(low - first, 0), min(high - first, self.block))
            for i, before in enumerate(self._drawn(block)):
                at = np.flatnonzero(order[part] == i)
                before += int(np.count_nonzero(order[: part.start] == i))
                numbers = epoch_rows(_key(seed, i), before, len(at), 1, self.windows[i], most_stored=0)
                rows[first + part.start - low + at] = self.firsts[i] + numbers.ravel()
        return rows.reshape(count, batch_size)

    def count(self, seed: int, windows: int) -> list[int]:
        """Return the number of windows from each source among the first windows of a run."""
        block, rest = divmod(windows, self.block)
        last = np.bincount(self._order(seed, block)[:rest], minlength=len(self.names))
        return (np.array(self._drawn(block)) + last).tolist()

    def _drawn(self, blocks: int) -> list[int]:
        """Return the number of windows from each source in the first blocks: largest remainders of the shares.

        No number decreases with `blocks`, because every share of a block is at least one window.
        """
        total = blocks * self.block
        wanted = [total * share for share in self.shares]
        counts = [int(number) for number in wanted]
        by_remainder = sorted(range(len(counts)), key=lambda i: (counts[i] - wanted[i], i))
        for i in by_remainder[: total - sum(counts)]:
            counts[i] += 1
        return counts

    def _order(self, seed: int, block: int) -> np.ndarray:
        """Return the source of each window of a block: `(block,)`."""
        counts = np.subtract(self._drawn(block + 1), self._drawn(block))
        places = permuted(np.arange(self.block), _key(seed, ORDERS), block, self.block)
        return np.repeat(np.arange(len(counts)), counts)[places]


def _key(seed: int, number: int) -> int:
    """Return the seed of one of the random orders of a run. Seeds of runs are below 2^32."""
    return number << 32 | seed


def shares_of(weights: Mapping[str, float]) -> dict[str, Fraction]:
    """Return the shares of sources, exactly as their weights are written.

    Raises:
        UserError: if there are no weights, or if a weight is not a positive number, or very small. The path is relative
            to the mapping.
    """
    if not weights:
        raise UserError("the mixture has no sources", remedy="Write {path: weight, path: weight}.")
    if len(weights) > ORDERS:
        raise UserError(f"the mixture has {len(weights):,} sources", remedy=f"Use at most {ORDERS:,}.")
    for name, weight in weights.items():
        if isinstance(weight, Mapping):
            problem, remedy = f"the weight of {name!r} is a mapping", "Name all sources in one mapping, with numbers."
            raise UserError(problem, path=(name,), remedy=remedy)
        if isinstance(weight, bool) or not isinstance(weight, int | float) or not 0 < weight < float("inf"):
            problem = f"the weight of {name!r} is {weight!r}, not a number above 0"
            raise UserError(problem, path=(name,), remedy="Use a positive number, or remove the source.")
    exact = {name: Fraction(repr(weight)) for name, weight in weights.items()}
    total = sum(exact.values())
    shares = {name: weight / total for name, weight in exact.items()}
    for name, share in shares.items():
        if share < LEAST:
            problem = f"the share of {name!r} is {float(share):.2g}, but the smallest is {float(LEAST):.2g}"
            raise UserError(problem, path=(name,), remedy="Raise its weight, or remove the source.")
    return shares


def mix(source: Any, tokens: Mapping[str, int], windows: Mapping[str, int]) -> Mixture | None:
    """Return the mixture of a task; None if its `source` has no weights.

    Args:
        source: the task's `source`.
        tokens: the number of training tokens of each source.
        windows: the number of training windows of each source.
    """
    if not isinstance(source, Mapping):
        return None
    shares = shares_of(source)
    rows = [(name, shares[name], windows[name], tokens[name]) for name in tokens]
    return Mixture(*map(tuple, zip(*rows, strict=True)))


def count_windows(tokens: Mapping[str, int], seq_len: int) -> dict[str, int]:
    """Return the number of windows in the numbers of tokens of sources."""
    return {name: (count - 1) // seq_len for name, count in tokens.items()}


def refuse_shared(files: Mapping[str, Iterable[Path]]) -> None:
    """Raise `UserError` if two sources of a mixture read the same file.

    Args:
        files: the files of each source.
    """
    read: dict[Path, str] = {}
    for name, paths in files.items():
        for path in paths:
            other = read.setdefault(path.resolve(), name)
            if other != name:
                problem = f"{path} belongs to two sources of the mixture, {other!r} and {name!r}"
                raise UserError(problem, path=("source", name), remedy="Leave the file out of one of them.")


def facts_of_run(source: Source, seed: int, windows: int) -> dict[str, Any]:
    """Return the fact `mixture` of a run that reads a number of windows; empty if its task has no mixture.

    Beside `Mixture.facts`, it has the `share` of the windows that are from each source, and its number of `epochs`.
    """
    if source.mixture is None or not windows:
        return {}
    counts = zip(source.mixture.facts.items(), source.mixture.count(seed, windows), strict=True)
    return {
        "mixture": {
            name: {**facts, "share": count / windows, "epochs": count / facts["windows"]}
            for (name, facts), count in counts
        }
    }

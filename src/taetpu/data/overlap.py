"""Near-verbatim overlap: how much of an evaluation split is found in the training split, word for word."""

import numpy as np

WINDOW = 64
"""Tokens of a window."""
MOST_WINDOWS = 2**17
"""Windows that are looked up: of a longer split every n-th."""
BLOCK = 2**20  # training windows hashed at a time, which bounds memory


def overlap(train: np.ndarray, held_out: np.ndarray) -> float | None:
    """Return the share of windows of `held_out` that occur in `train`, at any offset.

    Windows overlap: one starts at each token, as far as they are at most `MOST_WINDOWS`. They are compared by 64-bit
    hashes.

    Args:
        train, held_out: token numbers, `(n,)`.

    Returns:
        None where `held_out` is shorter than a window.
    """
    if len(held_out) < WINDOW:
        return None
    table = np.random.Philox(key=0).random_raw(int(max(train.max(initial=0), held_out.max())) + 1)
    windows = _hashes(held_out, table)
    known, place = np.unique(windows[:: -(-len(windows) // MOST_WINDOWS)], return_inverse=True)
    found = np.zeros(len(known), bool)
    unused = np.uint64(64 - (16 * len(known)).bit_length())  # the first bits tell most other windows apart, cheaply
    marked = np.zeros(2 ** (64 - int(unused)), bool)
    marked[known >> unused] = True
    for start in range(0, len(train) - WINDOW + 1, BLOCK):
        hashes = _hashes(train[start : start + BLOCK + WINDOW - 1], table)
        hashes = hashes[marked[hashes >> unused]]
        nearest = np.minimum(np.searchsorted(known, hashes), len(known) - 1)
        found[nearest[known[nearest] == hashes]] = True
    return float(found[place].mean())


def _hashes(tokens: np.ndarray, table: np.ndarray) -> np.ndarray:
    """Return a hash of each window: its tokens' random words as a polynomial modulo 2^64."""
    hashes, factor, width = table[tokens], 0x9E3779B97F4A7C15, 1
    while width < WINDOW:
        hashes = hashes[:-width] * np.uint64(factor) + hashes[width:]
        factor, width = factor * factor % 2**64, 2 * width
    return hashes

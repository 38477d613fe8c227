"""Verbatim overlap between an evaluation split and the training split."""

import numpy as np

WINDOW = 64
"""The number of tokens in a window."""
MAX_WINDOWS = 2**17
"""The maximum number of windows to look up. In a longer split, only every n-th window is looked up."""
BLOCK = 2**20  # number of training windows hashed at a time, to limit memory


def overlap(train: np.ndarray, held_out: np.ndarray) -> float | None:
    """Return the share of windows of `held_out` that occur in `train`, at any offset.

    A window starts at every token, or at every n-th token if there are more than `MAX_WINDOWS` windows. Windows are
    compared by 64-bit hashes.

    Args:
        train: Token numbers, `(n,)`.
        held_out: Token numbers, `(m,)`.

    Returns:
        The share, or None if `held_out` is shorter than a window.
    """
    if len(held_out) < WINDOW:
        return None
    table = np.random.Philox(key=0).random_raw(int(max(train.max(initial=0), held_out.max())) + 1)
    windows = _hashes(held_out, table)
    known, place = np.unique(windows[:: -(-len(windows) // MAX_WINDOWS)], return_inverse=True)
    in_train = np.zeros(len(known), bool)
    unused = np.uint64(64 - (16 * len(known)).bit_length())  # the leading bits rule out most windows cheaply
    marked = np.zeros(2 ** (64 - int(unused)), bool)
    marked[known >> unused] = True
    for start in range(0, len(train) - WINDOW + 1, BLOCK):
        hashes = _hashes(train[start : start + BLOCK + WINDOW - 1], table)
        hashes = hashes[marked[hashes >> unused]]
        nearest = np.minimum(np.searchsorted(known, hashes), len(known) - 1)
        in_train[nearest[known[nearest] == hashes]] = True
    return float(in_train[place].mean())


def _hashes(tokens: np.ndarray, table: np.ndarray) -> np.ndarray:
    """Return a polynomial hash modulo 2^64 of each window. `table` maps each token to a random 64-bit word."""
    hashes, factor, width = table[tokens], 0x9E3779B97F4A7C15, 1
    while width < WINDOW:
        hashes = hashes[:-width] * np.uint64(factor) + hashes[width:]
        factor, width = factor * factor % 2**64, 2 * width
    return hashes

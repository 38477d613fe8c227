"""The loss of a bigram model, with which text tasks are compared."""

import numpy as np

BLOCK = 2**20  # number of training tokens whose pairs are counted at a time, to limit memory


def bigram_loss(train: np.ndarray, held_out: np.ndarray, vocab_size: int) -> float | None:
    """Return the loss of a bigram model of `train` on `held_out`, in nats per token; None if `held_out` is too short.

    P(b | a) = (count(a b) + 1) / (count(a) + vocab_size). Like a model without attention, this estimate depends only on
    the current token. Other estimates of P may have a lower loss.

    Args:
        train: Token numbers, `(n,)`.
        held_out: Token numbers, `(m,)`.
        vocab_size: The number of different tokens.
    """
    if len(held_out) < 2:
        return None
    wanted, place = np.unique(_pairs(held_out, vocab_size), return_inverse=True)
    joint, first = np.zeros(len(wanted), np.int64), np.zeros(vocab_size, np.int64)
    for start in range(0, len(train) - 1, BLOCK):
        pairs, counts = np.unique(_pairs(train[start : start + BLOCK + 1], vocab_size), return_counts=True)
        nearest = np.minimum(np.searchsorted(wanted, pairs), len(wanted) - 1)
        known = wanted[nearest] == pairs
        joint[nearest[known]] += counts[known]
        first += np.bincount(train[start : min(start + BLOCK, len(train) - 1)], minlength=vocab_size)
    return float(-np.log((joint[place] + 1) / (first[held_out[:-1]] + vocab_size)).mean())


def _pairs(tokens: np.ndarray, vocab_size: int) -> np.ndarray:
    """Return a number for each pair of neighbouring tokens."""
    return tokens[:-1].astype(np.int64) * vocab_size + tokens[1:]

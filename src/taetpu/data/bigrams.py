"""The loss of a bigram model, with which text tasks are compared."""

import numpy as np


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
    pairs, counts = np.unique(train[:-1].astype(np.int64) * vocab_size + train[1:], return_counts=True)
    wanted = held_out[:-1].astype(np.int64) * vocab_size + held_out[1:]
    place = np.minimum(np.searchsorted(pairs, wanted), len(pairs) - 1)
    joint = np.where(pairs[place] == wanted, counts[place], 0)
    first = np.bincount(train[:-1], minlength=vocab_size)[held_out[:-1]]
    return float(-np.log((joint + 1) / (first + vocab_size)).mean())

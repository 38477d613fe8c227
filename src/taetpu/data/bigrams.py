"""The losses of bigram and unigram models, with which text tasks are compared."""

import numpy as np

Pairs = tuple[np.ndarray, np.ndarray]
"""The first and the second token of pairs."""
BLOCK = 2**20  # number of training tokens whose pairs are counted at a time, to limit memory


def bigram_loss(
    train: np.ndarray,
    held_out: np.ndarray,
    vocab_size: int,
    starts: tuple[np.ndarray, np.ndarray] | None = None,
) -> float | None:
    """Return the loss of a bigram model of `train` on `held_out`, in nats per token; None if `held_out` is too short.

    P(b | a) = (count(a b) + 1) / (count(a) + vocab_size). Like a model without attention, this estimate depends only on
    the current token. Other estimates of P may have a lower loss.

    Args:
        train: Token numbers, `(n,)`.
        held_out: Token numbers, `(m,)`.
        vocab_size: The number of different tokens.
        starts: The indices in `train` and in `held_out` at which documents start, if no pair spans two of them.
    """
    if len(held_out) < 2:
        return None
    counted, scored = (
        find_pairs(tokens, None if starts is None else starts[i]) for i, tokens in enumerate((train, held_out))
    )
    return pair_loss(counted, scored, vocab_size)


def pair_loss(counted: Pairs, scored: Pairs, vocab_size: int) -> float:
    """Return the loss of a bigram model of some pairs on others; see `bigram_loss`."""
    (firsts, seconds), (given, targets) = counted, scored
    wanted, place = np.unique(_numbers(given, targets, vocab_size), return_inverse=True)
    joint, first = np.zeros(len(wanted), np.int64), np.zeros(vocab_size, np.int64)
    for start in range(0, len(firsts), BLOCK):
        part = slice(start, start + BLOCK)
        pairs, counts = np.unique(_numbers(firsts[part], seconds[part], vocab_size), return_counts=True)
        nearest = np.minimum(np.searchsorted(wanted, pairs), len(wanted) - 1)
        known = wanted[nearest] == pairs
        joint[nearest[known]] += counts[known]
        first += np.bincount(firsts[part], minlength=vocab_size)
    return float(-np.log((joint[place] + 1) / (first[given] + vocab_size)).mean())


def unigram_loss(train: np.ndarray, targets: np.ndarray, vocab_size: int) -> float:
    """Return the loss in nats of P(b) = (count(b) + 1) / (n + vocab_size), counted on n training tokens."""
    counts = np.bincount(train, minlength=vocab_size)
    return float(-np.log((counts[targets] + 1) / (len(train) + vocab_size)).mean())


def find_pairs(tokens: np.ndarray, starts: np.ndarray | None = None) -> Pairs:
    """Return the first and the second tokens of all pairs of neighbours, or of those within documents."""
    first, second = tokens[:-1], tokens[1:]
    if starts is None:
        return first, second
    within = np.ones(len(first), bool)
    within[starts[1:] - 1] = False
    return first[within], second[within]


def _numbers(firsts: np.ndarray, seconds: np.ndarray, vocab_size: int) -> np.ndarray:
    """Return a number for each pair of tokens."""
    return firsts.astype(np.int64) * vocab_size + seconds

"""The best policy without attention: what a function of the current token and its position can reach.

A model whose mixer is gone sees one token and where it stands. The best it can do follows from the joint distribution
of (position, token, target) over the scored positions, which is worked out here exactly, by position and then by
length n (each n is equally likely). The score is what attention has to beat before it counts as having helped.
"""

from collections.abc import Iterable
from functools import lru_cache
from math import lgamma
from typing import NamedTuple

import numpy as np

Joint = np.ndarray  # (seq, tokens, targets): expected number of such targets in a sequence, up to one factor


class Successive(NamedTuple):
    """Distribution of the answers y_1 .. y_n to questions of length n, as far as neighbours go."""

    first: np.ndarray  # P(y_1), (answers,)
    steps: np.ndarray  # P(y_j, y_{j+1}), (n - 1, answers, answers)
    last: np.ndarray  # P(y_n), (answers,)


def score_best_policy(joint: Joint) -> tuple[float, float]:
    """Loss in nats per target and accuracy of the best policy: the conditional entropy, and the share of the mode."""
    seen = joint.sum(axis=-1, keepdims=True)
    with np.errstate(divide="ignore", invalid="ignore"):
        loss = np.where(joint > 0, joint * (np.log(seen) - np.log(joint)), 0.0).sum()
    return float(loss / joint.sum()), float(joint.max(axis=-1).sum() / joint.sum())


def causal_joint(lengths: Iterable[tuple[int, Successive]], seq_len: int, answers: int) -> Joint:
    """`<bos> x <sep> y <eos>`: after <sep> comes y_1, after y_j comes y_{j+1}, after y_n <eos>.

    `lengths` gives n and its distribution, `answers` is the number of different ones. <sep> stands at n + 1 and y_j
    at n + 1 + j. The last row of the tokens is <sep>, the last target <eos>.
    """
    joint = np.zeros((seq_len, answers + 1, answers + 1))
    for n, given in lengths:
        joint[n + 1, -1, :-1] += given.first
        joint[n + 2 : 2 * n + 1, :-1, :-1] += given.steps
        joint[2 * n + 1, :-1, -1] += given.last
    return joint


def encoder_joint(lengths: Iterable[tuple[int, np.ndarray]], seq_len: int, symbols: int, answers: int) -> Joint:
    """`<bos> x`: the target at x_i, which stands at i, is y_i. `lengths` gives n and P(x_i, y_i), `(n, x, y)`."""
    joint = np.zeros((seq_len, symbols, answers))
    for n, given in lengths:
        joint[1 : n + 1] += given
    return joint


def independent_answers(n: int, symbols: int) -> Successive:
    """Answers that are independent and uniform: those of copy and reverse."""
    one = np.full(symbols, 1 / symbols)
    return Successive(one, np.full((n - 1, symbols, symbols), symbols**-2.0), one)


def count_distribution(n: int, symbols: int, most: int) -> np.ndarray:
    """P(a given one of n uniform symbols occurs c times), `(most,)`; index 0 is c = 1. That is 1 + Bin(n - 1, 1/V)."""
    chance = np.zeros(most)
    chance[:n] = _binomial(n - 1, np.arange(n), 1 / symbols)
    return chance


def histogram_answers(n: int, symbols: int, most: int) -> Successive:
    """Histogram's answers: how often x_j and x_{j+1} occur among n uniform symbols (index 0 is a count of 1).

    With probability 1/V the two are the same symbol, and share a count 2 + Bin(n - 2, 1/V). Else the counts are
    1 + a and 1 + b, where (a, b, rest) is multinomial over the other n - 2 with chances (1/V, 1/V, 1 - 2/V). The same
    for every j, because the symbols are exchangeable.
    """
    one, step = count_distribution(n, symbols, most), np.zeros((most, most))
    if n > 1:
        a = np.arange(n - 1)
        step[a + 1, a + 1] = _binomial(n - 2, a, 1 / symbols) / symbols
        rest = n - 2 - a[:, None] - a[None, :]
        known = _log_factorial(n)
        ways = known[n - 2] - known[a][:, None] - known[a][None, :] - known[np.maximum(rest, 0)]
        logs = ways + _log_power(np.array(1 / symbols), n - 2 - rest) + _log_power(np.array(1 - 2 / symbols), rest)
        step[: n - 1, : n - 1] += (1 - 1 / symbols) * np.exp(np.where(rest >= 0, logs, -np.inf))
    return Successive(one, np.broadcast_to(step, (n - 1, most, most)), one)


def sorted_answers(n: int, symbols: int) -> Successive:
    """Sort's answers: neighbouring order statistics of n uniform symbols 1 .. V.

    For v < w the event {y_j <= v, y_{j+1} >= w} says that exactly j symbols are <= v and the others >= w, so its
    probability is C(n, j) (v/V)^j ((V-w+1)/V)^(n-j); differences in v and w give P(y_j = v, y_{j+1} = w). What is
    left of P(y_j = v) is P(y_j = y_{j+1} = v).
    """
    single = np.diff(_at_least(n, np.arange(1, n + 1), symbols), axis=-1)  # P(y_j = v), (n, V)
    j = np.arange(1, n)[:, None, None]
    below = np.arange(symbols + 1)[:, None] / symbols
    above = np.arange(symbols, -1, -1)[None, :] / symbols
    logs = _log_choose(n, j) + _log_power(below, j) + _log_power(above, n - j)
    corner = np.exp(np.minimum(logs, 0.0))  # above 0 only where v >= w, which is not read
    steps = np.triu(-np.diff(np.diff(corner, axis=1), axis=2), k=1)
    rest = np.maximum(single[:-1] - steps.sum(axis=2), 0.0)  # rounding may leave a negative of 1e-17
    return Successive(single[0], steps + rest[:, :, None] * np.eye(symbols), single[-1])


def sort_joint(n: int, symbols: int) -> np.ndarray:
    """P(x_i = v, y_i = w), `(n, V, V)`, where y is x sorted.

    Given x_i = v, y_i <= w says that at least i of the n symbols are <= w, x_i among them if v <= w.
    """
    i = np.arange(1, n + 1)
    without, with_it = (_at_least(n - 1, i - own, symbols)[:, None, :] for own in (0, 1))
    v, w = np.arange(1, symbols + 1)[:, None], np.arange(symbols + 1)[None, :]
    return np.diff(np.where(v <= w, with_it, without), axis=-1) / symbols


def _at_least(n: int, least: np.ndarray, symbols: int) -> np.ndarray:
    """P(at least `least` of n uniform symbols are <= w) for w = 0 .. V: `(len(least), V + 1)`."""
    chance = _binomial(n, np.arange(n + 1)[:, None], np.arange(symbols + 1)[None, :] / symbols)
    tail = np.cumsum(chance[::-1], axis=0)[::-1]
    return np.vstack([tail, np.zeros(symbols + 1)])[least]


def _binomial(n: int, k: np.ndarray, p: float | np.ndarray) -> np.ndarray:
    """C(n, k) p^k (1 - p)^(n - k), in logarithms so that long sequences neither overflow nor vanish."""
    p = np.asarray(p, float)
    return np.exp(_log_choose(n, k) + _log_power(p, k) + _log_power(1 - p, n - k))


def _log_choose(n: int, k: np.ndarray) -> np.ndarray:
    known = _log_factorial(n)
    return known[n] - known[k] - known[n - k]


@lru_cache
def _log_factorial(n: int) -> np.ndarray:
    """log i! for i = 0 .. n."""
    return np.array([lgamma(i + 1) for i in range(n + 1)])


def _log_power(p: np.ndarray, k: np.ndarray) -> np.ndarray:
    """log p^k, with 0^0 = 1."""
    with np.errstate(divide="ignore", invalid="ignore"):
        return np.where(k == 0, 0.0, k * np.log(p))

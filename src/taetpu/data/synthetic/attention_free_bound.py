"""The best loss and accuracy without attention, that is, for functions of the current token and its position.

The best score of such a function follows from the joint distribution of (position, token, target) over the scored
positions. This module computes the distribution exactly, as a sum over the length n of a question (all lengths are
equally likely). A model with attention has to beat this score to show that attention helps.

In formulas, V is the number of different symbols.
"""

from collections.abc import Iterable
from typing import NamedTuple

import numpy as np

Joint = np.ndarray  # (seq, tokens, targets): expected count in a sequence, up to a common factor


class Successive(NamedTuple):
    """Joint distribution of neighbouring answers y_j, y_{j+1} to a question of length n; marginals of y_1 and y_n."""

    first: np.ndarray  # P(y_1), (answers,)
    steps: np.ndarray  # P(y_j, y_{j+1}), (n - 1, answers, answers)
    last: np.ndarray  # P(y_n), (answers,)


def score_best_policy(joint: Joint) -> tuple[float, float]:
    """Return the loss in nats per target and the accuracy of the best policy.

    The loss is the conditional entropy of the target given position and token. The accuracy is the mean probability of
    the most likely target.
    """
    given = joint.sum(axis=-1, keepdims=True)
    with np.errstate(divide="ignore", invalid="ignore"):
        loss = np.where(joint > 0, joint * (np.log(given) - np.log(joint)), 0.0).sum()
    return float(loss / joint.sum()), float(joint.max(axis=-1).sum() / joint.sum())


Examples = tuple[np.ndarray, np.ndarray, np.ndarray]  # tokens, targets and weights, (sequences, seq)


def score_counted_policies(counted: Examples, scored: Examples, outputs: int) -> tuple[float, float]:
    """Return the lowest loss and the highest accuracy of three tables: of tokens, of positions, and of both.

    A table contains how often each target follows in one set of sequences. It is scored on another set, so that the
    scores are those of policies that exist. They are bounds of what the best policy without attention reaches.

    Args:
        counted: Sequences that are counted.
        scored: Sequences that are scored.
        outputs: The number of different targets. A count of one is spread over them in each row of a table.
    """
    size = 1 + int(max(counted[0].max(), scored[0].max()))
    ways = ((0, 1), (1, 0), (size, 1))  # factors of position and token in the number of a table's row
    scores = [_score_table(_cells(counted, *way), _cells(scored, *way), outputs) for way in ways]
    return min(loss for loss, _ in scores), max(accuracy for _, accuracy in scores)


def _cells(examples: Examples, of_position: int, of_token: int) -> tuple[np.ndarray, np.ndarray]:
    """Return the row of a table and the target at each scored position."""
    tokens, targets, weights = examples
    rows = of_position * np.arange(tokens.shape[1], dtype=np.int64) + of_token * tokens.astype(np.int64)
    return rows[weights > 0], targets[weights > 0]


def _score_table(
    counted: tuple[np.ndarray, np.ndarray], scored: tuple[np.ndarray, np.ndarray], outputs: int
) -> tuple[float, float]:
    """Return the loss and the accuracy of a table, given rows and targets that are counted, and that are scored."""
    cells, counts = np.unique(counted[0] * outputs + counted[1], return_counts=True)
    ascending = np.lexsort((counts, cells // outputs))  # the last cell of a row is that with the largest count
    rows, starts = np.unique(cells // outputs, return_index=True)
    totals, best = np.add.reduceat(counts, starts), cells[ascending][np.append(starts[1:], len(cells)) - 1] % outputs

    def look_up(keys: np.ndarray, values: np.ndarray, wanted: np.ndarray) -> np.ndarray:
        place = np.minimum(np.searchsorted(keys, wanted), len(keys) - 1)
        return np.where(keys[place] == wanted, values[place], 0)

    row, target = scored
    share = (look_up(cells, counts, row * outputs + target) + 1 / outputs) / (look_up(rows, totals, row) + 1)
    return float(-np.log(share).mean()), float((look_up(rows, best, row) == target).mean())


def causal_joint(lengths: Iterable[tuple[int, Successive]], seq_len: int, answers: int) -> Joint:
    """Return the joint distribution of `<bos> x <sep> y <eos>`, where each answer token predicts the next.

    `<sep>` is at position n + 1, and y_j is at position n + 1 + j. The last index is `<sep>` on the token axis,
    and `<eos>` on the target axis.

    Args:
        lengths: Pairs of a length n and the distribution of the answers for this length.
        seq_len: The length of the sequence.
        answers: The number of different answers.
    """
    joint = np.zeros((seq_len, answers + 1, answers + 1))
    for n, answer in lengths:
        joint[n + 1, -1, :-1] += answer.first
        joint[n + 2 : 2 * n + 1, :-1, :-1] += answer.steps
        joint[2 * n + 1, :-1, -1] += answer.last
    return joint


def encoder_joint(lengths: Iterable[tuple[int, np.ndarray]], seq_len: int, symbols: int, answers: int) -> Joint:
    """Return the joint distribution of `<bos> x`, where the target at x_i (position i) is y_i.

    Args:
        lengths: Pairs of a length n and P(x_i, y_i), `(n, symbols, answers)`.
        seq_len: The length of the sequence.
        symbols: The number of different symbols.
        answers: The number of different answers.
    """
    joint = np.zeros((seq_len, symbols, answers))
    for n, answer in lengths:
        joint[1 : n + 1] += answer
    return joint


def independent_answers(n: int, symbols: int) -> Successive:
    """Return the distribution of independent uniform answers, as in the tasks `copy` and `reverse`."""
    uniform = np.full(symbols, 1 / symbols)
    return Successive(uniform, np.full((n - 1, symbols, symbols), symbols**-2.0), uniform)


def count_distribution(n: int, symbols: int, most: int) -> np.ndarray:
    """Return the distribution of the number of occurrences of x_i in x, for n uniform symbols x: `(most,)`.

    Index 0 is a count of 1. The count is 1 + Bin(n - 1, 1/V).
    """
    chance = np.zeros(most)
    chance[:n] = _binomial(n - 1, np.arange(n), 1 / symbols)
    return chance


def histogram_answers(n: int, symbols: int, most: int) -> Successive:
    """Return the distribution of answers in `histogram`, that is, of counts of x_j. Index 0 is a count of 1.

    With probability 1/V, x_j and x_{j+1} are the same symbol with the count 2 + Bin(n - 2, 1/V). Otherwise the counts
    are 1 + a and 1 + b, where (a, b, rest) is multinomial with n - 2 draws and probabilities (1/V, 1/V, 1 - 2/V).
    The distribution does not depend on j, because the symbols are exchangeable.
    """
    first, step = count_distribution(n, symbols, most), np.zeros((most, most))
    if n > 1:
        from scipy.special import gammaln, xlogy

        a = np.arange(n - 1)
        step[a + 1, a + 1] = _binomial(n - 2, a, 1 / symbols) / symbols
        rest = n - 2 - a[:, None] - a[None, :]
        ways = gammaln(n - 1) - gammaln(a + 1)[:, None] - gammaln(a + 1) - gammaln(np.maximum(rest, 0) + 1)
        logs = ways + xlogy(n - 2 - rest, 1 / symbols) + xlogy(rest, 1 - 2 / symbols)
        step[: n - 1, : n - 1] += (1 - 1 / symbols) * np.exp(np.where(rest >= 0, logs, -np.inf))
    return Successive(first, np.broadcast_to(step, (n - 1, most, most)), first)


def sorted_answers(n: int, symbols: int) -> Successive:
    """Return the distribution of answers in `sort`, that is, of order statistics of n uniform symbols 1 .. V.

    For v < w, {y_j <= v, y_{j+1} >= w} means that exactly j symbols are <= v and the others >= w, so its probability is
    C(n, j) (v/V)^j ((V-w+1)/V)^(n-j). Differences in v and w give P(y_j = v, y_{j+1} = w), and the remainder of
    P(y_j = v) is P(y_j = y_{j+1} = v).
    """
    from scipy.special import xlogy

    single = np.diff(_at_least(n, np.arange(1, n + 1), symbols), axis=-1)  # P(y_j = v), (n, V)
    j = np.arange(1, n)[:, None, None]
    below = np.arange(symbols + 1)[:, None] / symbols
    above = np.arange(symbols, -1, -1)[None, :] / symbols
    logs = _log_choose(n, j) + xlogy(j, below) + xlogy(n - j, above)
    corner = np.exp(np.minimum(logs, 0.0))  # logs exceed 0 only if v >= w, which is not used
    steps = np.triu(-np.diff(np.diff(corner, axis=1), axis=2), k=1)
    rest = np.maximum(single[:-1] - steps.sum(axis=2), 0.0)  # rounding errors may be negative
    return Successive(single[0], steps + rest[:, :, None] * np.eye(symbols), single[-1])


def sort_joint(n: int, symbols: int) -> np.ndarray:
    """Return P(x_i = v, y_i = w), `(n, V, V)`, where y is x sorted.

    Given x_i = v, y_i <= w means that at least i of the n symbols are <= w, including x_i if v <= w.
    """
    i = np.arange(1, n + 1)
    without, with_it = (_at_least(n - 1, i - counted, symbols)[:, None, :] for counted in (0, 1))
    v, w = np.arange(1, symbols + 1)[:, None], np.arange(symbols + 1)[None, :]
    return np.diff(np.where(v <= w, with_it, without), axis=-1) / symbols


def _at_least(n: int, least: np.ndarray, symbols: int) -> np.ndarray:
    """Return P(at least `least` of n uniform symbols are <= w) for w = 0 .. V: `(len(least), V + 1)`."""
    from scipy.special import bdtrc

    return bdtrc(least[:, None] - 1, n, np.arange(symbols + 1) / symbols)


def _binomial(n: int, k: np.ndarray, p: float) -> np.ndarray:
    """Return C(n, k) p^k (1 - p)^(n - k), computed in logarithms to avoid overflow and underflow."""
    from scipy.special import xlogy

    return np.exp(_log_choose(n, k) + xlogy(k, p) + xlogy(n - k, 1 - p))


def _log_choose(n: int, k: np.ndarray) -> np.ndarray:
    from scipy.special import gammaln

    return gammaln(n + 1) - gammaln(k + 1) - gammaln(n - k + 1)

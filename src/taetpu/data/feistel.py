"""A permutation of many numbers without a table, so that the order of a large corpus needs no memory.

A Feistel network of `ROUNDS` rounds permutes the numbers below a power of 4. Results that are not below the wanted
bound are permuted again until they are (cycle walking).

Source: Black and Rogaway 2002, Ciphers with Arbitrary Finite Domains. The round function is the finaliser of
SplitMix64 (Steele et al. 2014, Fast Splittable Pseudorandom Number Generators).
"""

import numpy as np

ROUNDS = 6


def permuted(places: np.ndarray, seed: int, epoch: int, count: int) -> np.ndarray:
    """Return the numbers at places of a random order of the numbers below `count`: int64 `(n,)`.

    Args:
        places: places in the order, `(n,)`, from 0 to `count` - 1.
        seed: seed of the order.
        epoch: number of the order.
        count: how many numbers are ordered.
    """
    keys = np.random.Philox(key=np.array([seed, epoch], np.uint64)).random_raw(ROUNDS)
    half = np.uint64(max(((count - 1).bit_length() + 1) // 2, 1))
    numbers = _rounds(places.astype(np.uint64), keys, half)
    while (beyond := numbers >= count).any():
        numbers[beyond] = _rounds(numbers[beyond], keys, half)
    return numbers.astype(np.int64)


def _rounds(numbers: np.ndarray, keys: np.ndarray, half: np.uint64) -> np.ndarray:
    mask = np.uint64((1 << int(half)) - 1)
    left, right = numbers >> half, numbers & mask
    for key in keys:
        left, right = right, left ^ (_mixed(right + key) & mask)
    return left << half | right


def _mixed(x: np.ndarray) -> np.ndarray:
    x = (x ^ (x >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    x = (x ^ (x >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return x ^ (x >> np.uint64(31))

"""Keys are equal in every process and release, and depend on the path alone."""

import jax
import jax.numpy as jnp
import numpy as np

from taetpu.core.keys import named, root_key


def data(key):
    return np.asarray(jax.random.key_data(key)).tolist()


def test_golden_values():
    """A change here changes every result ever published with a seed."""
    assert data(root_key(0)) == [0, 0]
    assert data(named(root_key(0), "layers", 3, "mixer", "wq")) == [1189080740, 2168729906]
    assert np.asarray(jax.random.bits(named(root_key(7), "data"), (2,))).tolist() == [198837343, 1610503604]


def test_a_path_equals_its_parts_in_sequence():
    key = root_key(1)
    assert data(named(key, "a", 2, "b")) == data(named(named(named(key, "a"), 2), "b"))
    assert data(named(key)) == data(key)


def test_names_numbers_and_seeds_give_different_keys():
    paths = [("a",), ("b",), ("a", 0), ("a", 1), (0, "a"), (0,), (1,)]
    found = [data(named(root_key(seed), *path)) for seed in (0, 1) for path in paths]
    assert len({tuple(key) for key in found}) == len(found)


def test_traced_seeds_and_numbers_give_the_same_keys():
    traced = jax.jit(jax.vmap(lambda seed, i: named(root_key(seed), "layers", i)))(jnp.arange(3), jnp.arange(3))
    assert data(traced) == [data(named(root_key(i), "layers", i)) for i in range(3)]

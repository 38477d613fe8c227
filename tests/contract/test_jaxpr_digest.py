"""Digests of results are equal for equal computations, and differ for any difference."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from taetpu.contract.jaxpr_digest import digest_outputs

TABLE = np.arange(300, dtype=np.float32)


def of(fn, *values, inputs=None):
    """Return the digests of the results of `fn`; the digests of its inputs are those of their values by default."""
    traced = jax.make_jaxpr(fn)(*values)
    return digest_outputs(traced, inputs or [np.asarray(value).tobytes() for value in values])


def test_digest_covers_only_what_the_result_depends_on():
    one = of(lambda x, y: (jnp.sin(x) + 1, jnp.cos(y)), 1.0, 2.0)
    two = of(lambda x, y: (jnp.sin(x) + 1, jnp.cos(y) * jnp.tanh(x)), 1.0, 2.0)
    assert one[0] == two[0]
    assert one[1] != two[1]
    other_input = of(lambda x, y: (jnp.sin(x) + 1, jnp.cos(y)), 1.0, 3.0)
    assert one[0] == other_input[0]
    assert one[1] != other_input[1]


def test_jitted_function_has_the_digest_of_its_body():
    @jax.jit
    def named(x, unused):
        return jnp.sin(x) + 1

    plain = of(lambda x: jnp.sin(x) + 1, 1.0)
    assert of(lambda x: named(x, 2.0), 1.0) == plain


def looped(table):
    return lambda x: jax.lax.scan(lambda c, _: (c * jnp.asarray(table), None), x, None, length=3)[0]


@pytest.mark.parametrize("wrap", [lambda table: lambda x: x * jnp.asarray(table), looped], ids=["plain", "in a loop"])
def test_content_of_closed_over_arrays_counts(wrap):
    changed = TABLE.copy()
    changed[150] += 1
    assert of(wrap(TABLE), TABLE) == of(wrap(TABLE.copy()), TABLE)
    assert of(wrap(TABLE), TABLE) != of(wrap(changed), TABLE)


def test_length_and_body_of_a_loop_count():
    def loop(length, step):
        return of(lambda x: jax.lax.scan(lambda c, _: (step(c), None), x, None, length=length)[0], 1.0)

    assert loop(3, jnp.sin) == loop(3, jnp.sin)
    assert len({tuple(loop(3, jnp.sin)), tuple(loop(4, jnp.sin)), tuple(loop(3, jnp.cos))}) == 3


def test_random_numbers_differ_by_key_and_shape():
    def draw(name, shape):
        return of(lambda seed: jax.random.normal(jax.random.fold_in(jax.random.key(seed), name), shape), 0)

    assert draw(1, (3,)) == draw(1, (3,))
    assert len({tuple(draw(1, (3,))), tuple(draw(2, (3,))), tuple(draw(1, (4,)))}) == 3

"""`count_operations` counts calls, not definitions."""

import jax
import jax.numpy as jnp

from taetpu.contract.computation import count_operations

X = jax.ShapeDtypeStruct((3, 3), jnp.float32)


def counted(fn) -> dict[str, int]:
    return count_operations(jax.jit(fn).lower(X).as_text())


def test_a_function_counts_each_time_that_it_is_called():
    @jax.jit
    def inner(x):
        return jnp.tanh(x @ x)

    @jax.jit
    def outer(x):
        return inner(inner(x)) + 1

    found = counted(lambda x: outer(outer(x)) @ x)
    assert (found["dot_general"], found["tanh"], found["add"]) == (5, 4, 2)
    assert "return" not in found


def test_a_loops_body_counts_once():
    assert counted(lambda x: jax.lax.fori_loop(0, 7, lambda _, y: jnp.sin(y), x))["sine"] == 1


def test_what_the_module_calls_elsewhere_is_an_operation_like_any_other():
    """A callback to Python, and LAPACK: their names are no functions of the module."""

    def calling(x):
        jax.debug.print("{}", x.sum())
        return jnp.linalg.eigvals(x)

    assert counted(calling)["custom_call"] == 2

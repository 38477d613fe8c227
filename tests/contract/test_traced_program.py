"""`count_operations` counts the calls of operations, not their definitions."""

import jax
import jax.numpy as jnp

from taetpu.contract.traced_program import count_operations

X = jax.ShapeDtypeStruct((3, 3), jnp.float32)


def counted(fn) -> dict[str, int]:
    return count_operations(jax.jit(fn).lower(X).as_text())


def test_function_counts_once_per_call():
    @jax.jit
    def inner(x):
        return jnp.tanh(x @ x)

    @jax.jit
    def outer(x):
        return inner(inner(x)) + 1

    found = counted(lambda x: outer(outer(x)) @ x)
    assert (found["dot_general"], found["tanh"], found["add"]) == (5, 4, 2)
    assert "return" not in found


def test_loop_body_counts_once():
    assert counted(lambda x: jax.lax.fori_loop(0, 7, lambda _, y: jnp.sin(y), x))["sine"] == 1


def test_calls_of_functions_outside_the_module_count_as_operations():
    """A Python callback and a LAPACK routine are custom calls."""

    def calling(x):
        jax.debug.print("{}", x.sum())
        return jnp.linalg.eigvals(x)

    assert counted(calling)["custom_call"] == 2

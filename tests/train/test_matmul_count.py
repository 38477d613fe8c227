"""Counts of matrix products in traced programs agree with formulas."""

import jax
import jax.numpy as jnp
import pytest

from taetpu.core.config_parsing import load_config
from taetpu.nn.attention_kernels import KernelMask, Splash
from taetpu.nn.lm import ModelConfig
from taetpu.train.matmul_count import count_unbounded_loops, kernel_matmuls, matmul_flops
from taetpu.train.model_cost import flops_per_token

SQUARE = 2 * 8**3  # FLOPs of the product of two 8x8 matrices


def counted(fn, *sizes):
    return matmul_flops(jax.make_jaxpr(fn)(*(jax.ShapeDtypeStruct(size, jnp.float32) for size in sizes)))


def test_most_expensive_branch_counts():
    def branch(x, times):
        return jnp.linalg.matrix_power(x, 1) if not times else branch(x @ x, times - 1)

    ways = [lambda x, times=times: branch(x, times) for times in (1, 3, 0)]
    assert counted(lambda x: jax.lax.switch(jnp.int32(x[0, 0]), ways, x), (8, 8)) == 3 * SQUARE
    assert counted(lambda x: jax.lax.cond(x[0, 0] > 0, ways[0], ways[2], x), (8, 8)) == SQUARE


def test_loop_of_unknown_length_counts_once_and_is_reported():
    def until(x):
        return jax.lax.while_loop(lambda x: x[0, 0] < 1, lambda x: x @ x, x)

    def idle(x):
        return jax.lax.while_loop(lambda x: x[0, 0] < 1, lambda x: x + 1, x)

    x = jax.ShapeDtypeStruct((8, 8), jnp.float32)
    assert counted(until, (8, 8)) == SQUARE
    assert counted(lambda x: jax.lax.fori_loop(0, 5, lambda _, x: x @ x, x), (8, 8)) == 5 * SQUARE
    assert [
        count_unbounded_loops(jax.make_jaxpr(fn)(x)) for fn in (until, idle, jax.jit(lambda x: until(until(x))))
    ] == [1, 0, 2]


def test_scanned_and_empty_products():
    assert counted(lambda x: jax.lax.associative_scan(jnp.matmul, x), (5, 3, 3)) == 5 * 2 * 3**3
    assert counted(jnp.matmul, (4, 0), (0, 4)) == 0


@pytest.mark.parametrize("groups", [1, 2, 4])
@pytest.mark.parametrize("stride", [1, 2])
def test_convolution_counts_windows_and_gradients(groups, stride):
    def convolved(x, kernel):
        form = ("NWC", "WIO", "NWC")
        return jax.lax.conv_general_dilated(
            x, kernel, (stride,), "SAME", feature_group_count=groups, dimension_numbers=form
        )

    def loss(x, kernel):
        return (convolved(x, kernel) ** 2).sum()

    sizes = (3, 16, 4), (5, 4 // groups, 8)
    once = 2 * 3 * (16 // stride) * 8 * 5 * (4 // groups)
    assert counted(convolved, *sizes) == once
    assert counted(jax.grad(loss, argnums=(0, 1)), *sizes) == 3 * once


def test_ragged_product_counts_one_group_per_row():
    def loss(x, weights):
        return (jax.lax.ragged_dot(x, weights, jnp.array([5, 3, 4], jnp.int32)) ** 2).sum()

    once = 2 * 12 * 4 * 6
    assert counted(loss, (12, 4), (3, 4, 6)) == once
    assert counted(jax.grad(loss, argnums=(0, 1)), (12, 4), (3, 4, 6)) == 3 * once


@pytest.mark.parametrize(("causal", "blocks"), [(True, 10), (False, 16)])
def test_splash_attention_counts_unmasked_blocks(causal, blocks):
    """Each block needs two products in the forward pass, and four plus three for the gradients."""

    def loss(q, k, v):
        def layer(x, _):
            return Splash(128).attend(x, k, v, KernelMask(causal)), None

        return jax.lax.scan(layer, q, None, length=6)[0].sum()

    x = jax.ShapeDtypeStruct((7, 3, 2, 512, 64), jnp.bfloat16)
    forward, gradients = jax.make_jaxpr(jax.vmap(loss))(x, x, x), jax.make_jaxpr(jax.vmap(jax.grad(loss)))(x, x, x)
    block = 7 * 6 * 3 * 2 * blocks * 2 * 128 * 128 * 64
    assert matmul_flops(forward) == 2 * block
    sums = 7 * 6 * 3 * 2 * 512 * 2 * 64  # result times gradient, outside the kernels
    assert matmul_flops(gradients) == 9 * block + sums
    found = {name: sum(one.operations for one in of) for name, of in kernel_matmuls(gradients).items()}
    assert sorted(count // block for count in found.values()) == [2, 3, 4]


def test_model_count_excludes_blocks_that_its_kernel_skips():
    config = load_config(
        ModelConfig, {"dim": 64, "num_layers": 2, "mixer": {"kind": "attention", "num_heads": 2}}
    ).resolve()
    plain, splash = (flops_per_token(config, 7, 2048, attention) for attention in ("plain", "splash"))
    scores = 3 * 2 * 2 * 2 * 2048 * 64  # layers, products, multiply and add
    assert plain - splash == scores * 6 // 16


def test_other_kernels_count_by_their_grid():
    from jax.experimental import pallas as pl

    def body(x, y):
        y[...] = jnp.dot(x[...], x[...])

    def call(x):
        spec = pl.BlockSpec((8, 8), lambda i: (i, 0))
        out = jax.ShapeDtypeStruct(x.shape, x.dtype)
        return pl.pallas_call(body, out, grid=(4,), in_specs=[spec], out_specs=spec, interpret=True)(x)

    assert counted(call, (32, 8)) == 4 * SQUARE

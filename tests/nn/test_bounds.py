"""Indices beyond a table and weights with unknown fan-in are errors."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from taetpu.core.errors import UserError
from taetpu.core.keys import root_key
from taetpu.nn.common import Dims
from taetpu.nn.init import FanIn, GPT2Scaled
from taetpu.train.sample import continue_tokens

MODEL = {"dim": 8, "num_layers": 1, "mixer": "none", "position": "learned"}


def test_a_sequence_longer_than_the_table_of_positions_is_refused(draw):
    model = draw(MODEL, seq=8)
    assert jax.eval_shape(model, jnp.zeros((1, 8), jnp.int32)).shape == (1, 8, 7)
    longer = jax.ShapeDtypeStruct((1, 9), jnp.int32)
    with pytest.raises(UserError, match=r"9 tokens .* learned positions, which has 8"):
        jax.eval_shape(model, longer)
    with pytest.raises(UserError, match="at most 8 tokens"):
        jax.eval_shape(lambda: continue_tokens(model, jnp.zeros(3, jnp.int32), root_key(0), length=2, window=12))


@pytest.mark.parametrize("kind", ["tied", "untied"])
@pytest.mark.parametrize("token", [7, -1])
def test_a_token_that_is_not_in_the_vocabulary_is_refused(draw, kind, token):
    model = draw(MODEL | {"embedding": kind}, vocab=7)
    with pytest.raises(UserError, match=rf"token {token} .* vocabulary of 7 tokens\n.*from 0 to 6"):
        model(jnp.array([[0, token]]))


def dims(init):
    return Dims(dim=32, num_layers=2, seq_len=8, vocab_size=7, bias=False, init=init)


@pytest.mark.parametrize(
    ("shape", "axes", "fan_in"),
    [
        ((4, 32, 128), {"in_axes": (1,), "batch_axes": (0,)}, 32),  # heads or experts, in, out
        ((32, 4, 128), {"in_axes": (0,)}, 32),  # in, heads, head_dim
        ((4, 32, 64), {"in_axes": (0, 1)}, 128),  # heads, head_dim, out
        ((128, 4, 32), {"in_axes": (2,), "batch_axes": (1,)}, 32),
        ((64, 128), {"in_axes": (1,)}, 128),  # a matrix that is used transposed
        ((128, 64), {}, 128),
    ],
)
def test_fan_in_is_the_size_of_the_contracted_axes(shape, axes, fan_in):
    weight = np.asarray(dims(FanIn()).weight(root_key(0), *shape, **axes))
    assert weight.shape == shape
    assert weight.std() == pytest.approx(fan_in**-0.5, rel=0.05)


def test_matrices_of_one_weight_are_drawn_independently():
    weight = dims(FanIn()).weight(root_key(0), 3, 32, 16, in_axes=(1,), batch_axes=(0,))
    fewer = dims(FanIn()).weight(root_key(0), 2, 32, 16, in_axes=(1,), batch_axes=(0,))
    np.testing.assert_array_equal(weight[:2], fewer)
    assert len({float(matrix[0, 0]) for matrix in weight}) == 3


def test_a_weight_with_unknown_fan_in_is_refused():
    with pytest.raises(UserError, match=r"shape \(4, 32, 8\) is unknown.*\n.*in_axes=\(1,\) and batch_axes=\(0,\)"):
        dims(FanIn()).weight(root_key(0), 4, 32, 8)
    assert dims(GPT2Scaled()).weight(root_key(0), 4, 32, 8).shape == (4, 32, 8)  # needs none

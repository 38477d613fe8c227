"""No position depends on a later one: the gradient of its logits with respect to later inputs is exactly zero."""

import jax
import jax.numpy as jnp
import pytest
from tests.suites import by_default

from taetpu.core.jit import jit_once
from taetpu.core.keys import root_key
from taetpu.core.sites import Edit, capture

SEQ, AT = 6, 3
TOKENS = jax.random.randint(root_key(1), (1, SEQ), 0, 7)
NUDGE = Edit("embed", lambda x, value: x + value, value="nudge")


@jit_once
def influence(model):
    """Return the gradient of one logit of position `AT` with respect to every position's input.

    The sum of the logits is not used, because a norm may make it constant.
    """

    def logit(nudge):
        logits, _ = capture(model, (), [NUDGE])(TOKENS, values={"nudge": nudge})
        return logits[0, AT, 0]

    return jnp.abs(jax.grad(logit)(jnp.zeros((1, SEQ, 16)))).sum((0, 2))


CASES = {
    "learned, pre-norm, biases, dropped head": {
        "position": "learned",
        "norm": "layer",
        "bias": True,
        "mixer": {"kind": "attention", "drop_heads": [0]},
    },
    "sinusoidal, post-norm": {
        "position": "sinusoidal",
        "norm": {"kind": "layer", "placement": "post"},
        "ffn": "gelu-tanh",
    },
    "rope, grouped heads, no residual": {
        "mixer": {"kind": "attention", "num_kv_heads": 2, "head_dim": 6},
        "residual": "none",
        "ffn": "relu",
    },
    "no position, no norm, no ffn": {"position": "none", "norm": "none", "ffn": "none"},
}


@pytest.mark.parametrize("case", by_default(CASES, "learned, pre-norm, biases, dropped head"))
def test_later_positions_have_no_influence_and_earlier_ones_do(draw, case):
    found = influence(draw({"dim": 16, "num_layers": 2} | CASES[case], seq=SEQ))
    assert (found[AT + 1 :] == 0).all()
    assert (found[: AT + 1] > 0).all()


def test_without_a_mixer_a_position_depends_on_itself_alone(draw):
    found = influence(draw({"dim": 16, "num_layers": 1, "mixer": "none"}, seq=SEQ))
    assert (found > 0).tolist() == [i == AT for i in range(SEQ)]


def test_without_the_mask_a_position_depends_on_all(draw):
    found = influence(draw({"dim": 16, "num_layers": 1, "mixer": {"kind": "attention", "causal": False}}, seq=SEQ))
    assert (found > 0).all()

"""Residual connections equal their formulas."""

import jax.numpy as jnp
import numpy as np
import pytest

from taetpu.core.config_parsing import load_config
from taetpu.core.errors import UserError
from taetpu.core.jit_once import jit_once
from taetpu.nn.common import Context
from taetpu.nn.lm import ModelConfig

SEQ = 5
TOKENS = jnp.asarray(np.random.default_rng(0).integers(0, 7, (2, SEQ)), jnp.int32)
BASE = {"dim": 8, "num_layers": 1, "mixer": {"kind": "attention", "num_heads": 2}}


# --- residual none for one branch ------------------------------------------------------------------------------------


@pytest.mark.parametrize("branch", ["both", "mixer", "ffn"])
def test_only_the_chosen_branch_loses_its_skip_connection(draw, branch):
    model = draw(BASE | {"residual": {"kind": "none", "branch": branch}})

    @jit_once
    def layer(model):
        ctx, x = model.start(TOKENS)
        block, ctx = model.stacks[0].layer(0), Context(ctx.tokens, ctx.positions, layer=0)
        expected = x
        for name in ("mixer", "ffn"):
            y = block.branch(name, getattr(block, f"{name}_norm")(expected), ctx)
            expected = y if branch in ("both", name) else expected + y
        return block(x, ctx), expected

    found, expected = layer(model)
    np.testing.assert_allclose(found, expected, atol=1e-6)


def check_layer(**settings):
    layer = {"residual": {"kind": "none", "branch": "ffn"}, **settings}
    load_config(ModelConfig, BASE | {"layers": {0: layer}}).resolve().check(7, SEQ)


@pytest.mark.parametrize(
    ("settings", "text"),
    [
        (
            {"order": "parallel"},
            "order 'parallel' has one skip connection for both branches, so residual 'none' cannot remove that of the "
            "ffn alone\n  where:  layers.0.residual.branch\n  remedy: Use branch both, or order sequential",
        ),
        (
            {"drop": ["ffn"]},
            "dropping the ffn of a layer without a residual connection makes the layer's output zero\n",
        ),
    ],
)
def test_a_branch_that_needs_its_skip_connection_is_refused_without_it(settings, text):
    with pytest.raises(UserError) as caught:
        check_layer(**settings)
    assert str(caught.value).startswith(text)


def test_the_branch_with_a_skip_connection_can_be_dropped():
    check_layer(drop=["mixer"])

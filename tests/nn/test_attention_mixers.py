"""Mixers that extend attention: differential attention."""

from dataclasses import replace

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from tests.parity._common import CONTEXT, DIMS, build, stream
from tests.parity.attention import with_weights

from taetpu.core.config_parsing import build_component
from taetpu.core.errors import UserError
from taetpu.core.sites import capture

POSITION = build_component("position", "rope")
X = jnp.asarray(stream())


def mixer(kind, layer=0, **settings):
    """Return a mixer of a layer with random parameters."""
    return with_weights(build("mixer", kind, POSITION, dims=replace(DIMS, layer=layer), **settings))


@pytest.mark.parametrize("layer", [0, 3])
def test_lambda_starts_near_the_number_of_its_layer(layer):
    module = build("mixer", "differential", POSITION, dims=replace(DIMS, layer=layer))
    assert module.path.factor() == pytest.approx(0.8 - 0.6 * np.exp(-0.3 * layer), abs=0.1)


def test_a_pair_of_equal_heads_leaves_one_pattern():
    """If the queries and keys of a pair are equal, so are its patterns: A1 - lambda A2 = (1 - lambda) A1."""
    module = mixer("differential", num_heads=2, head_dim=8)
    wq, wk = (jnp.tile(w[:, :8], 2) for w in (module.wq, module.wk))
    twins = replace(module, wq=wq, wk=wk)
    found, sites = capture(lambda x: twins(x, CONTEXT), ("mixer.pattern", "mixer.v"))(X)
    pattern, v = sites["mixer.pattern"], sites["mixer.v"]
    np.testing.assert_allclose(pattern[:, 0], pattern[:, 1], atol=1e-6)
    z = jnp.concatenate([pattern[:, :1] @ v[:, :1], pattern[:, :1] @ v[:, 1:]], -1)[:, 0]
    z = z * (1 - module.path.factor())
    z = z * jax.lax.rsqrt((z**2).mean(-1, keepdims=True) + 1e-5) * (1 - module.path.start.value)
    np.testing.assert_allclose(found, z @ module.wo, atol=1e-5)


@pytest.mark.parametrize(("field", "value"), [("num_heads", 3), ("num_kv_heads", 1)])
def test_heads_come_in_pairs(field, value):
    config = build_component("mixer", {"kind": "differential", "head_dim": 4, field: value})
    with pytest.raises(UserError, match=f"{field} must be even.* got {value}") as raised:
        config.check(DIMS)
    assert raised.value.path == (field,)
    assert f"Use {field}: {value + 1}" in str(raised.value)

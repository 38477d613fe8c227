"""Differential and latent attention."""

from dataclasses import replace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from tests.parity._common import CONTEXT, DIMS, build, stream
from tests.parity.attention import with_weights

from taetpu.core.config_parsing import build_component
from taetpu.core.errors import UserError
from taetpu.core.keys import root_key
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


@pytest.mark.slow
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


# --- latent attention -------------------------------------------------------------------------------------------------


def test_default_widths_follow_the_width_of_the_model():
    config: Any = build_component("mixer", "mla")
    assert config.widths(replace(DIMS, dim=64)) == (16, 16, 8, 16)
    assert config.widths(replace(DIMS, dim=2048)) == (512, 512, 256, 512)


def test_a_cache_holds_the_latent_and_the_shared_key():
    config: Any = build_component("mixer", {"kind": "mla", "kv_latent": 5, "rope_dim": 2})
    module = config.init(DIMS, POSITION, key=root_key(0))
    assert module.cache_shapes(7) == {"latent": (1, 7, 5), "rope_key": (1, 7, 2)}
    assert config.cache_size(DIMS) == 7


@pytest.mark.slow
def test_positions_act_on_the_last_elements_only():
    """Without positions, the first head_dim elements of queries and keys are the same."""
    sites = []
    for kind in ("rope", "none"):
        module = with_weights(build("mixer", "mla", build_component("position", kind)))
        sites.append(capture(lambda x, module=module: module(x, CONTEXT), ("mixer.q", "mixer.k"))(X)[1])
    size = DIMS.dim // 4
    for name in ("mixer.q", "mixer.k"):
        rope, none = (found[name] for found in sites)
        assert rope.shape[-1] == size + 2
        np.testing.assert_allclose(rope[..., :size], none[..., :size], atol=1e-6)
        assert np.abs(rope[..., size:] - none[..., size:]).max() > 0.1
    assert np.ptp(sites[0]["mixer.k"][..., size:], axis=1).max() == 0


def test_a_cache_requires_a_causal_mask():
    module = build("mixer", "mla", POSITION, mask="full")
    with pytest.raises(UserError, match="not causal"):
        module.cache_shapes(7)


def test_mla_rejects_widths_that_do_not_fit():
    with pytest.raises(UserError, match="rope_dim"):
        build_component("mixer", {"kind": "mla", "rope_dim": 0})
    with pytest.raises(UserError, match=r"dim=16 .*divisible by num_heads=3") as raised:
        build_component("mixer", {"kind": "mla", "num_heads": 3}).check(DIMS)
    assert raised.value.path == ("num_heads",)


@pytest.mark.slow
def test_only_rotations_need_an_even_rope_dim():
    assert build("mixer", "mla", build_component("position", "alibi"), rope_dim=3)(X, CONTEXT).shape == X.shape
    for position, rope_dim, found in (("rope", 3, 3), ({"kind": "rope", "fraction": 0.5}, 6, 3), ("xpos", 1, 1)):
        with pytest.raises(UserError, match=f"got {found}") as raised:
            build("mixer", "mla", build_component("position", position), rope_dim=rope_dim)
        assert "rope_dim in mla" in str(raised.value)
    for rope_dim in (2, 4, 6):
        assert build("mixer", "mla", POSITION, head_dim=5, rope_dim=rope_dim)(X, CONTEXT).shape == X.shape


# --- talking heads ----------------------------------------------------------------------------------------------------


@pytest.mark.slow
def test_talking_heads_start_as_a_softmax():
    plain, mixed = (
        build("mixer", "attention", POSITION, normalizer=normalizer)(X, CONTEXT)
        for normalizer in ("softmax", "talking-heads")
    )
    np.testing.assert_allclose(mixed, plain, atol=1e-6)


@pytest.mark.slow
def test_talking_heads_mix_no_hidden_scores():
    """With a negative factor, a hidden score of -1e30 would become the largest one."""
    module = build("mixer", "attention", POSITION, normalizer="talking-heads")
    module = replace(module, normalizer=replace(module.normalizer, before=-jnp.ones((4, 4))))
    pattern = capture(lambda x: module(x, CONTEXT), ("mixer.pattern",))(X)[1]["mixer.pattern"]
    np.testing.assert_array_equal(jnp.triu(pattern, 1), jnp.zeros_like(pattern))
    np.testing.assert_allclose(pattern.sum(-1), 1, atol=1e-5)

"""Mixers with a recurrent state: chunks, documents and padding."""

from dataclasses import replace
from itertools import pairwise

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from tests.parity._common import CONTEXT, SEQ, stream
from tests.parity.mixers import mixer
from tests.suites import by_default

from taetpu.nn.common import Context
from taetpu.nn.mixer.recurrence import decayed_sum, gated_delta_rule, unit_lower_inverse

SETTINGS = {"linear": {}, "gated-delta": {}, "mamba2": {"head_dim": 8, "state": 6}, "lstm": {}, "gru": {}}
CHUNKED = ("linear", "gated-delta", "mamba2")
X = jnp.asarray(stream())


@pytest.mark.slow
@pytest.mark.parametrize("kind", by_default(CHUNKED, "gated-delta"))
def test_the_size_of_chunks_changes_nothing(kind):
    whole, parts = (mixer(kind, **SETTINGS[kind], chunk=chunk)(X, CONTEXT) for chunk in (64, 5))
    np.testing.assert_allclose(parts, whole, atol=2e-5)


@pytest.mark.slow
@pytest.mark.parametrize("kind", by_default(SETTINGS, "linear"))
def test_a_document_is_computed_as_if_it_were_alone(kind):
    settings = {**SETTINGS[kind], **({"chunk": 4} if kind in CHUNKED else {})}
    module, ends = mixer(kind, **settings), (0, 3, 9, SEQ)
    segments = jnp.asarray(np.repeat([[0, 1, 2]], np.diff(ends), axis=1).repeat(len(X), 0))
    packed = module(X, replace(CONTEXT, segments=segments))
    for start, end in pairwise(ends):
        alone = module(X[:, start:end], Context(CONTEXT.tokens[:, start:end], jnp.arange(end - start)))
        np.testing.assert_allclose(packed[:, start:end], alone, atol=2e-5)


@pytest.mark.slow
@pytest.mark.parametrize("kind", by_default(SETTINGS, "linear"))
def test_padding_on_the_left_changes_nothing(kind):
    module, pad = mixer(kind, **SETTINGS[kind]), 3
    padded = jnp.pad(X, ((0, 0), (pad, 0), (0, 0)), constant_values=7.0)
    real = jnp.pad(jnp.ones(X.shape[:2], bool), ((0, 0), (pad, 0)))
    ctx = Context(jnp.pad(CONTEXT.tokens, ((0, 0), (pad, 0))), jnp.arange(SEQ + pad), real=real)
    np.testing.assert_allclose(module(padded, ctx)[:, pad:], module(X, CONTEXT), atol=2e-5)


def test_chunks_follow_the_recurrence_token_by_token():
    rng = np.random.default_rng(0)
    q, k, v = (rng.standard_normal((1, 2, 7, n)) / n for n in (3, 3, 4))
    g, beta = -rng.random((1, 2, 7)), rng.random((1, 2, 7))
    state = {name: np.array(rng.standard_normal((1, 2, 3, 4))) for name in ("sum", "delta")}
    first = {name: jnp.asarray(value, jnp.float32) for name, value in state.items()}
    found = {name: [] for name in state}
    for t in range(7):
        for name, s in state.items():
            s *= np.exp(g[:, :, t, None, None])
            wanted = v[:, :, t]
            if name == "delta":
                wanted = beta[:, :, t, None] * (wanted - np.einsum("bhkv,bhk->bhv", s, k[:, :, t]))
            s += k[:, :, t, :, None] * wanted[:, :, None]
            found[name].append(np.einsum("bhkv,bhk->bhv", s, q[:, :, t]))
    arrays = [jnp.asarray(a, jnp.float32) for a in (q, k, v, g, beta)]
    results = {
        "sum": decayed_sum(*arrays[:4], first["sum"], chunk=3),
        "delta": gated_delta_rule(*arrays, first["delta"], chunk=3),
    }
    for name, (o, last) in results.items():
        np.testing.assert_allclose(o, np.stack(found[name], 2), atol=1e-5)
        np.testing.assert_allclose(last, state[name], atol=1e-5)


@pytest.mark.slow
@pytest.mark.parametrize("size", by_default([1, 5, 16, 33], 5))
def test_unit_lower_inverse_and_its_gradient_are_those_of_the_general_inverse(size):
    def general(a):
        return jnp.linalg.inv(jnp.eye(size) + jnp.tril(a, -1))

    rng = np.random.default_rng(size)
    a, weights = (jnp.asarray(rng.normal(size=(2, size, size)) / size**0.5, jnp.float32) for _ in range(2))
    found, expected = (jax.grad(lambda a, f=f: (f(a) * weights).sum())(a) for f in (unit_lower_inverse, general))
    np.testing.assert_allclose(unit_lower_inverse(a), general(a), atol=1e-6)
    np.testing.assert_allclose(found, expected, atol=1e-6)

"""Stacking, compiling and batching layers change no result, and an override changes no other parameter."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from taetpu.core.config_parsing import load_config
from taetpu.core.errors import UserError
from taetpu.core.jit import jit_once
from taetpu.core.keys import root_key
from taetpu.nn import stack
from taetpu.nn.common import partition_trainable
from taetpu.nn.compute_options import ComputeOptions
from taetpu.nn.lm import ModelConfig, build_model
from taetpu.nn.named_arrays import mask_matrices, named_parameters, with_parameters

TOKENS = jax.random.randint(root_key(1), (2, 8), 0, 7)
BASE = {"dim": 16, "num_layers": 3}


@pytest.fixture(scope="module")
def model(draw):
    return draw(BASE)


@pytest.fixture(scope="module")
def parameters(model):
    return named_parameters(model)


def born(settings, seeds=(0,)):
    """Return the initial parameters of a model for each seed."""
    config = load_config(ModelConfig, BASE | settings).resolve()
    drawn = jit_once(lambda seed: named_parameters(build_model(config, 7, 8, key=root_key(seed))))
    return [drawn(seed) for seed in seeds]


@pytest.fixture(scope="module")
def newborns():
    return born({}, seeds=(0, 1))


def forward(model, key=None):
    return jit_once(lambda m, k: m(TOKENS, key=k))(model, key)


def assert_same(a, b, but=()):
    """Compare parameters bit for bit, except names with a prefix in `but`, which must occur."""
    shared = {name for name in a if not name.startswith(tuple(but))}
    assert shared == {name for name in b if not name.startswith(tuple(but))}
    assert len(shared) < len({*a, *b}) or not but
    for name in shared:
        np.testing.assert_array_equal(a[name], b[name], err_msg=name)


@pytest.mark.slow
def test_a_rolled_stack_equals_an_unrolled_one_with_dropout(draw, monkeypatch):
    model, key = draw(BASE | {"mixer": "none", "dropout": 0.5}), root_key(3)
    whole = forward(model, key)
    monkeypatch.setattr(stack, "UNROLL_UP_TO", 0)
    model = ComputeOptions(unroll=2).apply(model)
    text = str(jax.make_jaxpr(lambda m: m(TOKENS))(model))
    assert "unroll=2" in text
    assert "unroll=3" not in text
    np.testing.assert_allclose(forward(model, key), whole, atol=1e-5)


CHANGES = {
    "single layers": (
        {"layers": {-1: {"ffn": "relu"}, 0: {"mixer": {"kind": "attention", "num_heads": 2, "num_kv_heads": 1}}}},
        ["layers.2.ffn.", "layers.0.mixer."],
    ),
    "ffn and embedding and position": (
        {"ffn": "gelu-erf", "embedding": "untied", "position": "learned"},
        ["embedding.unembed", "position.", "layers.0.ffn.", "layers.1.ffn.", "layers.2.ffn."],
    ),
}


@pytest.mark.slow
@pytest.mark.parametrize("change", CHANGES)
def test_an_override_changes_no_other_parameter(newborns, change):
    settings, touched = CHANGES[change]
    assert_same(newborns[0], born(settings)[0], but=touched)


@pytest.mark.slow
def test_another_seed_changes_every_weight(newborns):
    for name, array in newborns[1].items():
        assert "norm" in name or not np.array_equal(array, newborns[0][name])


def test_no_two_weights_are_equal(newborns):
    drawn = [np.asarray(a).ravel()[:16].tobytes() for name, a in newborns[0].items() if "norm" not in name]
    assert len(set(drawn)) == len(drawn)


def test_splitting_a_stack_changes_no_logit(draw):
    """A layer with an equivalent but different config is a separate stack."""
    small = {"dim": 16, "num_layers": 2, "mixer": "none"}
    model, cut = draw(small), draw(small | {"layers": {1: {"ffn": {"kind": "swiglu", "hidden": 40}}}})
    assert [s.size for s in model.stacks] == [2]
    assert [s.size for s in cut.stacks] == [1, 1]
    np.testing.assert_allclose(forward(cut), forward(model), atol=1e-5)


def test_a_layer_of_a_stack_has_that_layers_parameters(model, parameters):
    np.testing.assert_array_equal(model.stacks[0].layer(2).mixer.wq, parameters["layers.2.mixer.wq"])


def test_vmapped_and_eager_models_equal_the_compiled_model(draw):
    model, other = (draw({"dim": 16, "num_layers": 1, "ffn": "relu"}, seed=seed) for seed in range(2))
    both = jax.tree.map(lambda *a: jnp.stack(a), model, other)
    packed = jit_once(jax.vmap(lambda m: m(TOKENS)))(both)
    for row, solo in zip(packed, (model, other), strict=True):
        np.testing.assert_allclose(row, forward(solo), atol=1e-5)
    np.testing.assert_allclose(model(TOKENS), forward(model), atol=1e-5)


def test_named_parameters_and_with_parameters_are_inverse(draw, model, parameters):
    other = draw(BASE, seed=1)
    assert jax.tree.all(jax.tree.map(np.array_equal, with_parameters(other, parameters), model))
    assert sorted(parameters)[:2] == ["embedding.weight", "layers.0.ffn.down"]
    assert sum(a.size for a in parameters.values()) == sum(
        a.size for a in jax.tree.leaves(partition_trainable(model)[0])
    )


def aligned(values: np.ndarray) -> np.ndarray:
    """Return a copy at an address that jax could use without copying."""
    bytes_ = np.empty(values.nbytes + 64, np.uint8)
    start = -bytes_.ctypes.data % 64
    copy = bytes_[start : start + values.nbytes].view(values.dtype).reshape(values.shape)
    copy[...] = values
    return copy


def test_a_model_does_not_change_with_the_arrays_that_it_was_made_of(model, parameters):
    arrays = {name: aligned(np.asarray(a)) for name, a in parameters.items()}
    made = with_parameters(model, arrays)
    for array in arrays.values():
        array[...] = 0.5
    assert jax.tree.all(jax.tree.map(np.array_equal, made, model))


def test_parameters_with_wrong_names_or_shapes_are_refused(model, parameters):
    missing = {name: a for name, a in parameters.items() if name != "norm.weight"}
    with pytest.raises(UserError, match=r"parameter 'norm.weight' is missing"):
        with_parameters(model, missing)
    with pytest.raises(UserError, match="parameter 'extra' is not in"):
        with_parameters(model, parameters | {"extra": jnp.ones(1)})
    with pytest.raises(UserError, match=r"parameter 'norm.weight' has shape \(3,\), not \(16,\)"):
        with_parameters(model, parameters | {"norm.weight": jnp.ones(3)})


@pytest.mark.slow
def test_matrices_are_weights_and_tables_not_norms_nor_biases(draw):
    model = draw(BASE | {"bias": True, "norm": "layer", "position": "learned"})
    params, _ = partition_trainable(model)
    flags = jax.tree.map(lambda array, flag: jnp.full(array.shape, flag, jnp.float32), params, mask_matrices(params))
    for name, flag in named_parameters(flags).items():
        assert flag.all() == flag.any() == (flag.ndim == 2), name

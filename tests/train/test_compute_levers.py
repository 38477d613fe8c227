"""Unrolled layers, padded and narrow logits and one cast a step: the same training, alone and in packs."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from tests.suites import by_default

from taetpu.core.jit import jit_once
from taetpu.core.keys import root_key
from taetpu.data.base import Batch
from taetpu.nn import stack
from taetpu.nn.cast import cast_weights
from taetpu.nn.common import combine_trainable, partition_trainable
from taetpu.nn.compute_options import ComputeOptions
from taetpu.nn.embedding import LogitForm, unembed
from taetpu.nn.named_arrays import named_parameters
from taetpu.optim.loss import predict, trained_sum

LEVERS = {"logits": "bfloat16", "pad_vocab": 8, "cast": "step"}
TOKENS = jax.random.randint(root_key(1), (2, 8), 0, 7)
BATCH = Batch(TOKENS, jnp.roll(TOKENS, -1, 1), jnp.ones((2, 8)))
SMALL = {"dim": 16, "num_layers": 3, "mixer": {"kind": "attention", "num_heads": 2}}


def train(trainer, config, source, **options):
    """Return the losses of 8 steps and the parameters after them."""
    run = trainer([config], source, options=options)
    losses = run.advance(8)["train/loss"][0]
    return losses, {name: np.asarray(array)[0] for name, array in named_parameters(run.state.model).items()}


def assert_close(found, wanted, rtol):
    np.testing.assert_allclose(found[0], wanted[0], rtol=rtol)
    assert found[1].keys() == wanted[1].keys()
    for name, array in wanted[1].items():
        np.testing.assert_allclose(found[1][name], array, atol=10 * rtol, err_msg=name)


def loss_and_gradients(model, dtype=jnp.float32):
    """Return the loss of a training step, and its gradients with respect to the parameters that are kept."""
    params, rest = partition_trainable(model)

    def loss(params):
        used = cast_weights(params, dtype) if model.cast == "step" else params
        _, losses = predict(combine_trainable(used, rest), BATCH, key=root_key(2), dtype=dtype)
        return trained_sum({name: value.sum() for name, value in losses.items()})

    return jit_once(jax.value_and_grad(loss))(params)


@pytest.mark.parametrize(
    "embedding", by_default(["tied", {"kind": "untied", "bias": True}, {"kind": "factorised", "size": 8}], "tied")
)
def test_padded_logits_have_the_loss_and_gradients_of_others(draw, embedding):
    model = draw({**SMALL, "embedding": embedding})
    (loss, gradients), (padded, padded_gradients) = (
        loss_and_gradients(ComputeOptions(pad_vocab=multiple).apply(model)) for multiple in (None, 8)
    )
    np.testing.assert_allclose(padded, loss, rtol=1e-6)
    for one, other in zip(*map(jax.tree.leaves, (padded_gradients, gradients)), strict=True):
        assert one.shape == other.shape
        np.testing.assert_allclose(one, other, rtol=1e-5, atol=1e-5)


@pytest.mark.slow
def test_padding_has_no_gradient_and_is_removed():
    x, w, b = (jax.random.normal(root_key(i), shape) for i, shape in enumerate(((2, 3, 4), (4, 7), (7,))))
    form = LogitForm("float32", 5)
    logits, pull = jax.vjp(lambda x, w, b: unembed(x, w, b, form), x, w, b)
    np.testing.assert_allclose(logits, x @ w + b, rtol=1e-5, atol=1e-6)
    wanted = jax.vjp(lambda x, w, b: x @ w + b, x, w, b)[1](jnp.ones_like(logits))
    for one, other in zip(pull(jnp.ones_like(logits)), wanted, strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-5, atol=1e-6)
    wide = jax.make_jaxpr(lambda x, w: jax.grad(lambda w: unembed(x, w, None, form).sum())(w))(x, w)
    assert "6,10]" in str(wide)  # the product has the padded columns
    assert unembed(x, w, b, LogitForm("float32", 7)).shape == logits.shape


@pytest.mark.slow
def test_narrow_logits_are_rounded_and_summed_in_float32(draw):
    model = ComputeOptions(logits="bfloat16").apply(draw(SMALL))
    x = model.final(TOKENS)
    logits = model.decode_in_training(x)
    assert logits.dtype == jnp.float32
    np.testing.assert_array_equal(logits, model.decode(x).astype(jnp.bfloat16).astype(jnp.float32))
    seen, losses = predict(model, BATCH, key=root_key(2))
    assert seen is None
    assert losses["nll"].dtype == jnp.float32
    np.testing.assert_array_equal(predict(model, BATCH)[0], predict(draw(SMALL), BATCH)[0])  # evaluation is not rounded
    np.testing.assert_array_equal(predict(model, BATCH, key=root_key(2), whole=True)[0], model.decode(x))  # nor hooks


@pytest.mark.slow
def test_chunks_of_narrow_logits_have_the_losses_of_all(draw):
    model = draw(SMALL)
    whole, chunks = (
        predict(ComputeOptions(logits="bfloat16", pad_vocab=4, loss_chunk=n).apply(model), BATCH, key=root_key(2))[1]
        for n in (None, 4)
    )
    np.testing.assert_allclose(chunks["nll"], whole["nll"], rtol=1e-5)


@pytest.mark.parametrize(
    "settings",
    by_default(
        [
            {},
            {"adapter": "lora"},
            {"layers": {1: {"same_as": 0}}},
            {"ffn": "gelu-tanh", "layers": {2: {"mixer": "none"}}},
        ],
        {},
    ),
)
def test_weights_that_are_cast_once_give_the_same_loss_and_rounded_gradients(draw, settings):
    """XLA's CPU backend keeps the gradients of weights that are cast at each use in float32."""
    model = draw({**SMALL, **settings})
    (loss, gradients), (found, found_gradients) = (
        loss_and_gradients(ComputeOptions(cast=cast).apply(model), jnp.bfloat16) for cast in ("use", "step")
    )
    np.testing.assert_array_equal(found, loss)
    for one, other in zip(*map(jax.tree.leaves, (found_gradients, gradients)), strict=True):
        assert one.dtype == other.dtype
        np.testing.assert_allclose(one, other, rtol=2**-6, atol=1e-6)


def test_only_weights_of_products_are_cast(draw):
    params, _ = partition_trainable(draw({**SMALL, "position": "learned", "norm": "layer", "bias": True}))
    cast = {name: array.dtype.name for name, array in named_parameters(cast_weights(params, jnp.bfloat16)).items()}
    narrow = {name.split(".", 2)[2] for name, dtype in cast.items() if dtype == "bfloat16"}
    assert narrow == {"mixer.wq", "mixer.wk", "mixer.wv", "mixer.wo", "ffn.gate", "ffn.up", "ffn.down"}
    assert all(dtype == "float32" for name, dtype in cast.items() if not name.startswith("layers."))


def test_unrolled_layers_equal_layers_in_a_loop(draw, monkeypatch):
    monkeypatch.setattr(stack, "UNROLL_UP_TO", 0)
    models = [ComputeOptions(unroll=unroll).apply(draw(SMALL)) for unroll in (1, 3, 99)]
    loops = [str(jax.make_jaxpr(lambda m: m(TOKENS))(model)).count("unroll=1") for model in models]
    assert loops == [1, 0, 0]
    (loss, gradients), *others = map(loss_and_gradients, models)
    for found, found_gradients in others:
        np.testing.assert_allclose(found, loss, rtol=1e-6)
        for one, other in zip(*map(jax.tree.leaves, (found_gradients, gradients)), strict=True):
            np.testing.assert_allclose(one, other, atol=1e-5)


@pytest.mark.slow
def test_all_levers_together_train_the_same_model_in_packs_and_alone(trainer, make, text):
    task, source = text
    configs = [make(task, {"num_layers": 2}, precision="bfloat16", accumulate=2, optimizer={"kind": "adamw", "lr": lr})
               for lr in (1e-3, 3e-3)]  # fmt: skip
    exact = train(trainer, configs[0], source)
    levers = train(trainer, configs[0], source, **LEVERS, unroll=2, remat="dots")
    assert_close(levers, exact, 5e-3)
    assert (levers[0] != exact[0]).any()  # the logits are rounded
    pack = trainer(configs, source, options={**LEVERS, "unroll": 2, "remat": "dots"})
    np.testing.assert_array_equal(pack.advance(8)["train/loss"][0], levers[0])
    windows = pack.program.evaluation_set("val")
    plain = trainer(configs, source)
    state = jax.tree.unflatten(jax.tree.structure(plain.state.model), jax.tree.leaves(pack.state.model))
    for run, model in ((pack, pack.state.model), (plain, state)):
        run.sums = {name: np.asarray(v) for name, v in run.program.evaluate(model, windows).items()}
    np.testing.assert_allclose(pack.sums["nll"], plain.sums["nll"], rtol=1e-5)


@pytest.mark.slow
def test_levers_work_under_vmap(draw):
    """On accelerators, the runs of a pack are vectorised."""
    models = [ComputeOptions(**LEVERS).apply(draw(SMALL, seed=seed)) for seed in (0, 1)]
    _, rest = partition_trainable(models[0])

    def loss(params):
        used = cast_weights(params, jnp.bfloat16)
        return predict(combine_trainable(used, rest), BATCH, key=root_key(2), dtype=jnp.bfloat16)[1]["nll"].sum()

    gradient = jax.value_and_grad(loss)
    stacked = jax.tree.map(lambda *a: jnp.stack(a), *(partition_trainable(model)[0] for model in models))
    losses, gradients = jit_once(jax.vmap(gradient))(stacked)
    for i, model in enumerate(models):
        alone, alone_gradients = jit_once(gradient)(partition_trainable(model)[0])
        np.testing.assert_allclose(losses[i], alone, rtol=2e-3)
        for one, other in zip(*map(jax.tree.leaves, (gradients, alone_gradients)), strict=True):
            np.testing.assert_allclose(one[i], other, atol=0.05 * float(np.abs(other).max()))

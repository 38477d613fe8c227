"""Auxiliary losses, heads and state in a train step: gradients, microbatches, several devices, packs and layers."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from taetpu.core.batch_statistics import Averages, auxiliary_loss, collect
from taetpu.core.errors import UserError
from taetpu.core.jit import jit_once
from taetpu.core.keys import root_key
from taetpu.core.registry import register, unregister
from taetpu.core.sites import capture
from taetpu.nn import stack
from taetpu.nn.common import combine_trainable, partition_trainable
from taetpu.nn.compute_options import ComputeOptions
from taetpu.nn.ffn.moe import balance, choose
from taetpu.nn.named_arrays import named_constants, named_parameters, scale_layers
from taetpu.optim.hooks import Hook, Moment
from taetpu.optim.loss import head_losses, position_losses, sum_losses
from taetpu.train.step import StepContext, gradients, new_model
from taetpu.train.training_flops import added_flops, step_flops

MOE = {"kind": "moe", "experts": 4, "top": 2, "hidden": 8, "balance": 0.5}
DEEPSEEK = {"kind": "deepseek-moe", "experts": 4, "top": 2, "hidden": 8, "balance": 0.5}
HEADS = {"future": {"kind": "multi-token", "ahead": 2, "weight": 0.7}, "exit": {"kind": "early-exit", "layers": [0]}}


@pytest.fixture(scope="module", autouse=True)
def planted():
    """Register hooks that compute the balance loss from sites."""

    @register("hook", "test-balance")
    class Balance(Hook):
        def sites(self):
            return ("ffn.router",)

        def loss(self, loss, logits, batch, model, now):
            scores = now.sites["ffn.router"]  # (layers, batch, seq, experts)
            chosen = jax.nn.one_hot(jax.lax.top_k(scores, 2)[1], scores.shape[-1]).sum(-2) / 2
            each = balance(chosen.mean((1, 2)), jax.nn.softmax(scores).mean((1, 2)))
            return loss + 0.5 * each.sum()

    yield
    unregister(__name__)


def computed(config, source, seed=0):
    """Return the model, the batch, and what `gradients` returns for a first step."""

    def both(seed, arrays, rows):
        key = root_key(seed)
        model = new_model(config, source, seed)
        batch = source.batch(arrays, rows, key)
        context = StepContext(config, source, arrays, seed, 12, jnp.float32)
        return model, batch, gradients(model, batch, key, Moment(seed, 12, key), context)

    return jit_once(both)(jnp.int32(seed), dict(source.arrays), source.rows(seed, 0, 1, 4)[0])


def close(a, b, rtol=1e-4, atol=1e-6):
    one, other = named_parameters(a), named_parameters(b)
    assert set(one) == set(other)
    for name in one:
        np.testing.assert_allclose(one[name], other[name], rtol=rtol, atol=atol, err_msg=name)


def differentiate(model, loss):
    params, rest = partition_trainable(model)
    return jit_once(jax.grad(lambda params: loss(combine_trainable(params, rest))))(params)


@pytest.mark.slow
def test_the_balance_loss_is_part_of_the_gradient(make, text):
    """The reference captures the router's scores and adds the loss of each layer."""
    task, source = text
    model, batch, (found, (_, losses, _)) = computed(make(task, {"num_layers": 2, "ffn": MOE}), source)

    def loss(model):
        logits, reads = capture(model, ["ffn.router"])(batch.tokens)
        sums = sum_losses(logits, batch.targets, batch.weights)
        chosen = jax.vmap(lambda scores: choose(scores, 2))(reads["ffn.router"]) / 2
        each = balance(chosen.mean((1, 2)), jax.nn.softmax(reads["ffn.router"]).mean((1, 2)))
        return sums["nll"] / sums["weight"] + 0.5 * each.sum()

    close(found, differentiate(model, loss))
    assert 0.9 < losses["balance"] < 4.1


@pytest.mark.slow
def test_a_hook_with_sites_computes_the_same_without_a_second_pass(make, text):
    task, source = text
    own = make(task, {"num_layers": 2, "ffn": MOE})
    hooked = make(task, {"num_layers": 2, "ffn": {**MOE, "balance": 0.0}}, hooks=["test-balance"])
    close(computed(own, source)[2][0], computed(hooked, source)[2][0])
    assert added_flops(hooked, source) == 0


@pytest.mark.slow
def test_losses_of_tokens_add_up_over_microbatches_and_statistics_of_the_batch_are_refused(make, text):
    task, source = text
    whole, parts = (computed(make(task, {"ffn": DEEPSEEK}, accumulate=n), source)[2] for n in (1, 2))
    close(whole[0], parts[0])
    for a, b in zip(jax.tree.leaves(whole[1]), jax.tree.leaves(parts[1]), strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-5)
    with pytest.raises(UserError, match=r"'balance' .*the whole batch") as caught:
        computed(make(task, {"ffn": MOE}, accumulate=2), source)
    assert (caught.value.path, caught.value.remedy) == (("train", "accumulate"), "Use accumulate: 1.")


@pytest.mark.slow
def test_two_devices_that_share_a_batch_train_like_one(trainer, make, text):
    """The statistics of a batch, and the state that follows them, are those of the whole batch on both devices."""
    layers = {"num_layers": 2, "ffn": MOE, "layers": {1: {"ffn": DEEPSEEK}}}
    config = make(text[0], {**layers, "heads": HEADS})
    one, two = (trainer([config], text[1], devices=devices) for devices in (1, 2))
    a, b = one.advance(3), two.advance(3)
    assert {"train/balance", "train/future", "train/exit"} <= set(a)
    for name in a:
        np.testing.assert_allclose(a[name], b[name], rtol=2e-4, err_msg=name)
    constants = [named_constants(run.state.model) for run in (one, two)]
    for name in constants[0]:
        np.testing.assert_array_equal(constants[0][name], constants[1][name], err_msg=name)
    close(one.state.model, two.state.model, rtol=1e-3, atol=2e-5)


@pytest.mark.slow
def test_packed_runs_differ_in_weights_and_rates_and_agree_with_single_runs(trainer, make, text):
    task, source = text
    rates = (1e-3, 1e-1)
    configs = [make(task, {"ffn": {**DEEPSEEK, "bias_rate": rate}, "heads": HEADS}) for rate in rates]
    pack = trainer(configs, source, seeds=[4, 4])
    packed = pack.advance(3)
    for i, config in enumerate(configs):
        single = trainer([config], source, seeds=[4])
        alone = single.advance(3)
        for name in alone:
            np.testing.assert_allclose(packed[name][i], alone[name][0], rtol=1e-4, err_msg=name)
        bias = named_constants(jax.tree.map(lambda a, i=i: a[i], pack.state.model))["layers.0.ffn.bias.value"]
        own = named_constants(jax.tree.map(lambda a: a[0], single.state.model))["layers.0.ffn.bias.value"]
        np.testing.assert_array_equal(bias, own)
        # 3 updates by the rate, up, down or not at all.
        assert set(np.round(np.abs(np.asarray(own)) / rates[i])) <= {0.0, 1.0, 2.0, 3.0}
        assert np.abs(own).max() > 0


@pytest.mark.slow
def test_rolled_layers_give_the_losses_and_gradients_of_unrolled_layers(make, text, monkeypatch):
    task, source = text
    config = make(task, {"num_layers": 3, "ffn": MOE, "heads": HEADS})
    unrolled = computed(config, source)[2]
    monkeypatch.setattr(stack, "UNROLL_UP_TO", 1)
    rolled = computed(config, source)[2]
    close(unrolled[0], rolled[0])
    np.testing.assert_allclose(unrolled[1][1]["balance"], rolled[1][1]["balance"], rtol=1e-5)


@pytest.mark.slow
def test_the_losses_of_heads_are_those_of_a_second_model_written_by_hand(make, text):
    """The heads' gradients and losses, computed with separate forward passes of the same parameters."""
    task, source = text
    model, batch, (found, (_, losses, _)) = computed(make(task, {"num_layers": 2, "heads": HEADS}), source)

    def nll(logits, ahead=0):
        targets, weights = batch.targets[:, ahead:], batch.weights[:, ahead:]
        logits = logits[:, : logits.shape[1] - ahead]
        return position_losses(logits, targets, weights)["nll"].sum() / batch.weights.sum()

    def parts(model):
        x = model.final(batch.tokens)
        first, second = model.heads["future"].weights
        params, rest = partition_trainable(model)  # an output of zero leaves the residual stream unchanged
        short = combine_trainable(scale_layers(params, jnp.array([1.0, 0.0])), rest)
        future = (nll(model.decode(x @ first), 1) + nll(model.decode(x @ second), 2)) / 2
        return nll(model(batch.tokens)), future, nll(short(batch.tokens))

    _, future, early = parts(model)
    np.testing.assert_allclose([losses["future"], losses["exit"]], [future, early], rtol=1e-5)

    def loss(model):
        main, future, early = parts(model)
        return main + 0.7 * future + 0.3 * early

    close(found, differentiate(model, loss))


@pytest.mark.slow
def test_heads_share_the_forward_pass_and_respect_chunked_losses(make, text):
    task, source = text
    plain, headed = make(task, {"num_layers": 2}), make(task, {"num_layers": 2, "heads": HEADS})
    dim, vocab, tokens = 16, source.vocab_size, 4 * 16
    heads = 3 * 2 * tokens * (2 * dim * dim + 3 * dim * vocab)  # two projections, three decoded streams
    assert step_flops(headed, source) - step_flops(plain, source) == heads
    model, batch, _ = computed(headed, source)
    _, reads = capture(model, ["final", "residual"])(batch.tokens)
    chunked = ComputeOptions(loss_chunk=8).apply(model)
    whole, parts = (jit_once(lambda m: head_losses(m, headed.model.heads, reads, batch))(m) for m in (model, chunked))
    for name in whole:
        np.testing.assert_allclose(whole[name], parts[name], rtol=1e-5, atol=1e-6)


@pytest.mark.slow
def test_two_means_of_one_name_in_a_layer_are_refused_and_losses_are_added(make, text):
    """Both networks of a macaron layer record the load and a loss; the state of each would follow the sum of loads."""
    macaron = {"order": "macaron", "ffn": {**MOE, "balance": 0.5}}
    _, losses, _ = computed(make(text[0], macaron), text[1])[2][1]
    assert 1.9 < losses["balance"] < 8.1
    with pytest.raises(UserError, match=r"'mean/load' .*twice in one"):
        computed(make(text[0], {"order": "macaron", "ffn": DEEPSEEK}), text[1])


def test_a_missing_site_is_refused(make, text):
    with pytest.raises(UserError, match=r"no site 'ffn\.router' in .*model") as caught:
        computed(make(text[0], hooks=["test-balance"]), text[1])
    assert caught.value.path == ("train", "hooks", "test-balance")


@pytest.mark.parametrize(
    ("values", "problem"),
    [
        ((jnp.ones(()),), r"auxiliary_loss\('mine'\) .*values of shape \(\), expected \(batch, seq\)"),
        ((jnp.ones((2, 3, 4)),), r"values of shape \(2, 3, 4\), expected \(batch, seq\)"),
        ((jnp.ones((2, 3)),) * 2, "2 arrays without"),
    ],
)
def test_losses_of_a_wrong_shape_are_refused_outside_training_too(values, problem):
    with pytest.raises(UserError, match=problem) as caught:
        auxiliary_loss("mine", 1.0, *values)
    assert "statistic" in caught.value.remedy


def test_a_statistic_that_is_no_single_number_is_refused():
    def call():
        auxiliary_loss("mine", 1.0, jnp.ones((2, 3, 4)), statistic=lambda mean: mean)

    with pytest.raises(UserError, match=r"the statistic of auxiliary_loss\('mine'\) returns shape \(4,\)") as caught:
        collect(call, Averages())()
    assert "Reduce it" in caught.value.remedy

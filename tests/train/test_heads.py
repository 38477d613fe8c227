"""Heads: multi-token prediction in sequence (`mtp`), and the weights of early exits."""

from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from tests.suites import by_default

from taetpu.contract.check import check_arms
from taetpu.core.config_parsing import load_config
from taetpu.core.errors import UserError
from taetpu.core.jit import jit_once
from taetpu.core.keys import root_key
from taetpu.core.sites import capture
from taetpu.data.base import Batch
from taetpu.nn.attention_kernels import PATHS
from taetpu.nn.common import combine_trainable, partition_trainable
from taetpu.nn.compute_options import ComputeOptions
from taetpu.nn.lm import ModelConfig, build_model
from taetpu.nn.named_arrays import named_parameters
from taetpu.optim.loss import head_losses, position_losses
from taetpu.spec.loading import load_study
from taetpu.train.model_cost import num_params

DIM, SEQ, VOCAB = 8, 6, 9
TOKENS = np.arange(2 * SEQ).reshape(2, SEQ) % VOCAB  # no token is repeated in a sequence
MODEL = {"dim": DIM, "num_layers": 2, "mixer": {"kind": "attention", "num_heads": 2}, "embedding": "untied"}


def with_head(head, **settings):
    """Return the config of a model with a head of the name `h`, and the model."""
    config = load_config(ModelConfig, {**MODEL, **settings, "heads": {"h": head}}).resolve()
    return config, build_model(config, VOCAB, SEQ, key=root_key(3))


def batch_of(tokens=TOKENS, targets=None, segments=None):
    """Return a batch of tokens, by default with the next token as the target."""
    targets = np.roll(tokens, -1, 1) if targets is None else targets
    segments = None if segments is None else jnp.asarray(segments, jnp.int32)
    return Batch(*(jnp.asarray(a, jnp.int32) for a in (tokens, targets)), jnp.ones(tokens.shape), segments)


def losses_of(config, model, batch, key=None):
    """Return the losses of the head at each position."""

    def compute(model, batch, key):
        reads = [site for site in config.heads["h"].sites() if site != "final"]
        x, sites = capture(model.final, reads)(batch.tokens, segments=batch.segments)
        return head_losses(model, config.heads, {**sites, "final": x}, batch, key)["h"]

    return jit_once(compute)(model, batch, key)


# --- multi-token prediction in sequence ------------------------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.parametrize("depth", by_default([1, 2], 1))
def test_module_k_predicts_token_t_plus_1_plus_k_and_sees_no_later_token_than_t_plus_k(depth):
    """A loss depends on an embedding if the gradient with respect to it is not exactly zero."""
    config, model = with_head({"kind": "mtp", "depth": depth})
    params, rest = partition_trainable(model)

    def first(params, targets):
        full = combine_trainable(params, rest)
        batch = batch_of()._replace(targets=targets)
        return head_losses(full, config.heads, {"final": full.final(batch.tokens)}, batch)["h"][0]

    targets, compute = batch_of().targets, jit_once(first)
    rows = jit_once(jax.jacrev(first))(params, targets).embedding.weight
    seen = (np.abs(rows[:, TOKENS[0]]).sum(-1) > 0).tolist()
    # The last loss of module k is that of position seq - 1 - k.
    expected = [[i < SEQ - 1 and j <= min(i + depth, SEQ - 1) for j in range(SEQ)] for i in range(SEQ)]
    assert seen == expected
    plain = compute(params, targets)
    for j in range(SEQ):
        other = compute(params, targets.at[0, j].set((targets[0, j] + 1) % VOCAB))
        assert np.flatnonzero(other != plain).tolist() == [i for i in range(SEQ) if 1 <= j - i <= depth]


@pytest.mark.slow
def test_a_module_is_a_projection_of_two_norms(draw):
    """The formula in numpy, for a block without branches."""
    settings = {**MODEL, "mixer": "none", "ffn": "none", "heads": {"h": {"kind": "mtp"}}}
    model, config = draw(settings, seed=1, vocab=VOCAB, seq=SEQ), load_config(ModelConfig, settings).resolve()
    p = {name: np.asarray(array) for name, array in named_parameters(model).items()}
    x, own, batch = np.random.default_rng(0).standard_normal((2, SEQ, DIM)), "heads.h.modules.0.", batch_of()

    def norm(x, name):
        return x / np.sqrt((x**2).mean(-1, keepdims=True) + 1e-6) * p[f"{own}{name}.weight"]

    later = p["embedding.weight"][TOKENS[:, 1:]]
    both = np.concatenate([norm(x[:, :-1], "hidden_norm"), norm(later, "token_norm")], -1)
    logits = (norm(both @ p[f"{own}projection"], "norm") @ p["embedding.unembed"]).astype(np.float32)
    ones = jnp.ones((2, SEQ - 1))
    expected = position_losses(jnp.asarray(logits), batch.targets[:, 1:], ones)["nll"]
    found = head_losses(model, config.heads, {"final": jnp.asarray(x, jnp.float32)}, batch)["h"]
    np.testing.assert_allclose(found, np.pad(expected, ((0, 0), (0, 1))), rtol=1e-4, atol=1e-5)


@pytest.mark.slow
def test_the_head_changes_neither_the_logits_nor_other_parameters():
    config, model = with_head({"kind": "mtp", "depth": 2})
    bare = load_config(ModelConfig, MODEL).resolve()
    plain = build_model(bare, VOCAB, SEQ, key=root_key(3))
    own = named_parameters(model)
    for name, array in named_parameters(plain).items():
        np.testing.assert_array_equal(array, own[name], err_msg=name)
    compute = jit_once(lambda model: model(jnp.asarray(TOKENS, jnp.int32)))
    np.testing.assert_array_equal(compute(model), compute(plain))
    layer = sum(array.size for name, array in own.items() if name.startswith("layers.1."))
    modules = 2 * (layer + 2 * DIM * DIM + 3 * DIM)  # a layer, a projection and three norms
    assert num_params(config, VOCAB, SEQ) - num_params(bare, VOCAB, SEQ) == modules


@pytest.mark.slow
def test_modules_have_the_settings_of_the_chosen_layer_without_its_dropped_parts():
    layers = {0: {"ffn": {"kind": "relu", "hidden": 5}}, 1: {"drop": ["mixer"]}}
    _, model = with_head({"kind": "mtp", "layer": 0}, layers=layers)
    assert named_parameters(model)["heads.h.modules.0.block.ffn.up"].shape == (DIM, 5)
    _, model = with_head({"kind": "mtp"}, layers=layers)
    block = model.heads["h"].modules[0].block
    assert (block.keep, block.ffn.up.shape) == (None, model.stacks[1].block.ffn.up.shape[1:])


@pytest.mark.parametrize(
    ("head", "settings", "problem", "remedy", "field"),
    [
        ({"depth": SEQ}, {}, f"depth={SEQ} leaves no target .* {SEQ} tokens", "at most 5", "depth"),
        ({"layer": 2}, {}, "no layer 2 .* 2 layers", "Use 0 to 1, or -1 to -2 from the end.", "layer"),
        ({}, {"mixer": {**MODEL["mixer"], "values": "residual"}},
         "mixer 'attention' of layer -1 hands '.*' to later layers", "Set `layer` to another layer", "layer"),
        ({}, {"ffn": {"kind": "deepseek-moe", "experts": 2, "top": 1, "hidden": 4}},
         "layer -1 .*state .*in training, in DeepSeekMoE", "Set `layer` to another layer", "layer"),
    ],
)  # fmt: skip
def test_layers_that_the_modules_cannot_have_are_refused(head, settings, problem, remedy, field):
    with pytest.raises(UserError, match=problem) as caught:
        with_head({"kind": "mtp", **head}, **settings)
    assert caught.value.path == ("heads", "h", field)
    assert remedy in caught.value.remedy


@pytest.mark.slow
def test_documents_are_predicted_as_if_they_were_alone():
    """The last tokens of a document have no target, as at the end of a sequence."""
    mixer = {**MODEL["mixer"], "mask": "document"}
    config, model = with_head({"kind": "mtp", "depth": 2}, mixer=mixer)
    segments = np.array([[0, 0, 0, 3, 3, 3]] * 2)
    together = losses_of(config, model, batch_of(segments=segments))
    for start in (0, 3):
        own = np.pad(TOKENS[:, start : start + 3], ((0, 0), (0, 3)))
        targets = np.pad(batch_of().targets[:, start : start + 3], ((0, 0), (0, 3)))
        batch = batch_of(own, targets, np.array([[0, 0, 0, 3, 3, 3]] * 2))
        alone = losses_of(config, model, batch)
        np.testing.assert_allclose(together[:, start : start + 3], alone[:, :3], rtol=1e-4, atol=1e-6)


@pytest.mark.slow
def test_multi_token_heads_predict_within_documents():
    config, model = with_head({"kind": "multi-token", "ahead": 1})
    found = losses_of(config, model, batch_of(segments=[[0, 0, 0, 3, 3, 3]] * 2))
    assert (found > 0).tolist() == [[True, True, False, True, True, False]] * 2


@pytest.mark.slow
def test_modules_drop_activations_in_training_only_and_use_the_chosen_kernel():
    config, model = with_head({"kind": "mtp"}, dropout=0.5)
    first, again, plain = (losses_of(config, model, batch_of(), key) for key in (root_key(0), root_key(0), None))
    np.testing.assert_array_equal(first, again)
    assert np.abs(first - plain)[:, :-1].min() > 0
    changed = ComputeOptions(attention="splash").apply(model)
    assert changed.heads["h"].modules[0].block.mixer.path == PATHS["splash"]


@pytest.mark.slow
@pytest.mark.parametrize("settings", [{"residual": "hyper-connections"}, {"position": "t5"}, {"norm": "layer"}])
def test_modules_work_with_other_kinds(settings):
    config, model = with_head({"kind": "mtp", "depth": 2}, **settings)
    assert np.isfinite(losses_of(config, model, batch_of())).all()


@pytest.mark.slow
def test_experts_in_a_module_are_balanced(trainer, make, text):
    """The balance loss of the module's experts is recorded apart from that of the layers."""
    moe = {"kind": "moe", "experts": 4, "top": 2, "hidden": 8, "balance": 0.5}
    heads = {"h": {"kind": "mtp"}}
    metrics = trainer([make(text[0], {"ffn": moe, "heads": heads})], text[1]).advance(3)
    assert {"train/balance", "train/heads/balance", "train/h"} <= set(metrics)
    assert (metrics["train/heads/balance"] != metrics["train/balance"]).all()
    with pytest.raises(UserError, match=r"'balance' .*the whole batch"):
        trainer([make(text[0], {"ffn": moe, "heads": heads}, accumulate=2)], text[1]).advance(1)


@pytest.mark.slow
def test_weights_are_traced_and_packs_microbatches_and_devices_agree(trainer, make, text):
    task, source = text
    configs = [make(task, {"heads": {"h": {"kind": "mtp", "depth": 2, "weight": w}}}) for w in (0.3, 3.0)]
    packed = trainer(configs, source, seeds=[4, 4]).advance(3)
    assert packed["train/loss"][0, 2] != packed["train/loss"][1, 2]
    parts = make(task, {"heads": {"h": {"kind": "mtp", "depth": 2, "weight": 3.0}}}, accumulate=2)
    others = [trainer([configs[1]], source, seeds=[4]), trainer([configs[1]], source, seeds=[4], devices=2)]
    for other in (*others, trainer([parts], source, seeds=[4])):
        found = other.advance(3)
        for name in found:
            np.testing.assert_allclose(packed[name][1], found[name][0], rtol=2e-4, err_msg=name)


@pytest.mark.slow
def test_arms_change_the_modules_with_the_layers(tmp_path: Path):
    (tmp_path / "s.yaml").write_text("""\
study: s
base:
  task: {kind: copy, seq_len: 12, symbols: 5, min_length: 2, max_length: 4, eval_size: 8}
  model: {dim: 16, num_layers: 2, mixer: {kind: attention, num_heads: 2}, heads: {h: {kind: mtp}}}
  train: {steps: 20, batch_size: 4, sample: none}
arms:
  ffn: {model.ffn: relu}
  last: {model.layers.-1.ffn: relu}
  norm: {model.norm: layer}
  heads: {model.mixer.num_kv_heads: 1}
  residual: {model.residual: rezero}
""")
    assert len(check_arms(load_study(tmp_path / "s.yaml"))) == 6


# --- early exits -----------------------------------------------------------------------------------------------------


@pytest.mark.slow
def test_losses_of_deeper_exits_weigh_more():
    """The weights are the sums of 1 to l + 1, divided by their sum."""
    parts = {}
    for layers in ([0], [1], [2]):
        config, model = with_head({"kind": "early-exit", "layers": layers}, num_layers=4)
        parts[layers[0]] = losses_of(config, model, batch_of())
    for weighting, weights in (("depth", (1, 3, 6)), ("uniform", (1, 1, 1))):
        head = {"kind": "early-exit", "layers": [0, 1, 2], "weighting": weighting}
        config, model = with_head(head, num_layers=4)
        expected = sum(weight * parts[layer] for layer, weight in enumerate(weights)) / sum(weights)
        np.testing.assert_allclose(losses_of(config, model, batch_of()), expected, rtol=1e-5)

"""Roles of parameters, and learning rates and weight decay of groups: as in torch, in a pack as alone."""

import re
from functools import partial

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
import torch

from taetpu.core.config_parsing import build_component, load_config
from taetpu.core.errors import UserError
from taetpu.core.keys import named
from taetpu.nn.common import partition_trainable
from taetpu.nn.lm import ModelConfig
from taetpu.nn.named_arrays import named_parameters
from taetpu.nn.parameters import Parameters
from taetpu.optim.optimizers.base import OptimizerConfig
from taetpu.optim.parameter_groups import check_groups
from taetpu.optim.structure_checks import build_update_rule, compute_update
from taetpu.plugin import Component
from taetpu.train.model_cost import parameter_shapes

VOCAB, SEQ = 7, 8
MODEL = {"dim": 4, "num_layers": 2, "mixer": "none", "ffn": "relu", "bias": True, "embedding": "untied"}


def described(settings):
    """Return the description of every parameter by name."""
    config = load_config(ModelConfig, settings).resolve()
    tree = Parameters(parameter_shapes(config, VOCAB, SEQ), config, VOCAB, SEQ).described
    return {name: one for one in jax.tree.leaves(tree) for name in one.names}


class BilinearModule(eqx.Module):
    up: jax.Array
    up_bias: jax.Array
    down: jax.Array


class Bilinear(Component):
    """A feed-forward network whose weights have unusual shapes."""

    slot, kind = "ffn", "bilinear"

    def init(self, dims, *, key):
        up = dims.weight(named(key, "up"), 2, dims.dim, 3, role="up", in_axes=(1,), batch_axes=(0,))
        down = 0.5 * dims.weight(named(key, "down"), 6, dims.dim, role="down")
        return BilinearModule(up, jnp.zeros((2, 3)), down)


def test_roles_and_axes_are_those_with_which_weights_are_drawn():
    model = {"dim": 4, "num_layers": 3, "mixer": {"kind": "attention", "num_heads": 2}, "embedding": "untied"}
    found = described({**model, "position": "learned", "layers": {1: {"ffn": Bilinear()}, 2: {"same_as": 0}}})
    roles = {name: one.role for name, one in found.items()}
    assert roles["embedding.weight"] == "embedding"
    assert roles["embedding.unembed"] == "unembedding"
    assert roles["position.weight"] == "position"
    assert {roles[f"layers.{i}.mixer.w{x}"] for i, x in ((0, "q"), (1, "q"))} == {"q"}
    assert roles["layers.1.mixer.wo"] == "out"
    assert roles["layers.0.mixer_norm.weight"] == roles["norm.weight"] == "vector"
    assert roles["layers.1.ffn.up_bias"] == "other"  # not drawn by `Dims.weight`, with two axes
    up, down = found["layers.1.ffn.up"], found["layers.1.ffn.down"]
    assert (up.role, up.in_axes, up.out_axes, up.fan_in, up.fan_out) == ("up", (2,), (3,), 4, 3)
    assert (down.role, down.in_axes, down.fan_in) == ("down", (1,), 6)
    assert found["embedding.weight"].fan_in is None
    assert not any(name.startswith("layers.2") for name in found)


TORCHS = {
    "adamw": ({"eps": 1e-3}, partial(torch.optim.AdamW, betas=(0.9, 0.99), eps=1e-3)),
    "adam": ({"eps": 1e-3}, partial(torch.optim.Adam, betas=(0.9, 0.99), eps=1e-3)),
    "sgd": ({"momentum": 0.9}, partial(torch.optim.SGD, momentum=0.9)),
}


@pytest.mark.parametrize("kind", TORCHS)
def test_groups_equal_torchs(draw, kind):
    """A factor for the embedding, another one with a decay for a layer of a stack, and a decay for all vectors."""
    groups = {
        "embedding": {"lr": 3.0},
        "first": {"match": "layers.0.ffn.*", "lr": 0.25},
        "matrices": {"match": "layers.0.ffn.up", "weight_decay": 0.7},
        "vector": {"weight_decay": 0.2, "lr": 0.5},
    }
    model, config = draw(MODEL, vocab=VOCAB, seq=SEQ), load_config(ModelConfig, MODEL).resolve()
    own, theirs_of = TORCHS[kind]
    given = {"kind": kind, "lr": 0.1, "weight_decay": 0.1, "groups": groups, **own}
    optimizer = build_component("optimizer", given)
    params, _ = partition_trainable(model)
    grads = jax.tree.map(
        lambda a: jnp.asarray(np.random.default_rng(a.size).standard_normal(a.shape), jnp.float32), params
    )

    def setting(name, ndim):
        vector, first = ndim == 1, name.startswith("layers.0.ffn.")
        lr = (3.0 if name == "embedding.weight" else 1) * (0.25 if first else 1) * (0.5 if vector else 1)
        return {"lr": 0.1 * lr, "weight_decay": 0.2 if vector else 0.7 if name == "layers.0.ffn.up" else 0.1}

    theirs = {name: torch.tensor(np.array(a), requires_grad=True) for name, a in named_parameters(params).items()}
    reference = theirs_of([{"params": [p], **setting(name, p.ndim)} for name, p in theirs.items()])
    for name, grad in named_parameters(grads).items():
        theirs[name].grad = torch.tensor(np.array(grad))

    @jax.jit
    def step(params, state):
        rule = build_update_rule(optimizer, 0.1, Parameters(params, config, VOCAB, SEQ))
        updates, state = rule.update(grads, state, params)
        return optax.apply_updates(params, updates), state

    state = build_update_rule(optimizer, 0, Parameters(params, config, VOCAB, SEQ)).init(params)
    for _ in range(3):
        params, state = step(params, state)
        reference.step()
    for name, array in named_parameters(params).items():
        np.testing.assert_allclose(array, theirs[name].detach().numpy(), rtol=1e-4, atol=1e-5, err_msg=name)


@pytest.mark.parametrize(
    ("groups", "path", "problem", "remedy"),
    [
        ({"embeddings_": {}}, ("embeddings_",), "role or name 'embeddings_'",
         "Did you mean 'embedding'"),
        ({"a": {"match": "layers.2.*"}}, ("a", "match"), "'layers\\.2\\.\\*'", "layers.1.ffn"),
        ({"vector": {"weight_decay": 1}, "norm": {"match": "*norm*", "weight_decay": 0}}, ("norm", "weight_decay"),
         "'vector' and 'norm' .*weight decay of layers.0.ffn_norm.weight", "Remove it"),
    ],
)  # fmt: skip
def test_groups_that_match_nothing_or_contradict_are_refused(groups, path, problem, remedy):
    config = load_config(ModelConfig, MODEL).resolve()
    optimizer = build_component("optimizer", {"kind": "adamw", "groups": groups})
    parameters = Parameters(parameter_shapes(config, VOCAB, SEQ), config, VOCAB, SEQ)
    with pytest.raises(UserError) as found:
        check_groups(optimizer.groups, parameters)
    assert found.value.path == ("groups", *path)
    assert re.search(problem, found.value.problem)
    assert remedy in found.value.remedy


def test_name_of_a_group_with_dots_is_refused():
    with pytest.raises(UserError, match=r"Remove the dot. To match names, write {NAME: {match: 'layers.0.\*'}}."):
        build_component("optimizer", {"kind": "adamw", "groups": {"layers.0.*": {"lr": 0.5}}})


class ByLoss(OptimizerConfig):
    """Gradient descent with steps that are proportional to the loss."""

    kind, uses_loss = "by-loss", True

    def transform(self, lr, decayed):
        def update(updates, state, params, *, value):
            return jax.tree.map(lambda g: -lr * value * g, updates), state

        return optax.GradientTransformationExtraArgs(lambda params: optax.EmptyState(), update)


def test_optimizer_that_uses_the_loss_receives_it(draw):
    model, config = draw(MODEL, vocab=VOCAB, seq=SEQ), load_config(ModelConfig, MODEL).resolve()
    params, _ = partition_trainable(model)
    parameters = Parameters(params, config, VOCAB, SEQ)
    groups = build_component("optimizer", {"kind": "adamw", "groups": {"embedding": {"lr": 3}}}).groups
    sums = {"nll": 8.0, "weight": 2.0}
    updates, _ = compute_update(
        ByLoss(groups=groups), 0.5, params, optax.EmptyState(), parameters, sums, lambda: params
    )
    np.testing.assert_allclose(updates.embedding.weight, -6 * params.embedding.weight, rtol=1e-6)
    np.testing.assert_allclose(updates.norm.weight, -2 * params.norm.weight, rtol=1e-6)


def test_muon_orthogonalises_the_matrices_of_a_weight_with_three_axes():
    """The axes are (head, in, out). In a bare stack, optax would use Adam for such a weight."""
    settings = {**MODEL, "ffn": Bilinear(), "num_layers": 1}
    config = load_config(ModelConfig, settings).resolve()
    params = jax.tree.map(
        lambda a: jnp.asarray(np.random.default_rng(a.size).standard_normal(a.shape), jnp.float32),
        parameter_shapes(config, VOCAB, SEQ),
    )
    rule = build_update_rule(
        build_component("optimizer", {"kind": "muon", "weight_decay": 0}), 1.0, Parameters(params, config, VOCAB, SEQ)
    )
    updates, _ = jax.jit(rule.update)(params, rule.init(params), params)
    (heads,) = updates.stacks[0].block.ffn.up
    for head in heads:  # (4, 3)
        values = np.linalg.svd(head / (0.2 * 4**0.5), compute_uv=False)
        assert ((values > 0.6) & (values < 1.3)).all(), values

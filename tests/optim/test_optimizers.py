"""AdamW equals torch's, and decays only matrices."""

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
import torch

from taetpu.core.config_parsing import build_component
from taetpu.core.errors import UserError
from taetpu.nn.common import partition_trainable
from taetpu.nn.lm import mask_matrices, named_parameters

SETTINGS = {"kind": "adamw", "lr": 0.1, "b1": 0.8, "b2": 0.95, "eps": 1e-3, "weight_decay": 0.3}


def test_five_steps_of_adamw_equal_torchs(draw):
    """The model is stacked and has norms and biases. In torch, layers are separate and only matrices decay."""
    model = draw({"dim": 4, "num_layers": 2, "mixer": "none", "ffn": "relu", "bias": True, "norm": "layer"})
    params, _ = partition_trainable(model)
    grads = jax.tree.map(
        lambda a: np.random.default_rng(a.size).standard_normal((5, *a.shape)).astype(np.float32), params
    )

    config = build_component("optimizer", SETTINGS)
    rule = config.transform(config.lr, mask_matrices(params))

    @jax.jit
    def step(params, state, grads):
        updates, state = rule.update(grads, state, params)
        return optax.apply_updates(params, updates), state

    theirs = {name: torch.tensor(np.array(a), requires_grad=True) for name, a in named_parameters(params).items()}
    groups = [
        {"params": [p for p in theirs.values() if p.ndim == 2], "weight_decay": 0.3},
        {"params": [p for p in theirs.values() if p.ndim == 1], "weight_decay": 0.0},
    ]
    reference = torch.optim.AdamW(groups, lr=0.1, betas=(0.8, 0.95), eps=1e-3)

    state = rule.init(params)
    for i in range(5):
        now = jax.tree.map(lambda g, i=i: jnp.asarray(g[i]), grads)
        for name, grad in named_parameters(now).items():
            theirs[name].grad = torch.tensor(np.array(grad))
        reference.step()
        params, state = step(params, state, now)
    for name, array in named_parameters(params).items():
        np.testing.assert_allclose(array, theirs[name].detach().numpy(), rtol=1e-4, atol=1e-5, err_msg=name)


def test_traced_numbers_give_the_same_updates():
    params, grads = {"w": jnp.ones((2, 2))}, {"w": jnp.full((2, 2), 0.5)}

    def update(lr, b1):
        rule = build_component("optimizer", SETTINGS).model_copy(update={"b1": b1}).transform(lr, {"w": True})
        return rule.update(grads, rule.init(params), params)[0]["w"]

    np.testing.assert_allclose(jax.jit(update)(0.1, 0.8), update(0.1, 0.8), rtol=1e-6)


@pytest.mark.parametrize(("field", "value"), [("lr", -1.0), ("b1", 1.0), ("eps", 0.0), ("weight_decay", -0.1)])
def test_numbers_out_of_range_are_refused(field, value):
    with pytest.raises(UserError, match=rf"{value} is not allowed: must be .*\n  where:  optimizer.{field}"):
        build_component("optimizer", {"kind": "adamw", field: value}, ("optimizer",))

"""Comparisons of hooks that change the loss: its value and its gradient with respect to the logits."""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import torch
from tests.parity._common import BATCH, SEQ, TOKENS, VOCAB, stream
from tests.parity.registry import parity

from taetpu.core.config_parsing import build_component
from taetpu.core.keys import root_key
from taetpu.data.base import Batch
from taetpu.optim.hooks import Moment
from taetpu.optim.loss import sum_losses
from taetpu.testing.tiny import plain_model

LOGITS = 3 * stream(BATCH, SEQ, VOCAB)
WEIGHTS = (np.arange(BATCH * SEQ).reshape(BATCH, SEQ) % 3 > 0).astype(np.float32)
"""A third of the targets have no weight."""


def compared(kind: str, theirs: Callable[[Any], Any], weights: np.ndarray, **settings: Any) -> tuple[Any, Any]:
    """Compare the loss of a hook with a loss in torch, a function of the logits."""
    hook = build_component("hook", {"kind": kind, **settings})
    batch = Batch(*(jnp.asarray(one) for one in (TOKENS, TOKENS, weights)))
    model, now = plain_model(), Moment(jnp.int32(0), 1, root_key(0))

    def loss(logits: Any) -> Any:
        sums = sum_losses(logits, batch.targets, batch.weights)
        return hook.loss(sums["nll"] / sums["weight"], logits, batch, model, now)

    logits = torch.tensor(LOGITS, requires_grad=True)
    value = theirs(logits)
    value.backward()
    ours = jax.value_and_grad(loss)(jnp.asarray(LOGITS))
    expected = (value.detach().numpy(), logits.grad.numpy())  # pyright: ignore[reportOptionalMemberAccess]
    return tuple(np.concatenate([np.ravel(one) for one in side]) for side in (ours, expected))


def cross_entropy(logits: Any, weights: np.ndarray, **settings: Any) -> Any:
    """Return the mean cross entropy in torch, which ignores targets without weight."""
    targets = torch.tensor(np.where(weights > 0, TOKENS, -100), dtype=torch.long)
    return torch.nn.CrossEntropyLoss(**settings)(logits.reshape(-1, VOCAB), targets.reshape(-1))


@parity("hook/label-smoothing", "torch.nn.CrossEntropyLoss")
def label_smoothing():
    theirs = lambda logits: cross_entropy(logits, WEIGHTS, label_smoothing=0.1)  # noqa: E731
    return compared("label-smoothing", theirs, WEIGHTS)


@parity("hook/z-loss", "transformers.models.switch_transformers.modeling_switch_transformers.router_z_loss_func")
def z_loss():
    from transformers.models.switch_transformers.modeling_switch_transformers import router_z_loss_func

    weights = np.ones_like(WEIGHTS)
    theirs = lambda logits: cross_entropy(logits, weights) + 0.1 * router_z_loss_func(logits)  # noqa: E731
    return compared("z-loss", theirs, weights, weight=0.1)

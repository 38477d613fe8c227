"""Comparisons of schedules: the learning rates of all steps."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import torch
import transformers
from tests.parity.registry import parity

from taetpu.core.config_parsing import build_component

PEAK, STEPS = 0.5, 40


def ours(kind: str, steps: int = STEPS, **settings: Any) -> np.ndarray:
    """Return the learning rates of our schedule."""
    schedule = build_component("schedule", {"kind": kind, **settings})
    return np.asarray(jax.vmap(lambda i: schedule.lr(i, steps, PEAK))(jnp.arange(steps)))


def theirs(make: Any, steps: int = STEPS) -> np.ndarray:
    """Return the learning rates of a scheduler of torch."""
    optimizer = torch.optim.SGD([torch.zeros(1, requires_grad=True)], lr=PEAK)
    scheduler, rates = make(optimizer), []
    for _ in range(steps):
        rates.append(optimizer.param_groups[0]["lr"])
        optimizer.step()
        scheduler.step()
    return np.array(rates)


@parity("schedule/inverse-sqrt", "transformers.get_inverse_sqrt_schedule")
def inverse_sqrt():
    """The reference counts steps from 0, so its step n + 1 is our step n."""
    make = lambda optimizer: transformers.get_inverse_sqrt_schedule(optimizer, 10)  # noqa: E731
    return ours("inverse-sqrt", warmup=10), theirs(make, STEPS + 1)[1:]


@parity("schedule/wsd", "transformers.get_wsd_schedule", "linear")
def wsd():
    """The reference decays over steps 32 to 40 and counts from 0, so our decay of 8 steps begins a step earlier."""

    def make(optimizer: Any) -> Any:
        return transformers.get_wsd_schedule(
            optimizer, num_warmup_steps=0, num_stable_steps=31, num_decay_steps=8, decay_type="linear"
        )

    return ours("wsd", decay_share=0.2, shape="linear"), theirs(make)


@parity("schedule/cyclic", "torch.optim.lr_scheduler.CyclicLR", "triangular")
def triangular():
    make = lambda optimizer: torch.optim.lr_scheduler.CyclicLR(  # noqa: E731
        optimizer, base_lr=0.1, max_lr=PEAK, step_size_up=5, cycle_momentum=False
    )
    return ours("cyclic", 41, cycles=4, min_lr=0.1), theirs(make, 41)


@parity("schedule/cyclic", "torch.optim.lr_scheduler.CosineAnnealingWarmRestarts", "cosine")
def cosine_restarts():
    """The last step is the end of the last cycle, where the reference starts another one."""
    make = lambda optimizer: torch.optim.lr_scheduler.CosineAnnealingWarmRestarts(optimizer, 10, eta_min=0.1)  # noqa: E731
    return ours("cyclic", 41, cycles=4, shape="cosine", min_lr=0.1)[:-1], theirs(make, 41)[:-1]


@parity("schedule/cosine", "torch.optim.lr_scheduler.CosineAnnealingLR")
def cosine():
    make = lambda optimizer: torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, STEPS - 1, eta_min=0.1)  # noqa: E731
    return ours("cosine", min_lr=0.1), theirs(make)


@parity("schedule/linear", "torch.optim.lr_scheduler.LinearLR")
def linear():
    make = lambda optimizer: torch.optim.lr_scheduler.LinearLR(optimizer, 1.0, 0.2, STEPS - 1)  # noqa: E731
    return ours("linear", min_lr=0.1), theirs(make)


@parity("schedule/plateau", "torch.optim.lr_scheduler.ReduceLROnPlateau")
def plateau():
    """The losses of 60 observations stagnate several times. The reference counts one observation more."""
    losses = np.repeat(np.random.default_rng(0).uniform(1, 2, 20), 3).astype(np.float32)
    optimizer = torch.optim.SGD([torch.zeros(1, requires_grad=True)], lr=PEAK)
    scheduler = torch.optim.lr_scheduler.ReduceLROnPlateau(
        optimizer, factor=0.5, patience=2, threshold=0.01, threshold_mode="abs", min_lr=0.001, eps=0.0
    )
    settings = {"patience": 3, "min_delta": 0.01, "factor": 0.5, "min_lr": 0.001}
    schedule: Any = build_component("schedule", {"kind": "plateau", **settings})
    state, rates, expected = schedule.begin(None), [], []
    for step, loss in enumerate(losses):
        state = schedule.observe(state, jnp.float32(loss), None, jnp.int32(step))
        rates.append(float(schedule.lowered(jnp.float32(PEAK), state)))
        optimizer.step()
        scheduler.step(float(loss))
        expected.append(optimizer.param_groups[0]["lr"])
    return np.array(rates), np.array(expected)

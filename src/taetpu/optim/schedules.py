"""Slot `schedule`: the learning rate as a function of the step.

Warm-up is linear and reaches the peak in the last step of warm-up.

Schedules from optax cannot be used, because they branch in Python on the peak, which is traced here.
"""

from typing import Annotated, Any

import jax.numpy as jnp
from jaxtyping import Array, Float
from pydantic import NonNegativeFloat, NonNegativeInt

from taetpu.core.config import Component, Traced
from taetpu.core.registry import register

Scalar = Float[Array, ""]


class ScheduleConfig(Component):
    """Base of schedules: linear warm-up over `warmup` steps, then `after`."""

    warmup: Annotated[NonNegativeInt, Traced()] = 0
    """Number of steps of linear warm-up from 0 to the peak."""

    def lr(self, step: Array, steps: int, peak: Any) -> Scalar:
        """Return the learning rate for update number `step`, from 0, out of `steps` updates."""
        now, warmup = step.astype(jnp.float32), jnp.asarray(self.warmup, jnp.float32)
        rising = jnp.minimum(1.0, (now + 1) / jnp.maximum(warmup, 1.0))
        progress = jnp.clip((now - warmup) / jnp.maximum(steps - 1 - warmup, 1.0), 0.0, 1.0)
        return jnp.where(now < warmup, peak * rising, self.after(progress, peak))

    def after(self, progress: Scalar, peak: Any) -> Scalar:
        """Return the learning rate after warm-up. `progress` rises from 0, and is 1 in the last step."""
        return jnp.asarray(peak, jnp.float32)


@register("schedule", "constant")
class Constant(ScheduleConfig):
    """A constant learning rate, the peak, after warm-up."""


@register("schedule", "cosine")
class Cosine(ScheduleConfig):
    """Half a cosine from the peak to `min_lr`. Loshchilov and Hutter 2017, without restarts."""

    min_lr: Annotated[NonNegativeFloat, Traced()] = 0.0
    """Learning rate of the last step."""

    def after(self, progress: Scalar, peak: Any) -> Scalar:
        """Return the learning rate after warm-up. `progress` rises from 0 to 1."""
        return self.min_lr + (peak - self.min_lr) * 0.5 * (1 + jnp.cos(jnp.pi * progress))


@register("schedule", "linear")
class Linear(ScheduleConfig):
    """A straight line from the peak to `min_lr`."""

    min_lr: Annotated[NonNegativeFloat, Traced()] = 0.0
    """Learning rate of the last step."""

    def after(self, progress: Scalar, peak: Any) -> Scalar:
        """Return the learning rate after warm-up. `progress` rises from 0 to 1."""
        return peak + (self.min_lr - peak) * progress

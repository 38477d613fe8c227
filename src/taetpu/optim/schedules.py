"""Slot `schedule`: the learning rate as a function of the step.

Warm-up is linear and reaches the peak in the last step of warm-up.

Schedules from optax cannot be used, because they branch in Python on the peak, which is traced here.
"""

from math import floor
from typing import Annotated, Any, ClassVar, Literal, NamedTuple

import jax.numpy as jnp
from jaxtyping import Array, Float, Int
from pydantic import Field, NonNegativeFloat, NonNegativeInt, PositiveFloat, PositiveInt, model_validator

from taetpu.core.config import Component, Traced
from taetpu.core.errors import UserError
from taetpu.core.registry import register
from taetpu.nn.lm import LM
from taetpu.optim.selection import Patient, Wait, first_wait

Scalar = Float[Array, ""]
Share = Annotated[float, Field(gt=0, lt=1)]


class ScheduleConfig(Component):
    """Base of schedules: linear warm-up over `warmup` steps, then `after`.

    Attributes:
        has_end: Whether the rate after warm-up depends on the number of steps of the run. A run that stops early has
            then not completed its schedule, so `train.stop` is refused. Schedules without this attribute have an end.
    """

    has_end: ClassVar[bool] = True

    warmup: Annotated[NonNegativeInt, Traced()] = 0
    """Number of steps of linear warm-up from 0 to the peak."""
    warmup_share: Annotated[Share | None, Traced(neutral=None)] = None
    """Share of all steps that are warm-up, instead of their number `warmup`."""

    @model_validator(mode="after")
    def _one_warmup(self) -> "ScheduleConfig":
        if self.warmup_share is not None and self.warmup:
            problem = f"warmup={self.warmup} and warmup_share={self.warmup_share:g} are both set"
            raise UserError(problem, path=("warmup_share",), remedy="Remove one of them.")
        return self

    def warmup_steps(self, steps: int) -> Scalar:
        """Return the number of steps of warm-up out of `steps` updates."""
        if self.warmup_share is None:
            return jnp.asarray(self.warmup, jnp.float32)
        return jnp.round(jnp.asarray(self.warmup_share, jnp.float32) * steps)

    def lr(self, step: Array, steps: int, peak: Any) -> Scalar:
        """Return the learning rate for update number `step`, from 0, out of `steps` updates."""
        now, warmup = step.astype(jnp.float32), self.warmup_steps(steps)
        rising = jnp.minimum(1.0, (now + 1) / jnp.maximum(warmup, 1.0))
        progress = jnp.clip((now - warmup) / jnp.maximum(steps - 1 - warmup, 1.0), 0.0, 1.0)
        return jnp.where(now < warmup, peak * rising, self.after(progress, peak))

    def after(self, progress: Scalar, peak: Any) -> Scalar:
        """Return the learning rate after warm-up. `progress` rises from 0, and is 1 in the last step."""
        return jnp.asarray(peak, jnp.float32)


@register("schedule", "constant")
class Constant(ScheduleConfig):
    """A constant learning rate, the peak, after warm-up."""

    has_end: ClassVar[bool] = False


@register("schedule", "cosine")
class Cosine(ScheduleConfig):
    """Half a cosine from the peak to `min_lr`. Loshchilov and Hutter 2017, without restarts.

    Source: Loshchilov and Hutter 2017, "SGDR: Stochastic Gradient Descent with Warm Restarts", arXiv 1608.03983.
    Reference: torch.optim.lr_scheduler.CosineAnnealingLR.
    """

    min_lr: Annotated[NonNegativeFloat, Traced()] = 0.0
    """Learning rate of the last step."""

    def after(self, progress: Scalar, peak: Any) -> Scalar:
        """Return the learning rate after warm-up. `progress` rises from 0 to 1."""
        return self.min_lr + (peak - self.min_lr) * 0.5 * (1 + jnp.cos(jnp.pi * progress))


@register("schedule", "linear")
class Linear(ScheduleConfig):
    """A straight line from the peak to `min_lr`.

    Source: Defazio et al. 2023, "Optimal Linear Decay Learning Rate Schedules and Further Refinements", arXiv
    2310.07831.
    Reference: torch.optim.lr_scheduler.LinearLR.
    """

    min_lr: Annotated[NonNegativeFloat, Traced()] = 0.0
    """Learning rate of the last step."""

    def after(self, progress: Scalar, peak: Any) -> Scalar:
        """Return the learning rate after warm-up. `progress` rises from 0 to 1."""
        return peak + (self.min_lr - peak) * progress


@register("schedule", "inverse-sqrt")
class InverseSqrt(ScheduleConfig):
    """peak * sqrt(T / (T + n)) in step n after warm-up, with T = `timescale`. Vaswani et al. 2017, section 5.3.

    With T = warmup, the learning rate in step s is peak * min(s / warmup, sqrt(warmup / s)).

    Source: Vaswani et al. 2017, "Attention Is All You Need", arXiv 1706.03762.
    Reference: transformers.get_inverse_sqrt_schedule.
    """

    has_end: ClassVar[bool] = False

    timescale: Annotated[PositiveFloat | None, Traced(neutral=None)] = None
    """Steps after which the learning rate has fallen to peak / sqrt(2); `none`: the length of warm-up, or 10000 without
    warm-up.
    """

    def lr(self, step: Array, steps: int, peak: Any) -> Scalar:
        """Return the learning rate for update number `step`, from 0, out of `steps` updates."""
        now, warmup = step.astype(jnp.float32), self.warmup_steps(steps)
        scale = jnp.where(warmup > 0, warmup, 1e4) if self.timescale is None else self.timescale
        rising = (now + 1) / jnp.maximum(warmup, 1.0)
        falling = jnp.sqrt(scale / (scale + jnp.maximum(now + 1 - warmup, 0.0)))
        return peak * jnp.where(now < warmup, rising, falling)


@register("schedule", "wsd")
class WSD(ScheduleConfig):
    """Warm-up, a stable phase at the peak, and a decay to `min_lr` over the last steps. Hu et al. 2024 (MiniCPM).

    With `shape: 1-sqrt`, the learning rate is peak (1 - sqrt(t)) at the share t of the decay, which Haegele et al. 2024
    found best; with `linear`, peak (1 - t).

    Source: Haegele et al. 2024, "Scaling Laws and Compute-Optimal Training Beyond Fixed Training Durations", arXiv
    2405.18392.
    Reference: transformers.get_wsd_schedule.
    """

    decay_share: Annotated[Share, Traced()] = 0.2
    """Share of all steps that are decay."""
    shape: Literal["linear", "1-sqrt"] = "1-sqrt"
    """Shape of the decay."""
    min_lr: Annotated[NonNegativeFloat, Traced()] = 0.0
    """Learning rate of the last step."""

    @model_validator(mode="after")
    def _shares(self) -> "WSD":
        if self.warmup_share is not None and self.warmup_share + self.decay_share > 1:
            problem = f"warmup_share={self.warmup_share:g} and decay_share={self.decay_share:g} exceed all steps"
            raise UserError(problem, path=("decay_share",), remedy=f"Use at most {1 - self.warmup_share:g}.")
        return self

    def check_steps(self, steps: int) -> None:
        """Raise `UserError` if the decay starts before warm-up ends. The path is relative to the training config."""
        if self.warmup + self.decay_share * steps > steps:
            problem = f"warmup={self.warmup} and decay_share={self.decay_share:g} exceed the {steps} steps of training"
            remedy = f"Use a warmup of at most {floor(steps * (1 - self.decay_share))}, or a smaller decay_share."
            raise UserError(problem, path=("schedule", "decay_share"), remedy=remedy)

    def lr(self, step: Array, steps: int, peak: Any) -> Scalar:
        """Return the learning rate for update number `step`, from 0, out of `steps` updates."""
        now, warmup = step.astype(jnp.float32), self.warmup_steps(steps)
        decay = jnp.maximum(jnp.asarray(self.decay_share, jnp.float32) * steps, 1.0)
        share = jnp.clip((now - (steps - 1 - decay)) / decay, 0.0, 1.0)
        fallen = share if self.shape == "linear" else jnp.sqrt(share)
        return jnp.where(
            now < warmup, peak * (now + 1) / jnp.maximum(warmup, 1.0), peak + (self.min_lr - peak) * fallen
        )


@register("schedule", "cyclic")
class Cyclic(ScheduleConfig):
    """`cycles` cycles between `min_lr` and the peak. Smith 2017 (triangular); Loshchilov and Hutter 2017 (cosine).

    With `shape: triangular`, a cycle rises from `min_lr` to the peak and falls back; with `cosine`, it starts at the
    peak and falls to `min_lr` along half a cosine (warm restarts).

    Source: Smith 2017, "Cyclical Learning Rates for Training Neural Networks", arXiv 1506.01186; Loshchilov and Hutter
    2017, "SGDR: Stochastic Gradient Descent with Warm Restarts", arXiv 1608.03983.
    Reference: torch.optim.lr_scheduler.CyclicLR.
    """

    cycles: Annotated[PositiveInt, Traced()] = 4
    """Number of cycles after warm-up."""
    shape: Literal["triangular", "cosine"] = "triangular"
    """Shape of a cycle."""
    min_lr: Annotated[NonNegativeFloat, Traced()] = 0.0
    """Lowest learning rate."""

    def after(self, progress: Scalar, peak: Any) -> Scalar:
        """Return the learning rate after warm-up. `progress` rises from 0 to 1."""
        turns = progress * self.cycles
        phase = jnp.where(progress >= 1, 1.0, turns - jnp.floor(turns))
        height = 1 - jnp.abs(2 * phase - 1) if self.shape == "triangular" else 0.5 * (1 + jnp.cos(jnp.pi * phase))
        return self.min_lr + (peak - self.min_lr) * height


class Lowered(NamedTuple):
    """The observations of `plateau`, and the factor of the learning rate that follows from them."""

    wait: Wait
    scale: Scalar


@register("schedule", "plateau")
class Plateau(Patient, ScheduleConfig):
    """Multiplies the learning rate by `factor` after `patience` observations in a row without a lower validation loss.

    Before that, the learning rate is constant after warm-up. After each multiplication, observations are counted anew.
    The primary metric must be one of the test split. PyTorch's ReduceLROnPlateau with a patience that is lower by 1 has
    the same rates.

    Source: the rule of the Keras library, which has no publication.
    Reference: torch.optim.lr_scheduler.ReduceLROnPlateau.
    """

    example: ClassVar = {"every": 2, "windows": 8, "patience": 2}
    has_end: ClassVar[bool] = False

    factor: Annotated[Share, Traced()] = 0.5
    """Factor by which the learning rate is multiplied."""
    min_lr: Annotated[NonNegativeFloat, Traced()] = 0.0
    """Lowest learning rate after warm-up."""

    def begin(self, model: LM) -> Lowered:
        """Return the state before the first step."""
        return Lowered(first_wait(), jnp.ones((), jnp.float32))

    def observe(self, state: Lowered, loss: Scalar, model: LM, step: Int[Array, ""]) -> Lowered:
        """Return the state after an observation."""
        wait = self.wait(state.wait, loss)
        late = wait.since >= self.patience
        return Lowered(
            wait._replace(since=jnp.where(late, 0, wait.since)), state.scale * jnp.where(late, self.factor, 1)
        )

    def facts(self, state: Lowered) -> dict[str, Array]:
        """Return the lowest loss and the factor of the learning rate."""
        return {"loss": state.wait.lowest, "factor": state.scale}

    def lowered(self, rate: Scalar, state: Lowered) -> Scalar:
        """Return the learning rate, given the rate without observations."""
        return jnp.maximum(rate * state.scale, jnp.minimum(rate, self.min_lr))

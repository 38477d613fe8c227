"""Sophia: steps of the size of the curvature, clipped."""

from typing import Annotated, Any, ClassVar

import optax
import optax.contrib
from pydantic import PositiveFloat, PositiveInt

from taetpu.core.config import Traced
from taetpu.core.registry import register
from taetpu.optim.optimizers.base import Beta, Decay, Epsilon, OptimizerConfig


@register("optimizer", "sophia")
class Sophia(OptimizerConfig):
    """clip(m / max(gamma h, eps), -clip, clip), with means m of gradients and h of the curvature. Liu et al. 2023.

    This is Sophia-G: every `frequency` steps, the curvature is estimated as n g^2, where g is the gradient of the mean
    loss over n tokens with targets that the model draws itself (Gauss-Newton-Bartlett). It costs another forward and
    backward pass; if several runs train in one pack, this is computed in every step. It is not counted in FLOPs, and
    keeps the logits of a whole microbatch in memory. As in optax and unlike the paper, m is corrected for bias, and a
    step uses the curvature of earlier steps, so the first step has the size of the clipping bound. optax computes the
    update; it estimates the curvature by Hutchinson's method (Sophia-H) by default.

    Source: Liu et al. 2023, "Sophia: A Scalable Stochastic Second-order Optimizer for Language Model Pre-training",
        arXiv 2305.14342.
    """

    uses_curvature: ClassVar[bool] = True

    lr: Annotated[PositiveFloat, Traced()] = 5e-4
    """Peak learning rate, which the schedule scales."""
    b1: Beta = 0.96
    """Decay rate of the mean of gradients."""
    b2: Beta = 0.99
    """Decay rate of the mean of estimated curvatures."""
    gamma: Annotated[PositiveFloat, Traced()] = 0.05
    """Factor of the curvature. With a larger one, fewer updates are clipped."""
    clip: Annotated[PositiveFloat, Traced()] = 1.0
    """Largest absolute value of an update, before multiplication by the learning rate."""
    eps: Epsilon = 1e-12
    """Least value of gamma h."""
    frequency: PositiveInt = 10
    """Steps between two estimates of the curvature."""
    weight_decay: Decay = 0.2
    """Share of each matrix that a step removes, before multiplication by the learning rate."""

    def transform(self, lr: Any, decayed: Any) -> optax.GradientTransformation:
        """Return the update rule at learning rate `lr`. `decayed` is True for each parameter with weight decay."""

        def estimate(updates: Any, state: Any, params: Any = None, **extra: Any) -> tuple[Any, Any]:
            return extra["curvature"](), state

        estimator = optax.GradientTransformationExtraArgs(lambda params: optax.EmptyState(), estimate)
        return optax.contrib.sophia(
            lr, self.b1, self.b2, self.eps, self.weight_decay, decayed,
            gamma=self.gamma, clip_threshold=self.clip, update_interval=self.frequency, hessian_diagonal_fn=estimator,
        )  # fmt: skip

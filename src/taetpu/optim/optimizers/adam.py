"""Optimizers that scale each element of the gradients by itself: AdamW, Adam, schedule-free AdamW, Lion and SGD."""

from typing import Annotated, Any, ClassVar

import optax
from pydantic import Field, PositiveFloat

from taetpu.core.config import Size, Traced
from taetpu.core.registry import register
from taetpu.nn.parameters import Parameters
from taetpu.optim.optimizers.base import Beta, Decay, Epsilon, OptimizerConfig, finish


@register("optimizer", "adamw")
class AdamW(OptimizerConfig):
    """Adam with decoupled weight decay on matrices, but not on biases and norms. Loshchilov and Hutter 2019.

    The decay of a step is lr * weight_decay * parameter. The default of 0.1 is common for language models; the default
    is 1e-4 in optax and 1e-2 in torch.

    Source: Loshchilov and Hutter 2019, "Decoupled Weight Decay Regularization", arXiv 1711.05101.
    Reference: torch.optim.AdamW.
    """

    b1: Beta = 0.9
    """Decay rate of the mean of gradients."""
    b2: Beta = 0.99
    """Decay rate of the mean of squared gradients."""
    eps: Epsilon = 1e-8
    """Number added to the root of the mean square."""
    weight_decay: Decay = 0.1
    """Share of each matrix that a step removes, before multiplication by the learning rate."""
    base_dim: Annotated[Size | None, Traced(neutral=None)] = None
    """With muP, the width of the model at which `lr` is tuned: the learning rate of matrices between layers is
    multiplied by base_dim / dim, and their weight decay divided by it (Yang et al. 2022, table 8); `none`: one learning
    rate for all widths.
    """

    def transform(self, lr: Any, decayed: Any) -> optax.GradientTransformation:
        """Return the update rule at learning rate `lr`. `decayed` is True for each parameter with weight decay."""
        return finish(optax.scale_by_adam(self.b1, self.b2, self.eps), self.weight_decay, decayed, lr)


@register("optimizer", "adam")
class Adam(AdamW):
    """m / (sqrt(v) + eps) with bias-corrected means m of the gradients and v of their squares. Kingma and Ba 2015.

    `weight_decay` is the L2 penalty of torch.optim.Adam: weight_decay * parameter is added to the gradients of matrices
    before the means, so that parameters with large gradients decay less than with `adamw`.

    Source: Kingma and Ba 2015, "Adam: A Method for Stochastic Optimization", arXiv 1412.6980.
    Reference: torch.optim.Adam.
    """

    decoupled_decay: ClassVar[bool] = False

    weight_decay: Decay = 0.0
    """Factor of the L2 penalty of matrices."""
    base_dim: Annotated[Size | None, Traced(neutral=None)] = None
    """With muP, the width of the model at which `lr` is tuned: the learning rate of matrices between layers is
    multiplied by base_dim / dim (Yang et al. 2022, table 8); `none`: one learning rate for all widths. The L2 penalty
    and `eps` are not scaled, so transfer to other widths requires a penalty of 0 and a small `eps`.
    """

    def transform(self, lr: Any, decayed: Any) -> optax.GradientTransformation:
        """Return the update rule at learning rate `lr`. `decayed` is True for each parameter with weight decay."""
        return optax.chain(
            optax.add_decayed_weights(self.weight_decay, decayed),
            optax.scale_by_adam(self.b1, self.b2, self.eps),
            optax.scale(-lr),
        )


@register("optimizer", "schedule-free")
class ScheduleFree(AdamW):
    """AdamW whose evaluated parameters are a running mean, so that no decay of the learning rate is needed.

    Defazio et al. 2024 (arXiv 2405.15682, algorithm 1). Gradients are computed at y = (1 - b1) z + b1 x. AdamW without
    its mean of gradients updates z. The evaluated parameters x are the mean of z, weighted by the square of the highest
    learning rate so far. Use it with `schedule: constant`, with or without warm-up.

    Source: Defazio et al. 2024, "The Road Less Scheduled", arXiv 2405.15682.
    Reference: optax.contrib.schedule_free.
    """

    b1: Annotated[float, Field(gt=0, lt=1), Traced()] = 0.9
    """Weight of the mean x in the trained parameters y."""

    def transform(self, lr: Any, decayed: Any) -> optax.GradientTransformation:
        """Return the update rule of z. `decayed` is True for each parameter with weight decay."""
        rule = optax.scale_by_rms(self.b2, self.eps, eps_in_sqrt=False, bias_correction=True)
        return finish(rule, self.weight_decay, decayed, lr)

    def update_rule(self, lr: Any, parameters: Parameters) -> optax.GradientTransformation:
        """Return the update rule of y at learning rate `lr`, with the settings of groups."""
        return optax.contrib.schedule_free(super().update_rule(lr, parameters), lr, self.b1)

    def evaluated(self, state: Any, params: Any) -> Any:
        """Return the mean x, given the trained parameters y."""
        return optax.contrib.schedule_free_eval_params(state, params)


@register("optimizer", "lion")
class Lion(OptimizerConfig):
    """sign(b1 m + (1 - b1) g) with gradients g and their mean m, whose decay rate is b2. Chen et al. 2023.

    Every update has the size of the learning rate. The paper recommends a learning rate 3 to 10 times smaller than that
    of AdamW, and a weight decay larger by the same factor.

    Source: Chen et al. 2023, "Symbolic Discovery of Optimization Algorithms", arXiv 2302.06675.
    Reference: optax.lion.
    """

    lr: Annotated[PositiveFloat, Traced()] = 3e-4
    """Peak learning rate, which the schedule scales."""
    b1: Beta = 0.9
    """Weight of the mean in the update."""
    b2: Beta = 0.99
    """Decay rate of the mean."""
    weight_decay: Decay = 0.3
    """Share of each matrix that a step removes, before multiplication by the learning rate."""

    def transform(self, lr: Any, decayed: Any) -> optax.GradientTransformation:
        """Return the update rule at learning rate `lr`. `decayed` is True for each parameter with weight decay."""
        return finish(optax.scale_by_lion(self.b1, self.b2), self.weight_decay, decayed, lr)


@register("optimizer", "sgd")
class SGD(OptimizerConfig):
    """u = g + momentum u, with gradients g and updates -lr u. Polyak 1964; Sutskever et al. 2013 (Nesterov).

    With `nesterov`, the update is -lr (g + momentum u). `weight_decay` is the L2 penalty of torch.optim.SGD.

    Source: Sutskever et al. 2013, "On the importance of initialization and momentum in deep learning", ICML.
    Reference: torch.optim.SGD.
    """

    decoupled_decay: ClassVar[bool] = False

    lr: Annotated[PositiveFloat, Traced()] = 0.1
    """Peak learning rate, which the schedule scales."""
    momentum: Beta = 0.9
    """Decay rate of the sum of gradients."""
    nesterov: bool = False
    """Whether the update looks one step ahead."""
    weight_decay: Decay = 0.0
    """Factor of the L2 penalty of matrices."""

    def transform(self, lr: Any, decayed: Any) -> optax.GradientTransformation:
        """Return the update rule at learning rate `lr`. `decayed` is True for each parameter with weight decay."""
        return optax.chain(
            optax.add_decayed_weights(self.weight_decay, decayed),
            optax.trace(self.momentum, self.nesterov),
            optax.scale(-lr),
        )

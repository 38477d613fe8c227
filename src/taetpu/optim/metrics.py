"""Slot `metric`: measurements in every n-th training step. A study lists its metrics under `train.metrics`.

A separate program computes metrics from the state before a step. Training is therefore bitwise identical with and
without metrics, and steps without a measurement have no additional cost.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Annotated, ClassVar

import jax.numpy as jnp
from jaxtyping import Array, Float, Int
from pydantic import Field, PositiveInt, model_validator

from taetpu.core.errors import UserError
from taetpu.core.registry import register
from taetpu.core.sites import Ragged, Read
from taetpu.data.base import Batch
from taetpu.nn.lm import LM
from taetpu.nn.named_arrays import named_parameters
from taetpu.optim.metric_component import MetricComponent
from taetpu.optim.site_statistics import attention_entropy

Scalar = Float[Array, ""]


@dataclass(frozen=True)
class Seen:
    """The values of one training step.

    Attributes:
        step: The number of the update, from 0.
        lr: The learning rate.
        loss: The training loss.
        batch: The batch.
        params: The trained arrays before the step. Gradients and updates are trees with the same structure.
        gradients: The gradients before clipping.
        clipped: The gradients after clipping.
        updates: The updates that the step adds to the parameters.
        sites: Activations of the step's first microbatch, by site. In a stack, they are an array `(layers, ...)`, or
            `Ragged` if their shape differs between layers. `over_layers` accepts both.
        layers: The layer numbers of each site; empty for a site outside the layers.
    """

    step: Int[Array, ""]
    lr: Scalar
    loss: Scalar
    batch: Batch
    params: LM
    gradients: LM
    clipped: LM
    updates: LM
    sites: Mapping[str, Read]
    layers: Mapping[str, tuple[int, ...]]

    def over_layers(self, site: str, fn: Callable[[Array], Array]) -> dict[str, Array]:
        """Apply `fn` to the activations at a site, and return one value per layer (see `by_layer`).

        `fn` maps an array `(layers, ...)` to an array `(layers,)`.
        """
        read = self.sites[site]
        return self.by_layer(site, read.over_layers(fn) if isinstance(read, Ragged) else fn(read))

    def by_layer(self, site: str, values: Array) -> dict[str, Array]:
        """Return `{"layers.0": ...}` with one value for each layer of a site, or `{"": value}` outside the layers."""
        layers = self.layers[site]
        return {f"layers.{n}": values[i] for i, n in enumerate(layers)} if layers else {"": values}


class Metric(MetricComponent):
    """Base of all metrics of training steps. `every` is the number of steps between measurements."""

    every: PositiveInt = 50
    """Number of steps between measurements."""

    def sites(self) -> tuple[str, ...]:
        """Return the sites that `measure` reads."""
        return ()

    def measure(self, seen: Seen) -> dict[str, Scalar] | Scalar:
        """Return one value, or several values by name. The method must be pure, because JAX compiles it."""
        return {}

    @model_validator(mode="after")
    def _measures(self) -> "Metric":
        if type(self).measure is Metric.measure:
            raise UserError(f"metric {self.kind!r} measures nothing", remedy="Define the method measure.")
        return self


# --- parameters and their updates, by group --------------------------------------------------------------------------


def group_arrays(tree: LM) -> dict[str, list[Array]]:
    """Return the arrays in a tree like the parameters, by group: `embedding`, `layers.0.mixer` and so on."""
    groups: dict[str, list[Array]] = {}
    for name, array in named_parameters(tree).items():
        parts = name.split(".")
        groups.setdefault(".".join(parts[: 3 if parts[0] == "layers" else 1]), []).append(array)
    return groups


def group_norms(tree: LM) -> dict[str, Scalar]:
    """Return the Euclidean norm of each group, and the norm of all groups together as `all`."""
    squares = {name: sum(jnp.sum(jnp.square(a)) for a in arrays) for name, arrays in group_arrays(tree).items()}
    return {name: jnp.sqrt(jnp.asarray(value)) for name, value in {**squares, "all": sum(squares.values())}.items()}


@register("metric", "weight-norm")
class WeightNorm(Metric):
    """Euclidean norm of the parameters, by group."""

    def measure(self, seen: Seen) -> dict[str, Scalar]:
        """Return the metric's values by name."""
        return group_norms(seen.params)


@register("metric", "gradient-norm")
class GradientNorm(Metric):
    """Euclidean norm of the gradient before clipping, by group."""

    def measure(self, seen: Seen) -> dict[str, Scalar]:
        """Return the metric's values by name."""
        return group_norms(seen.gradients)


@register("metric", "clipped-gradient-norm")
class ClippedGradientNorm(Metric):
    """Euclidean norm of the gradient after clipping, by group."""

    def measure(self, seen: Seen) -> dict[str, Scalar]:
        """Return the metric's values by name."""
        return group_norms(seen.clipped)


@register("metric", "update-norm")
class UpdateNorm(Metric):
    """Euclidean norm of a step's updates, weight decay included, by group."""

    def measure(self, seen: Seen) -> dict[str, Scalar]:
        """Return the metric's values by name."""
        return group_norms(seen.updates)


@register("metric", "effective-lr")
class EffectiveLR(Metric):
    """Norm of the update divided by norm of the weights (the angular change), by group. Kosson et al. 2024.

    Source: Kosson et al. 2024, "Rotational Equilibrium: How Weight Decay Balances Learning Across Neural Networks",
    arXiv 2305.17212.
    """

    def measure(self, seen: Seen) -> dict[str, Scalar]:
        """Return the metric's values by name."""
        weights = group_norms(seen.params)
        return {name: moved / jnp.maximum(weights[name], 1e-12) for name, moved in group_norms(seen.updates).items()}


# --- activations -----------------------------------------------------------------------------------------------------


@register("metric", "attention-entropy")
class AttentionEntropy(Metric):
    """Entropy of attention in nats, averaged over batch, heads and queries, by layer. Zhai et al. 2023.

    Source: Zhai et al. 2023, "Stabilizing Transformer Training by Preventing Attention Entropy Collapse", arXiv
    2303.06296.
    """

    unit = "nats"

    def sites(self) -> tuple[str, ...]:
        """Return the sites that `measure` reads."""
        return ("mixer.pattern",)

    def measure(self, seen: Seen) -> dict[str, Scalar]:
        """Return the metric's values by name."""
        return seen.over_layers("mixer.pattern", lambda pattern: attention_entropy(pattern).mean((1, 2, 3)))


@register("metric", "attention-logit-max")
class AttentionLogitMax(Metric):
    """The largest attention score that is not masked, by layer. Dehghani et al. 2023.

    Source: Dehghani et al. 2023, "Scaling Vision Transformers to 22 Billion Parameters", arXiv 2302.05442.
    """

    def sites(self) -> tuple[str, ...]:
        """Return the sites that `measure` reads."""
        return ("mixer.scores",)

    def measure(self, seen: Seen) -> dict[str, Scalar]:
        """Return the metric's values by name."""
        return seen.over_layers("mixer.scores", lambda scores: scores.max((1, 2, 3, 4)))


@register("metric", "expert-load")
class ExpertLoad(Metric):
    """Load of the busiest expert divided by the mean load, by layer: 1 if the load is balanced."""

    def sites(self) -> tuple[str, ...]:
        """Return the sites that `measure` reads."""
        return ("ffn.chosen",)

    def measure(self, seen: Seen) -> dict[str, Scalar]:
        """Return the metric's values by name."""

        def busiest(chosen: Array) -> Array:
            load = chosen.mean((1, 2))
            return load.max(-1) / load.mean(-1)

        return seen.over_layers("ffn.chosen", busiest)


@register("metric", "activation")
class Activation(Metric):
    """Statistics of the activations at a site: mean, root mean square, largest magnitude and share of zeros."""

    example: ClassVar = {"site": "residual"}

    site: Annotated[str, Field(description="name of a site, e.g. residual")]

    def sites(self) -> tuple[str, ...]:
        """Return the sites that `measure` reads."""
        return (self.site,)

    def measure(self, seen: Seen) -> dict[str, Scalar]:
        """Return the metric's values by name."""
        first = 1 if seen.layers[self.site] else 0

        def over(fn: Callable[[Array, tuple[int, ...]], Array]) -> Callable[[Array], Array]:
            return lambda x: fn(x.astype(jnp.float32), tuple(range(first, x.ndim)))

        statistics = {
            "mean": over(lambda x, axes: x.mean(axes)),
            "rms": over(lambda x, axes: jnp.sqrt(jnp.square(x).mean(axes))),
            "max": over(lambda x, axes: jnp.abs(x).max(axes)),
            "zeros": over(lambda x, axes: (x == 0).mean(axes)),
        }
        return {
            f"{name}.{layer}".rstrip("."): value
            for name, statistic in statistics.items()
            for layer, value in seen.over_layers(self.site, statistic).items()
        }

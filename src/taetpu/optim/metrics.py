"""Slot `metric`: what is measured of a training step every n steps. A study names its metrics under `train.metrics`.

They are computed by a program of their own, from the state before a step: training takes the same bits whether anybody
looks or not, and steps between two looks cost nothing.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Annotated

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int
from pydantic import Field, PositiveInt, model_validator

from taetpu.core.config import Component
from taetpu.core.errors import UserError
from taetpu.core.registry import register
from taetpu.core.sites import Ragged, Read
from taetpu.data.batches import Batch
from taetpu.nn.lm import LM, named_parameters

Scalar = Float[Array, ""]


@dataclass(frozen=True)
class Seen:
    """One training step, opened.

    Attributes:
        step: the update's number, from 0.
        params: the model's trained arrays before the step; the next three are trees like it.
        gradients, clipped: before and after clipping.
        updates: what the step adds to the parameters.
        sites: activations of the step's first microbatch by site; in a stack `(layers, ...)`. Where layers have a site
            in different shapes there is no such array: `over_layers` takes both.
        layers: the layers that each of these sites is in, by number; none for a site outside the layers.
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
        """`by_layer` of `fn(activations)`, `(layers, ...) -> (layers,)`; layers of different shapes are taken apart."""
        read = self.sites[site]
        return self.by_layer(site, read.over_layers(fn) if isinstance(read, Ragged) else fn(read))

    def by_layer(self, site: str, values: Array) -> dict[str, Array]:
        """`{"layers.0": ...}` from one value for each layer of a site; `{"": value}` outside the layers."""
        layers = self.layers[site]
        return {f"layers.{n}": values[i] for i, n in enumerate(layers)} if layers else {"": values}


class Metric(Component):
    """Base of all metrics: `every` says after how many steps it is measured."""

    every: PositiveInt = 50
    """Steps between measurements."""

    def sites(self) -> tuple[str, ...]:
        """The sites that `measure` reads."""
        return ()

    def measure(self, seen: Seen) -> dict[str, Scalar] | Scalar:
        """One value, or several by name. Must be pure: it is traced once, then compiled."""
        return {}

    @model_validator(mode="after")
    def _measures(self) -> "Metric":
        if type(self).measure is Metric.measure:
            raise UserError(f"metric {self.kind!r} measures nothing", remedy="define measure in it")
        return self


# --- parameters and their updates, by group --------------------------------------------------------------------------


def group_arrays(tree: LM) -> dict[str, list[Array]]:
    """The arrays of a tree like the parameters by group: `embedding`, `layers.0.mixer`, `layers.0.ffn_norm` ..."""
    found: dict[str, list[Array]] = {}
    for name, array in named_parameters(tree).items():
        parts = name.split(".")
        found.setdefault(".".join(parts[: 3 if parts[0] == "layers" else 1]), []).append(array)
    return found


def group_norms(tree: LM) -> dict[str, Scalar]:
    """The Euclidean norm of each group, and of `all`."""
    squares = {name: sum(jnp.sum(jnp.square(a)) for a in arrays) for name, arrays in group_arrays(tree).items()}
    return {name: jnp.sqrt(jnp.asarray(value)) for name, value in {**squares, "all": sum(squares.values())}.items()}


@register("metric", "weight-norm")
class WeightNorm(Metric):
    """Euclidean norm of the parameters, by group."""

    def measure(self, seen: Seen) -> dict[str, Scalar]:
        return group_norms(seen.params)


@register("metric", "gradient-norm")
class GradientNorm(Metric):
    """Euclidean norm of the gradient before clipping, by group."""

    def measure(self, seen: Seen) -> dict[str, Scalar]:
        return group_norms(seen.gradients)


@register("metric", "clipped-gradient-norm")
class ClippedGradientNorm(Metric):
    """Euclidean norm of the gradient after clipping, by group."""

    def measure(self, seen: Seen) -> dict[str, Scalar]:
        return group_norms(seen.clipped)


@register("metric", "update-norm")
class UpdateNorm(Metric):
    """Euclidean norm of what a step adds to the parameters, weight decay included, by group."""

    def measure(self, seen: Seen) -> dict[str, Scalar]:
        return group_norms(seen.updates)


@register("metric", "effective-lr")
class EffectiveLR(Metric):
    """Norm of the update over norm of the weights, by group: how far a step turns them. Kosson et al. 2024."""

    def measure(self, seen: Seen) -> dict[str, Scalar]:
        weights = group_norms(seen.params)
        return {name: moved / jnp.maximum(weights[name], 1e-12) for name, moved in group_norms(seen.updates).items()}


# --- activations -----------------------------------------------------------------------------------------------------


@register("metric", "attention-entropy")
class AttentionEntropy(Metric):
    """Entropy of attention in nats, mean over batch, heads and queries, by layer. Zhai et al. 2023."""

    def sites(self) -> tuple[str, ...]:
        return ("mixer.pattern",)

    def measure(self, seen: Seen) -> dict[str, Scalar]:
        def entropy(pattern: Array) -> Array:
            return jax.scipy.special.entr(pattern.astype(jnp.float32)).sum(-1).mean((1, 2, 3))

        return seen.over_layers("mixer.pattern", entropy)


@register("metric", "attention-logit-max")
class AttentionLogitMax(Metric):
    """The largest attention score that the mask lets through, by layer. Dehghani et al. 2023."""

    def sites(self) -> tuple[str, ...]:
        return ("mixer.scores",)

    def measure(self, seen: Seen) -> dict[str, Scalar]:
        return seen.over_layers("mixer.scores", lambda scores: scores.max((1, 2, 3, 4)))


@register("metric", "activation")
class Activation(Metric):
    """Statistics of the activations at a site: mean, root mean square, largest magnitude and share of zeros."""

    site: Annotated[str, Field(description="a site, e.g. residual")]

    def sites(self) -> tuple[str, ...]:
        return (self.site,)

    def measure(self, seen: Seen) -> dict[str, Scalar]:
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

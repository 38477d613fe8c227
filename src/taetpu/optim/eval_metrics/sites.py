"""Statistics of the activations at a site on evaluation sets, for each layer and as the mean over layers.

They are measured before the first step too, and in a study with `train.steps: 0` only then.
"""

import math
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Annotated, Any, ClassVar

import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float
from pydantic import Field

from taetpu.core.errors import UserError
from taetpu.core.metric_spec import MetricSpec
from taetpu.core.registry import register
from taetpu.optim import site_statistics
from taetpu.optim.eval_metrics.on_sets import EvalMetric, Evaluated, Sums
from taetpu.optim.site_statistics import PerSequence, Real, Tokens

COUNT = "sequences"
MEAN = "mean"


class SiteMetric(EvalMetric):
    """Base of statistics of a site, each a mean over sequences.

    Without `layer`, the metric is the mean over all layers that have the site, and `NAME.layers.0`, `NAME.layers.1` ...
    are the values of the layers.
    """

    measured_at_start = True
    mean_of = (MEAN, COUNT)

    layer: int | None = None
    """Number of the layer, from 0; -1 is the last layer that has the site. `none`: all layers."""

    def sites(self) -> tuple[str, ...]:
        """See `EvalMetric.sites`."""
        return (self.read_site,)

    @property
    def read_site(self) -> str:
        """The name of the site."""
        raise NotImplementedError

    def statistic(self, x: Array, real: Real) -> PerSequence:
        """Return the statistic of each sequence, given the activations of one layer, `(batch, ...)`."""
        raise NotImplementedError

    def counted(self, real: Real) -> PerSequence:
        """Return 1 for each sequence that has the statistic, and 0 for others."""
        return real.any(-1).astype(jnp.float32)

    def parts(self, sites: Mapping[str, tuple[int, ...]]) -> tuple[str, ...]:
        """See `EvalMetric.parts`."""
        if self.read_site not in sites:
            return ()
        layers = sites[self.read_site]
        if self.layer is not None:
            return ("",) if -len(layers) <= self.layer and (self.layer < 0 or self.layer in layers) else ()
        return ("", *(f".layers.{number}" for number in layers))

    def specs(self, num_layers: int) -> dict[str, MetricSpec]:
        """See `EvalMetric.specs`."""
        layers = () if self.layer is not None else range(num_layers)
        each = {f".layers.{i}": replace(self.spec, mean_of=(f"layers.{i}", COUNT)) for i in layers}
        return {"": self.spec, **each}

    def chosen(self, seen: Evaluated) -> dict[int | None, Array]:
        """Return the activations of the selected layers, by layer; a site outside the layers has the layer None."""
        by_layer = seen.by_layer(self.read_site)
        if self.layer is None:
            return by_layer
        number = [*by_layer][self.layer] if self.layer < 0 else self.layer
        return {number: by_layer[number]}

    def sums(self, seen: Evaluated) -> Sums:
        """See `EvalMetric.sums`."""
        real, chosen = seen.real, self.chosen(seen)
        counted = self.counted(real)
        values = {n: self.statistic(x.astype(jnp.float32), real) * counted for n, x in chosen.items()}
        mean = jnp.stack([*values.values()]).mean(0)
        layers = {} if self.layer is not None else {f"layers.{n}": v for n, v in values.items() if n is not None}
        return {MEAN: mean, COUNT: counted, **layers}

    def values(self, totals: Mapping[str, np.ndarray]) -> dict[str, float]:
        """See `EvalMetric.values`."""
        count = np.maximum(totals[COUNT], 1.0)
        names = {"" if name == MEAN else f".{name}": name for name in totals if name != COUNT}
        return {part: float(totals[name] / count) for part, name in names.items()}


def as_tokens(x: Array, site: str, real: Real) -> Tokens:
    """Return activations as vectors of tokens. Several residual streams are summed, as the final norm reads them.

    Raises:
        UserError: If the activations at the site are not vectors of tokens.
    """
    if x.ndim < 3 or x.shape[:2] != real.shape:
        problem = f"the activations at site {site!r} have the shape {x.shape}, not (batch, seq, ...)"
        raise UserError(problem, path=("site",), remedy="Use a site such as residual, mixer.out or ffn.hidden.")
    x = x.sum(2) if site == "residual" and x.ndim == 4 else x
    return x.reshape(*real.shape, -1)


class TokenMetric(SiteMetric):
    """Base of statistics of the vectors of tokens at a site. The axes after the position form one vector."""

    of_tokens: ClassVar[Callable[[Tokens, Real], PerSequence]]

    site: Annotated[str, Field(description="name of a site")] = "residual"

    @property
    def read_site(self) -> str:
        """See `SiteMetric.read_site`."""
        return self.site

    def statistic(self, x: Array, real: Real) -> PerSequence:
        """See `SiteMetric.statistic`."""
        return type(self).of_tokens(as_tokens(x, self.site, real), real)


@register("eval_metric", "site_norm")
class SiteNorm(TokenMetric):
    """Mean Euclidean norm of the tokens at a site."""

    bounds = (0.0, math.inf)
    of_tokens = staticmethod(site_statistics.token_norm)


@register("eval_metric", "effective_rank")
class EffectiveRank(TokenMetric):
    """Effective rank of the tokens of a sequence: exp(H), with H the entropy of the normalised singular values.

    It is between 1 (all tokens are multiples of one vector) and the smaller of the numbers of tokens and of features.

    Source: Roy and Vetterli 2007, "The effective rank: A measure of effective dimensionality", EUSIPCO.
    """

    better, bounds = "max", (0.0, math.inf)
    of_tokens = staticmethod(site_statistics.effective_rank)


@register("eval_metric", "rank_one_residual")
class RankOneResidual(TokenMetric):
    """Share of the tokens of a sequence that is not their mean: |X - 1 m| / |X|. Dong et al. 2021.

    It is 0 if all tokens are equal. m is the mean token and | | the Frobenius norm, for which m is the closest vector;
    the paper uses the geometric mean of the 1-norm and the infinity norm.

    Source: Dong et al. 2021, "Attention is Not All You Need: Pure Attention Loses Rank Doubly Exponentially with
    Depth", arXiv 2103.03404.
    """

    better, bounds = "max", (0.0, 1.0)
    of_tokens = staticmethod(site_statistics.rank_one_residual)


@register("eval_metric", "token_similarity")
class TokenSimilarity(TokenMetric):
    """Mean cosine of all pairs of different tokens of a sequence: 1 if all tokens have one direction. Noci et al. 2022.

    Source: Noci et al. 2022, "Signal Propagation in Transformers: Theoretical Perspectives and the Role of Rank
    Collapse", arXiv 2206.03126.
    """

    bounds = (-1.0, 1.0)
    of_tokens = staticmethod(site_statistics.token_similarity)

    def counted(self, real: Real) -> PerSequence:
        """See `SiteMetric.counted`."""
        return (real.sum(-1) > 1).astype(jnp.float32)


@register("eval_metric", "largest_singular_value")
class LargestSingularValue(TokenMetric):
    """Largest singular value of the matrix (tokens, features) of a sequence."""

    bounds = (0.0, math.inf)
    of_tokens = staticmethod(site_statistics.largest_singular_value)


@register("eval_metric", "attention_entropy")
class MeanAttentionEntropy(SiteMetric):
    """Entropy of the attention weights, the mean over heads and queries. Zhai et al. 2023.

    Source: Zhai et al. 2023, "Stabilizing Transformer Training by Preventing Attention Entropy Collapse", arXiv
    2303.06296.
    """

    better, bounds, unit = "max", (0.0, math.inf), "nats"

    @property
    def read_site(self) -> str:
        """See `SiteMetric.read_site`."""
        return "mixer.pattern"

    def statistic(self, x: Float[Array, "batch head query key"], real: Real) -> PerSequence:
        """See `SiteMetric.statistic`."""
        return site_statistics.mean_over_tokens(site_statistics.attention_entropy(x).mean(1), real)


@register("eval_metric", "dead_units")
class DeadUnits(TokenMetric):
    """Share of units that are 0 for all tokens of an evaluation set. Lu et al. 2019.

    Only activation functions such as ReLU have units that are exactly 0. A count for each unit and sequence is kept in
    memory during an evaluation.

    Source: Lu et al. 2019, "Dying ReLU and Initialization: Theory and Numerical Examples", arXiv 1903.06733.
    """

    bounds, unit, mean_of = (0.0, 1.0), "share of units", ()

    site: Annotated[str, Field(description="name of a site")] = "ffn.hidden"

    def sums(self, seen: Evaluated) -> Sums:
        """See `EvalMetric.sums`."""
        chosen = self.chosen(seen)
        return {
            f"layers.{number}" if number is not None else MEAN: site_statistics.active_tokens(
                as_tokens(x, self.site, seen.real), seen.real
            )
            for number, x in chosen.items()
        }

    def specs(self, num_layers: int) -> dict[str, MetricSpec]:
        """See `EvalMetric.specs`."""
        return dict.fromkeys(super().specs(num_layers), self.spec)

    def values(self, totals: Mapping[str, Any]) -> dict[str, float]:
        """See `EvalMetric.values`."""
        shares = {name: float((counts == 0).mean()) for name, counts in totals.items()}
        by_layer = {} if self.layer is not None else {f".{n}": share for n, share in shares.items() if n != MEAN}
        return {"": float(np.mean([*shares.values()])), **by_layer}

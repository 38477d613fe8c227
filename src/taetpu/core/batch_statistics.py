"""Statistics of a training batch that components record in the forward pass: auxiliary losses and means.

A component calls `auxiliary_loss` or `record_mean`. Both have no effect outside of training steps, which call the model
through `collect`.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from taetpu.core.errors import UserError
from taetpu.core.sites import collect_reads, record

Scalar = Float[Array, ""]
LOSS, MEAN = "loss/", "mean/"


def auxiliary_loss(
    name: str, weight: Any, *values: Float[Array, "batch seq *rest"], statistic: Callable[..., Scalar] | None = None
) -> None:
    """Add `weight` times a loss to the training loss. The losses of all layers are added.

    Losses with one name in one layer are added too, such as those of the two networks of `order: macaron`.

    The mean of the loss over layers, without the weight, is recorded as `train/NAME`.

    Args:
        name: The name of the loss.
        weight: The factor of the loss.
        values: With `statistic`, the arrays whose means it needs; otherwise one array `(batch, seq)` with the loss of
            each token.
        statistic: A function of the means of `values` over all tokens of the batch, each of shape `(*rest)`. Without a
            statistic, the loss is the mean of `values` over all tokens.

    Raises:
        UserError: if the loss has a statistic and the batch is divided into microbatches (`train.accumulate`), because
            the statistic of a batch is not the mean of the statistics of its parts.
    """
    _check_values(f"auxiliary_loss({name!r})", values, single=statistic is None)

    def compute(batch: "Averages") -> Array:
        if statistic is None:
            (each,) = values
            loss = batch.share * _mean(each)
            return jnp.stack([loss, weight * loss])
        if batch.microbatches > 1:
            problem = f"the auxiliary loss {name!r} is a statistic of the whole batch, which is not known for each part"
            raise UserError(problem, path=("train", "accumulate"), remedy="Use accumulate: 1.")
        loss = jnp.asarray(statistic(*(batch.over_devices(_mean(each)) for each in values)), jnp.float32)
        if loss.shape != ():
            problem = f"the statistic of auxiliary_loss({name!r}) returns shape {loss.shape}, expected one number"
            raise UserError(problem, remedy="Reduce it, e.g. with .sum(-1).")
        # Every device computes the loss of the whole batch. The recorded value is summed over devices, and the gradient
        # of each device contains its own tokens only.
        return jnp.stack([jax.lax.stop_gradient(loss) * batch.device_share, weight * loss])

    record(f"{LOSS}{name}", compute)


def record_mean(name: str, values: Float[Array, "batch seq *rest"]) -> None:
    """Record the mean of `values` over all tokens of the batch, for `after_step` (see `nn.state`).

    Raises:
        UserError: if a layer records two means with one name, because `after_step` could not tell them apart.
    """
    _check_values(f"record_mean({name!r})", (values,), single=False)
    record(f"{MEAN}{name}", lambda batch: batch.share * _mean(jax.lax.stop_gradient(values)), once=True)


def _check_values(call: str, values: tuple[Any, ...], *, single: bool) -> None:
    """Raise `UserError` unless values have axes for batch and sequence, and no others if they are `single` losses."""
    for value in values:
        shape = jnp.shape(value)
        if len(shape) < 2 or (single and len(shape) > 2):
            expected = "(batch, seq)" if single else "(batch, seq, ...)"
            remedy = "Give a value for each token. For a statistic of the batch, use statistic=."
            raise UserError(f"{call} is given values of shape {shape}, expected {expected}", remedy=remedy)
    if single and len(values) != 1:
        problem = f"{call} is given {len(values)} arrays without a statistic"
        raise UserError(problem, remedy="Give one array (batch, seq), or a statistic of their means.")


def _mean(values: Array) -> Array:
    return jnp.asarray(values, jnp.float32).mean((0, 1))


@dataclass(frozen=True)
class Averages:
    """How means over a microbatch on one device become means over the whole batch.

    Attributes:
        microbatches: The number of microbatches.
        devices: The number of devices over which a microbatch is divided.
        sum_devices: A function that sums an array over these devices.
    """

    microbatches: int = 1
    devices: int = 1
    sum_devices: Callable[[Array], Array] | None = None

    @property
    def device_share(self) -> float:
        """The weight of one device in a mean over all devices."""
        return 1 / self.devices

    @property
    def share(self) -> float:
        """The weight of one microbatch on one device in a mean over the whole batch."""
        return self.device_share / self.microbatches

    def over_devices(self, mean: Array) -> Array:
        """Return the mean over all devices. Its gradient flows into this device's mean only."""
        if self.sum_devices is None:
            return mean
        weighted = mean * self.device_share
        return weighted + jax.lax.stop_gradient(self.sum_devices(weighted) - weighted)


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class BatchStatistics:
    """The recorded statistics of a batch, or of one of its parts. Statistics of parts are added.

    Attributes:
        losses: For each auxiliary loss, the mean over layers.
        total: The sum of all auxiliary losses, multiplied by their weights, to be added to the training loss.
        means: For each recorded mean, one array per layer by layer number.
    """

    losses: Mapping[str, Scalar] = field(default_factory=dict)
    total: Scalar | float = 0.0
    means: Mapping[str, Mapping[int, Array]] = field(default_factory=dict)


def collect(fn: Callable[..., Any], averages: Averages) -> Callable[..., tuple[Any, BatchStatistics]]:
    """Return `g(*args, **options) -> (fn(*args, **options), statistics)`, which collects the recorded statistics."""

    def collected(*args: Any, **options: Any) -> tuple[Any, BatchStatistics]:
        out, reads = collect_reads(lambda: fn(*args, **options), averages)
        losses: dict[str, Any] = {}
        total: Any = 0.0
        means: dict[str, dict[int, Array]] = {}
        for name, layers in sorted(reads.items()):
            if name.startswith(MEAN):
                means[name.removeprefix(MEAN)] = layers
            else:
                each = jnp.stack(list(layers.values()))
                losses[name.removeprefix(LOSS)] = each[:, 0].mean()
                total = total + each[:, 1].sum()
        return out, BatchStatistics(losses, total, means)

    return collected

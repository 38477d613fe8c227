"""Metrics on evaluation sets.

A metric is computed from sums over all sequences of a set, not from means of batches. The sums are stored with the run.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from types import MappingProxyType
from typing import Any, ClassVar

import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float
from pydantic import model_validator

from taetpu.core.config import Size
from taetpu.core.errors import UserError, locate_errors
from taetpu.core.metric_spec import MetricSpec
from taetpu.core.registry import register
from taetpu.core.sites import Read, parts_of
from taetpu.data.base import Batch, Task
from taetpu.optim.metric_component import MetricComponent

Positions = Float[Array, "batch seq"]
Sums = dict[str, Float[Array, "batch ..."]]


@dataclass(frozen=True)
class Evaluated:
    """The results of a model on a batch of an evaluation set.

    Attributes:
        batch: The batch.
        logits: The logits or other outputs, `(batch, seq, outputs)`; None unless the metric sets `reads_logits`.
        nll: The loss of each position, times its weight.
        correct: 1 for each correct position, times its weight (see `optim.loss.position_losses`); None for real
            targets.
        weight: The weight of each position; 0 for positions that are not scored.
        sites: The activations at the sites that metrics read, by site.
        layers: The layer numbers of each site of the model; empty for a site outside the layers.
    """

    batch: Batch
    logits: Float[Array, "batch seq outputs"] | None
    nll: Positions
    correct: Positions | None
    weight: Positions
    sites: Mapping[str, Read] = field(default_factory=dict)
    layers: Mapping[str, tuple[int, ...]] = field(default_factory=dict)

    @property
    def real(self) -> Bool[Array, "batch seq"]:
        """Whether a position holds a token, not padding."""
        batch, seq = self.weight.shape
        lengths = self.batch.lengths
        return jnp.ones((batch, seq), bool) if lengths is None else jnp.arange(seq) < lengths[:, None]

    def by_layer(self, site: str) -> dict[int | None, Array]:
        """Return the activations at a site by layer; a site outside the layers has the layer None."""
        read, layers = self.sites[site], self.layers[site]
        if not layers:
            return {None: jnp.asarray(read)}
        return dict(zip(layers, (x for part in parts_of(read) for x in part), strict=True))


class EvalMetric(MetricComponent):
    """Base of all metrics on evaluation sets.

    Attributes:
        mean_of: The names of two of the `sums`, each one number for a sequence, if the metric is their quotient. The
            report then shows the metric's evaluation noise, and `value` need not be defined.
        reads_logits: Whether `sums` reads the logits, which disables loss chunking.
        of_answers: Whether the metric requires a task with answers (`Task.has_answers`) that are not real numbers.
        of_numbers: Whether the metric requires a task with real targets.
        of_groups: Whether the metric requires a task in which each sequence is found among others (`Task.eval_group`).
        keeps_sequences: Whether `value` is given the sums of each sequence, `(sequences, ...)`, not their totals. They
            are stored with the run.
        measured_at_start: Whether the validation sample is also evaluated before the first step.
    """

    mean_of: ClassVar[tuple[str, ...]] = ()
    reads_logits: ClassVar[bool] = False
    of_answers: ClassVar[bool] = False
    of_numbers: ClassVar[bool] = False
    of_groups: ClassVar[bool] = False
    keeps_sequences: ClassVar[bool] = False
    measured_at_start: ClassVar[bool] = False

    def sites(self) -> tuple[str, ...]:
        """Return the sites that `sums` reads. A model without one of them is not measured."""
        return ()

    def parts(self, sites: Mapping[str, tuple[int, ...]]) -> tuple[str, ...]:
        """Return the ends of the names of all values that a model with these sites has, of which one may be empty.

        Args:
            sites: The sites of the model with their layer numbers.
        """
        return ("",) if self.has_value and {*self.sites()} <= {*sites} else ()

    def specs(self, num_layers: int) -> dict[str, MetricSpec]:
        """Return what each value is, by the end of its name, for models with this number of layers."""
        return {"": self.spec} if self.has_value else {}

    @property
    def spec(self) -> MetricSpec:
        """See `MetricComponent.spec`."""
        return replace(super().spec, mean_of=self.mean_of)

    @property
    def has_value(self) -> bool:
        """Whether the metric is a number, not only stored sums."""
        cls = type(self)
        return bool(self.mean_of) or cls.value is not EvalMetric.value or cls.values is not EvalMetric.values

    def sums(self, seen: Evaluated) -> Sums:
        """Return values of each sequence by name, `(batch, ...)`. The metric is a function of their sums over a set."""
        return {}

    def value(self, totals: Mapping[str, np.ndarray]) -> float | None:
        """Return the metric, given the sums over a set; None if only the sums are stored."""
        if not self.mean_of:
            return None
        total, weight = (totals[name] for name in self.mean_of)
        return float(total / np.maximum(weight, 1.0))

    def values(self, totals: Mapping[str, np.ndarray]) -> dict[str, float]:
        """Return all values by the ends of their names, by default `value` alone (see `parts`)."""
        value = self.value(totals)
        return {} if value is None else {"": value}

    def check_task(self, task: Task) -> None:
        """Raise `UserError` if the metric cannot be computed on a task."""
        if self.of_answers and not (task.has_answers and not task.batch.real_targets):
            scored = "has real targets" if task.batch.real_targets else "scores all tokens of a sequence"
            raise UserError(
                f"{self.kind!r} compares answers, but task {task.kind!r} {scored}",
                remedy="Remove the metric, or use a task with answers.",
            )
        lacks = {
            "real targets": self.of_numbers and not task.batch.real_targets,
            "candidates among which a sequence is found": self.of_groups and task.eval_group is None,
            "one target for each sequence": self.keeps_sequences and not task.one_target,
        }
        if wanted := next((what for what, missing in lacks.items() if missing), None):
            problem = f"{self.kind!r} requires {wanted}, which task {task.kind!r} does not declare"
            raise UserError(problem, remedy="Remove the metric, or use another task.")

    @model_validator(mode="after")
    def _measures(self) -> "EvalMetric":
        if type(self).sums is EvalMetric.sums:
            raise UserError(f"eval_metric {self.kind!r} measures nothing", remedy="Define the method sums.")
        return self


@register("eval_metric", "exact_match")
class ExactMatch(EvalMetric):
    """Share of sequences in which all scored positions are correct."""

    better, bounds, unit, of_answers = "max", (0.0, 1.0), "share of answers", True
    mean_of = ("right", "answers")

    def sums(self, seen: Evaluated) -> Sums:
        """See `EvalMetric.sums`."""
        scored = (seen.weight > 0).any(-1)
        assert seen.correct is not None  # see `check_task`
        right = scored & (seen.correct >= seen.weight).all(-1)
        return {"right": right.astype(jnp.float32), "answers": scored.astype(jnp.float32)}


@register("eval_metric", "loss_by_position")
class LossByPosition(EvalMetric):
    """The loss at each position, which the report draws as a curve for each arm."""

    bins: Size = 64
    """Largest number of points of the curve. Each point is the mean over a range of neighbouring positions."""

    def sums(self, seen: Evaluated) -> Sums:
        """See `EvalMetric.sums`. `position` is the sum of the scored positions, from 1."""
        seq = seen.weight.shape[-1]
        size = -(-seq // self.bins)

        def add(values: Positions) -> Float[Array, "batch bin"]:
            padded = jnp.pad(values, ((0, 0), (0, -seq % size)))
            return padded.reshape(len(values), -1, size).sum(-1)

        places = seen.weight * jnp.arange(1, seq + 1)
        return {"nll": add(seen.nll), "weight": add(seen.weight), "position": add(places)}


@register("eval_metric", "in_context_score")
class InContextScore(EvalMetric):
    """The loss at a late position minus the loss at an early position. Olsson et al. 2022 (50 and 500).

    A model that learns from its context has a negative score.

    Source: Olsson et al. 2022, "In-context Learning and Induction Heads", arXiv 2209.11895.
    """

    unit = "nats per token"

    early: Size = 50
    """The early position, from 1."""
    late: Size = 500
    """The late position, from 1."""

    def sums(self, seen: Evaluated) -> Sums:
        """See `EvalMetric.sums`."""
        places = {"early": self.early - 1, "late": self.late - 1}
        parts = {"nll": seen.nll, "weight": seen.weight}
        return {f"{when}_{name}": part[:, i] for when, i in places.items() for name, part in parts.items()}

    def value(self, totals: Mapping[str, np.ndarray]) -> float:
        """See `EvalMetric.value`."""
        early, late = (totals[f"{w}_nll"] / np.maximum(totals[f"{w}_weight"], 1e-9) for w in ("early", "late"))
        return float(late - early)

    def check_task(self, task: Task) -> None:
        """Raise `UserError` if a sequence ends before the late position."""
        shortest = min(task.seq_len, *task.eval_lengths) if task.eval_lengths else task.seq_len
        if not self.early < self.late <= shortest:
            problem = (
                f"early={self.early} and late={self.late} are not two positions of a sequence of {shortest} tokens"
            )
            raise UserError(problem, remedy=f"Set 1 <= early < late <= {shortest}.")


NO_METRICS: Mapping[str, EvalMetric] = MappingProxyType({})


def sequence_sums(entry: str, metric: EvalMetric, seen: Evaluated) -> dict[str, Array]:
    """Return the sums of one metric for each sequence as `{"entry.name": values}`.

    Raises:
        UserError: if a value is not an array with one entry for each sequence. The path is one of the config.
    """
    path, batch = ("train", "eval_metrics", entry), len(seen.weight)
    with locate_errors(*path):
        sums = metric.sums(seen)
    if absent := [name for name in metric.mean_of if name not in sums]:
        problem = f"{entry!r} is the mean of {absent[0]!r}, which its method sums does not return"
        raise UserError(problem, path=path, remedy=f"Use two of: {', '.join(sums)}.")
    for name, value in sums.items():
        shape, remedy = jnp.shape(value), "Return one value, or one array, for each sequence."
        if name in metric.mean_of:
            shape, remedy = shape if len(shape) == 1 else (), "Return one value for each sequence."
        if shape[:1] != (batch,):
            problem = f"{entry!r} gives {name!r} with shape {jnp.shape(value)} for {batch} sequences"
            raise UserError(problem, path=path, remedy=remedy)
    return {f"{entry}.{name}": jnp.asarray(value, jnp.float32) for name, value in sums.items()}


ROUNDING = 1e-6
"""By how much rounding may move a value beyond the bounds of its metric."""


def metric_values(entry: str, metric: EvalMetric, totals: Mapping[str, Any]) -> dict[str, float]:
    """Return the values of one metric by name, given the totals of `sequence_sums` over a set.

    Raises:
        UserError: if a value is not a number, or is outside of the metric's bounds, on which intervals rely.
    """
    prefix = f"{entry}."
    sums = {name.removeprefix(prefix): np.asarray(v) for name, v in totals.items() if name.startswith(prefix)}
    if not sums and metric.sites():  # the model lacks a site
        return {}
    values = {f"{entry}{part}": value for part, value in metric.values(sums).items()}
    low, high = metric.bounds
    for name, value in values.items():
        if isinstance(value, bool) or not isinstance(value, int | float | np.number):
            problem = f"metric {name!r} gives {value!r}, not a number"
            raise UserError(problem, path=("train", "eval_metrics", entry), remedy="Return a number from `value`.")
        if value < low - ROUNDING or value > high + ROUNDING:
            problem = f"metric {name!r} gives {value:g}, outside of its bounds {low:g} to {high:g}"
            raise UserError(problem, path=("train", "eval_metrics", entry), remedy="Correct `bounds`, or `value`.")
    return {name: float(value) for name, value in values.items()}

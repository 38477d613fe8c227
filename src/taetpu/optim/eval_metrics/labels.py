"""Metrics of classes, of real numbers, and of texts that are found among others, on evaluation sets."""

from abc import abstractmethod
from collections.abc import Mapping

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int

from taetpu.core.errors import UserError
from taetpu.core.registry import register
from taetpu.optim.eval_metrics.on_sets import EvalMetric, Evaluated, Positions, Sums

MAX_CLASSES = 4096  # metrics of classes store counts of this many classes for each sequence
Counts = Float[np.ndarray, " classes"]
Counted = Int[Array, "batch seq"]


class ClassMetric(EvalMetric):
    """Base of metrics that follow from how often each class is a target, is predicted, and both.

    The prediction is the class with the largest logit. Classes are the tokens if the task predicts tokens.
    """

    better, bounds, reads_logits, of_answers = "max", (0.0, 1.0), True, True

    def sums(self, seen: Evaluated) -> Sums:
        """See `EvalMetric.sums`.

        Raises:
            UserError: if there are more than `MAX_CLASSES` classes.
        """
        assert seen.logits is not None
        if (classes := seen.logits.shape[-1]) > MAX_CLASSES:
            problem = f"{self.kind} counts at most {MAX_CLASSES} classes, but the vocabulary has {classes} tokens"
            raise UserError(problem, remedy="Remove the metric, or use fewer tokens.")
        predicted, targets = seen.logits.argmax(-1), seen.batch.targets

        def count(tokens: Array, weights: Positions) -> Float[Array, "batch vocab"]:
            return jax.vmap(lambda t, w: jnp.zeros(classes).at[t].add(w))(tokens, weights)

        hits = jnp.where(predicted == targets, seen.weight, 0.0)
        return {
            "hits": count(targets, hits),
            "predicted": count(predicted, seen.weight),
            "targets": count(targets, seen.weight),
        }

    def value(self, totals: Mapping[str, np.ndarray]) -> float:
        """See `EvalMetric.value`; 0 without any target."""
        counts = (np.asarray(totals[name], np.float64) for name in ("hits", "predicted", "targets"))
        return self.of_counts(*counts) if totals["targets"].any() else 0.0

    @abstractmethod
    def of_counts(self, hits: Counts, predicted: Counts, targets: Counts) -> float:
        """Return the metric, given the numbers of correct predictions, of predictions and of targets by class."""


def f1_scores(hits: Counts, predicted: Counts, targets: Counts) -> Counts:
    """Return the F1 score of each class, 2 TP / (2 TP + FP + FN)."""
    return 2 * hits / np.maximum(predicted + targets, 1e-9)


@register("eval_metric", "macro_f1")
class MacroF1(ClassMetric):
    """Mean F1 score of the classes, which are those that occur as targets.

    The F1 score of a class is 2 TP / (2 TP + FP + FN). The prediction is the class with the largest logit. Predicted
    classes that never are targets count only as errors of the targets' classes.

    Source: Manning, Raghavan and Schütze 2008, "Introduction to Information Retrieval", section 13.6.
    """

    def of_counts(self, hits: Counts, predicted: Counts, targets: Counts) -> float:
        """See `ClassMetric.of_counts`."""
        return float(f1_scores(hits, predicted, targets)[targets > 0].mean())


@register("eval_metric", "weighted_f1")
class WeightedF1(ClassMetric):
    """Mean F1 score of the classes, each weighted by its number of targets.

    Source: Manning, Raghavan and Schütze 2008, "Introduction to Information Retrieval", section 13.6.
    """

    def of_counts(self, hits: Counts, predicted: Counts, targets: Counts) -> float:
        """See `ClassMetric.of_counts`."""
        return float((f1_scores(hits, predicted, targets) * targets).sum() / targets.sum())


@register("eval_metric", "micro_f1")
class MicroF1(ClassMetric):
    """F1 score of all classes together, which is the accuracy if each target has one class.

    Source: Manning, Raghavan and Schütze 2008, "Introduction to Information Retrieval", section 13.6.
    """

    def of_counts(self, hits: Counts, predicted: Counts, targets: Counts) -> float:
        """See `ClassMetric.of_counts`."""
        return float(2 * hits.sum() / (predicted.sum() + targets.sum()))


@register("eval_metric", "balanced_accuracy")
class BalancedAccuracy(ClassMetric):
    """Mean share of correct predictions of the classes that occur as targets. Brodersen et al. 2010.

    Source: Brodersen et al. 2010, "The Balanced Accuracy and Its Posterior Distribution", ICPR 2010.
    """

    def of_counts(self, hits: Counts, predicted: Counts, targets: Counts) -> float:
        """See `ClassMetric.of_counts`."""
        known = targets > 0
        return float((hits[known] / targets[known]).mean())


@register("eval_metric", "matthews")
class Matthews(ClassMetric):
    """Correlation of predicted and true classes; 0 if all predictions or all targets are one class. Gorodkin 2004.

    Source: Gorodkin 2004, "Comparing Two K-category Assignments by a K-category Correlation Coefficient".
    """

    bounds = (-1.0, 1.0)

    def of_counts(self, hits: Counts, predicted: Counts, targets: Counts) -> float:
        """See `ClassMetric.of_counts`."""
        total = targets.sum()
        spread = (total**2 - (predicted**2).sum()) * (total**2 - (targets**2).sum())
        return float((hits.sum() * total - predicted @ targets) / np.sqrt(spread)) if spread > 0 else 0.0


@register("eval_metric", "pearson")
class Pearson(EvalMetric):
    """Correlation of the first output and the real target; 0 if one of them is constant.

    Source: Pearson 1895, "Notes on Regression and Inheritance in the Case of Two Parents".
    """

    better, bounds, reads_logits, of_numbers = "max", (-1.0, 1.0), True, True

    def sums(self, seen: Evaluated) -> Sums:
        """See `EvalMetric.sums`."""
        assert seen.logits is not None
        x, y, weight = seen.logits[..., 0], seen.batch.targets, seen.weight
        moments = {"x": x, "y": y, "xx": x * x, "yy": y * y, "xy": x * y, "weight": jnp.ones_like(x)}
        return {name: (moment * weight).sum(-1) for name, moment in moments.items()}

    def value(self, totals: Mapping[str, np.ndarray]) -> float:
        """See `EvalMetric.value`."""
        count = max(float(totals["weight"]), 1e-9)
        x, y, xx, yy, xy = (float(totals[name]) / count for name in ("x", "y", "xx", "yy", "xy"))
        variances = xx - x * x, yy - y * y
        # Squares are rounded to 24 bits, so a smaller variance is not told apart from 0.
        if variances[0] <= 1e-6 * xx or variances[1] <= 1e-6 * yy:
            return 0.0
        return float(np.clip((xy - x * y) / np.sqrt(variances[0] * variances[1]), -1, 1))


@register("eval_metric", "spearman")
class Spearman(EvalMetric):
    """Correlation of the ranks of outputs and real targets; 0 if one of them is constant. Spearman 1904.

    Output and target of each sequence are stored with the run.

    Source: Spearman 1904, "The Proof and Measurement of Association between Two Things".
    """

    better, bounds, reads_logits, of_numbers, keeps_sequences = "max", (-1.0, 1.0), True, True, True

    def sums(self, seen: Evaluated) -> Sums:
        """See `EvalMetric.sums`."""
        assert seen.logits is not None
        parts = {"output": seen.logits[..., 0], "target": seen.batch.targets, "weight": jnp.ones_like(seen.weight)}
        return {name: (part * seen.weight).sum(-1) for name, part in parts.items()}

    def value(self, totals: Mapping[str, np.ndarray]) -> float:
        """See `EvalMetric.value`."""
        from scipy.stats import rankdata

        scored = totals["weight"] > 0
        ranks = [rankdata(totals[name][scored]) for name in ("output", "target")]
        if min(np.ptp(part) if len(part) else 0.0 for part in ranks) == 0:
            return 0.0
        return float(np.clip(np.corrcoef(*ranks)[0, 1], -1, 1))


class RankMetric(EvalMetric):
    """Base of metrics of the rank of a text's partner among the candidates."""

    better, bounds, unit, reads_logits, of_groups = "max", (0.0, 1.0), "share of pairs", True, True
    mean_of = ("found", "weight")

    def sums(self, seen: Evaluated) -> Sums:
        """See `EvalMetric.sums`."""
        assert seen.logits is not None
        partner, weight = seen.logits[..., :1], seen.weight
        # Ties are broken at random on average, so that equal logits have the score of a guess.
        better, equal = (seen.logits > partner).sum(-1), (seen.logits == partner).sum(-1)
        return {"found": (self.of_rank(better, equal) * weight).sum(-1), "weight": weight.sum(-1)}

    @abstractmethod
    def of_rank(self, better: Counted, equal: Counted) -> Positions:
        """Return the score, given the numbers of candidates above the partner, and of those equal to it."""


@register("eval_metric", "recall_at_1")
class RecallAt1(RankMetric):
    """Share of texts whose partner is the closest candidate.

    Source: Manning, Raghavan and Schütze 2008, "Introduction to Information Retrieval", section 8.4.
    """

    def of_rank(self, better: Counted, equal: Counted) -> Positions:
        """See `RankMetric.of_rank`."""
        return jnp.where(better == 0, 1 / jnp.maximum(equal, 1), 0.0)


@register("eval_metric", "mean_reciprocal_rank")
class MeanReciprocalRank(RankMetric):
    """Mean of 1 / rank, where rank is the place of a text's partner among the candidates. Voorhees 1999.

    Source: Voorhees 1999, "The TREC-8 Question Answering Track Report".
    """

    unit = ""

    def of_rank(self, better: Counted, equal: Counted) -> Positions:
        """See `RankMetric.of_rank`."""
        return 1 / (1 + better + (equal - 1) / 2)

"""Metrics on evaluation sets against values that are computed sequence by sequence in NumPy."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from taetpu.core.config_parsing import build_component
from taetpu.core.errors import UserError
from taetpu.data.base import Batch
from taetpu.optim.eval_metrics import EvalMetric, Evaluated, metric_values, sequence_sums
from taetpu.optim.loss import position_losses

SEQUENCES, SEQ, VOCAB = 40, 10, 5


@pytest.fixture(scope="module")
def evaluated() -> Evaluated:
    """Random logits that favour the target, with unscored positions and one sequence without any scored position."""
    rng = np.random.default_rng(0)
    targets = rng.integers(0, VOCAB, (SEQUENCES, SEQ)).astype(np.int32)
    weights = (rng.random((SEQUENCES, SEQ)) < 0.4).astype(np.float32)
    weights[0] = 0
    logits = rng.normal(size=(SEQUENCES, SEQ, VOCAB)) + 3 * np.eye(VOCAB)[targets]
    batch = Batch(*map(jnp.asarray, (targets, targets, weights)))
    given = jnp.asarray(logits, jnp.float32)
    return Evaluated(batch, given, **position_losses(given, batch.targets, batch.weights))


def value(kind: str, seen: Evaluated, batches: int = 1, **fields) -> float:
    """Return a metric, computed from the sums over equally large batches."""
    metric = build_component("eval_metric", {"kind": kind, **fields})
    parts = jax.tree.map(
        lambda a: a.reshape(batches, -1, *a.shape[1:]), (seen.batch, seen.logits, seen.nll, seen.correct, seen.weight)
    )
    sums = [
        sequence_sums("m", metric, Evaluated(*jax.tree.map(lambda a, i=i: a[i], parts)))  # pyright: ignore
        for i in range(batches)
    ]
    totals = {name: sum(np.asarray(one[name], np.float64).sum(0) for one in sums) for name in sums[0]}
    return metric_values("m", metric, totals)["m"]  # pyright: ignore


@pytest.mark.slow
def test_exact_match_counts_sequences_without_any_error(evaluated):
    right, answers = 0, 0
    for logits, targets, weights in zip(evaluated.logits, evaluated.batch.targets, evaluated.weight, strict=True):
        scored = np.asarray(weights) > 0
        answers += scored.any()
        right += scored.any() and (np.asarray(logits).argmax(-1) == targets)[scored].all()
    assert answers == SEQUENCES - 1
    assert 0 < right < answers
    assert value("exact_match", evaluated) == pytest.approx(right / answers)


@pytest.mark.slow
def test_macro_f1_agrees_with_the_definition_and_is_not_a_mean_of_batches(evaluated):
    scored = np.asarray(evaluated.weight) > 0
    predicted, targets = np.asarray(evaluated.logits).argmax(-1)[scored], np.asarray(evaluated.batch.targets)[scored]
    scores = []
    for c in np.unique(targets):
        hits = ((predicted == c) & (targets == c)).sum()
        precision, recall = hits / (predicted == c).sum(), hits / (targets == c).sum()
        scores.append(2 * precision * recall / (precision + recall))
    assert 0.3 < np.mean(scores) < 0.99
    assert value("macro_f1", evaluated) == pytest.approx(np.mean(scores))
    assert value("macro_f1", evaluated, batches=8) == pytest.approx(np.mean(scores))


@pytest.mark.parametrize("bins", [SEQ, 4])
def test_loss_by_position_sums_each_range_of_positions(evaluated, bins):
    metric = build_component("eval_metric", {"kind": "loss_by_position", "bins": bins})
    sums = {name: np.asarray(a).sum(0) for name, a in metric.sums(evaluated).items()}  # pyright: ignore
    size = -(-SEQ // bins)
    assert len(sums["nll"]) == -(-SEQ // size) <= bins
    for i in range(len(sums["nll"])):
        part = slice(i * size, (i + 1) * size)
        weights = np.asarray(evaluated.weight)[:, part]
        assert sums["nll"][i] == pytest.approx(np.asarray(evaluated.nll)[:, part].sum(), rel=1e-5)
        assert sums["weight"][i] == weights.sum()
        assert sums["position"][i] == (weights * np.arange(1, SEQ + 1)[part]).sum()


def test_in_context_score_is_the_difference_between_two_positions(evaluated):
    nll, weight = np.asarray(evaluated.nll), np.asarray(evaluated.weight)
    early, late = (nll[:, i].sum() / weight[:, i].sum() for i in (1, 8))
    assert value("in_context_score", evaluated, early=2, late=9) == pytest.approx(late - early, rel=1e-5)


@pytest.mark.parametrize("value", [1.5, -0.1, "0.5", True])
def test_values_beyond_the_bounds_or_without_a_number_are_refused(value):
    class Wrong(EvalMetric):
        bounds = (0.0, 1.0)

        def sums(self, seen: Evaluated) -> Any:
            return {"total": seen.weight.sum(-1)}

        def values(self, totals: Any) -> Any:
            return {"": value}

    with pytest.raises(UserError) as caught:
        metric_values("wrong", Wrong(), {})
    assert caught.value.path == ("train", "eval_metrics", "wrong")
    assert str(value) in caught.value.problem

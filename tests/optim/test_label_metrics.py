"""Metrics of classes, numbers and ranks equal those of scikit-learn and scipy."""

from typing import Any

import jax.numpy as jnp
import numpy as np
import pytest
from scipy.stats import pearsonr, spearmanr
from sklearn import metrics

from taetpu.core.config_parsing import build_component
from taetpu.core.errors import UserError
from taetpu.data.base import Batch
from taetpu.optim.eval_metrics import Evaluated, metric_values, sequence_sums

COUNT, SEQ, CLASSES = 200, 4, 5
CLASS_METRICS = {
    "macro_f1": lambda y, x: metrics.f1_score(y, x, average="macro"),
    "weighted_f1": lambda y, x: metrics.f1_score(y, x, average="weighted"),
    "micro_f1": lambda y, x: metrics.f1_score(y, x, average="micro"),
    "balanced_accuracy": metrics.balanced_accuracy_score,
    "matthews": metrics.matthews_corrcoef,
}


def measure(kind: str, logits: np.ndarray, targets: np.ndarray, place: np.ndarray) -> float:
    """Return a metric of sequences that are scored at one place each, from the sums of two batches."""
    metric: Any = build_component("eval_metric", {"kind": kind})
    weights = (np.arange(SEQ) == place[:, None]).astype(np.float32)
    noise = np.random.default_rng(3).normal(size=(len(logits), SEQ, logits.shape[-1]))
    every = np.where(weights[..., None] > 0, logits[:, None], noise).astype(np.float32)
    batch: Any = Batch(*(jnp.zeros_like(weights, jnp.int32), np.repeat(targets[:, None], SEQ, 1), jnp.asarray(weights)))
    half, parts = len(logits) // 2, []
    for part in (slice(half), slice(half, None)):
        seen: Any = Evaluated(batch._replace(targets=jnp.asarray(batch.targets[part])), jnp.asarray(every[part]),
                              jnp.zeros_like(weights[part]), None, jnp.asarray(weights[part]))  # fmt: skip
        parts.append({n: np.asarray(v, np.float64) for n, v in sequence_sums("m", metric, seen).items()})
    whole = {name: np.concatenate([part[name] for part in parts]) for name in parts[0]}
    totals = whole if metric.keeps_sequences else {n: v.sum(0) for n, v in whole.items()}
    value = metric_values("m", metric, totals)["m"]
    assert value is not None
    return value


@pytest.fixture
def draw():
    return np.random.default_rng(0)


@pytest.fixture
def place(draw):
    return draw.integers(SEQ, size=COUNT)


@pytest.mark.parametrize("kind", CLASS_METRICS)
@pytest.mark.parametrize("signal", [0.0, 1.5])
def test_metrics_of_classes_equal_those_of_scikit_learn(kind, signal, draw, place):
    targets = draw.choice(CLASSES, COUNT, p=[0.5, 0.3, 0.1, 0.06, 0.04]).astype(np.int32)
    logits = draw.normal(size=(COUNT, CLASSES)) + signal * np.eye(CLASSES)[targets]
    assert measure(kind, logits, targets, place) == pytest.approx(CLASS_METRICS[kind](targets, logits.argmax(-1)))


@pytest.mark.parametrize("kind", ["weighted_f1", "balanced_accuracy", "matthews"])
def test_classes_that_are_never_predicted_or_never_targets_count(kind, draw, place):
    targets = draw.integers(1, 3, COUNT).astype(np.int32)
    logits = draw.normal(size=(COUNT, CLASSES)) * [1, 1, 0, 1, 1] + [0, 0, -9, 0, 0]
    with np.errstate(all="ignore"), pytest.warns() if kind == "balanced_accuracy" else pytest.MonkeyPatch.context():
        expected = CLASS_METRICS[kind](targets, logits.argmax(-1))
    assert 2 not in logits.argmax(-1)
    assert measure(kind, logits, targets, place) == pytest.approx(expected)


def test_constant_predictions_have_no_correlation(place):
    targets = (np.arange(COUNT) % 2).astype(np.int32)
    constant = np.tile([1.0, 0, 0], (COUNT, 1))
    assert measure("matthews", constant, targets, place) == 0
    for kind in ("pearson", "spearman"):
        assert measure(kind, constant, targets.astype(np.float32), place) == 0


@pytest.mark.parametrize("shift", [0.0, 20.0])
@pytest.mark.parametrize(("kind", "reference"), [("pearson", pearsonr), ("spearman", spearmanr)])
def test_correlations_equal_those_of_scipy(kind, reference, shift, draw, place):
    targets = draw.integers(0, 9, COUNT).astype(np.float32) + np.float32(shift)  # with ties
    outputs = (targets + 3 * draw.normal(size=COUNT)).astype(np.float32)[:, None]
    expected = reference(outputs[:, 0], targets).statistic
    assert 0.4 < expected < 0.9
    assert measure(kind, outputs, targets, place) == pytest.approx(expected, abs=1e-5)


def test_ranks_are_those_of_the_first_candidate(draw, place):
    logits = draw.integers(0, 12, size=(COUNT, 8)).astype(np.float32)
    logits[::3] = np.arange(8) + draw.permuted(np.arange(8), axis=0)[:, None].T * 0  # without ties
    better, equal = (logits > logits[:, :1]).sum(1), (logits == logits[:, :1]).sum(1)
    targets = np.zeros(COUNT, np.int32)
    expected = np.mean([1 / n if b == 0 else 0 for b, n in zip(better, equal, strict=True)])
    assert measure("recall_at_1", logits, targets, place) == pytest.approx(expected)
    ranks = [np.mean(np.arange(b + 1, b + n + 1)) for b, n in zip(better, equal, strict=True)]
    assert measure("mean_reciprocal_rank", logits, targets, place) == pytest.approx(np.mean(1 / np.array(ranks)))
    constant = np.zeros((COUNT, 8))
    assert measure("recall_at_1", constant, targets, place) == pytest.approx(1 / 8)


TASKS = {
    "classes": {"kind": "classification", "source": "x", "seq_len": 8},
    "numbers": {"kind": "regression", "source": "x", "seq_len": 8},
    "words": {"kind": "token-classification", "source": "x", "seq_len": 8},
    "pairs": {"kind": "pairs", "source": "x", "seq_len": 8},
    "context": {"kind": "in-context-regression", "seq_len": 8},
    "copy": {"kind": "copy", "seq_len": 8, "symbols": 4, "min_length": 2, "max_length": 3},
}
ALLOWED = {
    "weighted_f1": {"classes", "words", "copy"},
    "matthews": {"classes", "words", "copy"},
    "pearson": {"numbers", "context"},
    "spearman": {"numbers"},
    "recall_at_1": {"pairs"},
    "mean_reciprocal_rank": {"pairs"},
}


@pytest.mark.parametrize("kind", ALLOWED)
def test_a_metric_that_a_task_does_not_declare_is_refused(kind):
    metric: Any = build_component("eval_metric", {"kind": kind})
    for name, settings in TASKS.items():
        task: Any = build_component("task", settings)
        if name in ALLOWED[kind]:
            metric.check_task(task)
            continue
        with pytest.raises(UserError) as caught:
            metric.check_task(task)
        assert kind in caught.value.problem
        assert task.kind in caught.value.problem
        assert caught.value.remedy

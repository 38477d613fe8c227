"""The stored models, metrics and samples of a study."""

import math

import jax
import numpy as np
import pytest

from taetpu.optim.objectives import CausalLM
from taetpu.spec.loading import load_study
from taetpu.train.metric_series import metrics_from_sums
from taetpu.train.model_io import from_files
from taetpu.train.step import evaluate

pytestmark = pytest.mark.slow

TEXT = """
study: kept
base:
  task: {kind: text, source: words.txt, seq_len: 16, val: 0.2, test: 0.1}
  model: {dim: 16, num_layers: 1, mixer: {kind: attention, num_heads: 2}}
  train: {epochs: 2, batch_size: 4, checkpoint: log, keep_checkpoints: true, sample: {tokens: 4}}
seeds: [4]
"""


@pytest.fixture(scope="module")
def kept(tmp_path_factory):
    import taetpu
    from taetpu.store.addresses import find_study

    folder = tmp_path_factory.mktemp("kept")
    words = np.random.default_rng(0).choice(["the", "cat", "sat", "on", "a", "mat"], 350)
    (folder / "words.txt").write_text(" ".join(words))
    (folder / "kept.yaml").write_text(TEXT)
    outcome = taetpu.run(folder / "kept.yaml", root=str(folder / "root"))
    study = load_study(folder / "kept.yaml")
    source = study.sources.prepare(study.arms[0].config)
    return outcome, find_study(folder / "root"), source


def val_loss(model, source) -> float:
    from taetpu.data.base import Batch

    data = source.evaluation("val")
    windows = Batch(*(jax.numpy.asarray(a)[None] for a in (data.tokens, data.targets, data.weights)))
    sums = jax.jit(lambda m: evaluate(m, windows, 1, dtype=jax.numpy.float32, objective=CausalLM()))(model)
    return metrics_from_sums({k: float(v.sum()) for k, v in sums.items()}, "val", data)["val/loss"]


@pytest.mark.slow
def test_stored_model_has_the_reported_loss(kept):
    outcome, folder, source = kept
    (run,) = folder.runs()
    opened = from_files(run.read_model())
    assert val_loss(opened.model, source) == pytest.approx(outcome.results["arms"][0]["mean"], abs=1e-5)


def test_bits_per_byte_cover_the_whole_text(kept):
    _, folder, source = kept
    metrics = folder.runs()[0].result()["metrics"]
    for split in ("val", "test"):
        targets = source.evaluation(split).weights.sum()  # of one byte each, the first one apart
        bits = metrics[f"{split}/loss"] * targets / math.log(2) + math.log2(source.vocab_size)
        assert metrics[f"{split}/bits_per_byte"] == pytest.approx(bits / (targets + 1))


def test_epochs_become_steps_and_every_metric_is_stored(kept):
    _, folder, source = kept
    (run,) = folder.runs()
    result, metrics = run.result(), run.metrics()
    assert result["steps"] == round(2 * source.num_windows / 4)
    assert result["tokens"] == result["steps"] * 4 * 16
    assert metrics["tokens"].value[-1] == result["tokens"]
    assert metrics["flops"].value[-1] == result["flops"]
    assert {"train/loss", "train/accuracy", "val/loss", "val/accuracy", "val/bits_per_byte", "lr"} <= set(metrics)
    assert {"test/loss", "test/accuracy", "test/bits_per_byte"} <= set(result["metrics"])
    assert run.times()["seconds"].value[-1] > 0
    assert result["environment"]["data"]["sha256"] == source.facts["sha256"]


def test_log_spaced_checkpoints_contain_the_models_of_their_steps(kept):
    _, folder, source = kept
    (run,) = folder.runs()
    steps = run.result()["steps"]
    assert run.checkpoints() == [2**i for i in range(steps.bit_length()) if 2**i < steps]
    early, late = (from_files(run.read_checkpoint(step)).model for step in (1, 8))
    final = from_files(run.read_model()).model
    assert val_loss(early, source) > val_loss(late, source) > val_loss(final, source)


def test_samples_continue_the_validation_text(kept):
    _, folder, source = kept
    (run,) = folder.runs()
    start = source.show(source.prompt())
    assert run.samples()
    assert all(text.startswith(start) and len(text) > len(start) for text in run.samples().values())

"""Sequences of several documents: each document is computed as if it were alone."""

from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from taetpu.core.config_parsing import build_component, load_config
from taetpu.core.errors import UserError
from taetpu.core.jit import jit_once
from taetpu.core.keys import root_key
from taetpu.nn.lm import ModelConfig, build_model
from taetpu.optim.loss import predict
from taetpu.spec.loading import load_study

DOCUMENTS = ["aa bb\n\ncc dd", "dd cc bb", "bb aa dd cc aa", "cc aa", "aa dd", "bb bb cc dd aa"]
MASK = {"kind": "attention", "num_heads": 2, "mask": "document"}
TOKENS = np.array([[1, 2, 3, 4, 5, 6, 1, 2]], np.int32)
SEGMENTS = np.array([[0, 0, 0, 4, 4, 4, 4, 4]], np.int32)
forward = jit_once(lambda model, tokens, segments: model(tokens, segments=segments))


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "docs").mkdir()
    for i, text in enumerate(DOCUMENTS):
        (tmp_path / "docs" / f"{i}.txt").write_text(text)
    return tmp_path


def prepared(folder: Path, **fields):
    task = {"kind": "text", "source": "docs", "seq_len": 8, "val": 0.3, "tokenizer": "byte", **fields}
    return build_component("task", task).prepare(folder)  # pyright: ignore


@pytest.mark.parametrize("position", ["learned", "sinusoidal", "rope"])
def test_each_document_is_computed_as_if_it_were_alone(position):
    """Absolute positions restart in each document, and the mask hides the other documents."""
    config = load_config(ModelConfig, {"dim": 8, "num_layers": 1, "mixer": MASK, "position": position}).resolve()
    model = jit_once(lambda: build_model(config, 7, 8, key=root_key(0)))()
    together = forward(model, TOKENS, SEGMENTS)
    second = forward(model, np.pad(TOKENS[:, 3:], ((0, 0), (0, 3))), None)[:, :5]
    np.testing.assert_allclose(together[:, :3], forward(model, TOKENS, None)[:, :3], atol=1e-6)
    np.testing.assert_allclose(together[:, 3:], second, atol=1e-6)
    assert np.abs(together[:, 3:] - forward(model, TOKENS, None)[:, 3:]).max() > 1e-3


@pytest.mark.parametrize("split", ["order", "document"])
def test_segments_of_a_text_are_its_documents(folder, split):
    source, plain = prepared(folder, segments=True, split=split), prepared(folder, split=split)
    assert source.fingerprint != plain.fingerprint
    windows, documents = source.arrays["windows"][:, :-1].ravel(), source.arrays["segments"].ravel()
    assert np.array_equal(windows, plain.arrays["windows"][:, :-1].ravel())
    for number in np.unique(documents)[:-1]:  # the last window may be dropped
        assert source.show(windows[documents == number]).removesuffix("\n\n") in DOCUMENTS
    val = source.evaluation("val")
    assert val.segments.shape == val.tokens.shape
    assert (np.diff(val.segments.ravel()) >= 0).all()
    batch = source.batch({n: jnp.asarray(a) for n, a in source.arrays.items()}, jnp.asarray([1, 0]), root_key(0))
    assert np.array_equal(batch.segments, source.arrays["segments"][[1, 0]])
    assert plain.evaluation("val").segments is None


@pytest.mark.slow
def test_training_and_evaluation_read_the_segments(folder, make, trainer):
    task = {"kind": "text", "source": str(folder / "docs"), "seq_len": 8, "val": 0.3, "segments": True}
    config = make(task, {"mixer": MASK}, accumulate=2)
    source = config.task.prepare(folder)
    run = trainer([config], source, chunk=4)
    model = jax.tree.map(lambda a: a[0], run.state.model)
    windows = run.program.evaluation_set("val")
    sums = run.program.evaluate(run.state.model, windows, np.int32(len(windows.tokens)))
    with_segments, without = (
        float(predict(model, jax.tree.map(lambda a: a[0], batch))[1]["nll"].sum())
        for batch in (windows, windows._replace(segments=None))
    )
    assert float(sums["nll"][0, 0].sum()) == pytest.approx(with_segments, rel=1e-5)
    assert without != pytest.approx(with_segments, rel=1e-4)
    batch = source.batch(run.program.arrays, jnp.asarray(source.rows(0, 0, 1, 4)[0]), root_key(0))
    first = run.advance(1)["train/loss"][0, 0]
    assert first == pytest.approx(float(predict(model, batch)[1]["nll"].sum() / batch.weights.sum()), rel=1e-5)


def test_a_document_mask_without_segments_is_refused(folder):
    (folder / "s.yaml").write_text(
        "study: s\nbase:\n  task: {kind: text, source: docs, seq_len: 8}\n"
        "  model: {dim: 8, num_layers: 1, mixer: {kind: attention, num_heads: 2}}\n  train: {steps: 2}\n"
        "arms: {apart: {model.mixer.mask: document}}\n"
    )
    with pytest.raises(UserError, match="batches of task 'text' contain none") as caught:
        load_study(folder / "s.yaml")
    assert caught.value.remedy.startswith("Set task.segments: true")
    load_study(folder / "s.yaml", ("task.segments=true",))

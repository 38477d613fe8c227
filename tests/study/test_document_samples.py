"""Studies of documents: padding changes no bit, and runs generate documents from the begin to the end token."""

import json

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from tests.study.test_feed import trained
from tests.suites import by_default

import taetpu
from taetpu.lens.check_run import check_losses
from taetpu.optim.hooks import Moment
from taetpu.spec.loading import load_study
from taetpu.train.step import StepContext, gradients

STUDY = """\
study: names
base:
  task: {kind: text, source: names.txt, per: line, samples: documents, seq_len: 10, val: 0.2}
  model: {dim: 16, num_layers: 1, mixer: {kind: attention, num_heads: 2}}
  train:
    steps: 300
    batch_size: 16
    eval_every: 150
    checkpoint: 150
    sample: {tokens: 12}
    optimizer: {kind: adamw, lr: 1e-2}
    compute: {feed: resident}
seeds: 2
arms:
  moe: {model.ffn: {kind: moe, experts: 2, top: 1}}
  longer: {task.seq_len: 14}
  mamba: {model.mixer: {kind: mamba2, head_dim: 8}}
"""
NAMES = [f"{first}{last}" for first in ("anna", "bob", "cleo", "dan") for last in "abcdefghijklmnopqrst"]


@pytest.fixture(autouse=True)
def names(tmp_path):
    (tmp_path / "names.txt").write_text("\n".join(NAMES))


@pytest.mark.parametrize("arm", by_default(["baseline", "moe", "mamba"], "baseline"))
def test_padding_changes_no_loss_and_no_gradient(arm, tmp_path):
    (tmp_path / "s.yaml").write_text(STUDY)
    study = load_study(tmp_path / "s.yaml")
    chosen = next(a for a in study.arms if a.name == arm)
    source, config = study.source(chosen), chosen.config
    arrays = {name: jnp.asarray(array) for name, array in source.arrays.items()}
    batch = jax.jit(source.batch)(arrays, jnp.arange(8), jax.random.key(0))
    padding = batch.context["padding"]
    assert padding.any()
    other = batch._replace(
        tokens=jnp.where(padding, (batch.tokens + 1) % source.vocab_size, batch.tokens),
        targets=jnp.where(padding, 3, batch.targets),
    )
    model = jax.jit(lambda key: config.model.build(source.interface, source.seq_len, key=key))(jax.random.key(1))
    context = StepContext(config, source, arrays, jnp.int32(0), 4, jnp.float32)
    now = Moment(jnp.int32(0), 4, jax.random.key(2))
    compute = jax.jit(lambda batch: gradients(model, batch, jax.random.key(3), now, context))
    for first, second in zip(*map(jax.tree.leaves, (compute(batch), compute(other))), strict=True):
        np.testing.assert_array_equal(first, second)


@pytest.mark.slow
def test_runs_generate_whole_documents(study, interrupting, tmp_path):
    text = STUDY.replace("  mamba: {model.mixer: {kind: mamba2, head_dim: 8}}\n", "").replace(
        "  moe: {model.ffn: {kind: moe, experts: 2, top: 1}}\n", ""
    )
    outcome, resident = study(text, root="resident")
    with pytest.raises(KeyboardInterrupt):
        study(text.replace("resident", "host"), root="host", callback=interrupting("on_steps", 200))
    _, resumed = study(text.replace("resident", "host"), root="host")
    assert trained(resumed) == trained(resident)
    baseline, longer = outcome.results["arms"]
    assert longer["mean"] == pytest.approx(baseline["mean"], abs=0.1)  # the same targets, with more padding
    run = taetpu.open_run("names/baseline/0", root=str(tmp_path / "resident"), data_folder=tmp_path)
    end = run.tokenizer.number("<|endoftext|>")
    assert run.end_tokens == (end,)
    metrics = run.result["metrics"]
    assert metrics["val/bits_per_byte"] == pytest.approx(metrics["val/loss"] / np.log(2), rel=1e-5)
    assert all(checked.agrees for checked in check_losses(run))
    assert run.encode("").of(0).tolist() == [end]
    made = [taetpu.generate(run, "", max_tokens=9, seed=seed)[0] for seed in range(8)]
    assert sum(each.stopped == end for each in made) >= 6
    assert any(each.text in NAMES for each in made)
    about = json.loads(resident.runs()[0].read_model()["config.json"])
    assert about["special_tokens"] == {"bos_token_id": end, "eos_token_id": end}
    assert all(sample.count("<|endoftext|>") <= 2 for sample in resident.runs()[0].samples().values())

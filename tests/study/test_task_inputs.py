"""Tasks with real inputs and targets, with padding and classes, and with two types of tokens.

All of them are plug-ins, written from docs/plugins.md: one file each.
"""

import re
import shutil
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from tests.page import write_plugin
from tests.suites import by_default

import taetpu
from taetpu.contract.check import check_arms
from taetpu.core.errors import UserError
from taetpu.core.model_interface import Interface
from taetpu.interop.exporting import to_huggingface
from taetpu.lens.check_run import check_losses
from taetpu.lens.perplexity import split_perplexity
from taetpu.optim.hooks import Moment
from taetpu.spec.loading import load_study
from taetpu.store.backend import open_store
from taetpu.store.study import StudyFolder
from taetpu.study import executor
from taetpu.testing import check_component
from taetpu.train.step import StepContext, gradients

FOLDER = Path(__file__).parent / "tasks"
SINE = """\
study: sine
plugins: [noisy_sine.py, squared_error.py, within.py]
base:
  task: noisy-sine
  model: {dim: 16, num_layers: 1, mixer: none, embedding: untied}
  train: {steps: 200, batch_size: 16, eval_every: 100, optimizer: {kind: adamw, lr: 1e-2}, eval_metrics: {near: within}}
seeds: 3
arms:
  slow: {train.optimizer.lr: 1e-5}
measure: {primary: val/near}
"""
PAIRS = """\
study: pairs
plugins: [equal_pairs.py]
base:
  task: equal-pairs
  model: {dim: 16, num_layers: 1, mixer: {kind: attention, num_heads: 2, mask: full}, embedding: untied}
  train: {steps: 4, batch_size: 8, eval_every: 4}
seeds: 2
arms:
  moe: {model.ffn: {kind: moe, experts: 2, top: 1}}
"""
MAJORITY = """\
study: majority
plugins: [majority.py]
base:
  task: majority
  model: {dim: 16, num_layers: 1, mixer: {kind: attention, num_heads: 2}, embedding: untied}
  train: {steps: 4, batch_size: 8, eval_every: 4, eval_metrics: [exact_match, macro_f1]}
seeds: 2
arms:
  moe: {model.ffn: {kind: moe, experts: 2, top: 1}}
  mamba: {model.mixer: {kind: mamba2, head_dim: 8}}
"""
STUDIES = {"sine": SINE, "pairs": PAIRS, "majority": MAJORITY}


@pytest.fixture
def written(tmp_path):
    """Return a function that writes a study with the given replacements beside all plug-ins, and returns its file."""
    for file in FOLDER.glob("*.py"):
        shutil.copy(file, tmp_path)
    write_plugin("majority.py", tmp_path)

    def write(name: str, *changes: tuple[str, str]) -> Path:
        text = STUDIES[name]
        for old, new in changes:
            assert old in text
            text = text.replace(old, new)
        (tmp_path / f"{name}.yaml").write_text(text)
        return tmp_path / f"{name}.yaml"

    return write


@pytest.fixture(scope="module")
def sine(tmp_path_factory):
    """The outcome of the regression study in packs, and its root."""
    folder = tmp_path_factory.mktemp("sine")
    for file in FOLDER.glob("*.py"):
        shutil.copy(file, folder)
    (folder / "sine.yaml").write_text(SINE)
    return taetpu.run(folder / "sine.yaml", root=str(folder / "root")), folder


def stored_run(root, arm="baseline", seed=0, study="sine"):
    """Return the folder of a run."""
    return next(r for r in StudyFolder(open_store(root), study).runs() if (r.arm, r.seed) == (arm, seed))


@pytest.mark.slow
def test_regression_is_learned_and_judged_by_its_own_metric(sine):
    outcome, _ = sine
    baseline, slow = outcome.results["arms"]
    assert slow["verdict"] == "worse"
    assert baseline["mean"] > 0.8 > slow["mean"]
    assert outcome.results["plan"]["metrics"]["near"]["bounds"] == [0.0, 1.0]
    assert set(outcome.results["plan"]["metrics"]) == {"loss", "near"}


def test_report_names_the_metric_and_no_accuracy(sine):
    _, folder = sine
    page = next((folder / "root").rglob("report.md")).read_text()
    assert "val/near the target (share of positions)" in page
    assert "accuracy" not in page


@pytest.mark.slow
def test_packed_regression_equals_solo(sine, tmp_path, monkeypatch):
    monkeypatch.setattr(executor, "fits_beside", lambda queue: False)  # no other processes
    _, folder = sine
    taetpu.run(folder / "sine.yaml", root=str(tmp_path), pack=1)
    for arm in ("baseline", "slow"):
        first, second = stored_run(folder / "root", arm), stored_run(tmp_path, arm)
        assert first.result()["metrics"] == second.result()["metrics"]
        assert first.read_model() == second.read_model()


def test_opened_regression_gives_the_predictions_of_training(sine):
    _, folder = sine
    plugins = [folder / name for name in ("noisy_sine.py", "squared_error.py", "within.py")]
    opened = taetpu.open_run("sine/baseline/0", root=str(folder / "root"), plugins=plugins)
    split = opened.data.evaluation("val")
    outputs = opened(split.tokens).logits[..., 0]
    metrics = opened.result["metrics"]
    assert np.mean((outputs - split.targets) ** 2) == pytest.approx(metrics["val/loss"], abs=1e-6)
    assert np.mean(np.abs(outputs - split.targets) <= 0.25) == pytest.approx(metrics["val/near"], abs=1e-6)
    assert (opened.interface, opened.vocab_size) == (Interface(features=1, outputs=1), 0)
    assert all(checked.agrees for checked in check_losses(opened))
    views = (
        lambda: opened([0, 1]),
        lambda: taetpu.generate(opened, [0]),
        lambda: taetpu.attribution(opened, [0, 1]),
        lambda: split_perplexity(opened, "val"),
        lambda: taetpu.without(opened, "ffns", "0", "mean"),
        lambda: to_huggingface(opened.config, opened.model),
    )
    for read in views:
        with pytest.raises(UserError) as error:
            read()
        assert error.value.remedy


KINDS = {
    "sine": ("task/noisy-sine", "objective/test-squared-error", "eval_metric/within"),
    "pairs": ("task/equal-pairs",),
}


@pytest.mark.slow
@pytest.mark.parametrize("name", KINDS)
def test_plugins_pass_their_checks(name, written):
    load_study(written(name))
    for kind in KINDS[name]:
        assert not check_component(*kind.split("/")).failed


@pytest.mark.slow
@pytest.mark.parametrize("name", ["pairs", "majority"])
def test_labelled_studies_train_to_results(name, written, tmp_path):
    outcome = taetpu.run(written(name), root=str(tmp_path / "root"))
    assert {run["outcome"] for arm in outcome.results["arms"] for run in arm["runs"]} == {"finished"}
    run = stored_run(tmp_path / "root", study=name)
    assert 0 <= run.result()["metrics"]["val/accuracy"] <= 1


@pytest.mark.parametrize("arm", by_default(["baseline", "moe", "mamba"], "baseline"))
@pytest.mark.parametrize("name", by_default(["pairs", "majority"], "majority"))
def test_no_value_in_padding_changes_a_loss(name, arm, written):
    """Losses, auxiliary losses and gradients are bitwise equal."""
    study = load_study(written(name))
    if (chosen := next((a for a in study.arms if a.name == arm), None)) is None:
        pytest.skip("mamba is causal")
    source, config = study.source(chosen), chosen.config
    batch = jax.jit(source.batch)({}, jnp.zeros(8, jnp.int32), jax.random.key(0))
    padding = batch.context["padding"]
    assert padding.any()
    other = batch._replace(
        tokens=jnp.where(padding, (batch.tokens + 1) % source.vocab_size, batch.tokens),
        targets=jnp.where(padding, 1 - batch.targets.clip(0, 1), batch.targets),
        types=None if batch.types is None else jnp.where(padding, 1 - batch.types, batch.types),
    )
    model = jax.jit(lambda key: config.model.build(source.interface, source.seq_len, key=key))(jax.random.key(1))
    context = StepContext(config, source, {}, jnp.int32(0), 4, jnp.float32)
    now = Moment(jnp.int32(0), 4, jax.random.key(2))
    compute = jax.jit(lambda batch: gradients(model, batch, jax.random.key(3), now, context))
    for first, second in zip(*map(jax.tree.leaves, (compute(batch), compute(other))), strict=True):
        np.testing.assert_array_equal(first, second)


@pytest.mark.parametrize("value", ["nan", "inf"])
def test_a_target_that_is_not_finite_is_refused_with_its_row(value, written):
    file = written("sine")
    plugin = file.parent / "noisy_sine.py"
    number = "self.noise * drawn, jnp"
    text = plugin.read_text()
    assert number in text
    plugin.write_text(text.replace(number, f"jnp.where(drawn > 0.9, jnp.{value}, self.noise * drawn), jnp"))
    study = load_study(file)
    with pytest.raises(UserError) as error:
        study.source(study.arms[0])
    split = re.search(r"of (\w+), row (\d+), position (\d+)", error.value.problem)
    assert split is not None
    assert split[1] == "val"
    assert value in error.value.problem
    assert "noisy-sine" in error.value.problem


REFUSED = {
    "tied": ("sine", ("embedding: untied", "embedding: tied"), ("model", "embedding")),
    "objective": ("sine", ("train: {", "train: {objective: causal-lm, "), ("train", "objective")),
    "classes": ("pairs", ("[equal_pairs.py]", "[equal_pairs.py, squared_error.py]"), ("train", "objective")),
    "head": ("majority", ("embedding: untied", "embedding: untied, heads: [mtp]"), ("model", "heads")),
    "answers": ("sine", ("{near: within}", "{near: within, em: exact_match}"), ("train", "eval_metrics", "em")),
    "curvature": ("sine", ("kind: adamw", "kind: sophia"), ("train", "optimizer")),
    "separator": ("sine", ("mixer: none", "mixer: {kind: attention, mask: {kind: document, separator: 0}}"),
                  ("model", "mixer", "mask")),
}  # fmt: skip


@pytest.mark.parametrize("case", REFUSED)
def test_parts_that_do_not_fit_the_task_are_refused(case, written):
    name, change, path = REFUSED[case]
    more = [("train: {", "train: {objective: test-squared-error, ")] if case == "classes" else []
    with pytest.raises(UserError) as error:
        check_arms(load_study(written(name, change, *more)))
    assert error.value.path in (path, ("base", *path))
    assert error.value.remedy

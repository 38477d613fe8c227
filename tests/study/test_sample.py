"""During training, every run evaluates the same sample of the validation split; at the end, the whole split."""

import json
import re
import shutil
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from tests.small import STUDY, TINY

from taetpu.core.errors import UserError
from taetpu.data.base import Batch, evaluation_order
from taetpu.optim.objectives import CausalLM
from taetpu.report.curves import read_curves
from taetpu.report.metric_charts import plot
from taetpu.spec.loading import load_study
from taetpu.store.backend import open_store
from taetpu.store.runs import RunFolder
from taetpu.store.study import StudyFolder
from taetpu.train.model_io import from_files
from taetpu.train.step import evaluate


@pytest.fixture
def copied(trained, tmp_path):
    """Return the outcome and a copy of the folder of a trained study, in the root that `study` uses."""
    outcome, root = trained
    shutil.copytree(root, tmp_path / "root")
    (tmp_path / "study.yaml").write_text(STUDY)
    return outcome, StudyFolder(open_store(tmp_path / "root"), "small")


def test_all_runs_evaluate_the_same_sample_and_the_whole_split_once(copied, tmp_path):
    outcome, folder = copied
    source = (loaded := load_study(tmp_path / "study.yaml")).source(loaded.arms[0])
    assert folder.read_study()["evaluation"] == {"asked": "auto", "windows": 12, "total": 32}
    data, rows = source.evaluation("val"), evaluation_order(32)[:12]
    windows = Batch(*(jnp.asarray(a)[None] for a in (data.tokens, data.targets, data.weights)))
    losses = jax.jit(lambda model: evaluate(model, windows, dtype=jnp.float32, objective=CausalLM()))
    for run in folder.runs():
        series, result = run.metrics(), run.result()
        assert list(series["val_sample/loss"].step) == [10, 20]
        assert list(series["val/loss"].step) == [20]
        assert result["val_sample"] == {"windows": 12, "of": 32}
        sums = {name: np.asarray(values)[0] for name, values in losses(from_files(run.read_model()).model).items()}
        for name, part in (("val", slice(None)), ("val_sample", rows)):
            loss = sums["nll"][part].sum() / sums["weight"][part].sum()
            assert series[f"{name}/loss"].value[-1] == pytest.approx(loss, rel=1e-5)
            assert result["metrics"][f"{name}/loss"] == series[f"{name}/loss"].value[-1]
        np.testing.assert_array_equal(run.evaluation()["val/weight"], data.weights.sum(1))
    assert [found.metric for found in read_curves(folder, outcome.results)] == ["val_sample/loss", "train/loss"]
    assert outcome.results["arms"][1]["efficiency"]["seeds"] == 2
    drawn = json.dumps(plot([folder], "val/loss").to_dict())
    assert re.search(r'\["val_sample/loss \(nats per token\)", "on a sample of .*split"\]', drawn)
    assert "on a sample" not in json.dumps(plot([folder], "val/loss", x="train.optimizer.lr").to_dict())
    assert "on a sample" in Path(outcome.report["html"]).read_text()


@pytest.mark.slow
def test_sample_of_all_windows_has_the_value_of_the_split(study):
    _, folder = study(TINY.replace("log_every: 6,", "log_every: 6, eval_windows: all,") + "seeds: 1\n")
    for run in folder.runs():
        series = run.metrics()
        for what in ("loss", "accuracy"):
            assert series[f"val_sample/{what}"].value[-1] == pytest.approx(series[f"val/{what}"].value[-1], rel=1e-12)


@pytest.mark.slow
def test_later_runs_are_evaluated_on_the_first_sample(study, copied):
    """Another `eval_every` would change the size of an `auto` sample, but runs are compared on the frozen sample."""
    often = STUDY.replace("eval_every: 10", "eval_every: 5")
    _, folder = study(f"{often}  high-lr: {{train.optimizer.lr: 1e-2}}\n")
    assert {run.result()["val_sample"]["windows"] for run in folder.runs()} == {12}
    with pytest.raises(UserError, match=r"eval_windows was auto .* is 3 now"):
        study(STUDY.replace("log_every: 4,", "log_every: 4, eval_windows: 3,"))


def test_runs_of_an_earlier_version_have_their_curve_on_the_split(copied):
    """These runs measured `val/*` at every evaluation."""
    outcome, folder = copied
    for run in folder.runs():
        as_before(run)
    assert [found.metric for found in read_curves(folder, outcome.results)] == ["val/loss", "train/loss"]
    assert "on a sample" not in json.dumps(plot([folder], "val/loss").to_dict())


def as_before(run: RunFolder) -> None:
    """Rewrite a run's metrics as a version without samples stored them."""
    series = run.metrics()
    old = {name: values for name, values in series.items() if not name.startswith("val")}
    old |= {f"val/{name.partition('/')[2]}": s for name, s in series.items() if name.startswith("val_sample/")}
    run.truncate(-1)
    run.append(0, 20, {name: (s.step, s.value) for name, s in old.items()})

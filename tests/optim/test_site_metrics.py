"""Statistics of sites on evaluation sets, and studies of initialisation."""

from pathlib import Path

import jax.numpy as jnp
import numpy as np
import pytest

import taetpu
from taetpu.contract.check import check_arms
from taetpu.core.errors import UserError
from taetpu.optim import site_statistics
from taetpu.spec.loading import load_study
from taetpu.tpu.preflight import PreflightRequest, preflight
from taetpu.train.callbacks import Callback
from taetpu.train.layout import Packing

METRICS = {
    "rank": {"kind": "effective_rank"}, "rest": {"kind": "rank_one_residual", "layer": -1},
    "entropy": {"kind": "attention_entropy"}, "dead": {"kind": "dead_units"},
}  # fmt: skip


def study(**changes):
    task = {"kind": "copy", "seq_len": 16, "symbols": 8, "min_length": 2, "max_length": 6, "eval_size": 8}
    model = {"dim": 16, "num_layers": 2, "mixer": {"kind": "attention", "num_heads": 2}, "ffn": "relu"}
    base = {"task": task, "model": model, "train": {"steps": 0, "batch_size": 8, "eval_metrics": METRICS}}
    arms = {"bare": {"model.residual": {"kind": "none", "branch": "mixer"}}}
    return {"study": "s", "base": base, "seeds": 2, "arms": arms, "measure": {"primary": "val/rank.layers.1"}} | changes


@pytest.mark.slow
def test_statistics_are_those_of_numpy_and_ignore_padding():
    x = np.random.default_rng(0).normal(size=(2, 6, 5)).astype(np.float32)
    real = np.array([[True] * 6, [True] * 4 + [False] * 2])
    for i, rows in enumerate((x[0], x[1, :4])):
        values = np.linalg.svd(rows.astype(np.float64), compute_uv=False)
        shares = values / values.sum()
        units = rows / np.linalg.norm(rows, axis=1, keepdims=True)
        cosines = (units @ units.T)[~np.eye(len(rows), dtype=bool)]
        expected = {
            "effective_rank": np.exp(-(shares * np.log(shares)).sum()), "largest_singular_value": values[0],
            "rank_one_residual": np.linalg.norm(rows - rows.mean(0)) / np.linalg.norm(rows),
            "token_similarity": cosines.mean(), "token_norm": np.linalg.norm(rows, axis=1).mean(),
        }  # fmt: skip
        for name, value in expected.items():
            assert np.asarray(getattr(site_statistics, name)(jnp.asarray(x), jnp.asarray(real)))[i] == pytest.approx(
                value, rel=1e-4
            ), name


@pytest.mark.slow
def test_initialisation_is_the_same_packed_and_alone_and_as_the_lens_reads_it(tmp_path):
    results = {}
    for pack in (4, 1):
        taetpu.run(study(), root=tmp_path / str(pack), pack=pack)
        opened = {
            (arm, seed): taetpu.open_run(f"s/{arm}/{seed}", root=tmp_path / str(pack))
            for arm in ("baseline", "bare") for seed in (0, 1)
        }  # fmt: skip
        results[pack] = {key: model.result["metrics"] for key, model in opened.items()}
    # A run alone divides its batches over both devices, so its program rounds differently: a few steps of float32.
    for key, values in results[1].items():
        assert results[4][key] == pytest.approx(values, rel=2e-6)
    model, values = opened["baseline", 0], results[1]["baseline", 0]
    assert model.result["steps"] == 0
    tokens = load_study(study()).source(load_study(study()).arms[0]).evaluation("val").tokens
    pattern = np.asarray(model(tokens, sites=["mixer.pattern"]).sites["mixer.pattern"], np.float64)
    entropy = -(pattern * np.log(np.maximum(pattern, 1e-30))).sum(-1).mean((1, 2, 3))
    assert [values[f"val/entropy.layers.{i}"] for i in (0, 1)] == pytest.approx([*entropy], rel=1e-4)
    assert values["val/entropy"] == pytest.approx(entropy.mean(), rel=1e-4)
    assert "val/rest.layers.1" not in values
    page = (tmp_path / "1/s/report/report.md").read_text()
    mean = np.mean([results[1]["baseline", seed]["val/rank.layers.0"] for seed in (0, 1)])
    rows = [
        line.split("|")[2:4] for line in page.splitlines() if line.startswith("| baseline") and line.count("|") == 4
    ]
    assert any(float(first) == pytest.approx(mean, rel=0.05) for first, _ in rows if first.strip() != "-")


@pytest.mark.parametrize(("changes", "word"), [
    ({"rank": {"kind": "effective_rank", "layer": 7}}, "7"),
    ({"rank": {"kind": "effective_rank", "site": "residuel"}}, "residuel"),
])  # fmt: skip
def test_sites_and_layers_that_no_arm_has_are_refused(changes, word):
    made = study(measure={"primary": "val/loss"})
    made["base"]["train"] = {**made["base"]["train"], "eval_metrics": changes}
    with pytest.raises(UserError) as caught:
        check_arms(load_study(made))
    assert word in caught.value.problem
    assert "rank" in str(caught.value)
    assert caught.value.remedy


def test_a_primary_metric_that_an_arm_lacks_is_refused():
    made = study(arms={"short": {"model.num_layers": 1}})
    with pytest.raises(UserError) as caught:
        check_arms(load_study(made))
    assert "short" in str(caught.value)


@pytest.mark.slow
def test_an_interrupted_study_of_initialisation_is_completed(tmp_path):
    class Interrupting(Callback):
        def on_evaluate(self, step, run, values):
            raise KeyboardInterrupt

    taetpu.run(study(), root=tmp_path / "whole", pack=2)
    with pytest.raises(KeyboardInterrupt):
        taetpu.run(study(), root=tmp_path / "cut", pack=2, callback=Interrupting())
    taetpu.run(study(), root=tmp_path / "cut", pack=2)
    for arm in ("baseline", "bare"):
        whole, cut = (taetpu.open_run(f"s/{arm}/0", root=tmp_path / root).result for root in ("whole", "cut"))
        assert cut["metrics"] == whole["metrics"]


def test_the_study_of_rank_collapse_loads():
    loaded = load_study(Path(__file__).parents[2] / "studies/rank-collapse.yaml")
    assert [len(loaded.arms), loaded.arms[0].config.train.steps] == [6, 0]


def test_a_study_without_train_steps_is_not_compiled_for_a_tpu():
    loaded = load_study(study())
    with pytest.raises(UserError) as caught:
        preflight(PreflightRequest(loaded.runs(), loaded.sources, Packing(1), loaded.folder, ()), [])
    assert (caught.value.path, "--tpu" in caught.value.remedy) == (("--tpu",), True)


@pytest.mark.parametrize(("changes", "place", "word"), [
    ({"arms": {"fast": {"train.optimizer.lr": 0.1}}}, "train.optimizer.lr", "fast"),
    ({"arms": {"longer": {"train.steps": 5}}}, "train.steps", "longer"),
    ({"measure": {"primary": "val_sample/loss", "reach": 0.5}}, "measure.reach", "reach"),
    ({"match": ["flops"]}, "match", "match"),
    ({"measure": {"worth": "flops"}, "ladder": {"model.dim": [8, 16, 24, 32]}}, "measure.worth", "flops"),
    ({"ladder": {"chinchilla": [0.5, 1, 2], "dial": "width"}}, "base.train.steps", "0"),
    *(({"goal": {"at_least": 2, "minimise": cost}}, "goal.minimise", cost) for cost in ("flops", "step_time")),
    ({"tune": {"train.optimizer.lr": [0.1, 0.2], "seeds": 2}}, "tune", "tune"),
    ({"ladder": {"train.steps": [0, 5]}}, "ladder", "5"),
])  # fmt: skip
def test_what_depends_on_training_is_refused_without_steps(changes, place, word):
    with pytest.raises(UserError) as caught:
        load_study(study(**changes))
    assert place in str(caught.value)
    assert word in caught.value.problem
    assert caught.value.remedy

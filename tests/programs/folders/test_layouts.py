"""What belongs to a run, what names it, and which of its values is the last."""

import json
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from tests.programs.folders.logged import RUNS

from taetpu.core.errors import DataWarning
from taetpu.programs.folders import read_folder
from taetpu.programs.folders.tree import Tree, describe_place, walk

STORED = Path(__file__).parent / "stored"


@pytest.mark.parametrize(
    ("name", "label", "seed"),
    [
        ("wide-seed3", "wide", 3),
        ("wide/seed_12", "wide", 12),
        ("seed=3,lr=0.1", "lr=0.1", 3),
        ("seed7/wide", "wide", 7),
        ("wide-Seed3-lr2", "wide-lr2", 3),
        ("models__wide-seed0", "models__wide", 0),
        ("seed3", "results", 3),
        ("wide", "wide", None),
        ("wide-seeds3", "wide-seeds3", None),
        ("linseed3", "linseed3", None),
        ("wide-seed1.5", "wide-seed1.5", None),
        ("seed1/wide-seed2", "seed1/wide-seed2", None),
    ],
)
def test_the_label_is_the_name_without_the_only_seed(name, label, seed):
    fields = describe_place(Tree(Path("/results"), {}), name)
    assert fields["run"] == name
    assert fields["label"] == label
    assert fields.get("seed") == seed


def test_the_folders_of_a_label_are_fields():
    fields = describe_place(Tree(Path("/results"), {}), "english/wide/seed-1")
    assert {key: value for key, value in fields.items() if key.startswith("label")} == {
        "label": "english/wide", "label.1": "english", "label.2": "wide",
    }  # fmt: skip


@pytest.mark.parametrize(
    ("folder", "label"),
    [
        ("version_3", "results"),
        ("lightning_logs/version_3", "results"),
        ("a/wide-seed1/lightning_logs/version_3", "a/wide"),
    ],
)
def test_versions_are_no_part_of_a_label(folder, label):
    fields = describe_place(Tree(Path("/results"), {}), folder)
    assert (fields["label"], fields["version"], fields["run"]) == (label, 3, folder)


def test_folders_are_in_natural_order(tmp_path):
    for name in ("version_10", "version_2", "version_2/b", "version_2-b"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "a").touch()
    assert list(walk(tmp_path).folders) == ["version_2", "version_2/b", "version_2-b", "version_10"]


def copy(name, target):
    shutil.copytree(STORED / name, target)
    return target


def by_name(records, *fields):
    return {tuple(str(record.fields[field]) for field in fields): record for record in records}


# --- W&B --------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["wandb-0.31.0-offline", "wandb-0.31.0-online"])
def test_the_minimum_that_wandb_keeps_is_not_the_last_value(name):
    pytest.importorskip("wandb")
    for record in read_folder(STORED / name):
        run = next(run for run in RUNS if run.name == record.fields["name"])
        assert record.metrics["best"] == (None if run.diverges else run.loss[-1])
        assert run.diverges or record.metrics["best.min"] == min(run.loss)
        assert (record.fields["group"], record.fields["project"]) == (run.arm, "example")
        assert not any(key.startswith("_") for key in (*record.metrics, *record.fields))


def test_files_of_wandb_are_read_without_the_library(monkeypatch):
    monkeypatch.setitem(sys.modules, "wandb", None)
    monkeypatch.setitem(sys.modules, "wandb.proto.wandb_internal_pb2", None)
    records = by_name(read_folder(STORED / "wandb-0.31.0-online"), "arm", "seed")
    for run in RUNS:
        record = records[run.arm, str(run.seed)]
        assert record.metrics["loss"] == (None if run.diverges else run.loss[-1])
        assert record.metrics["perplexity"] == run.perplexity
        assert record.fields["optimizer.lr"] == run.config["optimizer"]["lr"]
        assert record.curves == {}


def test_the_summary_of_wandb_counts_only_without_its_log(tmp_path):
    pytest.importorskip("wandb")
    folder = copy("wandb-0.31.0-online", tmp_path / "runs")
    for file in folder.rglob("wandb-summary.json"):
        change(file, loss=9.0)
    assert [record.metrics["loss"] for record in read_folder(folder)].count(9.0) == 0
    for file in folder.rglob("*.wandb"):
        file.write_bytes(file.read_bytes()[:7])  # what a killed process has written
    with pytest.warns(DataWarning):
        records = read_folder(folder)
    assert [record.metrics["loss"] for record in records] == [9.0] * 4
    assert sorted(record.fields["arm"] for record in records) == [run.arm for run in RUNS]


def test_the_folders_of_a_resumed_run_of_wandb_are_one_run(tmp_path):
    pytest.importorskip("wandb")
    folder = copy("wandb-0.31.0-offline", tmp_path / "runs")
    place = min((folder / "wandb").glob("*wide-seed0"))
    other = min((folder / "wandb").glob("*base-seed0/*.wandb"))
    resumed = place.with_name("offline-run-20991231_000000-wide-seed0")
    resumed.mkdir()
    shutil.copy(other, resumed / "run-wide-seed0.wandb")
    records = by_name(read_folder(folder), "run")
    assert len(records) == 4
    assert records[f"wandb/{resumed.name}",].metrics["loss"] == RUNS[0].loss[-1]


def test_a_run_of_wandb_that_has_not_ended_is_said(tmp_path):
    folder = copy("wandb-0.31.0-online", tmp_path / "runs")
    place = min((folder / "wandb").glob("*base-seed0"))
    min(place.glob("*.wandb")).unlink()
    (place / "files" / "wandb-summary.json").unlink()
    with pytest.warns(DataWarning, match=place.name):
        records = read_folder(folder)
    assert [record.metrics for record in records if record.fields["seed"] == 0 and record.fields["arm"] == "base"] == [
        {}
    ]


# --- TensorBoard ------------------------------------------------------------------------------------------------------


def test_folders_of_splits_are_parts_of_a_run(tmp_path):
    pytest.importorskip("tensorboard")
    for arm in ("base", "wide"):
        for split, seed in (("train", 0), ("validation", 1)):
            shutil.copytree(STORED / "tensorboardX-2.6.5" / arm / f"seed_{seed}", tmp_path / f"{arm}-seed4" / split)
    records = read_folder(tmp_path)
    assert [record.fields["run"] for record in records] == ["base-seed4", "wide-seed4"]
    assert records[0].metrics["train/loss"] == RUNS[0].loss[-1]
    assert records[0].metrics["validation/loss"] == RUNS[1].loss[-1]


def test_scalars_that_were_added_together_are_metrics_of_the_run():
    pytest.importorskip("tensorboard")
    records = by_name(read_folder(STORED / "torch-2.13.0-tensorboard-2.21.0"), "arm", "seed")
    for run in RUNS:
        value = records[run.arm, str(run.seed)].metrics["both/losses/twice"]
        assert value == (None if run.diverges else 2 * run.loss[-1])


def test_hyperparameters_of_lightning_describe_its_event_files(tmp_path):
    pytest.importorskip("tensorboard")
    shutil.copytree(STORED / "tensorboardX-2.6.5" / "base" / "seed_0", tmp_path / "version_0")
    shutil.rmtree(tmp_path / "version_0" / "hparams")
    (tmp_path / "version_0" / "hparams.yaml").write_text("width: 8\n")
    [record] = read_folder(tmp_path)
    assert record.fields["width"] == 8
    assert "optimizer.lr" not in record.fields


# --- transformers' Trainer --------------------------------------------------------------------------------------------


@pytest.fixture
def trained(tmp_path):
    return copy("transformers-5.23.0", tmp_path / "outputs")


def change(file, **values):
    file.write_text(json.dumps({**json.loads(file.read_text()), **values}))


def test_checkpoints_are_no_runs(trained):
    assert len(list(trained.rglob("trainer_state.json"))) == 10
    assert len(read_folder(trained)) == 4
    with pytest.warns(DataWarning, match="2 of 3"):
        [record] = read_folder(trained / "wide-seed0" / "checkpoint-2")
    assert record.metrics["loss"] == RUNS[2].loss[1]


def test_a_checkpoint_that_is_later_than_the_final_state_counts(trained):
    history = [{"loss": 0.5, "step": 4}]
    change(
        trained / "base-seed0" / "checkpoint-3" / "trainer_state.json", global_step=4, max_steps=4, log_history=history
    )
    record = by_name(read_folder(trained), "label", "seed")["base", "0"]
    assert record.metrics == {"loss": 0.5}  # all_results.json is older


def test_a_run_of_the_trainer_that_has_not_ended_is_said(trained):
    file = trained / "wide-seed0" / "checkpoint-3" / "trainer_state.json"
    change(file, max_steps=9)
    assert len(read_folder(trained)) == 4  # a callback has stopped it
    change(file, stateful_callbacks={})
    with pytest.warns(DataWarning, match="wide-seed0 .*3 of 9"):
        assert len(read_folder(trained)) == 4


def test_null_is_a_value_that_is_not_finite(trained):
    file = trained / "wide-seed0" / "checkpoint-3" / "trainer_state.json"
    change(file, log_history=[{"eval_loss": 1.0, "step": 1}, {"eval_loss": None, "step": 3}])
    assert by_name(read_folder(trained), "label", "seed")["wide", "0"].metrics == {"eval_loss": None}


def test_settings_of_a_search_are_fields(trained):
    change(trained / "wide-seed0" / "checkpoint-3" / "trainer_state.json", trial_params={"learning_rate": 0.5})
    record = by_name(read_folder(trained), "label", "seed")["wide", "0"]
    assert record.fields["learning_rate"] == 0.5
    assert record.fields["model.hidden_size"] == 4


# --- MLflow and lm-evaluation-harness ---------------------------------------------------------------------------------


def test_the_last_value_in_mlflow_is_of_the_last_step_and_never_the_largest(tmp_path):
    folder = copy("mlflow-3.17.2", tmp_path / "runs")
    file = min(folder.rglob("accuracy"))
    file.write_text("20 0.75 8\n30 0.25 8\n10 1.0 9\n10 0.5 9\n")
    with pytest.warns(DataWarning, match="RUNNING"):
        records = by_name(read_folder(folder), "run")
    record = records[file.parents[2].name,]
    assert record.metrics["val/accuracy"] == 0.5
    assert record.curves["val/accuracy"].step.tolist() == [8, 9]
    assert record.curves["val/accuracy"].value.tolist() == [0.25, 0.5]


def test_tasks_that_are_in_no_group_are_runs(tmp_path):
    folder = copy("lm-eval-0.4.13", tmp_path / "results")
    for file in folder.glob("*/results_*.json"):
        content = json.loads(file.read_text())
        del content["results"]["quiz"]
        content["group_subtasks"] = {"letters": [], "more_letters": []}
        content["results"]["letters"] |= {"exact,strict": 0.5, "perplexity,none": float("nan")}
        file.write_text(json.dumps(content))
    with pytest.warns(DataWarning):
        records = by_name(read_folder(folder), "task", "label", "seed")
    assert len(records) == 8
    record = records["letters", "base", "0"]
    assert record.metrics == {"acc": 2 / 3, "exact,strict": 0.5, "perplexity": None}
    assert record.items == {"acc": {"0": 1.0, "1": 0.0, "2": 1.0}}


def test_libraries_are_imported_where_they_are_used():
    script = f"""
import sys
from pathlib import Path
from taetpu.programs.folders import read_folder
read_folder(Path({str(STORED / "lightning-2.6.6")!r}))
print(sorted({{"jax", "wandb", "tensorboard", "torch", "pandas"}} & set(sys.modules)))
"""
    result = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert result.stdout == "[]\n"

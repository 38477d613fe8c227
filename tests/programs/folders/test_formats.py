"""Folders that each format's own library has written are read value by value; `stored` has files of several versions.

The slow test writes new ones with the versions that are installed.
"""

import importlib.util
import math
import sqlite3
import subprocess
import sys
import warnings
from contextlib import closing
from pathlib import Path
from typing import NamedTuple

import pytest
from tests.programs.folders.logged import RUNS, STEPS
from tests.programs.folders.write_fixtures import ANSWERS, WRITERS

from taetpu.core.errors import DataWarning
from taetpu.programs.folders import read_folder

STORED = Path(__file__).parent / "stored"


class Expected(NamedTuple):
    """What a format stores of the runs in `logged`, besides their losses."""

    kind: str
    accuracy: str = "val/accuracy"
    perplexity: bool = False
    steps: list[int] = STEPS
    arm: str = "arm"
    rate: str = "optimizer.lr"
    only_text: bool = False
    unfinished: bool = False


WANDB = Expected("wandb", "val.accuracy", perplexity=True)
TENSORBOARD = Expected("tensorboard", perplexity=True)
MLFLOW = Expected("mlflow", only_text=True, unfinished=True)
EXPECTED = {
    "wandb": WANDB,
    "wandb-online": WANDB,
    "tensorboardx": TENSORBOARD,
    "torch-tensorboard": TENSORBOARD,
    "lightning": Expected("lightning", steps=[0, 1, 2]),
    "trainer": Expected("trainer", "eval_accuracy", steps=[1, 2, 3], arm="label", rate="learning_rate"),
    "mlflow": MLFLOW,
    "mlflow-database": MLFLOW,
}
FOLDERS = {
    "lightning-2.6.6": "lightning",
    "mlflow-2.9.2": "mlflow",
    "mlflow-2.9.2-sqlite": "mlflow-database",
    "mlflow-3.17.2": "mlflow",
    "mlflow-3.17.2-sqlite": "mlflow-database",
    "tensorboardX-2.6.5": "tensorboardx",
    "torch-2.13.0-tensorboard-2.21.0": "torch-tensorboard",
    "transformers-5.23.0": "trainer",
    "wandb-0.16.6-offline": "wandb",
    "wandb-0.31.0-offline": "wandb",
    "wandb-0.31.0-online": "wandb-online",
}
LM_EVAL = "lm-eval-0.4.13"


def restore_database(folder: Path, target: Path) -> Path:
    """Return a folder like `folder` in which MLflow's database is a database instead of SQL."""
    if not (folder / "mlflow.sql").exists():
        return folder
    with closing(sqlite3.connect(target / "mlflow.db")) as database:
        database.executescript((folder / "mlflow.sql").read_text())
    return target


def read(folder, expected):
    """Return the records of the runs in `logged`, in their order."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always", DataWarning)
        records = read_folder(folder)
    messages = [str(warning.message) for warning in caught if warning.category is DataWarning]
    assert len(messages) == expected.unfinished, messages
    if expected.unfinished:
        [last] = [record for record in records if record.fields["name"] == "unfinished"]
        assert "RUNNING" in messages[0]
        assert last.fields["status"] == "RUNNING"
        assert last.metrics == {"loss": None}
        assert last.curves["loss"].value.tolist() == [-math.inf]
        records.remove(last)
    return sorted(records, key=lambda record: (record.fields[expected.arm], record.fields["seed"]))


def check(folder, expected):
    """Compare every value with what was logged."""
    records = read(folder, expected)
    assert len(records) == len(RUNS)
    assert len({record.where for record in records}) == len(RUNS)
    for run, record in zip(RUNS, records, strict=True):
        assert record.metrics["loss"] == (None if run.diverges else run.loss[-1])
        steps, values = record.curves["loss"]
        assert steps.tolist() == expected.steps
        assert [None if math.isnan(value) else value for value in values.tolist()] == (
            [*run.loss[:2], None] if run.diverges else run.loss
        )
        assert record.fields[expected.arm] == run.arm
        assert record.fields["seed"] == (str(run.seed) if expected.only_text else run.seed)
        if expected.kind != "trainer" or run.arm == "base":  # only these runs have written arguments and results
            rate = run.config["optimizer"]["lr"]
            assert record.fields[expected.rate] == (str(rate) if expected.only_text else rate)
            assert record.metrics[expected.accuracy] == run.accuracy
        if expected.perplexity:
            assert record.metrics["perplexity"] == run.perplexity


def check_lm_eval(folder):
    with pytest.warns(DataWarning, match=r"results_.*\.json"):
        records = read_folder(folder, "lm-eval")
    assert [(record.fields["label"], record.fields["seed"]) for record in records] == [tuple(run) for run in RUNS]
    for run, record in zip(RUNS, records, strict=True):
        answer = "a" if run.arm == "base" else "b"
        items = {
            f"{task}/{i}": float(right == answer)
            for task, answers in ANSWERS.items()
            for i, right in enumerate(answers)
        }
        assert record.items == {"acc": items}
        assert record.metrics == {"acc": sum(items.values()) / len(items)}
        assert record.fields["task"] == "quiz"
        assert record.fields["model"].endswith(run.name)
        assert record.fields["num_fewshot"] == 0
        assert record.curves == {}


@pytest.mark.parametrize("name", FOLDERS)
def test_stored_files_are_read_as_they_were_logged(name, tmp_path):
    if "wandb" in name:
        pytest.importorskip("wandb")
    if "tensorboard" in name.lower():
        pytest.importorskip("tensorboard")
    check(restore_database(STORED / name, tmp_path), EXPECTED[FOLDERS[name]])


def test_stored_evaluations_are_read_as_they_were_logged():
    check_lm_eval(STORED / LM_EVAL)


def test_every_stored_folder_is_read():
    assert sorted(path.name for path in STORED.iterdir()) == sorted([*FOLDERS, LM_EVAL])


@pytest.mark.slow
@pytest.mark.parametrize("name", WRITERS)
def test_files_of_the_installed_library_are_read_as_they_were_logged(name, tmp_path):
    library, _ = WRITERS[name]
    if importlib.util.find_spec(library) is None:
        pytest.skip(f"{library} is not installed")
    written, restored = tmp_path / "written", tmp_path / "restored"
    restored.mkdir()
    command = [sys.executable, "-m", "tests.programs.folders.write_fixtures", name, str(written)]
    place = Path(__file__).parents[3]
    result = subprocess.run(command, cwd=place, capture_output=True, text=True, timeout=300, check=False)
    assert result.returncode == 0, result.stderr
    if name == "lm-eval":
        check_lm_eval(written)
    else:
        check(restore_database(written, restored), EXPECTED[name])

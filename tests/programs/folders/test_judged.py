"""`taetpu judge` on folders: the verdicts of a table with the same values."""

from pathlib import Path

import pandas as pd
import pytest
from tests.cli.conftest import call_main
from tests.programs.folders.logged import RUNS

import taetpu

STORED = Path(__file__).parent / "stored"
TABLE = pd.DataFrame([{"arm": run.arm, "seed": run.seed, "loss": run.loss[-1]} for run in RUNS])


@pytest.fixture
def judge(monkeypatch):
    monkeypatch.chdir(STORED)

    def call(folder, *options, root):
        return call_main("judge", folder, "--better", "min", "--baseline", "base", "--root", root, *options)

    return call


def effects(results):
    return [(arm["name"], arm["mean"], arm["effect"], arm["diverged"]) for arm in results["arms"]]


@pytest.mark.filterwarnings("ignore::taetpu.core.errors.DataWarning")  # runs of MLflow that have not finished
@pytest.mark.parametrize(
    ("folder", "options"),
    [
        ("lightning-2.6.6", ["--arm", "arm"]),
        ("transformers-5.23.0", ["--arm", "label", "--from", "trainer"]),
        ("mlflow-3.17.2", ["--arm", "label", "--where", "status=FINISHED"]),
    ],
)
def test_a_folder_gives_the_results_of_its_table(judge, folder, options, tmp_path):
    result = judge(folder, *options, "--seed", "seed", "--metric", "loss", "--json", root=tmp_path)
    ours = result.json()
    table = taetpu.judge(TABLE, arm="arm", seed="seed", metric="loss", better="min", baseline="base").results
    assert effects(ours) == effects(table)
    assert (tmp_path / folder / "report" / "index.html").exists()
    curves = taetpu.read_metrics(str(tmp_path / folder))
    assert curves[curves["metric"] == "loss"].groupby(["arm", "seed"]).size().tolist() == [3, 3, 3, 3]


def test_a_folder_that_is_refused_leaves_nothing(judge, tmp_path):
    (tmp_path / "mlflow.db").write_bytes(b"no database" * 100)
    options = ["--arm", "arm", "--seed", "seed", "--metric", "loss"]
    result = judge(tmp_path / "mlflow.db", *options, root=tmp_path / "runs")
    assert result.code == 2
    assert str(tmp_path / "mlflow.db") in result.err
    assert not (tmp_path / "runs").exists()

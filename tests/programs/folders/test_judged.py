"""`taetpu judge` on folders: the verdicts of a table with the same values, as a process."""

import json
import subprocess
import sys
from pathlib import Path

import pandas as pd
import pytest
from tests.programs.folders.logged import RUNS

import taetpu

STORED = Path(__file__).parent / "stored"
TABLE = pd.DataFrame([{"arm": run.arm, "seed": run.seed, "loss": run.loss[-1]} for run in RUNS])


def judge(folder, *options, root):
    command = [sys.executable, "-m", "taetpu", "judge", str(folder), "--better", "min", "--baseline", "base"]
    command += ["--root", str(root), *options]
    return subprocess.run(command, capture_output=True, text=True, check=False, cwd=STORED)


def effects(results):
    return [(arm["name"], arm["mean"], arm["effect"], arm["diverged"]) for arm in results["arms"]]


@pytest.mark.parametrize(
    ("folder", "options"),
    [
        ("lightning-2.6.6", ["--arm", "arm"]),
        ("transformers-5.23.0", ["--arm", "label", "--from", "trainer"]),
        ("mlflow-3.17.2", ["--arm", "label", "--where", "status=FINISHED"]),
    ],
)
def test_a_folder_gives_the_results_of_its_table(folder, options, tmp_path):
    result = judge(folder, *options, "--seed", "seed", "--metric", "loss", "--json", root=tmp_path)
    assert result.returncode == 0, result.stderr
    ours = json.loads(result.stdout)
    table = taetpu.judge(TABLE, arm="arm", seed="seed", metric="loss", better="min", baseline="base").results
    assert effects(ours) == effects(table)
    assert (tmp_path / folder / "report" / "index.html").exists()
    curves = taetpu.read_metrics(str(tmp_path / folder))
    assert curves[curves["metric"] == "loss"].groupby(["arm", "seed"]).size().tolist() == [3, 3, 3, 3]


def test_a_folder_that_is_refused_leaves_nothing(tmp_path):
    (tmp_path / "mlflow.db").write_bytes(b"no database" * 100)
    options = ["--arm", "arm", "--seed", "seed", "--metric", "loss"]
    result = judge(tmp_path / "mlflow.db", *options, root=tmp_path / "runs")
    assert result.returncode == 2
    assert str(tmp_path / "mlflow.db") in result.stderr
    assert "Traceback" not in result.stderr
    assert not (tmp_path / "runs").exists()

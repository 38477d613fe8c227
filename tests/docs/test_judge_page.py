"""Every line of docs/judge.md is run on the results that it names."""

import io
import json
import re
import shlex
import shutil
from contextlib import redirect_stdout
from pathlib import Path

import pandas as pd
import pytest

import taetpu
from taetpu.cli.main import app

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "judge.md").read_text()
STORED = ROOT / "tests" / "programs" / "folders" / "stored"
ROWS = re.findall(r"^\| (.*?) \| `(taetpu.*)` \|$", PAGE, re.MULTILINE)
FOLDERS = {
    "wandb": "wandb-0.31.0-offline/wandb",
    "events": "torch-2.13.0-tensorboard-2.21.0",
    "lightning_logs": "lightning-2.6.6/lightning_logs",
    "outputs": "transformers-5.23.0",
    "mlruns": "mlflow-3.17.2/mlruns",
    "results": "lm-eval-0.4.13",
}
NEEDS = {"parquet": "pyarrow", "events": "tensorboard"}


def runs(*columns: str) -> pd.DataFrame:
    """Return runs of three arms on three seeds, with values for each combination of further columns."""
    rows = [
        {"method": arm, "optimizer": optimizer, "lr": lr, "dataset": data, "seed": seed, "step": step,
         "val_loss": 2 - step / 100 - effect + (7 * seed + 3 * i) % 5 / 50, "accuracy": 0.5 + effect + seed / 100,
         "notes": "x"}
        for i, (arm, optimizer, lr, effect) in enumerate(
            [("base", "adam", 1e-3, 0.0), ("muon", "muon", 1e-3, 0.2), ("slow", "adam", 1e-4, 0.001)]
        )
        for data in ("imdb", "sst2")
        for seed in range(3)
        for step in (10, 20)
    ]  # fmt: skip
    table = pd.DataFrame(rows)
    keys = {"dataset": "imdb", "seed": 0, "step": 20, "method": "base"}
    for name, value in keys.items():
        if name not in columns and not (name == "method" and "optimizer" in columns):
            table = table[table[name] == value]
    return table.loc[:, list(columns)]


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("TAETPU_ROOT", raising=False)
    results = runs("method", "seed", "val_loss", "accuracy")
    results.to_csv("results.csv", index=False)
    runs("method", "dataset", "seed", "accuracy").to_csv("datasets.csv", index=False)
    runs("method", "dataset", "accuracy").to_csv("leaderboard.csv", index=False)
    runs("optimizer", "lr", "seed", "val_loss").to_csv("sweep.csv", index=False)
    results.pivot(index="seed", columns="method", values="val_loss").to_csv("arms.csv")
    results.pivot(index="method", columns="seed", values="val_loss").assign(notes="x").to_csv("seeds.csv")
    runs("method", "seed", "step", "val_loss").to_json("log.jsonl", orient="records", lines=True)
    runs("seed", "val_loss").to_csv("repeats.tsv", sep="\t", index=False)
    for name, stored in FOLDERS.items():
        shutil.copytree(STORED / stored, name)
    return tmp_path


def test_the_page_has_lines_for_all_kinds_of_results():
    named = {shlex.split(line)[2] for _, line in ROWS if line.startswith("taetpu judge ")}
    assert named >= {*FOLDERS, "results.csv", "arms.csv", "seeds.csv", "log.jsonl", "repeats.tsv", "results.parquet"}


def run_command(line: str):
    """Run a command of the page in this process, and return the JSON that it prints."""
    out = io.StringIO()
    with redirect_stdout(out):
        app([*shlex.split(line)[1:], "--json"], prog_name="taetpu", standalone_mode=False)
    return json.loads(out.getvalue())


@pytest.mark.filterwarnings("ignore::taetpu.core.errors.DataWarning")
@pytest.mark.parametrize("line", [line for _, line in ROWS], ids=[have for have, _ in ROWS])
def test_each_line_gives_verdicts(line: str, here: Path):
    for name, library in NEEDS.items():
        if name in line:
            pytest.importorskip(library)
    table = pd.read_csv("results.csv")
    if "parquet" in line:
        table.to_parquet("results.parquet")
    if line.startswith("taetpu.judge("):
        results = eval(line, {"taetpu": taetpu, "table": table}).results
    else:
        results = run_command(line)
    for each in results if isinstance(results, list) else [results]:
        assert each["complete"]
        assert {run["outcome"] for arm in each["arms"] for run in arm["runs"]} <= {"finished", "diverged"}
        assert len(each["arms"]) > 1 or "--arm" not in line

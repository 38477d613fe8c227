"""`taetpu.ablate`: functions of scripts and modules, each call in a process of its own, with the report of a study."""

import subprocess
import sys
import threading
from pathlib import Path

import pytest

from taetpu.core.errors import UserError
from taetpu.study.ablate import ablate

pytest.importorskip("cloudpickle")
SCRIPT = """
import os, random, sys
import taetpu

SCALE = 0.01

def noise(seed, step):
    return SCALE * random.Random(100 * seed + step).gauss(0, 1)

def train(config, seed):
    print("settings", config, "in", os.getcwd(), flush=True)
    for step in range(3):
        yield {"step": step, "loss": config["optimizer"]["lr"] / (step + 1) + noise(seed, step), "pid": os.getpid()}

if __name__ == "__main__":
    outcome = taetpu.ablate(
        train, base={"optimizer.lr": 0.1, "tags": ["a"]}, arms={"high": {"optimizer": {"lr": 0.5}}}, better="min",
        seeds=2, root="runs", each={"cpus": 1},
    )
    runs = [run for arm in outcome.results["arms"] for run in arm["runs"]]
    print(len(runs), sorted({arm["name"] for arm in outcome.results["arms"]}), "jax" in sys.modules)
"""


def call(folder: Path, source: str) -> subprocess.CompletedProcess[str]:
    (folder / "script.py").write_text(source)
    command = [sys.executable, "script.py"]
    return subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False)


def test_a_script_trains_resumes_and_refuses_runs_of_another_function(tmp_path):
    done = call(tmp_path, SCRIPT)
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines()[-1] == "4 ['baseline', 'high'] False"
    assert done.stdout.count("started") == 4
    assert (tmp_path / "runs" / "train" / "report" / "index.html").exists()
    records = [*tmp_path.glob("runs/train/programs/*/*/folder/reports.jsonl")]
    assert len(records) == 4
    pids = {line.rpartition(":")[2] for record in records for line in record.read_text().splitlines()}
    assert len(pids) == 4
    again = call(tmp_path, SCRIPT)
    assert again.returncode == 0, again.stderr
    assert "started" not in again.stdout
    changed = call(tmp_path, SCRIPT.replace("SCALE = 0.01", "SCALE = 0.02"))
    assert changed.returncode == 1
    assert "function train" in changed.stderr


MODULE = """
def train(config, seed):
    if config["fails"]:
        raise RuntimeError(f"seed {seed}")
    return {"accuracy": 1 - config["lr"] + 0.01 * seed}

def wrong(config, seed):
    return 0.5
"""


@pytest.fixture
def module(tmp_path, monkeypatch):
    """The functions of a module in a folder that this process can import from."""
    (tmp_path / "my_functions.py").write_text(MODULE)
    monkeypatch.syspath_prepend(tmp_path)
    import my_functions

    yield my_functions
    del sys.modules["my_functions"]


def test_a_function_of_a_module_that_fails_in_one_arm(module, tmp_path):
    lines = []
    outcome = ablate(
        module.train, base={"lr": 0.1, "fails": False}, arms={"broken": {"fails": True}}, better="max",
        metric="accuracy", seeds=[4], study="modules", root=str(tmp_path / "runs"), log=lines.append,
    )  # fmt: skip
    values = {arm["name"]: [run["value"] for run in arm["runs"]] for arm in outcome.results["arms"]}
    assert values["baseline"] == pytest.approx([0.94])
    assert len(outcome.failed) == 1
    assert any("RuntimeError: seed 4" in line for line in lines)


def test_a_result_that_is_no_dict_is_shown(module, tmp_path):
    lines = []
    outcome = ablate(
        module.wrong, base={"lr": 0.1}, better="min", seeds=1, root=str(tmp_path / "runs"), log=lines.append
    )
    assert len(outcome.failed) == 1
    assert any("0.5" in line and "TypeError" in line for line in lines)


def test_a_function_without_a_name_needs_one(tmp_path):
    with pytest.raises(UserError) as raised:
        ablate(lambda config, seed: {}, base={"lr": 1}, better="min", root=str(tmp_path))
    assert raised.value.path == ("study",)
    assert not [*tmp_path.iterdir()]


def test_a_function_that_cannot_be_sent_is_refused(tmp_path):
    lock = threading.Lock()

    def train(config, seed):
        return {"loss": lock.locked()}

    with pytest.raises(UserError, match="lock") as raised:
        ablate(train, base={"lr": 1}, better="min", root=str(tmp_path))
    assert raised.value.path == ("train",)
    assert not [*tmp_path.iterdir()]


def test_mistakes_in_the_arguments_are_those_of_a_study_file(module, tmp_path):
    for changes, path in (
        ({"arms": {"high": {"rl": 1}}}, ("arms", "high", "rl")),
        ({"better": "lower"}, ("measure", "better")),
        ({"grids": {}}, ("grids",)),
    ):
        with pytest.raises(UserError) as raised:
            ablate(
                module.train,
                **{"base": {"lr": 1, "fails": False}, "better": "min", "root": str(tmp_path / "r")} | changes,
            )
        assert raised.value.path == path
    assert not (tmp_path / "r").exists()

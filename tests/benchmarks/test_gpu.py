"""`benchmarks.gpu` at tiny sizes on a CPU: both sides train the same model."""

import json
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from benchmarks.gpu import main


def run(*options: str) -> str:
    command = [sys.executable, "-m", "benchmarks.gpu", *options]
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout


@pytest.mark.nightly
@pytest.mark.skipif(shutil.which("g++") is None, reason="PyTorch compiles with a C++ compiler, and none is here")
def test_all_contestants_train_the_same_model(tmp_path: Path) -> None:
    run("--device", "cpu", "--small", "--json", str(tmp_path / "found.json"))
    found = json.loads((tmp_path / "found.json").read_text())
    assert set(found) == {"gpt2", "dim-128"}
    for one in found.values():
        assert len(set(one["params"].values())) == 1
        assert all(rate["least"] > 0 for rate in one["tokens_per_second"].values())
        assert one["utilisation"] is None  # nothing is published of a CPU
        first, *_ = one["ratio"].values()
        assert first["median"] == 1.0


@pytest.mark.skipif(any(Path("/dev").glob("nvidia[0-9]*")), reason="a GPU is here, and would be measured")
def test_without_a_gpu_nothing_is_measured(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr("sys.argv", ["benchmarks.gpu"])
    main()
    out = capsys.readouterr().out
    assert out.startswith("no NVIDIA GPU")
    assert out.count("\n") == 1

"""`benchmarks.gpu` at tiny sizes on a CPU: both sides train the same model."""

import json
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from benchmarks.gpu import SMALL, main
from benchmarks.gpu_levers import DEFAULTS, LEVERS, Lever, Limits, measure_levers, show


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


@pytest.mark.nightly
def test_levers_are_measured_beside_the_defaults_or_say_why_not() -> None:
    levers = [Lever("all", LEVERS[0].compute), Lever("wrong", flags="--xla_no_such_flag=1"), Lever("rest")]
    found = measure_levers(SMALL["gpt2"], 1, "cpu", DEFAULTS, Limits(900.0, 3, 2, 0.1), levers)
    assert list(found) == [DEFAULTS.name, "all", "wrong", "rest"]
    for name in (DEFAULTS.name, "all", "rest"):
        one = found[name]
        assert one["tokens_per_second"]["least"] > 0
        assert one["utilisation"] is None  # nothing is published of a CPU
    assert found["all"]["compute"] == {"logits": "bfloat16", "pad_vocab": 128, "cast": "step", "unroll": 2}
    assert found[DEFAULTS.name]["ratio"]["median"] == 1.0
    assert "--xla_no_such_flag" in found["wrong"]["failed"]
    table = show("gpt2", found)
    assert table.count("\n") == 5
    assert "--xla_no_such_flag" in table


def test_no_lever_is_started_when_the_time_is_over() -> None:
    found = measure_levers(SMALL["gpt2"], 1, "cpu", DEFAULTS, Limits(0.0, 3, 2, 0.1), [Lever("rest")])
    assert set(found) == {DEFAULTS.name, "rest"}
    assert all("failed" in one for one in found.values())


@pytest.mark.skipif(any(Path("/dev").glob("nvidia[0-9]*")), reason="a GPU is here, and would be measured")
def test_without_a_gpu_nothing_is_measured(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr("sys.argv", ["benchmarks.gpu"])
    main()
    out = capsys.readouterr().out
    assert out.startswith("no NVIDIA GPU")
    assert out.count("\n") == 1

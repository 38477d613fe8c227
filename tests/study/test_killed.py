"""The real thing: `taetpu run` in a process of its own, killed with -9, started again."""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

STUDY = """
study: killed
base:
  task: {kind: copy, seq_len: 32, symbols: 8, min_length: 4, max_length: 12, eval_size: 64}
  model: {dim: 32, num_layers: 2, mixer: {kind: attention, num_heads: 2}}
  train: {steps: 400, batch_size: 16, eval_every: 50, checkpoint: eval}
seeds: 2
arms:
  low-lr: {train.optimizer.lr: 1e-4}
  no-ffn: {model.ffn: none}
"""


def command(*args: str) -> list[str]:
    return [sys.executable, "-m", "taetpu", *args]


def start(folder: Path, root: str) -> subprocess.Popen:
    run = command("run", "study.yaml", "--root", root)
    return subprocess.Popen(run, cwd=folder, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


def end(process: subprocess.Popen) -> tuple[str, str]:
    """Wait for a process, killed or not, and read what it said."""
    with process:
        return process.communicate(timeout=300)


def results(folder: Path, root: str) -> bytes:
    return (folder / root / "killed" / "results.json").read_bytes()


def reached(folder: Path, root: str, pattern: str) -> bool:
    return any((folder / root).glob(pattern))


@pytest.mark.slow
def test_killed_at_three_moments_and_told_to_end_it_ends_with_the_same_results(tmp_path):
    (tmp_path / "study.yaml").write_text(STUDY)
    out, err = end(start(tmp_path, "whole"))
    assert "baseline" in out, err

    moments = (
        "killed/plan.json",  # before the first step
        "killed/runs/baseline/*/metrics/50-*",  # in the middle of the first pack
        "killed/runs/no-ffn/*/metrics/50-*",  # in the second, past a checkpoint
    )
    for moment in moments:
        process = start(tmp_path, "cut")
        while not reached(tmp_path, "cut", moment):
            assert process.poll() is None, end(process)[1]
            time.sleep(0.01)
        process.send_signal(signal.SIGKILL)
        end(process)
        assert not reached(tmp_path, "cut", "killed/results.json")

    process = start(tmp_path, "cut")  # and once as a machine that is taken away does it
    while not reached(tmp_path, "cut", "killed/runs/no-ffn/*/metrics/100-*"):
        assert process.poll() is None, end(process)[1]
        time.sleep(0.01)
    process.send_signal(signal.SIGTERM)
    _, err = end(process)
    assert process.returncode == 130
    assert "repeat the command to continue" in err

    process = start(tmp_path, "cut")
    _, err = end(process)
    assert process.returncode == 0, err
    assert "resuming from step" in err
    assert results(tmp_path, "cut") == results(tmp_path, "whole")


@pytest.mark.slow
def test_a_second_run_on_the_same_folder_says_who_holds_it(tmp_path):
    (tmp_path / "study.yaml").write_text(STUDY)
    first = start(tmp_path, "root")
    while not reached(tmp_path, "root", "killed/plan.json"):
        assert first.poll() is None, end(first)[1]
        time.sleep(0.01)
    second = start(tmp_path, "root")
    _, refused = end(second)
    assert second.returncode == 2
    assert f"pid {first.pid}" in refused
    assert "Traceback" not in refused
    first.send_signal(signal.SIGINT)
    _, err = end(first)
    assert first.returncode == 130
    assert "repeat the command to continue" in err
    assert os.path.exists(tmp_path / "root/killed/plan.json")
    assert json.loads((tmp_path / "root/killed/plan.json").read_text())["packs"]

"""`taetpu run` in separate processes, which are killed with SIGKILL and started again."""

import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

import taetpu
from taetpu.core.errors import UserError

STUDY = """
study: killed
base:
  task: {kind: copy, seq_len: 16, symbols: 5, min_length: 2, max_length: 6, eval_size: 32}
  model: {dim: 16, num_layers: 1, mixer: {kind: attention, num_heads: 2}}
  train: {steps: 400, batch_size: 8, eval_every: 50, checkpoint: eval, sample: none}
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
    """Wait for a process to end, and return its output and errors."""
    with process:
        return process.communicate(timeout=300)


def results(folder: Path, root: str) -> bytes:
    return (folder / root / "killed" / "results.json").read_bytes()


def reached(folder: Path, root: str, pattern: str) -> bool:
    return any((folder / root).glob(pattern))


@pytest.mark.slow
@pytest.mark.parametrize(
    ("sent", "moment"),
    [
        (signal.SIGKILL, "killed/runs/baseline/*/metrics/50-*"),  # in the first pack, after a checkpoint
        pytest.param(signal.SIGTERM, "killed/runs/no-ffn/*/metrics/50-*", marks=pytest.mark.nightly),  # in the second
    ],
)
def test_killed_and_terminated_runs_end_with_the_same_results(tmp_path, sent, moment):
    (tmp_path / "study.yaml").write_text(STUDY)
    taetpu.run(tmp_path / "study.yaml", root=str(tmp_path / "whole"))

    process = start(tmp_path, "cut")
    while not reached(tmp_path, "cut", moment):
        assert process.poll() is None, end(process)[1]
        time.sleep(0.01)
    process.send_signal(signal.SIGSTOP)  # otherwise it may end before the signal
    with pytest.raises(UserError, match=f"pid {process.pid}"):  # another process cannot train the study
        taetpu.run(tmp_path / "study.yaml", root=str(tmp_path / "cut"))
    process.send_signal(sent)
    process.send_signal(signal.SIGCONT)
    _, err = end(process)
    assert not reached(tmp_path, "cut", "killed/results.json")
    if sent == signal.SIGTERM:
        assert process.returncode == 130
        assert "to continue" in err

    process = start(tmp_path, "cut")
    _, err = end(process)
    assert process.returncode == 0, err
    assert "resuming from step" in err
    assert results(tmp_path, "cut") == results(tmp_path, "whole")

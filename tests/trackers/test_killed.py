"""After SIGKILL and a restart, trackers have each step exactly once."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest
from tests.small import STUDY
from tests.trackers import reading

from taetpu.store.backend import open_store
from taetpu.store.study import StudyFolder
from taetpu.trackers.base import Row
from taetpu.trackers.wandb import Run

LONGER = STUDY.replace("steps: 20", "steps: 600").replace("eval_every: 10", "eval_every: 50")
TRACKERS = "trackers: {tensorboard: {}, wandb: {mode: offline, project: killed}, trackio: {project: killed}}\n"


def start(folder: Path) -> subprocess.Popen:
    command = [sys.executable, "-m", "taetpu", "run", "study.yaml", "--root", "root"]
    return subprocess.Popen(command, cwd=folder, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


@pytest.mark.nightly
def test_study_killed_twice_has_each_step_once_in_every_library(tmp_path, alone):
    (tmp_path / "study.yaml").write_text(LONGER + TRACKERS)
    root = tmp_path / "root/small"
    for moment in ("100-150", "300-350"):
        process = start(tmp_path)
        while not list(root.glob(f"runs/low-lr/1-*/metrics/{moment}*")):
            assert process.poll() is None, process.communicate()[1]
            time.sleep(0.005)
        process.send_signal(signal.SIGKILL)
        process.communicate()
    process = start(tmp_path)
    out, err = process.communicate(timeout=300)
    assert process.returncode == 0, err
    assert "wandb" not in out + err
    assert "rackio" not in out + err

    of_trackio = reading.trackio(Path(os.environ["TRACKIO_DIR"], "killed.db"))
    of_wandb = {}
    for left in (root / "trackers/wandb/wandb").glob("offline-run-*"):
        points, config, _ = reading.wandb(left)
        assert config["name"] not in of_wandb
        of_wandb[config["name"]] = points
    runs = StudyFolder(open_store(tmp_path / "root"), "small").runs()
    for run in runs:
        name = f"{run.arm}/{run.seed}"
        assert of_wandb.pop(name) == reading.stored(run)
        found = of_trackio.pop(name)
        assert {metric: found[metric] for metric in reading.stored(run)} == reading.stored(run)
        (file,) = (root / "trackers/tensorboard" / run.arm).glob(f"{run.seed}-*/*")
        found, expected = reading.tensorboard(file), reading.stored(run, cut=lambda value: float(np.float32(value)))
        assert {metric: found[metric] for metric in expected} == expected
    assert (len(runs), of_wandb, of_trackio) == (4, {}, {})


def test_rows_on_the_server_are_not_sent_again():
    class Theirs:
        starting_step = 11  # the server's last step is 10

        def __init__(self):
            self.sent = []

        def log(self, values, step):
            self.sent.append((step, values))

    theirs = Theirs()
    Run(theirs).log([Row(5, {"a": 1.0}), Row(10, {"a": 2.0}), Row(15, {"a": 3.0}, "text")])
    assert theirs.sent == [(15, {"a": 3.0, "sample": "text"})]

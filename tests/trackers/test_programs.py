"""After a killed driver, trackers have each step of a program's runs exactly once, on this machine and on Ray."""

import os
import subprocess
import sys
import time
from contextlib import ExitStack
from pathlib import Path

import numpy as np
import pytest
from tests.program_studies import write_study
from tests.study.ray_nodes import started_nodes
from tests.trackers import reading

from taetpu.store.backend import open_store
from taetpu.store.study import StudyFolder

WORDS = [sys.executable, "train.py", "--{key}={value}", "--seed={seed}", "--out={folder}"]
TRACKERS = {"tensorboard": {}, "wandb": {"mode": "offline", "project": "killed"}}
NO_PROXY: dict[str, str] = dict.fromkeys(("HTTP_PROXY", "HTTPS_PROXY", "http_proxy", "https_proxy"), "")
"""gRPC, with which Ray's processes talk, would use a proxy."""


def start(file: Path, *more: str, **variables: str) -> "subprocess.Popen[str]":
    command = [sys.executable, "-m", "taetpu", "run", str(file), "--root", str(file.parent / "root"), *more]
    pipe, environment = subprocess.PIPE, os.environ | variables
    return subprocess.Popen(command, stdout=pipe, stderr=subprocess.STDOUT, text=True, env=environment)


def rows(root: Path) -> int:
    """Return the number of steps that are stored for the runs that have begun."""
    runs = StudyFolder(open_store(root), "tiny").runs()
    return sum(len(series.step) for run in runs for series in run.metrics().values())


@pytest.mark.slow
@pytest.mark.parametrize(("on_ray", "resume"), [(False, True), (False, False), (True, False)])
def test_program_killed_twice_has_each_step_once_in_every_library(tmp_path, alone, on_ray, resume):
    if on_ray:
        pytest.importorskip("ray")
    program = {"command": WORDS, "resume": resume, "each": {"cpus": 1}}
    base = {"lr": 0.1, "sleep": 0.1, "steps": 60}
    file = write_study(tmp_path, program=program, base=base, seeds=1, trackers=TRACKERS)
    root = tmp_path / "root"
    with ExitStack() as stack:
        more, variables = [], {}
        if on_ray:
            nodes = stack.enter_context(started_nodes(environment=NO_PROXY))
            more, variables = ["--on", "ray", "--address", nodes.address], NO_PROXY
        for least in (10, 50):
            driver = start(file, *more, **variables)
            while rows(root) < least or not list(root.glob("tiny/trackers/wandb/wandb/offline-run-*")):
                assert driver.poll() is None, driver.communicate()[0]
                time.sleep(0.1)
            driver.kill()
            driver.communicate()
        driver = start(file, *more, **variables)
        output = driver.communicate(timeout=300)[0]
    assert driver.returncode == 0, output
    assert "wandb" not in output
    of_wandb = {}
    for left in (root / "tiny/trackers/wandb/wandb").glob("offline-run-*"):
        points, config, _ = reading.wandb(left)
        assert config["name"] not in of_wandb
        of_wandb[config["name"]] = points
    runs = StudyFolder(open_store(root), "tiny").runs()
    for run in runs:
        stored = reading.stored(run)
        assert of_wandb.pop(f"{run.arm}/{run.seed}") == stored
        assert resume or list(stored["loss"]) == list(range(1, 61))
        (events,) = (root / "tiny/trackers/tensorboard" / run.arm).glob(f"{run.seed}-*/*")
        points, expected = reading.tensorboard(events), reading.stored(run, cut=lambda value: float(np.float32(value)))
        assert {metric: points[metric] for metric in expected} == expected
    assert (len(runs), of_wandb) == (2, {})

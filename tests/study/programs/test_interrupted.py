"""Programs that are interrupted: the driver is killed or stopped, folders are kept or moved aside, runs are shared."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from tests.program_studies import TRAIN, write_study
from tests.suites import by_default

from taetpu.cli.status_model import StudyMonitor
from taetpu.store.backend import open_store
from taetpu.store.study import StudyFolder
from taetpu.study.programs.events import EventLog
from taetpu.study.programs.running import ProgramOptions, run_program_file
from taetpu.study.shares import Shard, SharesLeft
from taetpu.ui.feed import Feed

WORDS = [sys.executable, "train.py", "--{key}={value}", "--seed={seed}", "--out={folder}"]
SLOW = {"base": {"lr": 0.1, "sleep": 0.05, "steps": 40}}


def start(file: Path, *more: str) -> "subprocess.Popen[str]":
    command = [sys.executable, "-m", "taetpu", "run", str(file), "--root", str(file.parent / "runs"), *more]
    return subprocess.Popen(command, text=True, stdout=subprocess.PIPE, stderr=subprocess.PIPE)


def wait_for(file: Path, condition, seconds: float = 120) -> None:
    """Wait until a condition holds for the files `state.json` of the programs."""
    until = time.monotonic() + seconds
    while time.monotonic() < until:
        states = sorted(file.parent.glob("runs/tiny/programs/*/*/folder/state.json"))
        if condition([path.read_text() for path in states]):
            return
        time.sleep(0.02)
    raise AssertionError("the programs did not get this far")


def values(results) -> dict[str, list[float | None]]:
    return {arm["name"]: [run["value"] for run in arm["runs"]] for arm in results["arms"]}


@pytest.mark.slow
@pytest.mark.parametrize("resume", [True, False])
def test_a_killed_driver_ends_with_the_results_of_an_undisturbed_one(tmp_path, resume):
    (tmp_path / "calm").mkdir(), (tmp_path / "killed").mkdir()
    program = {"command": WORDS, "resume": resume}
    calm = run_program_file(write_study(tmp_path / "calm", program=program, **SLOW), root=str(tmp_path / "calm/runs"))
    file = write_study(tmp_path / "killed", program=program, **SLOW)
    for number in (1, 3):
        driver = start(file)
        wait_for(file, lambda states, number=number: len(states) >= number and states[-1] not in ("", "1", "2"))
        driver.kill()
        driver.communicate()
    outcome = run_program_file(file, root=str(tmp_path / "killed/runs"))
    assert outcome.results == calm.results
    attempts = sorted(path.name for path in (file.parent / "runs/tiny/programs").glob("baseline/0-*/*"))
    assert ("folder-1" in attempts) == (not resume)
    assert {"1.json", "2.json", "folder"} <= set(attempts)
    curves = [curves_of(tmp_path / place / "runs") for place in ("calm", "killed")]
    if resume:  # the points of the last seconds before a kill may be missing, and no others
        curves[0] = {key: {step: curve[step] for step in curves[1][key]} for key, curve in curves[0].items()}
    assert curves[0] == curves[1]


def curves_of(root: Path) -> dict[str, dict[int, float]]:
    runs = StudyFolder(open_store(root), "tiny").runs()
    curves = {run.key: run.metrics()["loss"] for run in runs}
    return {key: dict(zip(curve.step.tolist(), curve.value.tolist(), strict=True)) for key, curve in curves.items()}


@pytest.mark.parametrize("number", by_default([signal.SIGINT, signal.SIGTERM], signal.SIGTERM))
def test_ctrl_c_and_sigterm_stop_the_program_first_with_sigterm(tmp_path, number):
    source = TRAIN.replace("import json", "import signal, json").replace(
        "settings =",
        "signal.signal(signal.SIGTERM, lambda *_: (open(folder + '/stopped', 'w').close(), sys.exit(5)))\nsettings =",
        1,
    )
    file = write_study(tmp_path, source, program={"command": WORDS}, base={"lr": 0.1, "sleep": 0.1, "steps": 90})
    driver = start(file)
    wait_for(file, bool)
    driver.send_signal(number)
    _, errors = driver.communicate(timeout=60)
    assert driver.returncode == 130, errors
    assert list(file.parent.glob("runs/tiny/programs/baseline/0-*/folder/stopped"))
    assert not (tmp_path / "runs/tiny/results.json").exists()


def test_two_gpus_are_shared_out(tmp_path, monkeypatch):
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "4,7")
    source = TRAIN.replace(
        "settings =", "print('GPU', os.environ['CUDA_VISIBLE_DEVICES'], flush=True)\ntime.sleep(0.5)\nsettings =", 1
    )
    lines: list[str] = []
    file = write_study(tmp_path, source, seeds=3, program={"each": {"gpus": 1}})
    outcome = run_program_file(file, root=str(tmp_path / "runs"), events=EventLog(lines.append))
    assert outcome.whole
    used = [line.partition("GPU ")[2].rstrip(")") for line in lines if "(GPU" in line]
    assert sorted(set(used)) == ["4", "7"]
    assert len(used) == 6


def test_cores_are_shared_out(tmp_path):
    cores = sorted(os.sched_getaffinity(0))
    source = (
        f"import os\nopen({str(tmp_path / 'cores')!r}, 'a').write(f'{{sorted(os.sched_getaffinity(0))}}\\n')\n{TRAIN}"
    )
    file = write_study(tmp_path, source, program={"each": {"cpus": 1}})
    assert run_program_file(file, root=str(tmp_path / "runs")).whole
    seen = set((tmp_path / "cores").read_text().splitlines())
    assert seen <= {f"[{core}]" for core in cores}


def test_shards_share_the_runs_and_the_last_writes_the_report(tmp_path):
    file = write_study(tmp_path, seeds=3)
    started: list[list[str]] = [[], []]
    for number in (0, 1):
        options = ProgramOptions(shard=Shard(number, 2))
        events = EventLog(started[number].append)
        if number == 0:
            with pytest.raises(SharesLeft):
                run_program_file(file, root=str(tmp_path / "runs"), options=options, events=events)
        else:
            outcome = run_program_file(file, root=str(tmp_path / "runs"), options=options, events=events)
            assert outcome.results["complete"]
    runs = [{line.partition(": started")[0] for line in lines if ": started" in line} for lines in started]
    assert len(runs[0]) == len(runs[1]) == 3
    assert not runs[0] & runs[1]


@pytest.mark.slow
def test_metrics_are_stored_while_a_program_runs(tmp_path):
    file = write_study(
        tmp_path, program={"command": WORDS}, seeds=1, arms={}, base={"lr": 0.1, "sleep": 0.2, "steps": 40}
    )
    driver = start(file)
    folder = StudyFolder(open_store(tmp_path / "runs"), "tiny")
    until = time.monotonic() + 100
    series = {}
    while not series and time.monotonic() < until:
        series = folder.runs()[0].metrics() if folder.runs() else {}
        time.sleep(0.1)
    status = folder.runs()[0].status()
    feed = Feed(folder)
    feed.poll()
    (row,) = StudyMonitor(str(tmp_path / "runs")).update()[0].arms()
    driver.kill()
    driver.communicate()
    assert status == "started"
    assert series["loss"].step.tolist() == list(range(1, len(series["loss"].step) + 1))
    assert feed.problem == ""
    (shown,) = feed.runs.values()
    assert (shown.status, shown.series["loss"][0][: len(series["loss"].step)]) == (
        "unfinished",
        series["loss"].step.tolist(),
    )
    assert (row["runs"], row["arm"]) == ("0/1", "baseline")
    assert row["step"] >= series["loss"].step[-1]
    assert row["loss"] > 0

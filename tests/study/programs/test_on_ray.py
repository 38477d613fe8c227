"""Programs as tasks of a Ray cluster on this machine: results, GPUs, limits, and killed drivers, workers and nodes."""

import json
import signal
import subprocess
import sys
import time
from collections import defaultdict
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path

import psutil
import pytest
from tests.program_studies import TRAIN, write_study
from tests.study.ray_nodes import Nodes, started_nodes

from taetpu.core.errors import UserError
from taetpu.spec.programs.loading import load_program_study
from taetpu.spec.programs.program_config import EachConfig
from taetpu.store.backend import open_store
from taetpu.store.study import StudyFolder
from taetpu.study.programs.on_ray import RESOURCES, check_node, cluster_slots
from taetpu.study.programs.running import ProgramOptions, open_folder, run_program_file, run_program_study
from taetpu.study.shares import Shard

pytest.importorskip("ray")

WORDS = [sys.executable, "train.py", "--{key}={value}", "--seed={seed}", "--out={folder}"]
SLOW = {"base": {"lr": 0.1, "sleep": 0.05, "steps": 40}}
BEFORE = """\
import signal, subprocess
def note(word):
    with open("notes", "a") as file:
        file.write(f"{word} {os.environ.get('CUDA_VISIBLE_DEVICES')}\\n")
def end(*_):
    time.sleep(1.5)
    note("end")
    sys.exit(3)
signal.signal(signal.SIGTERM, end)
child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)", os.getcwd()])
note("begin")
"""
WAIT = "    while step > 5 and not os.path.exists('go'): time.sleep(0.05)\n"
AFTER = "child.kill()\nnote('end')\n"
NOTING = (
    TRAIN.replace("    time.sleep", f"{WAIT}    time.sleep", 1).replace("settings =", f"{BEFORE}settings =", 1) + AFTER
)
"""Notes its GPUs when it begins and ends; waits for the file `go` after step 5; needs 1.5 seconds to end after SIGTERM;
has a child that does not end.
"""


@pytest.fixture(scope="module")
def nodes() -> Iterator[Nodes]:
    with started_nodes(gpus=2) as nodes:
        yield nodes


@pytest.fixture
def start(nodes: Nodes) -> Iterator[Callable[[Path], "subprocess.Popen[str]"]]:
    """`start(file)` starts a driver, which is killed at the end of the test."""
    with ExitStack() as stack:

        def start_driver(file: Path) -> "subprocess.Popen[str]":
            driver = stack.enter_context(run_driver(file, nodes))
            stack.callback(driver.kill)
            return driver

        yield start_driver


def run_driver(file: Path, nodes: Nodes) -> "subprocess.Popen[str]":
    command = [sys.executable, "-m", "taetpu", "run", str(file), "--root", str(file.parent / "runs")]
    command += ["--on", "ray", "--address", nodes.address]
    return subprocess.Popen(command, text=True, stdout=subprocess.PIPE, stderr=subprocess.STDOUT)


def end(driver: "subprocess.Popen[str]") -> tuple[int, str]:
    output = driver.communicate(timeout=300)[0]
    return driver.returncode, output


def await_steps(file: Path, driver: "subprocess.Popen[str]", programs: int, step: int = 3) -> None:
    """Wait until a number of programs have reached a step."""
    until = time.monotonic() + 200
    while time.monotonic() < until:
        states = [path.read_text() for path in file.parent.glob("runs/tiny/programs/*/*/folder/state.json")]
        if sum(int(state or 0) >= step for state in states) >= programs:
            return
        assert driver.poll() is None, driver.communicate()[0]
        time.sleep(0.02)
    raise AssertionError("the programs did not get this far")


def processes(name: str) -> list[psutil.Process]:
    """Return the processes with a text in their command, without drivers and what has ended."""
    listed = psutil.process_iter(["cmdline", "status"])
    commands = [(process, " ".join(process.info["cmdline"] or ())) for process in listed]
    return [
        process for process, command in commands
        if name in command and "taetpu run" not in command and process.info["status"] != psutil.STATUS_ZOMBIE
    ]  # fmt: skip


def results_of(folder: Path) -> bytes:
    return (folder / "runs/tiny/results.json").read_bytes()


def run_here(folder: Path, source: str = TRAIN, **changes) -> Path:
    """Run a study on this machine without Ray and return its folder."""
    here = folder / "here"
    here.mkdir()
    (here / "go").touch()
    assert run_program_file(write_study(here, source, **changes), root=str(here / "runs")).whole
    return here


@pytest.mark.parametrize(
    ("each", "expected"),
    [
        ({"gpus": 1}, 10),
        ({"gpus": 1, "cpus": 2}, 5),
        ({"cpus": 8, "memory": 100}, 1),
        ({"cpus": 1, "memory": 600}, 2),
    ],
)
def test_runs_at_once_are_those_that_fit_on_the_nodes(each, expected):
    nodes = [{"CPU": 8.0, "GPU": 8.0, "memory": 1000.0}, {"CPU": 3.0, "GPU": 2.0, "memory": 1000.0}, {"CPU": 8.0}]
    assert cluster_slots(EachConfig(**each), nodes, 100) == expected
    assert cluster_slots(EachConfig(**each), nodes, 1) == 1


@pytest.mark.parametrize(
    ("each", "path", "values"),
    [
        (EachConfig(gpus=9), ("gpus",), ("9 GPUs", "8")),
        (EachConfig(cpus=4, gpus=1), (), ("4 CPUs", "1 GPUs")),
        (EachConfig(memory=2000), ("memory",), ("2,000", "1,000")),
    ],
)
def test_runs_that_no_node_fits_are_refused(each, path, values):
    with pytest.raises(UserError) as caught:
        cluster_slots(each, [{"CPU": 2.0, "GPU": 8.0, "memory": 1000.0}, {"CPU": 8.0}], 4)
    assert caught.value.path == ("program", "each", *path)
    assert all(value in caught.value.problem for value in values)
    assert caught.value.remedy
    assert set(EachConfig.model_fields) == set(RESOURCES)


def test_a_node_with_other_files_is_refused(tmp_path):
    file = write_study(tmp_path)
    study = load_program_study(file)
    folder = open_folder(study, str(tmp_path / "runs"))
    with pytest.raises(UserError) as caught:
        check_node(study, folder)
    assert caught.value.path == ("--root",)
    assert folder.where in caught.value.problem
    folder.write_study({})
    check_node(study, folder)
    (tmp_path / "train.py").write_text(f"{TRAIN}# edited\n")
    with pytest.raises(UserError) as caught:
        check_node(study, folder)
    assert caught.value.path == ("program", "inputs")
    assert "train.py" in caught.value.problem
    (tmp_path / "train.py").unlink()
    with pytest.raises(UserError, match=r"train\.py"):
        check_node(study, folder)


def test_ray_is_refused_together_with_shards_and_search(tmp_path):
    study = load_program_study(write_study(tmp_path))
    for options in (ProgramOptions(ray="", shard=Shard(0, 2)), ProgramOptions(ray="", search=True)):
        with pytest.raises(UserError):
            run_program_study(study, open_folder(study, str(tmp_path / "runs")), options)
    assert not (tmp_path / "runs").exists()


@pytest.mark.slow
def test_results_are_those_of_this_machine_and_ray_processes_have_no_jax(tmp_path, start):
    changes = {"program": {"command": WORDS, "each": {"cpus": 1}}, "trackers": {"tensorboard": {}}, **SLOW}
    file = write_study(tmp_path, **changes)
    driver = start(file)
    await_steps(file, driver, 2)
    tasks = processes("ray::taetpu")
    assert tasks
    for process in (psutil.Process(driver.pid), *tasks):
        mapped = {Path(mapping.path).name for mapping in process.memory_maps()}
        assert "_raylet.so" in mapped
        assert not [name for name in mapped if "jax" in name or "xla" in name]
    folder = StudyFolder(open_store(tmp_path / "runs"), "tiny")
    while not any(run.metrics() for run in folder.runs()):
        assert driver.poll() is None, driver.communicate()[0]
        time.sleep(0.1)
    code, output = end(driver)
    assert code == 0, output
    here = run_here(tmp_path, **changes)
    assert results_of(tmp_path) == results_of(here)
    curves = [StudyFolder(open_store(place / "runs"), "tiny").runs() for place in (tmp_path, here)]
    assert [run.metrics()["loss"].value.tolist() for run in curves[0]] == [
        run.metrics()["loss"].value.tolist() for run in curves[1]
    ]
    pages = [(place / "runs/tiny/report/index.html").read_text() for place in (tmp_path, here)]
    assert pages[0].replace(str(tmp_path), "") == pages[1].replace(str(here), "")


@pytest.mark.slow
def test_a_killed_ray_process_starts_again_and_no_gpu_has_two_programs(tmp_path, start):
    changes = {"program": {"command": WORDS, "each": {"gpus": 1}}, **SLOW}
    file = write_study(tmp_path, NOTING, **changes)
    driver = start(file)
    await_steps(file, driver, 2)
    before, tasks = processes(str(tmp_path)), processes("ray::taetpu")
    assert len(tasks) == 2
    assert len(before) == 6, "two supervisors, programs and their children"
    tasks[0].kill()
    (tmp_path / "go").touch()
    code, output = end(driver)
    assert code == 0, output
    assert not processes(str(tmp_path))
    attempts = list(tmp_path.glob("runs/tiny/programs/*/*/2.json"))
    assert len(attempts) == 1
    words = defaultdict(list)
    for line in (tmp_path / "notes").read_text().splitlines():
        word, gpu = line.split()
        words[gpu].append(word)
    assert set(words) == {"0", "1"}
    assert sum(map(len, words.values())) == 10
    assert all(noted == ["begin", "end"] * (len(noted) // 2) for noted in words.values())
    assert results_of(tmp_path) == results_of(run_here(tmp_path, NOTING, program={"command": WORDS}, **SLOW))


@pytest.mark.slow
def test_a_killed_driver_resumes(tmp_path, start):
    changes = {"program": {"command": WORDS, "each": {"cpus": 2}}, "seeds": 3, **SLOW}
    file = write_study(tmp_path, NOTING, **changes)
    (tmp_path / "go").touch()
    driver = start(file)
    while not list(tmp_path.glob("runs/tiny/runs/*/*/result.json")):
        assert driver.poll() is None, driver.communicate()[0]
        time.sleep(0.02)
    driver.kill()
    driver.communicate()
    kept = {path: path.read_bytes() for path in tmp_path.glob("runs/tiny/runs/*/*/result.json")}
    code, output = end(start(file))
    assert code == 0, output
    assert output.count(": started") <= 6 - len(kept)
    assert {path: path.read_bytes() for path in kept} == kept
    assert not processes(str(tmp_path))
    assert results_of(tmp_path) == results_of(run_here(tmp_path, NOTING, **{**changes, "program": {"command": WORDS}}))


@pytest.mark.slow
def test_ctrl_c_waits_for_the_end_of_all_programs(tmp_path, start):
    file = write_study(tmp_path, NOTING, program={"command": WORDS, "each": {"gpus": 1}}, **SLOW)
    driver = start(file)
    await_steps(file, driver, 2)
    driver.send_signal(signal.SIGINT)
    code, output = end(driver)
    assert code == 130, output
    assert not processes(str(tmp_path))
    assert sorted((tmp_path / "notes").read_text().split()) == sorted(["begin", "end"] * 2 + ["0", "1"] * 2)
    ends = [json.loads(path.read_text()) for path in tmp_path.glob("runs/tiny/programs/*/*/1.json")]
    assert [attempt["how"] for attempt in ends] == ["stopped"] * 2
    assert not (tmp_path / "runs/tiny/results.json").exists()


@pytest.mark.slow
def test_limits_of_memory_and_time_end_runs_on_nodes(tmp_path, start):
    source = TRAIN + "kept = bytearray(int(settings['bytes']))\ntime.sleep(float(settings['wait']))\n"
    file = write_study(
        tmp_path, source, seeds=1, base={"lr": 0.1, "bytes": 0, "wait": 0.0},
        arms={"large": {"bytes": 300_000_000, "wait": 9.0}, "long": {"wait": 100.0}},
        program={"each": {"cpus": 1, "memory": "150MB"}, "time_limit": 20},
    )  # fmt: skip
    code, output = end(start(file))
    assert code == 3, output
    ends = {
        path.parents[1].name: json.loads(path.read_text()) for path in tmp_path.glob("runs/tiny/programs/*/*/1.json")
    }
    assert {arm: attempt["outcome"] for arm, attempt in ends.items()} == {
        "baseline": "finished",
        "large": "",
        "long": "",
    }
    assert "memory" in ends["large"]["how"]
    assert "time limit" in ends["long"]["how"]


@pytest.mark.slow
def test_too_many_gpus_and_commands_that_cannot_start_end_the_study(tmp_path, start):
    code, output = end(start(write_study(tmp_path, program={"each": {"gpus": 3}})))
    assert code == 2
    assert all(text in output for text in ("3 GPUs", "2", "program.each.gpus", "study.yaml:", "remedy:"))
    missing = {"command": ["no-such-program", "train.py", "--{key}={value}", "--seed={seed}"], "each": {"cpus": 1}}
    code, output = end(start(write_study(tmp_path, study="other", program=missing)))
    assert code == 2, output
    assert all(text in output for text in ("no-such-program", "program.command", "study.yaml:"))
    assert "Traceback" not in output
    assert not list(tmp_path.glob("runs/*/runs/*/*/result.json"))


@pytest.mark.nightly
def test_a_killed_node_stops_its_programs_and_others_run_them(tmp_path):
    changes = {"program": {"command": WORDS, "each": {"cpus": 2}}, **SLOW}
    file = write_study(tmp_path, NOTING, **changes)
    with started_nodes() as nodes, run_driver(file, nodes) as driver:
        await_steps(file, driver, 3)
        before = processes(str(tmp_path))
        nodes.kill(0)
        until = time.monotonic() + 60
        while len({*before} & {*processes(str(tmp_path))}) > 6:
            assert time.monotonic() < until
            time.sleep(0.1)
        (tmp_path / "go").touch()
        code, output = end(driver)
    assert code == 0, output
    assert not processes(str(tmp_path))
    assert len(list(tmp_path.glob("runs/tiny/programs/*/*/2.json"))) == 1
    assert results_of(tmp_path) == results_of(run_here(tmp_path, NOTING, **{**changes, "program": {"command": WORDS}}))

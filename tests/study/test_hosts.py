"""Training on many devices and in several processes, each of which is a `taetpu run`."""

import json
import os
import re
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path

import pytest
from tests.train.sharded_checkpoint import ARRAYS, COLUMNS, PROCESSES, ROWS

COPY = """\
study: packed
base:
  task: {kind: copy, seq_len: 16, symbols: 6, min_length: 2, max_length: 6, eval_size: 64}
  model: {dim: 16, num_layers: 1, mixer: {kind: attention, num_heads: 2}}
"""
# Four arms on two seeds.
PACKED = (
    COPY
    + """\
  train: {steps: 80, batch_size: 16, optimizer: {kind: adamw, lr: 1e-2}, eval_every: 40, sample: none}
seeds: 2
arms:
  low: {train.optimizer.lr: 1e-4}
  same: {train.optimizer.lr: 0.0101}
  headless: {model.mixer.drop_heads: [0]}
measure: {equivalence: 0.5}
"""
)
# Two arms whose runs stop after step 4, and two that train on. The models with the lowest losses are evaluated.
STOPPING = (
    COPY
    + """\
  train:
    steps: 8
    batch_size: 16
    optimizer: {kind: adamw, lr: 1e-2}
    schedule: {kind: plateau, every: 2, windows: 8, patience: 1}
    evaluate: {kind: best, every: 2, windows: 8}
    stop: {kind: patience, every: 2, windows: 8, patience: 1, min_delta: 10}
    eval_every: 4
    sample: none
seeds: 2
arms:
  low: {train.optimizer.lr: 1e-4}
  on: {train.stop.min_delta: 0, train.stop.patience: 2}
  low-on: {train.optimizer.lr: 1e-4, train.stop.min_delta: 0, train.stop.patience: 2}
measure: {primary: test/loss}
"""
)
# One arm with every matrix divided over the devices. Collectives between processes are slow on a CPU.
DIVIDED = (
    COPY
    + """\
  train:
    steps: 16
    batch_size: 16
    optimizer: {kind: adamw, lr: 1e-2}
    eval_every: 4
    sample: none
    compute: {mesh: {data: 4}}
seeds: 1
arms: {}
"""
)

TEXT = """
study: packed
base:
  task: {kind: text, source: words.txt, seq_len: 16}
  model: {dim: 16, num_layers: 1, mixer: {kind: attention, num_heads: 2}}
  train: {steps: 20, batch_size: 4, optimizer: {kind: adamw, lr: 1e-2}}
seeds: 1
arms: {}
"""


def environ(cache: Path, devices: int) -> dict[str, str]:
    own = {k: v for k, v in os.environ.items() if not k.startswith(("JAX_COMPILATION_CACHE", "XLA_FLAGS"))}
    flags = f"--xla_force_host_platform_device_count={devices}"
    return {**own, "TAETPU_CACHE": str(cache), "XLA_FLAGS": flags}


STARTED: list[subprocess.Popen] = []


@pytest.fixture(autouse=True)
def _kill_processes():
    yield
    while STARTED:
        process = STARTED.pop()
        process.kill()
        process.wait()
        process.stdout.close()
        process.stderr.close()


def start(folder: Path, root: str, devices: int, *args: str) -> subprocess.Popen:
    command = [sys.executable, "-m", "taetpu", "run", "study.yaml", "--root", root, *args]
    out = subprocess.PIPE
    STARTED.append(
        subprocess.Popen(command, cwd=folder, env=environ(folder / "cache", devices), stdout=out, stderr=out, text=True)
    )
    return STARTED[-1]


def end(process: subprocess.Popen) -> tuple[int, str]:
    with process:
        out, err = process.communicate(timeout=300)
    return process.returncode, out + (err or "")


def free_port() -> int:
    with socket.socket() as found:
        found.bind(("localhost", 0))
        return found.getsockname()[1]


def processes(folders: Sequence[Path], roots: Sequence[str], devices: int, *args: str) -> list[subprocess.Popen]:
    """Start one process for each folder and root."""
    meet = ("--coordinator", f"localhost:{free_port()}", "--processes", str(len(folders)), *args)
    return [
        start(folder, root, devices, *meet, "--process", str(i))
        for i, (folder, root) in enumerate(zip(folders, roots, strict=True))
    ]


def together(folder: Path, root: str, count: int, *args: str) -> list[subprocess.Popen]:
    """Start `count` processes that have four devices together."""
    if count == 1:
        return [start(folder, root, 4, *args)]
    return processes([folder] * count, [root] * count, 4 // count, *args)


def shown(ended: Sequence[tuple[int, str]]) -> str:
    return "\n\n".join(f"exit code {code}\n{said[-2000:]}" for code, said in ended)


def results(folder: Path, root: str) -> dict:
    return json.loads((folder / root / "packed" / "results.json").read_text())


def losses(folder: Path, root: str) -> list[float]:
    """Return the mean loss of each arm."""
    return [arm["mean"] for arm in results(folder, root)["arms"]]


def stored(folder: Path, root: str) -> dict[str, bytes]:
    """Return the files that do not depend on when and where a study was trained, by path."""
    top = folder / root / "packed"
    kept = [*top.glob("runs/*/*/metrics/*"), *top.glob("runs/*/*/model/*"), *top.glob("runs/*/*/evaluation.json")]
    return {str(path.relative_to(top)): path.read_bytes() for path in [*kept, top / "results.json"]}


def wait_for(folder: Path, root: str, pattern: str) -> None:
    deadline = time.monotonic() + 120
    while not list((folder / root).glob(f"packed/packs/*/{pattern}")):
        assert time.monotonic() < deadline, f"no {pattern}"
        time.sleep(0.02)


@pytest.mark.nightly
def test_eight_devices_give_the_same_verdicts_as_one(tmp_path):
    (tmp_path / "study.yaml").write_text(PACKED.replace("seeds: 2", "seeds: 4"))
    for root, devices in (("one", 1), ("eight", 8)):
        code, said = end(start(tmp_path, root, devices))
        assert code == 0, said
    one, eight = results(tmp_path, "one"), results(tmp_path, "eight")
    assert {(pack["devices"], pack["width"]) for pack in one["packs"]} == {(1, 16)}
    assert {(pack["devices"], pack["width"]) for pack in eight["packs"]} == {(8, 16)}
    verdicts = {arm["name"]: arm["verdict"] for arm in one["arms"]}
    assert verdicts == {arm["name"]: arm["verdict"] for arm in eight["arms"]}
    assert {verdicts["low"], verdicts["same"]} == {"worse", "equivalent"}
    for a, b in zip(one["arms"], eight["arms"], strict=True):
        assert a["mean"] == pytest.approx(b["mean"], abs=1e-3)


@pytest.mark.nightly
@pytest.mark.parametrize(
    ("count", "study"), [(2, PACKED), (2, STOPPING), (4, DIVIDED)], ids=["2-packed", "2-stopping", "4-divided"]
)
def test_several_processes_give_the_same_results_as_one(tmp_path, count, study):
    """The results are bitwise equal unless numbers are summed over processes, which changes the order of addition."""
    (tmp_path / "study.yaml").write_text(study.replace("  headless: {model.mixer.drop_heads: [0]}\n", ""))
    sets = ("--set", "train.steps=8", "--set", "train.eval_every=4")
    code, said = end(start(tmp_path, "one", 4, *sets))
    assert code == 0, said
    ended = [end(process) for process in together(tmp_path, "many", count, *sets)]
    assert [code for code, _ in ended] == [0] * count, shown(ended)
    assert "verdict" in ended[0][1]
    assert all("verdict" not in said for _, said in ended[1:])  # only the primary prints
    assert not list((tmp_path / "many").glob("packed/packs/*"))
    if study != DIVIDED:
        assert stored(tmp_path, "one") == stored(tmp_path, "many")
    if study == STOPPING:
        ends = (tmp_path / "many").glob("packed/runs/*/*/result.json")
        stops = {path.parts[-3]: json.loads(path.read_text())["stopped_at"] for path in ends}
        assert stops == {"baseline": 4, "low": 4, "on": None, "low-on": None}
    assert losses(tmp_path, "one") == pytest.approx(losses(tmp_path, "many"), abs=1e-5)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("count", "then"), [(2, 1), *(pytest.param(*pair, marks=pytest.mark.nightly) for pair in ((1, 4), (4, 2), (2, 4)))]
)
def test_divided_model_resumes_with_another_number_of_processes(tmp_path, count, then):
    """One process is killed in a step after a checkpoint. The other processes end, and new processes resume."""
    (tmp_path / "study.yaml").write_text(DIVIDED)
    code, said = end(start(tmp_path, "one", 4))
    assert code == 0, said

    first = together(tmp_path, "many", count)
    wait_for(tmp_path, "many", "4/complete")
    first[-1].send_signal(signal.SIGKILL)
    codes, said = zip(*[end(process) for process in first], strict=True)
    assert 0 not in codes, said
    assert codes[-1] == -signal.SIGKILL
    assert not (tmp_path / "many" / "packed" / "results.json").exists()
    again = [end(process) for process in together(tmp_path, "many", then)]
    assert [code for code, _ in again] == [0] * then, shown(again)
    assert re.search(r"from step (4|8|12)\b", again[0][1]), again[0][1]
    assert losses(tmp_path, "one") == pytest.approx(losses(tmp_path, "many"), abs=1e-4)


@pytest.mark.nightly
@pytest.mark.parametrize("study", [PACKED, DIVIDED], ids=["packed", "divided"])
def test_ctrl_c_in_one_process_ends_all_processes_without_loss(tmp_path, study):
    (tmp_path / "study.yaml").write_text(study)
    sets = ("--set", f"train.steps={600 if study == PACKED else 60}")
    code, said = end(start(tmp_path, "one", 4, *sets))
    assert code == 0, said
    both = together(tmp_path, "two", 2, *sets)
    wait_for(tmp_path, "two", "[1-9]*/complete")
    both[1].send_signal(signal.SIGINT)
    codes, said = zip(*[end(process) for process in both], strict=True)
    assert codes == (130, 130), said
    again = [end(process) for process in together(tmp_path, "two", 2, *sets)]
    assert [code for code, _ in again] == [0, 0], shown(again)
    if study == PACKED:
        assert stored(tmp_path, "one") == stored(tmp_path, "two")
    assert losses(tmp_path, "one") == pytest.approx(losses(tmp_path, "two"), abs=1e-5)


@pytest.mark.nightly
def test_all_processes_end_if_the_output_of_the_primary_is_closed(tmp_path):
    """The progress display of the primary raises in the middle of a pack, and again when it is closed."""
    (tmp_path / "study.yaml").write_text(PACKED)
    primary, other = together(tmp_path, "two", 2, "--set", "train.steps=6000", "--set", "train.checkpoint=50")
    wait_for(tmp_path, "two", "[1-9]*/complete")
    primary.stderr.close()
    assert other.wait(timeout=200) != 0
    assert primary.wait(timeout=20) != 0
    assert not (tmp_path / "two" / "packed" / "results.json").exists()


@pytest.mark.nightly
def test_processes_with_different_data_or_roots_do_not_train(tmp_path):
    for name, text in (("one", "to be or not to be "), ("two", "to have and to hold ")):
        (tmp_path / name).mkdir()
        (tmp_path / name / "words.txt").write_text(text * 200)
        (tmp_path / name / "study.yaml").write_text(TEXT)
    one, two = tmp_path / "one", tmp_path / "two"
    ended = [end(process) for process in processes([one, two], [str(tmp_path / "shared")] * 2, 1)]
    assert [code for code, _ in ended] == [3, 2], shown(ended)
    assert "another process failed" in ended[0][1], shown(ended)
    assert "arm 'baseline'" in ended[1][1], shown(ended)
    assert "data" in ended[1][1], shown(ended)
    ended = [end(process) for process in processes([one, one], ["here", "there"], 1)]
    assert [code for code, _ in ended] == [2, 2], shown(ended)
    assert "share the folder" in ended[0][1], shown(ended)
    assert "--root" in ended[0][1], shown(ended)
    assert not list(tmp_path.glob("**/result.json"))


@pytest.mark.slow
@pytest.mark.skipif(not Path("/proc/self/clear_refs").exists(), reason="the memory is measured through /proc")
def test_checkpoint_takes_memory_for_a_shard_and_not_for_the_model(tmp_path):
    port, model = str(free_port()), 4 * ARRAYS * ROWS * COLUMNS
    command = [sys.executable, "-m", "tests.train.sharded_checkpoint", port]
    started = [
        subprocess.Popen(
            [*command, str(i), str(tmp_path)], env=environ(tmp_path, 1), stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT, text=True,
        )
        for i in range(PROCESSES)
    ]  # fmt: skip
    for code, said in map(end, started):
        assert code == 0, said
        measured = json.loads(said.splitlines()[-1])
        shard = model / PROCESSES
        assert measured["same"], measured
        assert measured["step"] == 2
        assert measured["saved"] < 1.5 * shard, measured
        assert shard <= measured["read"] < 3 * shard < model, measured  # the arrays, and the file's pages

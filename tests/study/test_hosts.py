"""The real thing on many devices and in several processes: `taetpu run` in processes of its own."""

import json
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path

import pytest

# Four arms on four seeds.
PACKED = """
study: packed
base:
  task: {kind: copy, seq_len: 16, symbols: 6, min_length: 2, max_length: 6, eval_size: 64}
  model: {dim: 16, num_layers: 2, mixer: {kind: attention, num_heads: 2}}
  train: {steps: 150, batch_size: 16, optimizer: {kind: adamw, lr: 1e-2}, eval_every: 50, sample: {tokens: 4}}
seeds: 4
arms:
  low: {train.optimizer.lr: 1e-4}
  same: {train.optimizer.lr: 0.0101}
  headless: {model.mixer.drop_heads: [0]}
measure: {equivalence: 0.5}
"""

ENDED = {"killed": signal.SIGKILL, "interrupted": signal.SIGINT}


def environ(cache: Path, devices: int) -> dict[str, str]:
    own = {k: v for k, v in os.environ.items() if not k.startswith(("JAX_COMPILATION_CACHE", "XLA_FLAGS"))}
    flags = f"--xla_force_host_platform_device_count={devices}"
    return {**own, "TAETPU_CACHE": str(cache), "XLA_FLAGS": flags}


def start(folder: Path, root: str, devices: int, *args: str) -> subprocess.Popen:
    command = [sys.executable, "-m", "taetpu", "run", "study.yaml", "--root", root, *args]
    out = subprocess.PIPE
    return subprocess.Popen(
        command, cwd=folder, env=environ(folder / "cache", devices), stdout=out, stderr=out, text=True
    )


def end(process: subprocess.Popen) -> tuple[int, str]:
    with process:
        out, err = process.communicate(timeout=300)
    return process.returncode, out + err


def processes(folder: Path, root: str, *args: str, folders: Sequence[Path] = ()) -> list[subprocess.Popen]:
    """Two, of two devices each; `folders` they run in, else one."""
    with socket.socket() as found:
        found.bind(("localhost", 0))
        port = found.getsockname()[1]
    meet = ("--coordinator", f"localhost:{port}", "--processes", "2", *args)
    return [start(own, root, 2, *meet, "--process", str(i)) for i, own in enumerate(folders or (folder, folder))]


def results(folder: Path, root: str) -> dict:
    return json.loads((folder / root / "packed" / "results.json").read_text())


def stored(folder: Path, root: str) -> dict[str, bytes]:
    """What does not depend on when and where a study was trained, by file."""
    top = folder / root / "packed"
    kept = [*top.glob("runs/*/*/metrics/*"), *top.glob("runs/*/*/model/*"), *top.glob("runs/*/*/evaluation.json")]
    return {str(path.relative_to(top)): path.read_bytes() for path in [*kept, top / "results.json"]}


@pytest.mark.slow
def test_a_packed_study_on_eight_devices_gives_the_verdicts_of_one(tmp_path):
    (tmp_path / "study.yaml").write_text(PACKED)
    for root, devices in (("one", 1), ("eight", 8)):
        code, said = end(start(tmp_path, root, devices))
        assert code == 0, said
    one, eight = results(tmp_path, "one"), results(tmp_path, "eight")
    assert {(pack["devices"], pack["width"]) for pack in one["packs"]} == {(1, 16)}
    assert {(pack["devices"], pack["width"]) for pack in eight["packs"]} == {(8, 16)}
    verdicts = {arm["name"]: arm["verdict"] for arm in one["arms"]}
    assert verdicts == {arm["name"]: arm["verdict"] for arm in eight["arms"]}
    assert {verdicts["low"], verdicts["same"]} == {"worse", "equivalent"}  # there is something to agree on
    for a, b in zip(one["arms"], eight["arms"], strict=True):
        assert a["mean"] == pytest.approx(b["mean"], abs=1e-3)


@pytest.mark.slow
@pytest.mark.parametrize("mesh", ["auto", pytest.param("{data: 4}", marks=pytest.mark.nightly)])
def test_two_processes_train_a_study_as_one_does(tmp_path, mesh):
    """Bit for bit, where no number is a sum over processes; these add in another order."""
    divided = mesh != "auto"  # on fewer seeds: collectives between processes are slow on a CPU
    (tmp_path / "study.yaml").write_text(PACKED.replace("seeds: 4", "seeds: 1") if divided else PACKED)
    sets = ("--set", f"train.compute.mesh={mesh}", "--set", "train.steps=20", "--set", "train.eval_every=10")
    code, said = end(start(tmp_path, "one", 4, *sets))
    assert code == 0, said
    both = [end(process) for process in processes(tmp_path, "two", *sets)]
    assert [code for code, _ in both] == [0, 0], both
    assert "verdict" in both[0][1]
    assert "verdict" not in both[1][1]  # the first one writes and speaks
    assert not list((tmp_path / "two").glob("packed/packs/*"))
    if not divided:
        assert stored(tmp_path, "one") == stored(tmp_path, "two")
    for a, b in zip(results(tmp_path, "one")["arms"], results(tmp_path, "two")["arms"], strict=True):
        assert (a["name"], a["verdict"]) == (b["name"], b["verdict"])
        assert a["mean"] == pytest.approx(b["mean"], abs=1e-5)


@pytest.mark.nightly
@pytest.mark.parametrize(
    ("how", "mesh"),
    # Where a step itself needs the others, jaxlib aborts a process whose peer is killed in the middle of one.
    [("killed", "auto"), ("interrupted", "auto"), ("interrupted", "{data: 4}")],
)
def test_one_of_two_processes_that_ends_takes_the_other_along_and_both_go_on(tmp_path, how, mesh):
    """They have no disk in common: what the first one does not write is nowhere."""
    apart = [tmp_path, tmp_path / "elsewhere"]
    apart[1].mkdir()
    for folder in apart:
        (folder / "study.yaml").write_text(PACKED if mesh == "auto" else PACKED.replace("seeds: 4", "seeds: 1"))
    steps, pause = (600, 50) if mesh == "auto" else (60, 10)  # collectives between processes are slow on a CPU
    sets = (
        "--set",
        f"train.compute.mesh={mesh}",
        "--set",
        f"train.steps={steps}",
        "--set",
        f"train.eval_every={pause}",
    )
    code, said = end(start(tmp_path, "one", 4, *sets))
    assert code == 0, said
    both = processes(tmp_path, "two", *sets, folders=apart)
    deadline = time.monotonic() + 120
    while not list((tmp_path / "two").glob("packed/packs/*/[1-9]*0/")) and time.monotonic() < deadline:
        time.sleep(0.05)
    both[1].send_signal(ENDED[how])
    codes, said = zip(*[end(process) for process in both], strict=True)
    if how == "interrupted":
        assert codes == (130, 130), said
        assert "goes on from the last checkpoint" in said[0]
    else:
        assert codes == (3, -signal.SIGKILL), said
        assert "process 0 of 2 failed" in said[0]
    assert not (tmp_path / "two" / "packed" / "results.json").exists()
    again = [end(process) for process in processes(tmp_path, "two", *sets, folders=apart)]
    assert [code for code, _ in again] == [0, 0], again
    assert "going on from step" in again[0][1]
    assert not (apart[1] / "two").exists()
    if mesh == "auto":
        assert stored(tmp_path, "one") == stored(tmp_path, "two")
    for a, b in zip(results(tmp_path, "one")["arms"], results(tmp_path, "two")["arms"], strict=True):
        assert a["mean"] == pytest.approx(b["mean"], abs=1e-5 if mesh != "auto" else 0)


@pytest.mark.slow
def test_processes_that_were_given_other_studies_do_not_train(tmp_path):
    (tmp_path / "study.yaml").write_text(PACKED)
    with socket.socket() as found:
        found.bind(("localhost", 0))
        port = found.getsockname()[1]
    meet = ("--coordinator", f"localhost:{port}", "--processes", "2")
    both = [
        start(tmp_path, "two", 1, *meet, "--process", str(i), "--set", f"train.steps={steps}")
        for i, steps in enumerate((20, 21))
    ]
    for code, said in map(end, both):
        assert code == 2, said
        assert "the processes do not train the same runs" in said

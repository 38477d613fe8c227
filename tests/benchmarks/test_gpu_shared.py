"""`benchmarks.gpu_shared` at tiny sizes on a CPU, where packs never share a device, and its processes at their end."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from benchmarks.gpu_shared import ONE, Row, Studies, Way, measure_steps, run_together, show, ways
from benchmarks.gpu_together import IN_TURN, WAYS, Together

from benchmarks import gpu_shared, mps
from taetpu.core.child_process import ChildFailed

FAKE = """#!/bin/bash
# Stands for NVIDIA's program: a daemon with -f, which ends at `quit` unless told to ignore it, else its console.
at=$CUDA_MPS_PIPE_DIRECTORY
if [ "$1" = -f ]; then
    [ -n "$FAKE_ENDS" ] && { echo "no such GPU"; exit 7; }
    echo $$ > "$FAKE_PID.new"; mv "$FAKE_PID.new" "$FAKE_PID"; touch "$at/started"
    while [ -n "$FAKE_STAYS" ] || [ ! -e "$at/quit" ]; do sleep .02; done
    exit 0
fi
[ -e "$at/started" ] || exit 1
read -r command
echo "$command" >> "$FAKE_PID.told"
[ "$command" = quit ] && touch "$at/quit"
[ "$command" = get_server_list ] && echo "$FAKE_SERVERS"
exit 0
"""


@pytest.fixture
def fake(tmp_path, monkeypatch):
    """Put a fake nvidia-cuda-mps-control on PATH, and return the file with the process number of its daemon."""
    (script := tmp_path / mps.CONTROL).write_text(FAKE)
    script.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    monkeypatch.setenv("FAKE_PID", str(tmp_path / "pid"))
    return tmp_path / "pid"


def runs(process: int) -> bool:
    """Return whether a process runs, without those that ended and whose parent has not read the code."""
    try:
        return Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except FileNotFoundError:
        return False


def ends(process: int, seconds: float = 10.0) -> bool:
    end = time.monotonic() + seconds
    while runs(process) and time.monotonic() < end:
        time.sleep(0.02)
    return not runs(process)


def wait_for(file: Path, seconds: float = 60.0) -> int:
    """Return the process number in a file once it exists."""
    end = time.monotonic() + seconds
    while not file.exists():
        assert time.monotonic() < end
        time.sleep(0.02)
    return int(file.read_text())


def test_the_daemon_of_mps_ends_when_its_clients_crash(fake, monkeypatch):
    monkeypatch.setenv("FAKE_SERVERS", "17 18")
    pipes = []

    def crash():
        with mps.mps() as daemon:
            pipes.append(Path(daemon.environ[mps.PIPES]))
            assert runs(wait_for(fake))
            assert daemon.servers() == ["17", "18"]
            assert pipes[0].is_dir()
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        crash()
    assert ends(wait_for(fake))
    assert Path(f"{fake}.told").read_text().splitlines()[-1] == "quit"
    assert not pipes[0].exists()


def test_a_daemon_that_does_not_quit_is_killed(fake, monkeypatch):
    monkeypatch.setenv("FAKE_STAYS", "1")
    monkeypatch.setattr(mps, "QUIT_SECONDS", 0.5)
    with mps.mps():
        number = wait_for(fake)
    assert ends(number)


def test_why_mps_does_not_run(fake, monkeypatch):
    monkeypatch.setenv("FAKE_ENDS", "1")
    with pytest.raises(mps.MpsFailed, match=r"code 7: no such GPU"), mps.mps():
        pass
    monkeypatch.setenv("PATH", str(fake.parent / "empty"))
    with pytest.raises(mps.MpsFailed, match=mps.CONTROL), mps.mps():
        pass


def test_sigterm_ends_the_daemon_and_all_processes(fake, tmp_path):
    code = """
import os, time
from benchmarks.gpu_shared import end_at_sigterm, run_together
from benchmarks.mps import mps
end_at_sigterm()
with mps():
    run_together([["bash", "-c", "echo $$ > $FAKE_PID.client; sleep 600"]], os.environ, time.monotonic() + 600)
"""
    with subprocess.Popen([sys.executable, "-c", code]) as process:
        client = Path(f"{fake}.client")
        while not client.exists() or not client.read_text().strip():
            assert process.poll() is None
            time.sleep(0.05)
        process.send_signal(signal.SIGTERM)
        assert process.wait(60) == 128 + signal.SIGTERM
    assert ends(wait_for(fake))
    assert ends(int(client.read_text()))


def test_commands_end_with_the_first_that_fails_and_at_the_deadline(tmp_path):
    waits = ["bash", "-c", f"sleep 600 & echo $! > {tmp_path}/number; wait"]
    fails = ["bash", "-c", f"until [ -s {tmp_path}/number ]; do sleep .02; done; echo of this >&2; exit 3"]
    with pytest.raises(ChildFailed, match=r"code 3: of this"):
        run_together([waits, fails], os.environ, time.monotonic() + 600)
    assert ends(int((tmp_path / "number").read_text()))
    began = time.monotonic()
    with pytest.raises(MemoryError):
        run_together([["sleep", "600"], ["true"]], os.environ, began + 0.3)
    assert time.monotonic() - began < 60
    assert run_together([["true"], ["sleep", "0.1"]], os.environ, time.monotonic() + 600) >= 0.1


def test_a_contestant_that_fails_leaves_the_others_and_other_bits_are_told(tmp_path, monkeypatch):
    ran = []

    def run_study(way, study, number, cache, device, deadline):
        ran.append((way, number, cache.name))
        if way.shares:
            raise mps.MpsFailed("no daemon")
        if way.name == "threads" and number:
            raise ChildFailed("in a thread\n")
        return 4.0 / way.packs, {"a/0": 0.5 if not way.processes or number < 2 else 0.25}

    monkeypatch.setattr(gpu_shared, "run_study", run_study)
    studies = Studies(tmp_path / "study.yaml", ways([2, 4]), "cpu", time.monotonic(), 600.0)
    studies.cold()
    studies.warm(2)
    rows = {(row.name, row.packs): row for row in studies.rows.values()}
    assert list(rows) == [
        (ONE.name, 1),
        *((name, n) for n in (4, 2) for name in ("threads", "processes, MPS", "processes")),
    ]
    assert (rows["threads", 4].failed, rows["threads", 4].cold, rows["threads", 4].warm) == ("in a thread", 1.0, [])
    assert rows["processes, MPS", 4].failed == "no daemon"
    assert (rows["processes", 4].warm, rows["processes", 4].ratio, rows["processes", 4].same) == (
        [1.0, 1.0],
        0.25,
        False,
    )
    assert (rows[ONE.name, 1].warm, rows[ONE.name, 1].ratio, rows[ONE.name, 1].same) == ([4.0, 4.0], 1.0, True)
    caches = {way: {cache for each, _, cache in ran if each == way} for way in studies.ways}
    assert caches[Way("processes", 2, processes=True)] == caches[ONE]  # whose programs it loads
    assert len(set().union(*caches.values())) == 3
    table = show([*rows.values(), Row("steps", 2, failed="word " * 40)])
    assert max(map(len, table.splitlines())) <= 80
    assert all(name in table for name, _ in rows)


def test_without_time_left_nothing_is_started(tmp_path):
    studies = Studies(tmp_path / "study.yaml", ways([2]), "cpu", time.monotonic() - 60, 0.0)
    studies.cold()
    studies.warm(1)
    assert all(row.failed and not row.warm for row in studies.rows.values())


def write_study(folder: Path) -> Path:
    text = gpu_shared.STUDY
    for name, size in gpu_shared.SMALL.items():
        text = text.replace(name, str(size))
    (file := folder / "study.yaml").write_text(text)
    return file


@pytest.mark.slow
def test_one_program_computes_the_bits_of_programs_in_turn(tmp_path):
    loops = Together("loops", "loops")
    wrong = Together("wrong", "one loop", "--xla_no_such_flag=1")
    rows = measure_steps(write_study(tmp_path), 2, "cpu", 2, time.monotonic() + 1800, (IN_TURN, WAYS[1], loops, wrong))
    assert [row.name for row in rows] == [IN_TURN.name, WAYS[1].name, "loops", "wrong"]
    assert [row.same for row in rows] == [True, True, True, None]
    assert all(row.cold and len(row.warm) == 2 and row.ratio and not row.failed for row in rows[:3])
    assert "--xla_no_such_flag" in rows[3].failed


def test_steps_that_are_not_ready_at_the_deadline_are_killed(tmp_path):
    (row,) = measure_steps(write_study(tmp_path), 2, "cpu", 1, time.monotonic() + 0.2, (IN_TURN,))
    assert row.failed
    assert not row.warm


@pytest.mark.nightly
def test_the_whole_table(monkeypatch, capsys, fake):
    """With the fake of MPS, which lists a server, so that processes run as they do beside a daemon."""
    monkeypatch.setenv("FAKE_SERVERS", "17")
    words = ["--device", "cpu", "--small", "--rounds", "1", "--at-once", "2", "--minutes", "60"]
    monkeypatch.setattr("sys.argv", ["benchmarks.gpu_shared", *words])
    assert gpu_shared.main() == 0
    head, *rows = capsys.readouterr().out.splitlines()
    names = [way.name for way in ways([2])] + [way.name for way in WAYS]
    assert [row[:38].strip() for row in rows] == names
    assert {row.split()[-1] for row in rows} == {"yes"}
    assert len(head) <= 80
    assert ends(wait_for(fake))

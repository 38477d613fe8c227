"""Jobs on hosts with a real sshd: start on all or none, follow without losing a line, stop with all processes."""

import subprocess
import threading
import time
from collections.abc import Callable
from importlib.metadata import version
from pathlib import Path

import pytest
from tests.fake_google.cloud import FakeGoogle

from taetpu.cloud import host_jobs
from taetpu.cloud.gcloud import CloudError
from taetpu.cloud.host_jobs import Refused, Request
from taetpu.cloud.ssh import Hosts, Unreachable

pytestmark = pytest.mark.slow

COUNT = "for i in $(seq 1 {}); do echo line $i; sleep {}; done"


def shell(script: str, **options) -> Request:
    return Request([["bash", "-c", script]], **options)


def until(condition: Callable[[], object], seconds: float = 20.0) -> None:
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end
        time.sleep(0.05)


def followed(hosts: Hosts, name: str, **options) -> list[str]:
    lines: list[str] = []
    host_jobs.follow(hosts, name, lambda worker, line: lines.append(line), **options)
    return lines


def code(hosts: Hosts, name: str) -> int | None:
    return host_jobs.find(hosts, name)[0]["rc"]


def test_a_job_runs_with_its_words_folder_and_variables(hosts: Hosts) -> None:
    words = ["bash", "-c", 'echo "$0" "$1"; pwd; echo $X $J; cat "$J/job.json" | wc -l', "a b", "$HOME;'"]
    request = Request([words, ["false"], ["echo", "never"]], "work/x y", {"X": "1 2", "J": "{job}"})
    name = host_jobs.start(hosts, request)
    first, where, variables, number = followed(hosts, name)
    assert first == "a b $HOME;'"
    assert where.endswith("/home/work/x y")
    assert variables.startswith("1 2 /")
    assert number == "0"
    assert code(hosts, name) == 1


def test_a_second_job_is_refused(hosts: Hosts) -> None:
    name = host_jobs.start(hosts, shell("sleep 60"))
    with pytest.raises(Refused, match=name) as raised:
        host_jobs.start(hosts, shell("echo 1"))
    assert "taetpu tpu stop" in str(raised.value.remedy)
    assert [job["name"] for job in host_jobs.running(hosts)] == [name]
    host_jobs.stop(hosts, name, grace=1.0)
    assert host_jobs.running(hosts) == []
    with pytest.raises(CloudError, match="exists"):
        host_jobs.start(hosts, shell("echo 1"), name=name)


def test_stop_ends_all_processes_of_a_job_that_ignores_sigterm(hosts: Hosts, tmp_path: Path) -> None:
    pids = tmp_path / "pids"
    script = f"trap '' TERM; sleep 300 & echo $! >{pids}; echo $$ >>{pids}; wait; wait"
    name = host_jobs.start(hosts, shell(script))
    until(lambda: pids.exists() and len(pids.read_text().split()) == 2)
    ended = host_jobs.stop(hosts, name, grace=0.5)
    assert ended[0]["state"] == "lost"
    for pid in pids.read_text().split():
        until(
            lambda pid=pid: not Path(f"/proc/{pid}/cmdline").exists() or not Path(f"/proc/{pid}/cmdline").read_bytes()
        )


def test_a_job_that_handles_sigterm_keeps_its_exit_code(hosts: Hosts) -> None:
    name = host_jobs.start(hosts, shell("trap 'echo saved; exit 5' TERM; echo ready; while :; do sleep 0.1; done"))
    until(lambda: followed(hosts, name, to_end=False) == ["ready"])
    ended = host_jobs.stop(hosts, name)
    assert (ended[0]["state"], ended[0]["rc"]) == ("ended", 5)
    assert followed(hosts, name)[-1] == "saved"


def test_a_lost_connection_loses_no_line(hosts: Hosts, google: FakeGoogle) -> None:
    name = host_jobs.start(hosts, shell(COUNT.format(40, 0.1)))
    stopped, cuts = threading.Event(), list[int]()

    def cut() -> None:
        while len(cuts) < 3 and not stopped.wait(1.5):
            subprocess.run(hosts.ssh(0, "-O", "exit"), capture_output=True, check=False)
            cuts.append(1)

    thread = threading.Thread(target=cut)
    thread.start()
    try:
        assert followed(hosts, name) == [f"line {number}" for number in range(1, 41)]
    finally:
        stopped.set()
        thread.join()
    assert cuts
    assert code(hosts, name) == 0


def test_a_killed_follower_leaves_the_job(hosts: Hosts) -> None:
    name = host_jobs.start(hosts, shell(COUNT.format(20, 0.1)))
    follower = subprocess.Popen([*hosts.ssh(0), "tail", "-f", f".taetpu/jobs/{name}/log"], stdout=subprocess.PIPE)
    assert follower.stdout
    assert follower.stdout.readline() == b"line 1\n"
    follower.kill()
    follower.wait()
    follower.stdout.close()
    offsets: dict[int, int] = {}
    early: list[str] = []
    host_jobs.follow(hosts, name, lambda worker, line: early.append(line), to_end=False, offsets=offsets)
    rest: list[str] = []
    host_jobs.follow(hosts, name, lambda worker, line: rest.append(line), offsets=offsets)
    assert early + rest == [f"line {number}" for number in range(1, 21)]


def test_a_machine_without_power_is_unreachable_in_time(hosts: Hosts, google: FakeGoogle) -> None:
    name = host_jobs.start(hosts, shell("sleep 60"))
    google.hosts.halt("box")
    began = time.monotonic()
    with pytest.raises(Unreachable, match="box"):
        followed(hosts, name, patience=2.0)
    assert time.monotonic() - began < 20


def test_a_job_starts_on_all_hosts_or_on_none(pair: Hosts, google: FakeGoogle) -> None:
    name = host_jobs.start(pair, shell("echo $N; sleep 1", environment={"N": "{worker}"}))
    lines: list[tuple[int, str]] = []
    host_jobs.follow(pair, name, lambda worker, line: lines.append((worker, line)))
    assert sorted(lines) == [(0, "0"), (1, "1")]
    busy = host_jobs.start(pair, shell("sleep 60"), [1])
    with pytest.raises(Refused, match="worker 1"):
        host_jobs.start(pair, shell("echo 1"))
    assert host_jobs.running(pair, [0]) == []
    host_jobs.stop(pair, busy, grace=1.0)
    google.hosts.halt("box", 1)
    with pytest.raises(Unreachable, match="worker 1"):
        host_jobs.start(pair, shell("echo 1"))
    assert host_jobs.running(pair, [0]) == []


def test_clean_deletes_what_ended_and_nothing_else(hosts: Hosts) -> None:
    done = host_jobs.start(hosts, shell("echo 1"))
    followed(hosts, done)
    running = host_jobs.start(hosts, shell("sleep 60"))
    assert host_jobs.clean(hosts) == [done]
    assert [job["name"] for job in host_jobs.state(hosts)[0]["jobs"]] == [running]
    with pytest.raises(CloudError, match=running) as raised:
        host_jobs.find(hosts, "other")
    assert running in str(raised.value.remedy)


def test_jobs_have_the_command_taetpu_and_its_version_although_it_is_not_installed(hosts: Hosts) -> None:
    """A host has a copy of the package only: its environment does not contain the package."""
    script = "import importlib.metadata as m, taetpu; print(m.version('taetpu'), taetpu.__file__)"
    probe = "cd /; env -u PYTHONPATH python -c 'import taetpu' 2>/dev/null || echo absent"
    commands = [["taetpu", "--version"], ["python", "-c", script], ["sh", "-c", probe]]
    name = host_jobs.start(hosts, Request(commands))
    told, imported, absent = followed(hosts, name)
    assert code(hosts, name) == 0
    assert (told, absent) == (f"taetpu {version('taetpu')}", "absent")
    assert imported.startswith(f"{version('taetpu')} ")
    assert imported.endswith("/home/.taetpu/src/taetpu/__init__.py")

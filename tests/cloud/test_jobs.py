"""Jobs on real hosts: begun everywhere or nowhere, alive without a connection, read without losing a line."""

import json
import os
import signal
import sys
import threading
import time

import pytest
from tests.cloud.machines import until
from tests.cloud.test_ssh import NASTY, SHOW

from taetpu.cloud import agents, jobs, ssh_errors
from taetpu.cloud.fakes.hosts import Trouble
from taetpu.cloud.jobs import Asked


def shell(script: str, *words: str) -> Asked:
    return Asked([["sh", "-c", script, "sh", *words]])


def read(slice, name, **how) -> list[str]:
    lines: list[str] = []
    jobs.logs(
        slice, name, lambda worker, line: lines.append(line if len(slice.workers) == 1 else f"{worker} {line}"), **how
    )
    return lines


def ended(slice, name):
    until(lambda: all(one["state"] != "running" for one in jobs.job(slice, name).values()))
    return {worker: (one["state"], one["rc"]) for worker, one in jobs.job(slice, name).items()}


@pytest.mark.parametrize("workers", [1, 2, pytest.param(4, marks=pytest.mark.slow)])
def test_a_job_runs_on_every_worker_and_each_tells_its_own_code(ready, workers):
    slice = ready(workers)
    name = jobs.start(slice, shell("echo worker $TPU_WORKER_ID; exit $TPU_WORKER_ID"))
    read(slice, name, follow=True)
    assert ended(slice, name) == {number: ("ended", number) for number in range(workers)}


def test_each_command_has_its_own_arguments_and_the_first_that_fails_is_the_last(ready):
    slice = ready()
    commands = [[*SHOW, *NASTY], [*SHOW, "2"], ["sh", "-c", "exit 9"], [*SHOW, "never"]]
    name = jobs.start(slice, Asked(commands, environment={"WITH": "a 'b' $c"}))
    assert [json.loads(line) for line in read(slice, name, follow=True)] == [NASTY, ["2"]]
    assert ended(slice, name) == {0: ("ended", 9)}


@pytest.mark.slow
def test_what_cannot_be_run_says_so_in_the_log(ready):
    slice = ready()
    name = jobs.start(slice, Asked([["no-such-program"]]))
    assert read(slice, name, follow=True) == ["taetpu: cannot run 'no-such-program': No such file or directory"]
    assert ended(slice, name) == {0: ("ended", 127)}


@pytest.mark.slow
def test_a_job_is_nobodys_session(ready):
    """Neither the connection nor the login's end is its own."""
    slice = ready()
    name = jobs.start(slice, shell("env | grep -c ^SSH_; echo $TAETPU_JOB; sleep 60"))
    slice.close()
    until(lambda: read(slice, name) == ["0", name])
    assert jobs.job(slice, "")[0]["state"] == "running"
    assert jobs.stop(slice, "", grace=5) == (name, {0: 128 + signal.SIGTERM})


@pytest.mark.slow
def test_to_stop_without_a_name_is_to_stop_the_newest_that_runs(ready):
    """Not the newest of all, which may have ended; on whatever host it is."""
    slice = ready(2)
    assert jobs.stop(slice, "") == ("", {})
    older = jobs.start(slice, shell("sleep 60"), workers=[0])
    newer = jobs.start(slice, shell("sleep 60"), workers=[1])
    over = jobs.start(slice, shell("true"), beside=True)
    assert ended(slice, over) == {0: ("ended", 0), 1: ("ended", 0)}
    assert jobs.stop(slice, "", dry_run=True) == (newer, {1: None})
    assert jobs.running(slice) == [older, newer]
    assert jobs.stop(slice, "", grace=5) == (newer, {1: 128 + signal.SIGTERM})
    assert jobs.stop(slice, "", grace=5) == (older, {0: 128 + signal.SIGTERM})
    assert jobs.stop(slice, "") == ("", {})


COUNT = (
    "i=0; while [ $i -lt 400 ]; do echo line $i; i=$((i + 1)); [ $((i % 100)) -ne 0 ] || sleep 0.3; done; printf end"
)


@pytest.mark.slow
def test_logs_go_on_where_the_connection_was_lost(ready, hosts):
    """Every connection is cut, again and again, while the job writes: no line is lost and none comes twice."""
    slice = ready()
    vm = hosts.find("t-w0")
    name = jobs.start(slice, shell(COUNT))
    lines: list[str] = []
    cuts = 0

    def note(worker: int, line: str) -> None:
        nonlocal cuts
        lines.append(line)
        if len(lines) % 100 == 50:
            cuts += len(children(vm.sshd.pid))
            for pid in children(vm.sshd.pid):
                os.kill(pid, signal.SIGKILL)

    jobs.logs(slice, name, note, follow=True, patience=20)
    assert lines == [f"line {number}" for number in range(400)] + ["end"]
    assert cuts >= 3


def children(parent: int) -> list[int]:
    with open(f"/proc/{parent}/task/{parent}/children") as file:
        return [int(pid) for pid in file.read().split()]


@pytest.mark.slow
def test_who_reads_again_goes_on_behind_the_last_line(ready, hosts):
    """As a supervisor does that had given a host up: what has been shown is not shown again, half a line is."""
    slice = ready()
    path = hosts.find("t-w0").home / "go on"
    name = jobs.start(
        slice, shell('echo one; printf tw; until [ -e "$HOME/go on" ]; do sleep 0.05; done; echo o; exit 3')
    )
    seen: dict[int, int] = {}
    until(lambda: jobs.job(slice, name)[0]["bytes"] == 6)
    assert read(slice, name, read=seen) == ["one", "tw"]
    seen[0] -= 2
    path.touch()
    assert read(slice, name, follow=True, read=seen) == ["two"]
    assert seen == {0: 8}
    assert read(slice, name, follow=True, read=seen) == []


def test_a_job_outlives_the_connection_that_began_it(ready, hosts):
    slice = ready()
    vm = hosts.find("t-w0")
    name = jobs.start(slice, shell("echo began; sleep 0.5; echo ended; exit 3"))
    for pid in children(vm.sshd.pid):
        os.kill(pid, signal.SIGKILL)
    assert read(slice, name, follow=True) == ["began", "ended"]
    assert ended(slice, name) == {0: ("ended", 3)}


@pytest.mark.slow
def test_a_host_that_stays_away_ends_the_reading(ready, hosts):
    slice = ready()
    name = jobs.start(slice, shell("echo began; sleep 60"))
    threading.Thread(target=lambda: (until(lambda: read(slice, name)), hosts.halt("t-w0"))).start()
    told: list[str] = []
    with pytest.raises(ssh_errors.Unreachable, match="t does not answer, so that nothing can read the log there"):
        read(slice, name, follow=True, patience=1, tell=told.append)
    assert told == ["the connection to t is lost; trying again for 1 s"]


@pytest.mark.slow
def test_stop_ends_what_has_left_the_group_and_what_does_not_listen(ready):
    slice = ready()
    deaf = "trap '' TERM; setsid sleep 61 & setsid sh -c \"trap '' TERM; sleep 62\" & echo up; wait; sleep 63"
    name = jobs.start(slice, shell(deaf))
    until(lambda: read(slice, name) == ["up"])
    assert jobs.stop(slice, name, grace=0.3) == (name, {0: 128 + signal.SIGKILL})
    assert marked(f"TAETPU_JOB={name}".encode()) == []


@pytest.mark.slow
def test_stop_lets_a_job_write_its_checkpoint(ready):
    slice = ready()
    name = jobs.start(slice, shell("trap 'sleep 0.3; echo saved; exit 0' TERM; echo up; while :; do sleep 0.05; done"))
    until(lambda: read(slice, name) == ["up"])
    assert jobs.stop(slice, name, grace=10) == (name, {0: 0})  # its own code
    assert read(slice, name)[-1] == "saved"


@pytest.mark.slow
def test_a_job_that_is_killed_is_lost_and_not_ended(ready):
    slice = ready()
    name = jobs.start(slice, shell("sleep 60"))
    (told,) = (slice.run(0, ["cat", f".taetpu/jobs/{name}/pid"]),)
    os.kill(json.loads(told.out)["pid"], signal.SIGKILL)
    assert ended(slice, name) == {0: ("lost", None)}


@pytest.mark.slow
def test_one_job_at_a_time_unless_it_shall_run_beside(ready):
    slice = ready(2)
    name = jobs.start(slice, shell("sleep 60"), workers=[1])
    with pytest.raises(jobs.Running, match=f"worker 1 of t runs the job {name} already") as error:
        jobs.start(slice, shell("echo no"))
    assert not isinstance(error.value, jobs.Busy), "for which a machine would be given up"
    assert error.value.remedy.startswith(f"`taetpu tpu stop {name} --tpu t` ends it; ")
    assert [list(jobs.job(slice, "")), len(jobs.status(slice)[0]["jobs"])] == [[1], 0]
    beside = jobs.start(slice, shell("echo beside"), beside=True)
    assert sorted(read(slice, beside, follow=True)) == ["0 beside", "1 beside"]


HOLD = "import sys, time; held = open(sys.argv[1]); open(sys.argv[2], 'w').close(); time.sleep(60)"


@pytest.mark.parametrize("device", ["dev/vfio/0", "dev/accel0", "tmp/libtpu_lockfile"])
def test_a_tpu_that_somebody_holds_is_busy_and_its_lock_is_left_alone(ready, hosts, device):
    slice = ready()
    private = hosts.find("t-w0").private
    for path in {private / device, private / "tmp/libtpu_lockfile"}:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.touch()
    held = private / "held"
    holder = threading.Thread(target=slice.run, args=(0, ["python3", "-c", HOLD, str(private / device), str(held)]))
    holder.start()
    until(held.exists)
    with pytest.raises(jobs.Busy, match=r"the TPU of t is in use: process \d+ \(python3.*\) holds .*" + device):
        jobs.start(slice, shell("echo no"))
    assert (private / "tmp/libtpu_lockfile").exists()
    hosts.halt("t-w0")
    holder.join(10)


def test_a_lock_that_is_left_over_is_removed(ready, hosts):
    slice = ready()
    lock = hosts.find("t-w0").private / "tmp/libtpu_lockfile"
    lock.parent.mkdir()
    lock.touch()
    (lock.parent.parent / "dev").mkdir()
    (lock.parent.parent / "dev/accel0").touch()
    name = jobs.start(slice, shell("echo free"))
    assert not lock.exists()
    assert read(slice, name, follow=True) == ["free"]
    assert jobs.status(slice)[0]["chips"] == 1


def test_nothing_begins_while_a_worker_is_out_of_reach(ready, hosts):
    slice = ready(4)
    hosts.halt("t-w2")
    with pytest.raises(ssh_errors.Unreachable, match="worker 2 of t does not answer"):
        jobs.start(slice, shell("echo no"))
    assert all(host["jobs"] == [] for worker, host in jobs.status(slice).items() if worker != 2)


LATE = """
def late(**asked):
    while not os.path.exists(os.path.join(HOME, "wake")):
        time.sleep(0.05)
    try:
        start(**asked)
    except Refusal as refusal:
        with open(os.path.join(HOME, "said"), "w") as file:
            file.write(str(refusal))

BEGINS = 0.1
COMMANDS["start"] = late
"""


@pytest.mark.slow
def test_a_start_that_arrives_late_finds_its_place_taken(ready, hosts):
    """A host hangs while the job is begun on the others, is given up, and wakes: nothing runs on it alone."""
    slice = ready(2)
    machine = hosts.find("t-w1")
    with (machine.private / "machine" / "agent.py").open("a") as agent:
        agent.write(LATE)
    with pytest.raises(ssh_errors.Hung, match="worker 1 of t took the command to start the job and gave no answer"):
        jobs.start(slice, shell("echo began; sleep 60"), name="half", answer=3)
    (machine.home / "wake").touch()
    until((machine.home / "said").exists)
    assert (machine.home / "said").read_text() == "the job did not begin"
    assert jobs.status(slice)[1]["jobs"] == []
    assert jobs.job(slice, "half")[0]["state"] == "ended"


@pytest.mark.slow
def test_a_host_that_is_off_keeps_the_others_from_nothing(ready, hosts):
    slice = ready(2)
    name = jobs.start(slice, shell("sleep 60"))
    hosts.halt("t-w0")
    with pytest.raises(ssh_errors.Unreachable, match=f"worker 0 of t does not answer.*; {name} was ended wherever"):
        jobs.stop(slice, "", grace=5)
    assert jobs.job(slice, name, [1])[1]["rc"] == 128 + signal.SIGTERM


HANGS = "\nCOMMANDS['start'] = lambda **asked: time.sleep(60)\n"
DIES = "\nCOMMANDS['start'] = lambda **asked: os.kill(os.getpid(), signal.SIGKILL)\n"


@pytest.mark.slow
@pytest.mark.parametrize(
    ("how", "problem", "told"),
    [
        ("", jobs.NoJob, "cannot make the job's folder: Not a directory"),
        (HANGS, ssh_errors.Hung, "gave no answer in time"),
        (DIES, ssh_errors.CommandFailed, "could not start the job"),
    ],
    ids=["fails", "hangs", "dies"],
)
def test_where_one_worker_does_not_begin_the_others_are_stopped(ready, hosts, how, problem, told):
    slice = ready(2)
    machine = hosts.find("t-w1")
    if how:
        with (machine.private / "machine" / "agent.py").open("a") as agent:
            agent.write(how)
    else:
        (machine.home / ".taetpu").mkdir(exist_ok=True)
        (machine.home / ".taetpu" / "jobs").write_text("a file is in the way")
    with pytest.raises(problem, match=f"worker 1 of t.*{told}"):
        jobs.start(slice, shell("echo began; sleep 60"), name="half", answer=2)
    (one,) = jobs.status(slice, [0])[0]["jobs"]
    assert (one["name"], one["state"]) == ("half", "ended")
    assert one["rc"] in (128 + signal.SIGTERM, 128 + signal.SIGKILL)


def test_a_start_whose_answer_was_lost_begins_once(ready, monkeypatch):
    slice = ready()
    real, calls = agents.send, []

    def lossy(slice, command, request, workers, timeout=30):
        answered = real(slice, command, request, workers, timeout)
        calls.append(command)
        if command == "start" and calls.count("start") == 1:
            return [ssh_errors.Done(0, "t", 255, "", "client_loop: send disconnect: Broken pipe")]
        return answered

    for module in (agents, jobs):
        monkeypatch.setattr(module, "send", lossy)
    name = jobs.start(slice, shell("echo once"))
    assert calls == ["check", "start", "start"]
    monkeypatch.undo()
    assert read(slice, name, follow=True) == ["once"]


@pytest.mark.slow
def test_a_name_is_taken_once(ready):
    slice = ready()
    jobs.start(slice, shell("true"), name="mine")
    ended(slice, "mine")
    with pytest.raises(jobs.NoJob, match="there is a job 'mine' already") as error:
        jobs.start(slice, shell("true"), name="mine")
    assert error.value.exit_code == 2


@pytest.mark.slow
def test_clean_removes_what_has_ended_and_refuses_what_runs(ready):
    slice = ready()
    jobs.start(slice, shell("true"), name="over")
    ended(slice, "over")
    jobs.start(slice, shell("sleep 60"), name="alive")
    with pytest.raises(jobs.NoJob, match="the job 'alive' is running"):
        jobs.clean(slice, ["alive"])
    assert jobs.clean(slice) == ["over"]
    with pytest.raises(jobs.NoJob, match="there is no job 'over' on t") as error:
        jobs.job(slice, "over")
    assert error.value.remedy == "known: alive"


def test_the_interpreter_and_the_package_are_those_that_were_brought(ready):
    slice = ready()
    name = jobs.start(slice, Asked([["python", "-c", "import sys; print(sys.executable)"]]))
    assert read(slice, name, follow=True) == [sys.executable]


def test_status_does_not_know_what_no_chip_tells(ready):
    told = jobs.status(ready())[0]
    assert (told["usage"], told["chips"]) == (None, 0)
    assert told["free"] > 0
    assert "on guard" in told["guard"]


DOCKER = """\
#!/bin/sh
# Stands in for docker, which is not installed here: writes down what it was asked for.
printf '%s\\n' "$@" >>"$HOME/docker-$1"
[ "$1" != run ] || chown 12345 "$HOME"/.taetpu/jobs/*/log 2>/dev/null
[ "$1" != run ] || { trap '' TERM; echo contained; sleep "${SECONDS_IN_IT:-0}"; }
"""


@pytest.mark.slow
def test_a_job_in_a_container(ready, hosts, tmp_path):
    """The `docker` here is a stub that records its arguments: what they do is docker's own matter and is not tested."""
    stub = tmp_path / "bin" / "docker"
    stub.parent.mkdir()
    stub.write_text(DOCKER)
    stub.chmod(0o755)
    hosts.troubles["*"] = Trouble(environment={"PATH": f"{stub.parent}:{os.environ['PATH']}", "TPU_NAME": "local"})
    slice = ready()
    asked = Asked(
        [["python", "a b.py", "$x"]], "work/here", {"KEY": "a 'b'", "SECONDS_IN_IT": "60"}, image="r/i@sha256:0"
    )
    name = jobs.start(slice, asked)
    until(lambda: read(slice, name) == ["contained"])
    home = hosts.find("t-w0").home
    words = (home / "docker-run").read_text().splitlines()
    assert words[:5] == ["run", "--rm", "--pull=never", "--privileged", "--net=host"]
    assert words[words.index("--name") + 1] == f"taetpu-{name}"
    assert words[words.index("--volume") + 1] == f"{home}:{home}"
    assert words[words.index("--workdir") + 1] == f"{home}/work/here"
    assert {"KEY=a 'b'", "TPU_WORKER_ID=0", "TPU_NAME=local", f"TAETPU_JOB={name}"} <= set(words)
    assert words[-4:] == ["r/i@sha256:0", "python", "a b.py", "$x"]
    assert jobs.stop(slice, name, grace=0.2)[1] == {0: 128 + signal.SIGKILL}
    heard = (home / "docker-kill").read_text().split()
    assert heard[:6] == ["kill", "--signal=15", f"taetpu-{name}", "kill", "--signal=9", f"taetpu-{name}"]
    assert (home / f".taetpu/jobs/{name}/log").stat().st_uid == os.getuid(), "what the container's root wrote is ours"


def test_halting_a_machine_leaves_no_process_of_it(ready, hosts):
    slice = ready()
    vm = hosts.find("t-w0")
    jobs.start(slice, shell("setsid sleep 600 & (sleep 600 &) ; sleep 600"))
    mark = f"TAETPU_VM={vm.mark}".encode()
    assert len(marked(mark)) >= 3
    begun = time.monotonic()
    hosts.halt("t-w0")
    assert time.monotonic() - begun < 5
    assert marked(mark) == []


def marked(mark: bytes) -> list[str]:
    found = []
    for pid in filter(str.isdigit, os.listdir("/proc")):
        try:
            with open(f"/proc/{pid}/environ", "rb") as file:
                if mark in file.read().split(b"\0"):
                    found.append(pid)
        except OSError:
            continue
    return found

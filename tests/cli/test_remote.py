"""`taetpu tpu ssh | sync | run | logs | stop | clean` and `taetpu dev`, as a user gives them, on real hosts."""

import json
import os
import re
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from tests.cloud.machines import until
from tests.cloud.test_jobs import children

from taetpu.cloud import jobs, transfer
from taetpu.cloud.fakes.hosts import listen

SHOW = "import os, sys\nprint(os.getcwd().split('/work/')[1].rpartition('-')[0], sys.argv[1:], flush=True)\n"
TOML = '[cloud]\nproject = "fake-project"\nowner = "me"\nstack = "t"\n'


@pytest.fixture
def project(tmp_path, monkeypatch):
    """A project in whose folder the commands are given."""
    root = tmp_path / "my work"
    files = {
        "taetpu.toml": TOML,
        "show.py": SHOW,
        "sub/other.py": SHOW,
        "sub/fail.py": "raise SystemExit(5)",
        "data/x": "1",
    }
    for name, text in files.items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text(text)
    subprocess.run(["git", "init", "-q", str(root)], check=True)
    monkeypatch.chdir(root)
    return root


def command(*words: str) -> list[str]:
    return [sys.executable, "-m", "taetpu", *words]


def taetpu(*words: str, code: int = 0, **how) -> subprocess.CompletedProcess[str]:
    done = subprocess.run(command(*words), capture_output=True, text=True, check=False, timeout=60, **how)
    assert done.returncode == code, done.stderr
    return done


def place(hosts, project, instance="t-w0"):
    """Where a project is on a host."""
    return hosts.find(instance).home / transfer.work(project)


def there(hosts, instance="t-w0"):
    base = place(hosts, Path.cwd(), instance)
    return sorted(str(path.relative_to(base)) for path in base.rglob("*") if path.is_file())


ALL = ["data/x", "show.py", "sub/fail.py", "sub/other.py", "taetpu.toml"]


def test_a_run_brings_the_project_and_says_how_it_went(ready, hosts, project):
    ready(2)
    nasty = ["a b", "$(touch pwned)", "it's", "--lr", "*"]
    done = taetpu("tpu", "run", "python", "show.py", *nasty)
    assert sorted(done.stdout.splitlines()) == [
        f"[0] my work {nasty}",
        f"[1] my work {nasty}",
    ]
    assert there(hosts, "t-w1") == ALL
    assert not list(project.parent.rglob("pwned"))
    failed = taetpu("tpu", "run", "--worker", "1", "--", "python", "sub/fail.py", code=3)
    assert "did not end well: worker 1: ended with 5" in failed.stderr


WAIT = "import time\nprint('up', flush=True)\ntime.sleep(600)\n"


@pytest.mark.slow
def test_a_run_that_is_refused_has_touched_nothing_of_the_job_that_runs(ready, hosts, project):
    slice = ready(2)
    (project / "wait.py").write_text(WAIT)
    taetpu("tpu", "run", "--detach", "--worker", "1", "python", "wait.py")
    (name,) = jobs.running(slice)
    (place(hosts, project, "t-w1") / "checkpoint").write_text("of the job")
    (place(hosts, project, "t-w1") / "show.py").write_text("of the job, where one of the project's lies")
    (project / "wait.py").unlink()
    (project / "new.py").touch()
    before = there(hosts, "t-w1")
    for words in (["tpu", "run", "python", "show.py"], ["dev", "run", "show.py"], ["dev", "run-all", "show.py"]):
        refused = taetpu(*words, code=2)
        assert refused.stderr.startswith(f"error: worker 1 of t runs the job {name} already")
        assert f"`taetpu tpu stop {name} --tpu t` ends it" in refused.stderr
    assert there(hosts, "t-w1") == before
    assert (place(hosts, project, "t-w1") / "show.py").read_text().startswith("of the job")
    assert there(hosts) == [], "nor is anything sent to a host that is free"
    beside = taetpu("tpu", "run", "--beside", "true")
    assert f"{name} runs there: what is gone here is not removed there before it has ended" in beside.stderr
    assert there(hosts, "t-w1") == sorted([*before, "new.py"])
    assert name in taetpu("tpu", "stop", *refused.stderr.split("taetpu tpu stop ")[1].split("`")[0].split()).stderr
    taetpu("tpu", "sync")
    assert there(hosts, "t-w1") == sorted([*ALL, "checkpoint", "new.py"])


@pytest.mark.slow
def test_two_projects_of_one_name_leave_each_other_alone(ready, hosts, project, tmp_path):
    ready()
    other = tmp_path / "elsewhere" / "my work"
    other.mkdir(parents=True)
    (other / "taetpu.toml").write_text(TOML)
    (other / "only.py").write_text(SHOW)
    taetpu("tpu", "sync")
    began = taetpu("dev", "run", "only.py", cwd=other)
    assert began.stdout == "my work []\n"
    assert f"in ~/{transfer.work(other)}\n" in began.stderr
    taetpu("tpu", "sync", cwd=other)
    taetpu("dev", "scrap", "--all", "--yes", cwd=other)
    assert there(hosts) == ALL


@pytest.mark.slow
def test_what_stands_before_a_command_is_an_option_or_refused(ready, hosts, project):
    slice = ready()
    for words in (["tpu", "run"], ["tpu", "ssh"], ["dev", "run"], ["dev", "run-all"]):
        wrong = taetpu(*words, "--dry-rnu", "show.py", code=2)
        assert wrong.stderr.startswith("error: no such option: --dry-rnu")
        assert "what is to be run begins with a word that is no option, or after --\n" in wrong.stderr
    assert there(hosts) == []
    would = taetpu("tpu", "run", "--dry-run", "python", "show.py", "--dry-run")
    assert would.stdout.splitlines()[-1] == "run  python show.py --dry-run"
    assert jobs.job(slice, taetpu_job(taetpu("tpu", "run", "--detach", "--", "--none"))) != {}


def taetpu_job(done) -> str:
    """The job that a command has begun."""
    return done.stderr.split("job ")[1].split()[0]


@pytest.mark.slow
def test_a_dry_run_of_a_run_a_stop_and_a_clean_changes_nothing(ready, hosts, project):
    slice = ready()
    taetpu("tpu", "run", "true")
    (project / "wait.py").write_text(WAIT)
    name = taetpu_job(taetpu("tpu", "run", "--detach", "python", "wait.py"))
    before = there(hosts), [job["state"] for job in jobs.status(slice)[0]["jobs"]]
    (project / "data/x").unlink()
    (project / "new.py").touch()
    would = taetpu("tpu", "run", "--dry-run", "python", "new.py")
    assert would.stdout.splitlines()[-1] == "run  python new.py"
    assert "copy new.py" in would.stdout.splitlines()
    assert f"on t; {name} runs there; dry run: nothing was changed" in would.stderr
    told = taetpu("tpu", "stop", "--dry-run").stderr
    assert told == f"would end {name} on t: SIGTERM, and SIGKILL after 30 s; dry run: nothing was changed\n"
    assert json.loads(taetpu("tpu", "stop", "--dry-run", "--json").stdout) == {"job": name, "codes": {"0": None}}
    (over,) = json.loads(taetpu("tpu", "clean", "--dry-run", "--json").stdout)["would remove"]
    assert (there(hosts), [job["state"] for job in jobs.status(slice)[0]["jobs"]]) == before == (before[0], [*ENDS])
    assert json.loads(taetpu("tpu", "clean", "--json").stdout) == {"removed": [over]}
    stopped = json.loads(taetpu("tpu", "stop", "--json", "--grace", "5").stdout)
    assert stopped == {"job": name, "codes": {"0": 128 + signal.SIGTERM}}
    assert "remove data/x" in taetpu("tpu", "run", "--dry-run", "true").stdout.splitlines()
    assert taetpu("tpu", "stop").stderr == "no job runs on t\n"


ENDS = ("ended", "running")


@pytest.mark.slow
def test_a_detached_job_is_read_stopped_and_cleaned(ready, project):
    ready()
    (project / "wait.py").write_text("import time\nprint('up', flush=True)\ntime.sleep(600)\n")
    begun = taetpu("tpu", "run", "--detach", "python", "wait.py")
    name = begun.stderr.split("job ")[1].split()[0]
    until(lambda: taetpu("tpu", "logs").stdout == "up\n")
    again = taetpu("tpu", "run", "python", "show.py", code=2)
    assert again.stderr.startswith(f"error: t runs the job {name} already")
    assert f"{name} has ended: worker 0 with 143" in taetpu("tpu", "stop", "--grace", "5").stderr
    assert f"removed {name}" in taetpu("tpu", "clean").stderr
    assert taetpu("tpu", "logs", code=2).stderr.startswith("error: t has had no job yet")


@pytest.mark.slow
def test_ctrl_c_leaves_the_job_running(ready, project):
    ready()
    (project / "wait.py").write_text("import time\nprint('up', flush=True)\ntime.sleep(600)\n")
    with subprocess.Popen(
        command("tpu", "run", "python", "wait.py"), stdout=subprocess.PIPE, stderr=subprocess.PIPE
    ) as run:
        assert run.stdout.readline() == b"up\n"
        run.send_signal(signal.SIGINT)
        _, said = run.communicate(timeout=20)
    assert run.returncode == 130
    assert re.search(rb"goes on: `taetpu tpu logs -f \S+` reads it, `taetpu tpu stop \S+` ends it\n$", said)
    assert "143" in taetpu("tpu", "stop").stderr


@pytest.mark.slow
def test_a_command_by_ssh_has_its_own_code_and_arguments(ready, project):
    ready(2)
    done = taetpu(
        "tpu", "ssh", "--worker", "1", "--", "sh", "-c", 'echo "$TPU_WORKER_ID $1"; exit 4', "sh", "a  b", code=4
    )
    assert done.stdout == "1 a  b\n"
    told = "error: 'x' is no host\n  where:  --worker\n  remedy: a number from 0, or all\n"
    assert taetpu("tpu", "run", "--worker", "x", "--", "true", code=2).stderr == told
    assert taetpu("tpu", "ssh", "--worker", "7", code=2).stderr == "error: t has no worker 7\n  remedy: from 0 to 1\n"


@pytest.mark.slow
def test_a_port_of_the_host_is_brought_here(ready, project, hosts):
    """Whoever connects here is answered by a server on the machine."""
    import socket

    ready()
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    address = hosts.find("t-w0").metadata.address
    words = command("tpu", "ssh", "-L", f"{port}:{address}", "--", "sh", "-c", "echo in; read never")
    with subprocess.Popen(words, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as forwarding:
        assert forwarding.stdout.readline() == b"in\n"
        with socket.create_connection(("127.0.0.1", port), timeout=10) as ends:
            ends.sendall(b"GET / HTTP/1.0\r\n\r\n")
            assert b"computeMetadata/" in ends.makefile("rb").read()
        forwarding.kill()


@pytest.mark.slow
def test_sync_and_its_dry_run(ready, hosts, project):
    ready()
    assert "would change" in taetpu("tpu", "sync", "--dry-run").stderr
    assert there(hosts) == []
    assert "show.py" in taetpu("tpu", "sync").stdout
    assert there(hosts) == ALL


@pytest.mark.slow
def test_mount_keeps_folders_and_scrap_removes_what_is_named(ready, hosts, project):
    ready(2)
    taetpu("dev", "mount", "sub/other.py", "data")
    assert there(hosts) == there(hosts, "t-w1") == ["data/x", "sub/other.py"]
    again = taetpu("dev", "mount", "sub/other.py", "data")
    assert (again.stdout, again.stderr) == ("", "nothing to copy: it is there already, as it is here\n")
    taetpu("dev", "mount", "../show.py", cwd=project / "sub")
    assert there(hosts) == ["data/x", "show.py", "sub/other.py"]
    taetpu("dev", "scrap", "sub", "show.py", "--worker", "0")
    assert (there(hosts), there(hosts, "t-w1")) == (["data/x"], ["data/x", "show.py", "sub/other.py"])
    assert taetpu("dev", "scrap", "../..", code=2).stderr.startswith("error: '../..' is no path inside the folder")
    assert "nobody is here to agree" in taetpu("dev", "scrap", "--all", code=2, stdin=subprocess.DEVNULL).stderr
    taetpu("dev", "scrap", "--all", "--yes")
    assert there(hosts, "t-w1") == []
    assert taetpu("dev", "mount", code=2).stderr.startswith("error: which files are meant is not said")


@pytest.mark.slow
def test_each_file_has_its_own_arguments(ready, hosts, project):
    ready()
    words = ["show.py", "--lr", "a 'b' $c", "+", "sub/other.py", "-i", "--worker", "x", "+", "sub/fail.py"]
    done = taetpu("dev", "run", *words, code=3)
    assert done.stdout.splitlines() == ["""my work ['--lr', "a 'b' $c"]""", "my work ['-i', '--worker', 'x']"]
    assert there(hosts) == ["show.py", "sub/fail.py", "sub/other.py"]
    assert taetpu("dev", "run", "none.py", code=2).stderr.startswith("error: there is no such file")
    assert taetpu("dev", "run", code=2).stderr.startswith("error: what shall be run is not said")


AWKWARD = ["-x.py", 'it\'s a "file".py', "größe [1]*.py", "$(touch pwned).py", "a;b&c.py", "~t:.py"]


@pytest.mark.slow
@pytest.mark.parametrize("workers", [1, 2, 4])
def test_files_of_awkward_names_are_copied_run_and_removed_on_every_worker(ready, hosts, project, workers):
    ready(workers)
    names = [*AWKWARD, *(f"sub/deep er/{name}" for name in AWKWARD)]
    for name in names:
        (project / name).parent.mkdir(parents=True, exist_ok=True)
        (project / name).write_text(SHOW)
    words = [word for number, name in enumerate(names) for word in (name, f"arg {number}", "-i", "+")][:-1]
    done = taetpu("dev", "run", "--", *words)
    lines = [f"my work ['arg {number}', '-i']" for number in range(len(names))]
    marks = [""] if workers == 1 else [f"[{worker}] " for worker in range(workers)]
    assert sorted(done.stdout.splitlines()) == sorted(mark + line for mark in marks for line in lines)
    for worker in range(workers):
        assert there(hosts, f"t-w{worker}") == sorted(names)
    taetpu("dev", "mount", "--dry-run", "--", *names, "sub")
    taetpu("dev", "scrap", "--", *names)
    assert [there(hosts, f"t-w{worker}") for worker in range(workers)] == [[]] * workers
    assert not list(project.parent.rglob("pwned"))


@pytest.mark.slow
def test_a_folder_is_run_by_its_main(ready, project):
    ready()
    (project / "pack").mkdir()
    assert "there is none" in taetpu("dev", "run", "pack", code=2).stderr
    (project / "pack/part.py").write_text("NAME = 'part'")
    (project / "pack/__main__.py").write_text("import sys, part\nprint(part.NAME, sys.argv[1:])")
    assert taetpu("dev", "run", "pack", "--lr", "1").stdout == "part ['--lr', '1']\n"


@pytest.mark.slow
def test_a_dry_run_says_what_would_be_run_and_runs_nothing(ready, hosts, project):
    slice = ready(2)
    for command in ("run", "run-all"):
        done = taetpu("dev", command, "--dry-run", "sub/other.py", "a b", "+", "show.py")
        assert "copy sub/other.py" in done.stdout.splitlines()
        assert done.stdout.splitlines()[-2:] == ["run  python sub/other.py 'a b'", "run  python show.py"]
        where = f"in ~/{transfer.work(project)} on worker 0 of t, worker 1 of t"
        assert done.stderr == f"{where}; dry run: nothing was changed\n"
    assert not (hosts.find("t-w0").home / "work").exists()
    assert [host["jobs"] for host in jobs.status(slice).values()] == [[], []]


@pytest.mark.slow
def test_run_all_removes_its_files_however_it_went(ready, hosts, project):
    ready()
    taetpu("dev", "run-all", "sub/fail.py", code=3)
    assert there(hosts) == []
    assert taetpu("dev", "run-all", "show.py", "1").stdout == "my work ['1']\n"
    assert there(hosts) == []


@pytest.mark.slow
def test_run_all_leaves_its_files_to_a_job_that_goes_on(ready, hosts, project):
    ready()
    (project / "wait.py").write_text("import time\nprint('up', flush=True)\ntime.sleep(600)\n")
    words = command("dev", "run-all", "wait.py", "+", "show.py")
    with subprocess.Popen(words, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as run:
        assert run.stdout.readline() == "up\n"
        run.send_signal(signal.SIGINT)
        _, said = run.communicate(timeout=20)
    assert run.returncode == 130
    assert said.endswith("what was copied stays there: `taetpu dev scrap -- wait.py show.py` removes it\n")
    assert there(hosts) == ["show.py", "wait.py"]
    busy = taetpu("dev", "run-all", "show.py", code=2)
    assert busy.stderr.splitlines()[-2].startswith("error: t runs the job")
    assert there(hosts) == ["show.py", "wait.py"]


@pytest.mark.slow
def test_where_one_of_the_workers_fails_it_is_named(ready, project):
    ready(4)
    (project / "third.py").write_text("import os\nraise SystemExit(9 * (os.environ['TPU_WORKER_ID'] == '2'))\n")
    done = taetpu("dev", "run", "third.py", code=3)
    assert "worker 2 of t has ended with 9; others may still run, or wait for it" in done.stderr.splitlines()
    expected = "; ".join(f"worker {number}: ended with {9 * (number == 2)}" for number in range(4))
    assert done.stderr.endswith(f"did not end well: {expected}\n")


@pytest.mark.slow
def test_a_command_and_a_terminal_instead_of_files(ready, hosts, project):
    ready(2)
    assert taetpu("dev", "run", "--command", "--worker", "1", "printenv", "TPU_WORKER_ID").stdout == "1\n"
    done = taetpu("dev", "run", "-i", "sub/fail.py", code=5)
    assert done.stdout == ""
    asked = taetpu("dev", "run", "-i", "--command", "--", "python", "-c", "print(input())", input="typed\n")
    assert asked.stdout == "typed\n"
    (project / "wait.py").write_text("import time\ntime.sleep(600)\n")
    taetpu("dev", "run", "--detach", "wait.py")
    assert "runs the job" in taetpu("dev", "run", "-i", "show.py", code=2).stderr
    assert taetpu("dev", "run", "-i", "--beside", "show.py", "1").stdout == "my work ['1']\n"
    in_image = {**os.environ, "TAETPU_IMAGE": "r/i@sha256:0"}
    assert "jobs run in a container" in taetpu("dev", "run", "-i", "show.py", code=2, env=in_image).stderr
    assert "-i and --detach exclude each other" in taetpu("dev", "run", "-i", "-d", "show.py", code=2).stderr


@pytest.mark.slow
def test_debug_brings_logs_and_dumps_here(ready, project):
    ready()
    (project / "dump.py").write_text(
        "import os\nfolder = os.environ['XLA_FLAGS'].split()[0].split('=')[1]\nos.makedirs(folder)\n"
        "open(folder + '/module.txt', 'w').write(os.environ['TF_CPP_MIN_LOG_LEVEL'])\nprint('dumped')\n"
    )
    taetpu("dev", "run", "--debug", "dump.py")
    (job,) = (project / "taetpu-debug").iterdir()
    assert (job / "worker-0/xla/module.txt").read_text() == "0"
    assert (job / "worker-0/log").read_text() == "dumped\n"


@pytest.mark.slow
def test_what_a_detached_job_left_is_fetched_later_from_every_worker(ready, hosts, project):
    ready(2)
    (project / "dump.py").write_text(
        "import os\nopen(os.environ['TPU_LOG_DIR'] + '/tpu_driver.INFO', 'w').write('x')\n"
    )
    taetpu("dev", "run", "--detach", "--debug", "dump.py")
    taetpu("tpu", "logs", "--follow", "--debug", cwd=project / "sub")
    (job,) = (project / "sub/taetpu-debug").iterdir()
    assert [(job / f"worker-{number}/tpu_driver.INFO").read_text() for number in range(2)] == ["x", "x"]
    taetpu("tpu", "sync")
    assert there(hosts) == sorted([*ALL, "dump.py"]), "what was fetched is not sent back"


@pytest.mark.slow
def test_watch_sends_what_changes(ready, hosts, project):
    ready()
    with subprocess.Popen(command("dev", "sync", "--watch"), stdout=subprocess.DEVNULL) as watching:
        home = place(hosts, project)
        until((home / "show.py").exists)
        (project / "new.py").write_text("new")
        until((home / "new.py").exists)
        (project / "show.py").unlink()
        until(lambda: not (home / "show.py").exists())
        watching.send_signal(signal.SIGINT)
        assert watching.wait(20) == 130


@pytest.mark.slow
def test_watching_outlives_a_connection_that_is_lost(ready, hosts, project):
    ready()
    machine = hosts.find("t-w0")
    with subprocess.Popen(command("dev", "sync", "--watch"), stderr=subprocess.PIPE, text=True) as watching:
        home = place(hosts, project)
        until((home / "show.py").exists)
        for pid in [*children(machine.sshd.pid), machine.sshd.pid]:
            os.kill(pid, signal.SIGKILL)
        machine.sshd.wait()
        (project / "new.py").write_text("new")
        assert "trying again until it succeeds" in watching.stderr.readline()
        listen(machine)
        until((home / "new.py").exists)
        watching.send_signal(signal.SIGINT)
        assert watching.wait(20) == 130


def test_a_machine_that_went_away_is_unreachable_and_not_a_trace(ready, hosts, project):
    ready()
    hosts.halt("t-w0")
    done = taetpu("tpu", "logs", code=3)
    assert done.stderr.startswith("error: t does not answer, so that nothing can answer `jobs` there")
    assert "remedy: `taetpu tpu status` looks it up anew" in done.stderr


@pytest.mark.slow
def test_a_sync_says_what_it_did_and_a_scrap_what_is_not_there(ready, hosts, project):
    ready(2)
    target = transfer.work(project)
    many = len(ALL) + 2  # the folders
    assert taetpu("dev", "sync", "--dry-run").stderr == f"would change {many} paths of ~/{target}\n"
    assert taetpu("dev", "sync").stderr == f"changed {many} paths of ~/{target}\n"
    for words in (["dev", "sync", "--dry-run"], ["dev", "sync"], ["tpu", "sync"]):
        done = taetpu(*words)
        assert (done.stdout, done.stderr) == ("", f"~/{target} is as it is here already\n")
    for more in (["--dry-run"], []):
        none = taetpu("dev", "scrap", *more, "nothere.py")
        said = "nothere.py is not there, on no host of t, nor here: nothing of it is removed\n"
        assert (none.stdout, none.stderr) == ("", said)
    (place(hosts, project, "t-w1") / "show.py").unlink()
    some = taetpu("dev", "scrap", "--dry-run", "show.py", "nothere.py")
    assert some.stderr.splitlines() == [
        said.strip(),
        f"remove show.py from ~/{target} on 2 host(s) of t",
        "dry run: nothing was changed",
    ]
    (place(hosts, project) / "show.py").unlink()
    none = taetpu("dev", "scrap", "show.py")
    assert none.stderr == "show.py is not there, on no host of t: nothing of it is removed\n"

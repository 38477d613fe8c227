"""`taetpu tpu ssh | sync | run | logs | stop | clean` and `taetpu dev`, as a user gives them, on real hosts."""

import signal
import subprocess
import sys

import pytest
from tests.cloud.machines import until

SHOW = "import os, sys\nprint(os.getcwd().split('/work/')[1], sys.argv[1:], flush=True)\n"
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


def there(hosts, instance="t-w0"):
    base = hosts.find(instance).home / "work/my work"
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
    assert b"goes on: `taetpu tpu stop" in said
    assert "143" in taetpu("tpu", "stop").stderr


@pytest.mark.slow
def test_a_command_by_ssh_has_its_own_code_and_arguments(ready, project):
    ready(2)
    done = taetpu(
        "tpu", "ssh", "--worker", "1", "--", "sh", "-c", 'echo "$TPU_WORKER_ID $1"; exit 4', "sh", "a  b", code=4
    )
    assert done.stdout == "1 a  b\n"
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


def test_mount_keeps_folders_and_scrap_removes_what_is_named(ready, hosts, project):
    ready(2)
    taetpu("dev", "mount", "sub/other.py", "data")
    assert there(hosts) == there(hosts, "t-w1") == ["data/x", "sub/other.py"]
    taetpu("dev", "mount", "../show.py", cwd=project / "sub")
    assert there(hosts) == ["data/x", "show.py", "sub/other.py"]
    taetpu("dev", "scrap", "sub", "show.py", "--worker", "0")
    assert (there(hosts), there(hosts, "t-w1")) == (["data/x"], ["data/x", "show.py", "sub/other.py"])
    assert taetpu("dev", "scrap", "../..", code=2).stderr.startswith("error: '../..' is no path inside the folder")
    assert "nobody is here to agree" in taetpu("dev", "scrap", "--all", code=2, stdin=subprocess.DEVNULL).stderr
    taetpu("dev", "scrap", "--all", "--yes")
    assert there(hosts, "t-w1") == []
    assert taetpu("dev", "mount", code=2).stderr.startswith("error: which files are meant is not said")


def test_each_file_has_its_own_arguments(ready, hosts, project):
    ready()
    words = ["show.py", "--lr", "a 'b' $c", "+", "sub/other.py", "-i", "--worker", "x", "+", "sub/fail.py"]
    done = taetpu("dev", "run", *words, code=3)
    assert done.stdout.splitlines() == ["""my work ['--lr', "a 'b' $c"]""", "my work ['-i', '--worker', 'x']"]
    assert there(hosts) == ["show.py", "sub/fail.py", "sub/other.py"]
    assert taetpu("dev", "run", "none.py", code=2).stderr.startswith("error: there is no such file")
    assert taetpu("dev", "run", code=2).stderr.startswith("error: what shall be run is not said")


@pytest.mark.slow
def test_run_all_removes_its_files_however_it_went(ready, hosts, project):
    ready()
    taetpu("dev", "run-all", "sub/fail.py", code=3)
    assert there(hosts) == []
    assert taetpu("dev", "run-all", "show.py", "1").stdout == "my work ['1']\n"
    assert there(hosts) == []


@pytest.mark.slow
def test_a_command_and_a_terminal_instead_of_files(ready, hosts, project):
    ready(2)
    assert taetpu("dev", "run", "--command", "--worker", "1", "printenv", "TPU_WORKER_ID").stdout == "1\n"
    done = taetpu("dev", "run", "-i", "sub/fail.py", code=5)
    assert done.stdout == ""
    asked = taetpu("dev", "run", "-i", "--command", "--", "python", "-c", "print(input())", input="typed\n")
    assert asked.stdout == "typed\n"


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
def test_watch_sends_what_changes(ready, hosts, project):
    ready()
    with subprocess.Popen(command("dev", "sync", "--watch"), stdout=subprocess.DEVNULL) as watching:
        home = hosts.find("t-w0").home / "work/my work"
        until((home / "show.py").exists)
        (project / "new.py").write_text("new")
        until((home / "new.py").exists)
        (project / "show.py").unlink()
        until(lambda: not (home / "show.py").exists())
        watching.send_signal(signal.SIGINT)
        assert watching.wait(20) == 130


def test_a_machine_that_went_away_is_unreachable_and_not_a_trace(ready, hosts, project):
    ready()
    hosts.halt("t-w0")
    done = taetpu("tpu", "logs", code=3)
    assert done.stderr.startswith("error: t does not answer, so that nothing can answer `status` there")
    assert "remedy: `taetpu tpu status` looks it up anew" in done.stderr

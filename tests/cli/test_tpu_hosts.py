"""`taetpu tpu ssh | sync | run | logs | stop | clean | status` and `dev` on a machine with two hosts."""

import socket
import subprocess
import sys
import time
import urllib.request
from collections.abc import Callable
from pathlib import Path

import pytest
from tests.cli.conftest import Done, command
from tests.fake_google.cloud import FakeGoogle
from tests.fake_google.hosts import free_port

from taetpu.cloud.transfer import remote_folder

pytestmark = pytest.mark.slow

UP = ("tpu", "up", "tpu-me", "--type", "v4-16", "--zone", "us-central2-b", "--yes")


@pytest.fixture(scope="module")
def machine(shared_google: FakeGoogle) -> FakeGoogle:
    """A machine with two hosts."""
    made = subprocess.run(command(*UP), capture_output=True, text=True, check=False)
    assert made.returncode == 0, made.stderr
    return shared_google


@pytest.fixture
def project(machine: FakeGoogle, tmp_path: Path) -> Path:
    """A new project for each test."""
    folder = tmp_path / f"project-{tmp_path.name}"
    folder.mkdir()
    (folder / "show.py").write_text("import os, sys; print(sys.argv[1:], os.path.basename(os.getcwd()))\n")
    (folder / "fail.py").write_text("import sys; sys.exit(3)\n")
    (folder / "wait.py").write_text("import time; print('waiting', flush=True); time.sleep(600)\n")
    subprocess.run(["git", "init", "-q"], cwd=folder, check=True)
    (folder / ".gitignore").write_text("data/\n")
    (folder / "data").mkdir()
    (folder / "data" / "large.bin").write_text("ignored")
    return folder


@pytest.fixture
def call(project: Path) -> Callable[..., Done]:
    """`call(*words) -> Done`, in the project's folder."""

    def run(*words: str) -> Done:
        ended = subprocess.run(command(*words), cwd=project, capture_output=True, text=True, check=False, timeout=120)
        return Done(ended.returncode, ended.stdout, ended.stderr)

    return run


def copies(cloud: FakeGoogle, project: Path) -> list[set[str]]:
    """The files of the project on each host."""
    found = []
    for _, vm in sorted(cloud.hosts.vms.items()):
        roots = [path for path in (vm.home / "work").glob("*") if path.name.rpartition("-")[0] == project.name]
        paths = [path.relative_to(root).as_posix() for root in roots for path in root.rglob("*") if path.is_file()]
        found.append(set(paths))
    return found


def test_sync_copies_the_project_without_ignored_files(machine: FakeGoogle, project: Path, call):
    assert call("tpu", "sync").code == 0
    whole = {"show.py", "fail.py", "wait.py", ".gitignore"}
    assert copies(machine, project) == [whole, whole]
    (project / "fail.py").unlink()
    assert call("tpu", "sync", "--worker", "1").code == 0
    assert copies(machine, project) == [whole, whole - {"fail.py"}]


def test_command_runs_on_every_host_with_unchanged_words(project: Path, call):
    ran = call("tpu", "run", "python", "show.py", "--lr", "3e-4", "two words", "$HOME", "--help")
    assert ran.code == 0, ran.err
    work = Path(remote_folder(project)).name
    assert {line for line in ran.out.splitlines() if line.startswith("[")} == {
        f"[{worker}] ['--lr', '3e-4', 'two words', '$HOME', '--help'] {work}" for worker in (0, 1)
    }
    assert call("tpu", "run", "python", "fail.py").code == 3
    assert call("tpu", "run").code == 2
    assert call("tpu", "run", "--worker", "2", "ls").code == 2
    assert call("tpu", "run", "--worker", "one", "ls").code == 2


def test_job_is_listed_followed_stopped_and_cleaned(machine: FakeGoogle, project: Path, call):
    assert call("tpu", "run", "--detach", "python", "wait.py").code == 0
    hosts = call("tpu", "status", "--json").json()["hosts"]
    (name,) = {job["name"] for host in hosts.values() for job in host["jobs"] if job["state"] == "running"}
    second = call("tpu", "run", "python", "show.py")
    assert second.code == 2, "one job has the TPU"
    assert name in second.err
    follower = subprocess.Popen(
        command("tpu", "logs", "-f", name), cwd=project, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    )
    assert follower.stdout
    assert {follower.stdout.readline() for _ in range(2)} == {"[0] waiting\n", "[1] waiting\n"}
    stopped = call("tpu", "stop", name, "--grace", "5")
    assert stopped.code == 0
    follower.communicate(timeout=60)
    assert follower.returncode == 0, "the log ends with the job"
    assert call("tpu", "stop").err.startswith("no job is")
    assert name in call("tpu", "clean").err
    assert call("tpu", "status", "--json").json()["hosts"]["0"]["jobs"] == []
    assert call("tpu", "logs", name).code == 2


def test_ctrl_c_leaves_the_job_running(project: Path, call):
    job = subprocess.Popen(
        command("tpu", "run", "python", "wait.py"), cwd=project, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
        text=True,
    )  # fmt: skip
    assert job.stdout
    assert job.stdout.readline()
    while "waiting" not in job.stdout.readline():
        time.sleep(0.01)
    job.send_signal(2)
    _, err = job.communicate(timeout=60)
    assert job.returncode == 130, err
    assert "taetpu tpu stop" in err.splitlines()[-1]
    hosts = call("tpu", "status", "--json").json()["hosts"]
    assert all(any(one["state"] == "running" for one in host["jobs"]) for host in hosts.values())
    assert call("tpu", "stop").code == 0


def test_ssh_command_keeps_words_streams_and_exit_code(machine: FakeGoogle, call):
    done = call("tpu", "ssh", "--worker", "1", "--", "sh", "-c", "echo out; echo err >&2; exit 7")
    assert (done.code, done.out) == (7, "out\n")
    assert "err\n" in done.err
    assert call("tpu", "ssh", "--worker", "2", "true").code == 2


SERVE_ONCE = """
import http.server, os, sys
class Answer(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        self.send_response(200)
        self.end_headers()
        self.wfile.write(os.environ["HOME"].encode())
    def log_message(self, *words):
        pass
server = http.server.HTTPServer(("127.0.0.1", int(sys.argv[1])), Answer)
print("ready", flush=True)
server.handle_request()
"""


def test_a_forwarded_port_reaches_a_server_on_the_host_until_the_command_ends(machine: FakeGoogle, project: Path, call):
    here, there = free_port(), free_port()
    forward = f"{here}:localhost:{there}"
    serve = command("tpu", "ssh", "--worker", "1", "-L", forward, "--", "python3", "-c", SERVE_ONCE, there)
    with subprocess.Popen(serve, cwd=project, stdout=subprocess.PIPE, text=True) as serving:
        assert serving.stdout
        assert serving.stdout.readline() == "ready\n"
        refused = call("tpu", "ssh", "-L", forward, "true")
        assert (refused.code, f"port {here} " in refused.err) == (2, True), refused.err
        with urllib.request.urlopen(f"http://127.0.0.1:{here}", timeout=60) as page:
            home = page.read().decode()
        assert serving.wait(60) == 0
    assert {vm.worker: str(vm.home) for vm in machine.hosts.vms.values()}[1] == home
    with socket.socket() as probe:
        assert probe.connect_ex(("127.0.0.1", here)) != 0, "the port is closed"
    assert call("tpu", "ssh", "-L", "eight", "true").code == 2


def test_single_files_are_copied_run_and_deleted(machine: FakeGoogle, project: Path, call):
    (project / "pkg").mkdir()
    (project / "pkg" / "a.py").write_text("")
    assert call("dev", "mount", "show.py", "pkg").code == 0
    assert copies(machine, project) == [{"show.py", "pkg/a.py"}] * 2
    ran = call("dev", "run", "show.py", "1", "+", "show.py", "2")
    assert ran.code == 0, ran.err
    assert [line.split()[1] for line in ran.out.splitlines() if line.startswith("[0]")] == ["['1']", "['2']"]
    assert call("dev", "run-all", "fail.py").code == 3
    assert copies(machine, project) == [{"show.py", "pkg/a.py"}] * 2, "deleted after a failure too"
    assert call("dev", "scrap", "pkg").code == 0
    assert copies(machine, project) == [{"show.py"}] * 2
    assert call("dev", "scrap").code == 0
    assert copies(machine, project) == [set()] * 2
    assert (project / "pkg" / "a.py").exists()
    for words in (("dev", "run"), ("dev", "run", "absent.py"), ("dev", "mount", "absent.py"), ("dev", "run", "+")):
        wrong = call(*words)
        assert wrong.code == 2, (words, wrong.err)
        assert "Traceback" not in wrong.err
        assert "remedy" in wrong.err


@pytest.mark.nightly
def test_changes_are_copied_while_sync_watches(machine: FakeGoogle, project: Path):
    with subprocess.Popen(
        [sys.executable, "-m", "taetpu", "dev", "sync", "--watch"], cwd=project, stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT, text=True,
    ) as watching:  # fmt: skip
        wait_for(lambda: all("show.py" in files for files in copies(machine, project)))
        (project / "new.py").write_text("")
        wait_for(lambda: all("new.py" in files for files in copies(machine, project)))
        watching.send_signal(2)
        assert watching.wait(30) == 130


def wait_for(holds: Callable[[], bool], seconds: float = 60.0) -> None:
    end = time.monotonic() + seconds
    while not holds():
        assert time.monotonic() < end
        time.sleep(0.05)


def test_fetched_logs_are_not_sent_again(machine: FakeGoogle, project: Path, call):
    assert call("tpu", "run", "--debug", "python", "show.py").code == 0
    assert list((project / "taetpu-debug").glob("*/worker-1/log"))
    assert "taetpu-debug" not in call("tpu", "run", "python", "show.py").out
    assert not [name for names in copies(machine, project) for name in names if "taetpu-debug" in name]


def test_hosts_have_the_command_taetpu(call):
    """It is not installed in their environment, which has only the packages that taetpu requires."""
    ran = call("tpu", "run", "--worker", "0", "taetpu", "verify", "versions", "--json")
    assert ran.code == 0, ran.out + ran.err
    assert '"taetpu": ' in ran.out

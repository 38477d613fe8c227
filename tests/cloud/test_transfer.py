"""Files to hosts and back by the real rsync."""

import os
import shutil
import signal
import subprocess
import sys
import threading
from pathlib import Path

import pytest
from tests.cloud.conftest import until

from taetpu.cloud import ssh_errors, transfer
from taetpu.core.errors import UserError


@pytest.fixture
def project(tmp_path):
    """A git repository with files of awkward names, and with files that git ignores."""
    root = tmp_path / "my project"
    files = {
        "train.py": "1", "sub/deep/x.py": "2", "sub/it's (a) [b] $c *.py": "3", "naïve.py": "4",
        "big.csv": "data", "keep.csv": "kept", "runs/one/log": "local", "sub/secret.key": "key", "odd[1]*.tmp": "x",
    }  # fmt: skip
    for name, text in files.items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text(text)
    (root / ".gitignore").write_text("*.csv\n!keep.csv\nruns/\n*.tmp\n")
    (root / "sub/.gitignore").write_text("*.key\n")
    subprocess.run(["git", "init", "-q", str(root)], check=True)
    return root


SENT = [".gitignore", "keep.csv", "naïve.py", "sub/.gitignore", "sub/deep/x.py", "sub/it's (a) [b] $c *.py", "train.py"]


def there(hosts, target, instance="t-w0"):
    base = hosts.find(instance).home / target
    return sorted(str(path.relative_to(base)) for path in base.rglob("*") if path.is_file())


def test_a_sync_makes_every_host_the_same_and_leaves_what_git_ignores(boot, hosts, project):
    slice = boot(2)
    changed = transfer.sync(slice, project, "work/my project")
    assert {name for name in changed if not name.endswith("/")} == set(SENT)
    for instance in ("t-w0", "t-w1"):
        assert there(hosts, "work/my project", instance) == SENT
    assert transfer.sync(slice, project, "work/my project") == []


def test_what_is_gone_here_goes_there_but_results_stay(boot, hosts, project):
    slice = boot()
    transfer.sync(slice, project, "work/p")
    home = hosts.find("t-w0").home / "work/p"
    (home / "runs/two").mkdir(parents=True)  # written there, ignored by git, not here
    (home / "runs/two/result.json").write_text("precious")
    (home / "sub/late.key").write_text("ignored by the folder's own file")
    (home / "stray.py").write_text("neither here nor ignored")
    (project / "train.py").unlink()
    assert "deleting stray.py" in transfer.sync(slice, project, "work/p", dry_run=True)
    assert (home / "stray.py").exists()
    transfer.sync(slice, project, "work/p")
    left = [name for name in SENT if name != "train.py"]
    assert there(hosts, "work/p") == sorted([*left, "runs/two/result.json", "sub/late.key"])


def test_a_dry_run_makes_nothing(boot, hosts, project):
    slice = boot()
    would = transfer.sync(slice, project, "work/p", dry_run=True)
    assert "train.py" in would
    assert not (hosts.find("t-w0").home / "work").exists()


def test_named_files_keep_their_folders_and_nothing_else_is_touched(boot, hosts, project):
    slice = boot(2)
    paths = [project / "sub/it's (a) [b] $c *.py", project / "sub/deep", project / "big.csv"]
    transfer.send(slice, project, paths, "work/p")
    sent = [
        "big.csv",
        "sub/deep/x.py",
        "sub/it's (a) [b] $c *.py",
    ]  # a file that is named is sent though git ignores it
    assert there(hosts, "work/p", "t-w1") == sent
    transfer.send(slice, project, [project / "sub"], "work/p")
    assert there(hosts, "work/p") == ["big.csv", "sub/.gitignore", *sent[1:]]


def test_what_is_not_below_the_root_is_refused(boot, project, tmp_path):
    slice = boot()
    with pytest.raises(UserError, match="there is no such file or folder"):
        transfer.send(slice, project, [project / "none.py"], "work/p")
    (tmp_path / "outside").touch()
    with pytest.raises(UserError, match="this is not below"):
        transfer.send(slice, project, [tmp_path / "outside"], "work/p")


def test_scrap_removes_what_is_named_and_nothing_outside(boot, hosts, project):
    slice = boot()
    transfer.sync(slice, project, "work/p")
    transfer.scrap(slice, "work/p", ["sub/it's (a) [b] $c *.py", "naïve.py", "never-there"])
    assert there(hosts, "work/p") == [name for name in SENT if name not in ("naïve.py", "sub/it's (a) [b] $c *.py")]
    for outside in ("../x", "/etc/passwd", "a/../../b", ".", ""):
        with pytest.raises(UserError, match="is no path inside the folder"):
            transfer.scrap(slice, "work/p", [outside])
    transfer.scrap(slice, "work/p", [])
    assert not (hosts.find("t-w0").home / "work/p").exists()


def test_fetched_files_are_what_they_were(boot, hosts, tmp_path):
    slice = boot()
    source = hosts.find("t-w0").home / "a b" / "c"
    source.mkdir(parents=True)
    (source / "x y").write_bytes(b"\0\1")
    transfer.fetch(slice, 0, "a b", tmp_path / "got")
    assert (tmp_path / "got/c/x y").read_bytes() == b"\0\1"


def test_without_git_the_plain_lines_of_gitignore_hold(boot, hosts, project):
    shutil.rmtree(project / ".git")
    slice = boot()
    transfer.sync(slice, project, "work/p")
    assert "runs/one/log" not in there(hosts, "work/p")
    assert "sub/secret.key" not in there(hosts, "work/p")
    assert "train.py" in there(hosts, "work/p")


def test_a_transfer_that_was_cut_goes_on_where_it_was(boot, hosts, tmp_path):
    slice = boot()
    root = tmp_path / "p"
    root.mkdir()
    (root / "big").write_bytes(os.urandom(48 << 20))
    home = hosts.find("t-w0").home
    failed: list[Exception] = []

    def first() -> None:
        try:
            transfer.sync(slice, root, "work/p")
        except ssh_errors.Unreachable as error:
            failed.append(error)

    thread = threading.Thread(target=first)
    thread.start()

    def arriving() -> bool:
        return any(path.stat().st_size > 1 << 20 for path in (home / "work/p").glob(".big.*"))

    until(arriving)
    for pid in marked_rsync(hosts.find("t-w0").mark):
        os.kill(pid, signal.SIGTERM)
    thread.join(20)
    assert isinstance(failed[0], transfer.Cut)
    assert failed[0].problem.startswith("the connection to t broke off: ")
    assert failed[0].remedy == "give the same command again: what has arrived is not sent twice"
    (kept,) = (home / "work/p/.rsync-partial").iterdir()
    assert kept.stat().st_size > 1 << 20
    transfer.sync(slice, root, "work/p")
    assert (home / "work/p/big").read_bytes() == (root / "big").read_bytes()
    assert not (home / "work/p/.rsync-partial").exists()


def marked_rsync(mark: str) -> list[int]:
    found = []
    for pid in filter(str.isdigit, os.listdir("/proc")):
        try:
            text = Path("/proc", pid, "environ").read_bytes()
            if f"TAETPU_VM={mark}".encode() in text and Path("/proc", pid, "comm").read_text() == "rsync\n":
                found.append(int(pid))
        except OSError:
            continue
    return found


FULL = """
import os, sys
from pathlib import Path
from taetpu.cloud import jobs, ssh, ssh_errors, transfer
from taetpu.cloud.backends.base import Machine, State, Worker
from taetpu.cloud.fakes.hosts import LoopbackHosts
from taetpu.cloud.settings import Settings

disk, here = Path(sys.argv[1]), Path(sys.argv[2])
hosts = LoopbackHosts(disk)
address, port = hosts.boot("t-w0", 0, {"ssh-keys": f"taetpu:{ssh.public_key()}"})
machine = Machine("t", "z", "gce", "v6e-8", State.READY, workers=(Worker(address, port),))
slice = ssh.Slice.of(machine, "taetpu", Settings(project="p", external_ip=True))
(here / "big").write_bytes(os.urandom(8 << 20))
try:
    transfer.sync(slice, here, "work/p")
except ssh_errors.DiskFull as error:
    print(error)
(here / "big").write_bytes(os.urandom(2 << 20))
transfer.sync(slice, here, "work/p")
print("then", slice.run(0, ["cat", "work/p/big"]).ok)
slice.run(0, ["sh", "-c", "cat /dev/zero > ballast"])
print(type(ssh_errors.refusal(slice.run(0, ["sh", "-c", "echo x > small"]), "write")).__name__)
slice.close()
hosts.close()
"""


def test_a_disk_that_is_full_is_told_and_room_is_enough(hosts, tmp_path):
    """The machine lies on a small disk, mounted for one process and its children alone."""
    disk, here = tmp_path / "disk", tmp_path / "here"
    disk.mkdir()
    here.mkdir()
    mount = 'mount -t tmpfs -o size=5m tmpfs "$1" || exit 77; exec "$2" -c "$3" "$1" "$4"'
    words = [
        "unshare",
        "--mount",
        "--map-root-user",
        "sh",
        "-c",
        mount,
        "sh",
        str(disk),
        sys.executable,
        FULL,
        str(here),
    ]
    environment = {key: text for key, text in os.environ.items() if key != "TAETPU_FAKE_CLOUD"}
    environment["TAETPU_FAKE_CLOUD"] = "http://127.0.0.1:9"  # nobody is there: nothing is asked for
    done = subprocess.run(words, capture_output=True, text=True, check=False, env=environment, timeout=60)
    if done.returncode == 77 or done.stderr.startswith("unshare:"):
        pytest.skip(f"cannot mount a small disk: {done.stderr.strip()}")
    lines = done.stdout.splitlines()
    assert lines[0] == "the disk of t is full, so that it cannot receive files", done.stderr
    assert lines[1:] == [
        "  remedy: `taetpu tpu clean` removes old jobs; `taetpu tpu ssh` looks at the rest",
        "then True",
        "DiskFull",
    ]

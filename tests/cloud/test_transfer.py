"""Files to hosts and back by the real rsync."""

import os
import re
import shutil
import signal
import subprocess
import threading
from pathlib import Path

import pytest
from tests.cloud.machines import until

from taetpu.cloud import jobs, ssh_errors, transfer
from taetpu.core.errors import UserError


@pytest.fixture
def project(tmp_path):
    """A git repository with files of awkward names, and with files that git ignores."""
    root = tmp_path / "my project"
    files = {
        "train.py": "1", "sub/deep/x.py": "2", "sub/it's (a) [b] $c *.py": "3", "naïve.py": "4",
        "-rf.py": "5", "--delete": "6", "a:b.py": "7", "two\nlines.py": "8", " spaces ": "9",
        "big.csv": "data", "keep.csv": "kept", "runs/one/log": "local", "sub/secret.key": "key", "odd[1]*.tmp": "x",
        "two\nlines.tmp": "x", "end .tmp": "x", "-x.tmp": "x", "sub/taetpu-debug/job/log": "fetched",
    }  # fmt: skip
    for name, text in files.items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text(text)
    (root / ".gitignore").write_text("*.csv\n!keep.csv\nruns/\n*.tmp\n")
    (root / "sub/.gitignore").write_text("*.key\n")
    subprocess.run(["git", "init", "-q", str(root)], check=True)
    return root


SENT = [
    " spaces ", "--delete", "-rf.py", ".gitignore", "a:b.py", "keep.csv", "naïve.py", "sub/.gitignore", "sub/deep/x.py",
    "sub/it's (a) [b] $c *.py", "train.py", "two\nlines.py",
]  # fmt: skip


def there(hosts, target, instance="t-w0"):
    base = hosts.find(instance).home / target
    return sorted(str(path.relative_to(base)) for path in base.rglob("*") if path.is_file())


def test_a_sync_makes_every_host_the_same_and_leaves_what_git_ignores(boot, hosts, project):
    slice = boot(2)
    changed = transfer.sync(slice, project, "work/my project")
    told = {name.replace("\\#012", "\n") for name in changed if not name.endswith("/")}  # rsync's way of saying it
    assert told == set(SENT)
    for instance in ("t-w0", "t-w1"):
        assert there(hosts, "work/my project", instance) == SENT
    assert transfer.sync(slice, project, "work/my project") == []


@pytest.mark.slow
def test_what_was_sent_and_is_gone_here_goes_there_and_nothing_else(boot, hosts, project):
    slice = boot(2)
    transfer.sync(slice, project, "work/p")
    written = {"runs/two/result.json": "ignored by git", "stray.npz": "by nobody", "sub/late.key": "by sub/.gitignore"}
    written |= {"sub/deep/checkpoint": "in a folder that goes"}
    homes = [hosts.find(f"t-w{worker}").home / "work/p" for worker in range(2)]
    for home in homes:
        for name, text in written.items():
            (home / name).parent.mkdir(parents=True, exist_ok=True)
            (home / name).write_text(text)
    (homes[0] / "train.py").write_text("by a job, where a file of the project lies")
    shutil.rmtree(project / "sub/deep")
    (project / "naïve.py").unlink()
    would = transfer.sync(slice, project, "work/p", dry_run=True)
    assert {line for line in would if line.startswith("deleting ")} == {"deleting sub/deep/x.py", "deleting naïve.py"}
    assert there(hosts, "work/p") == sorted([*SENT, *written])
    transfer.sync(slice, project, "work/p")
    left = [name for name in SENT if name not in ("sub/deep/x.py", "naïve.py")]
    for instance in ("t-w0", "t-w1"):
        assert there(hosts, "work/p", instance) == sorted([*left, *written])
    assert (homes[0] / "train.py").read_text() == "1"
    transfer.sync(slice, project, "work/p")
    assert there(hosts, "work/p") == sorted([*left, *written]), "nor by a later one"


def test_every_awkward_name_that_is_gone_here_goes_there(boot, hosts, project):
    slice = boot()
    transfer.sync(slice, project, "work/p")
    home = hosts.find("t-w0").home / "work/p"
    (home / "sub/it's (a) [b] $c x.py").write_text("which a pattern would match")
    rules = [".gitignore", "sub/.gitignore"]
    for name in SENT:
        if name not in rules:
            (project / name).unlink()
    transfer.sync(slice, project, "work/p")
    assert there(hosts, "work/p") == sorted([*rules, "sub/it's (a) [b] $c x.py"])


@pytest.mark.slow
def test_what_is_kept_goes_with_a_later_sync_also_after_one_that_was_cut_off(boot, hosts, project):
    slice = boot()
    transfer.sync(slice, project, "work/p")
    (project / "train.py").unlink()
    transfer.sync(slice, project, "work/p", keep=True)
    assert there(hosts, "work/p") == SENT
    with (hosts.find("t-w0").home / transfer.SENT / "work/p").open("a") as noted:
        noted.write('["half a li')
    (project / "a:b.py").unlink()
    transfer.sync(slice, project, "work/p")
    assert there(hosts, "work/p") == [name for name in SENT if name not in ("train.py", "a:b.py")]


@pytest.mark.slow
def test_a_host_that_was_left_out_is_brought_up_to_date_by_its_own_list(boot, hosts, project):
    slice = boot(2)
    transfer.sync(slice, project, "work/p")
    (project / "train.py").unlink()
    transfer.sync(slice, project, "work/p", workers=[0])
    assert "train.py" in there(hosts, "work/p", "t-w1")
    assert "deleting train.py" in transfer.sync(slice, project, "work/p")
    assert there(hosts, "work/p", "t-w1") == there(hosts, "work/p")


@pytest.mark.slow
def test_a_file_becomes_a_folder_and_a_folder_a_file(boot, hosts, project):
    slice = boot()
    transfer.sync(slice, project, "work/p")
    shutil.rmtree(project / "sub/deep")
    (project / "sub/deep").write_text("a file")
    (project / "train.py").unlink()
    (project / "train.py").mkdir()
    (project / "train.py/x").touch()
    transfer.sync(slice, project, "work/p")
    names = {"sub/deep", "train.py/x", *SENT} - {"sub/deep/x.py", "train.py"}
    assert there(hosts, "work/p") == sorted(names)


@pytest.mark.slow
def test_what_was_named_goes_with_a_sync_once_it_is_gone_here(boot, hosts, project):
    slice = boot()
    transfer.send(slice, project, [project / "train.py", project / "big.csv"], "work/p")
    transfer.sync(slice, project, "work/p")
    assert "big.csv" in there(hosts, "work/p"), "git ignores it, and it is here"
    (project / "train.py").unlink()
    transfer.sync(slice, project, "work/p")
    assert there(hosts, "work/p") == sorted([*(name for name in SENT if name != "train.py"), "big.csv"])


def test_two_folders_of_one_name_and_two_computers_have_places_of_their_own(tmp_path, monkeypatch):
    def place(home: str, folder: str) -> str:
        monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / home))
        return transfer.work(tmp_path / folder)

    places = [place(home, folder) for home in ("mine", "yours") for folder in ("a/hello", "b/hello")]
    assert len({*places}) == 4
    assert all(re.fullmatch("work/hello-[0-9a-f]{6}", one) for one in places)
    assert place("mine", "a/../a/hello") == places[0], "and it stays"


def test_a_dry_run_makes_nothing(boot, hosts, project):
    slice = boot()
    would = transfer.sync(slice, project, "work/p", dry_run=True)
    assert "train.py" in would
    assert not (hosts.find("t-w0").home / "work").exists()


def test_named_files_keep_their_folders_and_nothing_else_is_touched(boot, hosts, project):
    slice = boot(2)
    names = ["sub/it's (a) [b] $c *.py", "sub/deep", "big.csv", "-rf.py", "--delete", "a:b.py"]
    transfer.send(slice, project, [project / name for name in names], "work/p")
    sent = ["--delete", "-rf.py", "a:b.py", "big.csv", "sub/deep/x.py", "sub/it's (a) [b] $c *.py"]
    assert there(hosts, "work/p") == sent, "what is named is sent though git ignores it"
    assert there(hosts, "work/p", "t-w1") == sent
    transfer.send(slice, project, [project / "sub"], "work/p")
    assert there(hosts, "work/p") == sorted([*sent, "sub/.gitignore"])


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
    doomed = ["sub/it's (a) [b] $c *.py", "naïve.py", "-rf.py", "--delete", " spaces ", "two\nlines.py"]
    transfer.scrap(slice, "work/p", [*doomed, "never-there"])
    assert there(hosts, "work/p") == [name for name in SENT if name not in doomed]
    for outside in ("../x", "/etc/passwd", "a/../../b", ".", ""):
        with pytest.raises(UserError, match="is no path inside the folder"):
            transfer.scrap(slice, "work/p", [outside])
    transfer.scrap(slice, "work/p", [])
    assert not (hosts.find("t-w0").home / "work/p").exists()


@pytest.mark.slow
def test_more_ignored_files_than_a_command_line_holds(boot, hosts, tmp_path):
    """`data/*` with `!data/.keep`, as many projects have it, makes git name every single one."""
    root = tmp_path / "p"
    (root / "data").mkdir(parents=True)
    (root / ".gitignore").write_text("data/*\n!data/.keep\n")
    (root / "data/.keep").touch()
    subprocess.run(["git", "init", "-q", str(root)], check=True)
    for number in range(os.sysconf("SC_ARG_MAX") // 200):
        (root / "data" / f"{number:0200d}").touch()
    slice = boot()
    transfer.sync(slice, root, "work/p")
    assert there(hosts, "work/p") == [".gitignore", "data/.keep"]


@pytest.mark.slow
def test_fetched_files_are_what_they_were(boot, hosts, tmp_path):
    slice = boot()
    source = hosts.find("t-w0").home / "a b" / "c"
    source.mkdir(parents=True)
    (source / "x y").write_bytes(b"\0\1")
    transfer.fetch(slice, 0, "a b", tmp_path / "got")
    assert (tmp_path / "got/c/x y").read_bytes() == b"\0\1"


@pytest.mark.slow
def test_without_git_the_plain_lines_of_gitignore_hold(boot, hosts, project):
    shutil.rmtree(project / ".git")
    slice = boot()
    transfer.sync(slice, project, "work/p")
    assert "runs/one/log" not in there(hosts, "work/p")
    assert "sub/secret.key" not in there(hosts, "work/p")
    assert "train.py" in there(hosts, "work/p")


@pytest.mark.slow
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


WRITE = "with open('small', 'w') as file: file.write('x' * 10_000)"
MOUNT = 'mount -t tmpfs -o size=5m tmpfs "$1" || exit 77; cd "$1"; echo mounted; exec sleep 600'


@pytest.fixture
def small(ready, hosts):
    """A machine whose home is a disk of 5 MB, mounted where its logins alone see it."""
    slice = ready()
    machine = hosts.find("t-w0")
    words = ["unshare", "--mount", "--map-root-user", "sh", "-c", MOUNT, "sh", str(machine.home)]
    try:
        holder = subprocess.Popen(words, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    except FileNotFoundError:
        pytest.skip("no `unshare` to mount a small disk with")
    with holder:
        if holder.stdout.readline() != "mounted\n":
            pytest.skip(f"cannot mount a small disk: {holder.stderr.read().strip()}")
        enter = f"nsenter -t {holder.pid} --user --mount --preserve-credentials"
        (machine.folder / "real").write_text((machine.folder / "login").read_text())
        (machine.folder / "real").chmod(0o755)
        (machine.folder / "login").write_text(f"#!/bin/bash\nexec {enter} {machine.folder}/real\n")
        yield slice
        holder.kill()


@pytest.mark.slow
def test_a_disk_that_is_full_is_told_and_room_is_enough(small, tmp_path):
    (tmp_path / "big").write_bytes(os.urandom(8 << 20))
    with pytest.raises(ssh_errors.DiskFull) as error:
        transfer.send(small, tmp_path, [tmp_path / "big"], "work/p")
    assert error.value.problem == "the disk of t is full, so that it cannot receive files"
    assert error.value.remedy.startswith("`taetpu tpu clean` removes old jobs")
    (tmp_path / "big").write_bytes(os.urandom(1 << 20))
    transfer.send(small, tmp_path, [tmp_path / "big"], "work/p")
    assert small.run(0, ["stat", "-c", "%s", "work/p/big"]).out == f"{1 << 20}\n"
    filling = jobs.start(small, jobs.Asked([["sh", "-c", "cat /dev/zero >ballast; exit 7"]]))
    until(lambda: jobs.job(small, filling)[0]["state"] == "ended")
    assert jobs.job(small, filling)[0]["rc"] == 7  # for which room was kept
    found = ssh_errors.refusal(small.run(0, ["python3", "-c", WRITE]), "write a word")
    assert isinstance(found, ssh_errors.DiskFull)
    assert "so that it cannot write a word" in found.problem
    with pytest.raises(ssh_errors.DiskFull, match="the disk of t is full, so that it cannot start the job"):
        jobs.start(small, jobs.Asked([["true"]]))


def test_a_whole_home_folder_is_no_project(tmp_path, monkeypatch):
    monkeypatch.setenv("HOME", str(tmp_path))
    with pytest.raises(UserError, match="this is no project that could be copied to a TPU"):
        transfer.project(tmp_path)
    (tmp_path / "study").mkdir()
    assert transfer.project(tmp_path / "study") == tmp_path / "study"
    (tmp_path / "study/taetpu.toml").touch()
    (tmp_path / "study/sub").mkdir()
    assert transfer.project(tmp_path / "study/sub") == tmp_path / "study"

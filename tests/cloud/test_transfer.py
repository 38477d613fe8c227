"""Transfers to hosts with a real sshd and back: ignored files stay here, deletions here apply there."""

import os
import shutil
import subprocess
from pathlib import Path

import pytest
from tests.fake_google.cloud import FakeGoogle

from taetpu.cloud import transfer
from taetpu.cloud.ssh import Hosts, Unreachable
from taetpu.core.errors import UserError

pytestmark = pytest.mark.slow


@pytest.fixture
def project(tmp_path: Path) -> Path:
    """Return a project in a git repository."""
    root = tmp_path / "my project"
    root.mkdir()
    subprocess.run(["git", "init", "-q", str(root)], check=True)
    files = {"a.py": "1", "deep/b's \u00e4.txt": "2", ".gitignore": "*.bin\nout/\n", "big.bin": "x", "out/log": "x"}
    for name, text in files.items():
        (root / name).parent.mkdir(exist_ok=True)
        (root / name).write_text(text)
    (root / "link").symlink_to("a.py")
    return root


def there(google: FakeGoogle, folder: str) -> set[str]:
    """Return the files of a folder on the host."""
    root = google.hosts.vms["box", 0].home / folder
    return {path.relative_to(root).as_posix() for path in root.rglob("*") if not path.is_dir()}


SENT = {"a.py", "deep/b's \u00e4.txt", ".gitignore", "link"}


def test_a_sync_sends_what_git_does_not_ignore_and_deletes_only_what_it_sent(
    hosts: Hosts, google: FakeGoogle, project: Path
) -> None:
    folder = transfer.remote_folder(project)
    assert set(transfer.sync(hosts, project, folder, hosts.all)) >= SENT
    assert there(google, folder) == SENT
    home = google.hosts.vms["box", 0].home / folder
    assert (home / "link").is_symlink()
    (home / "result.json").write_text("written by a job")
    (project / "a.py").unlink()
    (project / "deep/b's \u00e4.txt").unlink()
    (project / "new.py").write_text("3")
    changed = transfer.sync(hosts, project, folder, hosts.all)
    assert "deleting a.py" in changed
    assert there(google, folder) == {".gitignore", "link", "new.py", "result.json"}
    assert not (home / "deep").exists()
    assert transfer.sync(hosts, project, folder, hosts.all) == []


def test_while_a_job_runs_nothing_is_deleted(hosts: Hosts, google: FakeGoogle, project: Path) -> None:
    folder = transfer.remote_folder(project)
    transfer.sync(hosts, project, folder, hosts.all)
    (project / "a.py").unlink()
    transfer.sync(hosts, project, folder, hosts.all, keep=True)
    assert there(google, folder) == SENT
    transfer.sync(hosts, project, folder, hosts.all)
    assert there(google, folder) == SENT - {"a.py"}


def test_a_transfer_that_was_cut_off_is_completed(
    hosts: Hosts, google: FakeGoogle, project: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (project / "large").write_bytes(os.urandom(8_000_000))
    real = transfer.subprocess.run

    def cut(words, *arguments, **options):
        if "rsync" in str(words[0]):  # a slow line, whose connection is lost after a moment
            process = subprocess.Popen([*words[:1], "--bwlimit=2000", *words[1:]], stderr=subprocess.PIPE)
            subprocess.run(["sleep", "1.5"], check=True)
            subprocess.run([*hosts.ssh(0, "-O", "exit")], capture_output=True, check=False)
            process.wait()
            assert process.stderr
            err = process.stderr.read().decode(errors="replace")
            process.stderr.close()
            return subprocess.CompletedProcess(words, process.returncode, "", err)
        return real(words, *arguments, **options)

    folder = transfer.remote_folder(project)
    monkeypatch.setattr(transfer.subprocess, "run", cut)
    with pytest.raises(Unreachable) as raised:
        transfer.sync(hosts, project, folder, hosts.all)
    assert "same command again" in str(raised.value.remedy)
    monkeypatch.setattr(transfer.subprocess, "run", real)
    transfer.sync(hosts, project, folder, hosts.all)
    home = google.hosts.vms["box", 0].home / folder
    assert (home / "large").read_bytes() == (project / "large").read_bytes()
    assert there(google, folder) == SENT | {"large"}


def test_fetch_and_delete(hosts: Hosts, google: FakeGoogle, project: Path, tmp_path: Path) -> None:
    folder = transfer.remote_folder(project)
    transfer.sync(hosts, project, folder, hosts.all)
    transfer.fetch(hosts, 0, folder, tmp_path / "here")
    assert (tmp_path / "here" / "a.py").read_text() == "1"
    transfer.delete(hosts, folder, ["deep"], hosts.all)
    assert there(google, folder) == {"a.py", ".gitignore", "link"}
    for path in ("../x", "/etc", "a/../../b"):
        with pytest.raises(UserError, match="outside"):
            transfer.delete(hosts, folder, [path], hosts.all)
    transfer.delete(hosts, folder, [], hosts.all)
    assert not (google.hosts.vms["box", 0].home / folder).exists()
    assert (project / "a.py").exists()


def test_a_home_folder_is_not_a_project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    below = tmp_path / "notes"
    below.mkdir()
    assert transfer.project_folder(below) == below
    (tmp_path / "taetpu.toml").write_text("")
    with pytest.raises(UserError, match="home folder"):
        transfer.project_folder(below)


@pytest.mark.parametrize("git", [True, False])
def test_files_fetched_from_hosts_are_not_listed(project: Path, git: bool) -> None:
    if not git:
        shutil.rmtree(project / ".git")
    for folder in (project, project / "below"):
        (folder / transfer.FETCHED / "0101").mkdir(parents=True)
        (folder / transfer.FETCHED / "0101" / "log").write_text("fetched")
        (folder / "mine.py").write_text("")
    names = transfer.list_files(project)
    assert {"mine.py", "below/mine.py"} <= set(names)
    assert not [name for name in names if transfer.FETCHED in name]

"""Fixtures: a store in an empty folder and one in a bucket, a study and a run in each, and scripts run in processes of
their own.
"""

import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from hypothesis import settings

from taetpu.store.backend import LocalStore, Store, open_store
from taetpu.store.runs import RunFolder
from taetpu.store.study import StudyFolder

settings.register_profile("shared machine", deadline=None)
settings.load_profile("shared machine")


@pytest.fixture
def local(tmp_path: Path) -> LocalStore:
    return LocalStore(tmp_path / "root")


@pytest.fixture(params=["local", "gs"])
def root(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """Return the root of a store: a local folder, or a folder in a bucket."""
    return str(tmp_path / "root") if request.param == "local" else request.getfixturevalue("gs_root")


@pytest.fixture
def store(root: str) -> Store:
    return open_store(root)


@pytest.fixture
def study(store: Store) -> StudyFolder:
    return StudyFolder(store, "what-matters")


@pytest.fixture
def run(study: StudyFolder) -> RunFolder:
    return study.run("heads=8", 3, "0123456789abcdef")


@pytest.fixture
def start() -> Iterator[Callable[..., subprocess.Popen[str]]]:
    """Return a function that starts a Python script. The process is killed at the end of the test."""
    started: list[subprocess.Popen[str]] = []

    def begin(script: str, *arguments: object) -> subprocess.Popen[str]:
        command = [sys.executable, "-c", script, *map(str, arguments)]
        process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
        started.append(process)
        return process

    yield begin
    for process in started:
        with process:
            process.kill()


@pytest.fixture
def on_mount(tmp_path: Path) -> Callable[[str, str], str]:
    """Return a function that runs a script and returns its output. The script's first argument is a tmpfs.

    Only the script sees the tmpfs. The test is skipped if the machine does not allow mounts (see tests/SKIPPED.md).
    """
    folder = tmp_path / "mount"
    inside = 'mount -t tmpfs -o "$1" tmpfs "$2" || exit 77; shift; folder=$1; shift; exec "$@" "$folder"'

    def run_script(options: str, script: str) -> str:
        folder.mkdir()
        command = ["unshare", "--mount", "--map-root-user", "sh", "-c", inside, "sh", options, str(folder)]
        try:
            done = subprocess.run([*command, sys.executable, "-c", script], capture_output=True, text=True, check=False)
        except FileNotFoundError:
            pytest.skip("no `unshare` to mount a small disk with")
        if done.returncode == 77 or done.stderr.startswith("unshare:"):
            pytest.skip(f"cannot mount a small disk: {done.stderr.strip()}")
        assert done.returncode == 0, done.stderr
        return done.stdout

    return run_script

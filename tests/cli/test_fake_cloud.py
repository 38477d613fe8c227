"""`taetpu dev fake-cloud`: however it ends, what it runs ends with it, and nothing lies about afterwards."""

import os
import signal
import subprocess
import sys
from contextlib import suppress
from pathlib import Path

import pytest
from tests.cloud.machines import skip_without_machines, until

from taetpu.cloud.fakes.ending import belonging
from taetpu.cloud.vm.machine.processes import find

ENDS = {signal.SIGTERM: 143, signal.SIGHUP: 129, signal.SIGKILL: -9}


@pytest.fixture
def begun(tmp_path, monkeypatch):
    """`begun(script)`: a fake cloud that runs a script; and the address that the script's first line said."""
    skip_without_machines()
    (tmp_path / "tmp").mkdir()
    (tmp_path / "project").mkdir()
    for name in ("TMPDIR", "HOME"):
        monkeypatch.setenv(name, str(tmp_path / "tmp"))
    for name in [name for name in os.environ if name.startswith("TAETPU_")]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("TAETPU_OWNER", "me")
    monkeypatch.setenv("TAETPU_CACHE", str(tmp_path / "cache"))
    processes = []

    def begin(script):
        words = [sys.executable, "-m", "taetpu", "dev", "fake-cloud", "--"]
        words += ["bash", "-c", f"echo $TAETPU_FAKE_CLOUD; {script}"]
        fake = subprocess.Popen(
            words, cwd=tmp_path / "project", stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
            text=True, start_new_session=True,
        )  # fmt: skip
        processes.append(fake)
        assert fake.stdout
        line = next(line for line in fake.stdout if line.startswith("http"))
        return fake, line.strip()

    yield begin
    for fake in processes:
        fake.kill()
        fake.communicate()


def folders(tmp_path):
    return list((tmp_path / "tmp").glob("taetpu-*"))


def naming(folder):
    """Processes with a folder in their words: the fake's own watcher, and every sshd."""
    own = os.fsencode(folder)
    words = {}
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        with suppress(OSError):
            words[int(path.parent.name)] = path.read_bytes()
    return [pid for pid, found in words.items() if own in found]


@pytest.mark.slow
@pytest.mark.parametrize("number", ENDS, ids=lambda number: number.name)
def test_a_signal_ends_the_command_too(begun, tmp_path, number):
    fake, address = begun("trap '' TERM; sleep 1000 & setsid sleep 1000 & echo begun; wait; sleep 1000")
    next(line for line in fake.stdout if line == "begun\n")
    (folder,) = folders(tmp_path)
    assert len(belonging(address, folder)) >= 3
    fake.send_signal(number)
    fake.communicate(timeout=30)
    assert fake.returncode == ENDS[number]
    until(lambda: not folders(tmp_path) and not naming(folder), seconds=20)
    assert belonging(address, folder) == []


@pytest.mark.slow
@pytest.mark.parametrize("number", ENDS, ids=lambda number: number.name)
def test_a_signal_ends_machines_too(begun, tmp_path, number):
    up = f"{sys.executable} -m taetpu tpu up --type v6e-8 --zone us-east5-b --yes"
    ssh = f"{sys.executable} -m taetpu tpu run --detach sleep 1000"
    fake, address = begun(f"{up} && {ssh} && echo begun; sleep 1000")
    said = []
    for line in fake.stdout:
        said.append(line)
        if line == "begun\n":
            break
    else:
        pytest.fail("".join(said))
    (folder,) = folders(tmp_path)
    command = belonging(address, folder, machines=False)
    before = [pid for pid in belonging(address, folder) if pid not in command]
    assert len(before) >= 3, "sshd, the guard and the job"
    assert len(naming(folder)) >= 2, "sshd and the watcher"
    fake.send_signal(number)
    fake.communicate(timeout=30)
    assert fake.returncode == ENDS[number]
    until(lambda: not folders(tmp_path) and not naming(folder), seconds=20)
    assert belonging(address, folder) == []
    assert [pid for pid in before if find(pid)] == []


@pytest.mark.parametrize(("words", "problem"), [
    (["no-such-program"], "'no-such-program' cannot be run: No such file or directory"),
    (["/"], "'/' cannot be run: Permission denied"),
])  # fmt: skip
def test_what_cannot_be_run_is_said(process, tmp_path, words, problem):
    done = process("dev", "fake-cloud", "--", *words, TMPDIR=str(tmp_path))
    assert done.code == 2
    assert f"error: {problem}" in done.err
    assert "remedy: a program and its arguments" in done.err
    assert "Traceback" not in done.err
    assert list(tmp_path.glob("taetpu-*")) == []


def test_the_commands_exit_code_is_handed_on(begun, tmp_path):
    for script, code in (("exit 7", 7), ("kill -9 $$", 137)):
        fake, _ = begun(script)
        out = fake.stdout.read()
        assert fake.wait(timeout=30) == code
        assert "nothing is left in the fake cloud" in out
    assert folders(tmp_path) == []

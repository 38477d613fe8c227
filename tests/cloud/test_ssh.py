"""Hosts by ssh: commands, their codes and arguments; what is wrong is told as what it is."""

import os
import stat
import subprocess
import threading
import time
from pathlib import Path

import pytest
from tests.cloud.machines import SETTINGS, until

from taetpu.cloud import ssh, ssh_config, ssh_errors
from taetpu.cloud.fakes.hosts import Trouble
from taetpu.core.errors import UserError

NASTY = ["a b", "$(touch pwned)", "`id`", "it's", 'say "hi"', "a;b", "*", "", "\\", "-n", "line\nbreak", "ümlaut", "!x"]
SHOW = ["python3", "-c", "import sys, json; print(json.dumps(sys.argv[1:]))"]


@pytest.mark.parametrize("workers", [1, 2, pytest.param(4, marks=pytest.mark.slow)])
def test_every_worker_is_itself(boot, workers):
    slice = boot(workers)
    ended = slice.everywhere(["sh", "-c", "echo $TPU_WORKER_ID; pwd"])
    assert [done.out.split() for done in ended] == [[str(n), str(_home(slice, n))] for n in range(workers)]


def _home(slice, worker):
    return Path(slice.run(worker, ["sh", "-c", "echo $HOME"]).out.strip())


def test_no_shell_sees_an_argument(boot):
    import json

    slice = boot()
    done = slice.run(0, [*SHOW, *NASTY])
    assert json.loads(done.out) == NASTY
    assert not (_home(slice, 0) / "pwned").exists()


def test_the_commands_own_code_is_told_even_where_it_is_sshs(boot):
    slice = boot(2)
    ended = slice.everywhere(["sh", "-c", "echo out; echo err >&2; exit $((TPU_WORKER_ID ? 7 : 255))"])
    assert [(done.rc, done.out, done.err) for done in ended] == [(254, "out\n", "err\n"), (7, "out\n", "err\n")]
    assert all(done.reached for done in ended)
    with pytest.raises(ssh_errors.CommandFailed, match=r"worker 0 of t could not try \(exit code 254\): err") as error:
        ssh.together(ended, "try")
    assert "workers 1 failed too" in error.value.problem


def test_a_host_that_is_off_is_unreachable_and_the_others_answer(boot, hosts):
    slice = boot(2)
    hosts.halt("t-w1")
    ended = slice.everywhere(["true"])
    assert [done.rc for done in ended] == [0, 255]
    with pytest.raises(ssh_errors.Unreachable) as error:
        ssh.together(ended, "begin")
    assert error.value.problem.startswith("worker 1 of t does not answer, so that nothing can begin there")
    assert error.value.exit_code == 3
    heard = slice.run(1, ["true"], fresh=True)
    assert "no machine 't-w1' is on" in heard.err  # what the tunnel says is heard on a connection of its own


def test_a_power_cut_ends_a_command_that_is_running(boot, hosts):
    slice = boot()
    ended = []
    thread = threading.Thread(target=lambda: ended.append(slice.run(0, ["sh", "-c", "touch on; sleep 60"])))
    thread.start()
    until((_vm(hosts).home / "on").exists)
    hosts.halt("t-w0")
    thread.join(10)
    assert ended[0].rc == ssh_errors.NO_CONNECTION


def _vm(hosts, instance="t-w0"):
    found = hosts.find(instance)
    assert found is not None
    return found


def test_a_host_that_hangs_is_told_apart(boot):
    slice = boot()
    begun = time.monotonic()
    done = slice.run(0, ["sleep", "60"], timeout=0.5)
    assert time.monotonic() - begun < 5
    found = ssh_errors.refusal(done, "begin")
    assert isinstance(found, ssh_errors.Hung)
    assert "t took the command to begin and gave no answer in time" in found.problem


def test_a_machine_that_was_made_again_has_another_key_and_is_believed(boot):
    slice = boot(created="1")
    assert slice.run(0, ["true"]).ok
    assert boot(created="2").run(0, ["true"]).ok


def test_another_key_on_the_same_machine_is_refused(boot, hosts):
    slice = boot(created="1")
    assert slice.run(0, ["true"]).ok
    before = (slice.folder / "known_hosts").read_text()
    slice = boot(created="1")
    done = slice.run(0, ["true"])
    found = ssh_errors.refusal(done, "begin")
    assert isinstance(found, ssh_errors.OtherKey)
    assert "another host key than before" in found.problem
    assert (slice.folder / "known_hosts").read_text() == before


def test_a_key_that_the_machine_does_not_know_is_refused(boot, hosts):
    slice = boot()
    (_vm(hosts).folder / "authorized_keys").write_text("")
    found = ssh_errors.refusal(slice.run(0, ["true"]), "begin")
    assert isinstance(found, ssh_errors.KeyRefused)
    assert "the computer that made it" in (found.remedy or "")


def test_sshd_that_comes_late_is_reached_then(boot, hosts):
    hosts.troubles["*"] = Trouble(ssh=threading.Event())
    slice = boot()
    assert slice.run(0, ["true"]).rc == ssh_errors.NO_CONNECTION
    hosts.troubles["*"].ssh.set()
    until(lambda: slice.run(0, ["true"]).ok)


def test_the_key_is_made_once_and_is_its_owners_alone(hosts):
    made: list[str] = []
    threads = [threading.Thread(target=lambda: made.append(ssh_config.public_key())) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(set(made)) == 1
    assert made[0].startswith("ssh-ed25519 ")
    (private,) = Path(os.environ["XDG_STATE_HOME"]).rglob("id_ed25519")
    assert stat.S_IMODE(private.stat().st_mode) == 0o600


@pytest.mark.slow
def test_sockets_have_short_paths_whatever_the_state_folder_is(boot, hosts, monkeypatch, tmp_path):
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "so long a name" / ("x" * 120)))
    slice = boot()
    assert slice.run(0, ["true"]).ok
    asked = subprocess.run([*slice.ssh(0, "-O", "check")], capture_output=True, text=True, check=False)
    assert "Master running" in asked.stderr


def test_a_slice_is_known_without_asking_until_it_is_forgotten(boot):
    slice = boot(2)
    known = ssh.Slice.known("t", SETTINGS)
    assert known == slice
    assert known.run(1, ["true"]).ok
    ssh.forget("t")
    assert ssh.Slice.known("t", SETTINGS) is None
    assert not slice.folder.exists()


@pytest.mark.slow
def test_a_worker_that_there_is_not(boot):
    with pytest.raises(UserError, match="t has no worker 2") as error:
        boot(2).check(2)
    assert error.value.remedy == "from 0 to 1"


REAL = """\
  HostName t-w0
  Port 22
  User taetpu
"""


def test_on_the_real_cloud_a_host_is_reached_through_the_proxy_or_by_its_address(hosts, monkeypatch):
    from taetpu.cloud.backends.base import Machine, State, Worker

    monkeypatch.delenv("TAETPU_FAKE_CLOUD")
    machine = Machine("t", "us-east5-b", "gce", "v6e-8", State.READY, workers=(Worker("10.0.0.2", instance="t-w0"),))
    through = (ssh.Slice.of(machine, "taetpu", SETTINGS).folder / "config").read_text()
    assert REAL in through
    tunnel = "ProxyCommand gcloud compute start-iap-tunnel t-w0 22 --listen-on-stdin --zone=us-east5-b"
    assert f"{tunnel} --project=fake-project" in through
    direct = ssh.Slice.of(machine, "taetpu", SETTINGS.model_copy(update={"external_ip": True}))
    text = (direct.folder / "config").read_text()
    assert "HostName 10.0.0.2" in text
    assert "ProxyCommand" not in text

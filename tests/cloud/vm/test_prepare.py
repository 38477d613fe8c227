"""A machine from its first boot to the moment when jobs can run on it."""

import os
import re
import subprocess
import threading
from dataclasses import replace

import pytest
from tests.cloud.machines import QUICK, SETTINGS, SPEC, of, until
from tests.cloud.test_jobs import read

from taetpu.cloud import jobs, ssh_errors, vm
from taetpu.cloud.fakes.hosts import Trouble


def boot_with(boot, workers=1, **changed):
    spec = replace(of(workers), **{"idle_minutes": None, **changed})
    return boot(workers, startup=vm.startup(spec, SETTINGS)), spec


@pytest.mark.parametrize("workers", [1, pytest.param(2, marks=pytest.mark.slow)])
def test_a_prepared_machine_runs_the_package_that_is_here(boot, hosts, workers):
    slice, spec = boot_with(boot, workers)
    said: list[str] = []
    vm.prepare(slice, spec, said.append, QUICK)
    assert "setting up the environment" in said
    name = jobs.start(slice, jobs.Asked([["python", "-m", "taetpu", "--version"]]))
    lines = read(slice, name, follow=True)
    assert len(lines) == workers
    assert all(re.search(r"taetpu \d", line) for line in lines)
    where = jobs.start(slice, jobs.Asked([["python", "-c", "import taetpu; print(taetpu.__file__)"]]))
    assert ".taetpu/src/taetpu/__init__.py" in read(slice, where, follow=True)[0]


@pytest.mark.slow
def test_preparing_again_brings_nothing_new(boot, hosts):
    slice, spec = boot_with(boot)
    vm.prepare(slice, spec, lambda line: None, QUICK)
    package = hosts.find("t-w0").home / ".taetpu/src/taetpu"
    before = {path: path.stat().st_ctime_ns for path in package.rglob("*.py")}
    assert before
    vm.prepare(slice, spec, lambda line: None, QUICK)
    assert {path: path.stat().st_ctime_ns for path in package.rglob("*.py")} == before


def test_running_is_not_ready(boot, hosts):
    """sshd comes up late, and the startup-script is done later still."""
    hosts.troubles["*"] = Trouble(ssh=threading.Event(), script="")
    slice = boot()
    said: list[str] = []
    preparing = threading.Thread(target=vm.prepare, args=(slice, SPEC, said.append, QUICK))
    preparing.start()
    until(lambda: "waiting for worker 0 (does not answer)" in said)
    hosts.troubles["*"].ssh.set()
    until(lambda: "waiting for worker 0 (its startup-script runs)" in said)
    assert preparing.is_alive()
    (hosts.find("t-w0").private / "ready").touch()
    preparing.join(30)
    assert not preparing.is_alive()


@pytest.mark.slow
def test_a_key_that_comes_late_is_waited_for(boot, hosts):
    """The image's own agent writes keys down when it has read them, which may be after sshd is up."""
    slice, spec = boot_with(boot)
    keys = hosts.find("t-w0").folder / "authorized_keys"
    there = keys.read_text()
    keys.write_text("")
    said: list[str] = []
    preparing = threading.Thread(target=vm.prepare, args=(slice, spec, said.append, QUICK))
    preparing.start()
    until(lambda: "waiting for worker 0 (does not answer)" in said)
    keys.write_text(there)
    preparing.join(30)
    assert not preparing.is_alive()
    assert "setting up the environment" in said


def test_waiting_ends_where_it_is_in_vain(boot, hosts):
    slice = boot()
    hosts.halt("t-w0")

    def check() -> None:
        raise vm.NotSetUp("t was lost while it was set up: it is PREEMPTED")

    with pytest.raises(vm.NotSetUp, match="it is PREEMPTED"):
        vm.prepare(slice, SPEC, lambda line: None, QUICK, check=check)


def test_a_startup_script_that_fails_is_told_though_the_machine_runs(boot, hosts):
    script = 'cd "$TAETPU_VM_ROOT"; echo "E: Unable to locate package rsync" >startup.log; echo no apt >failed'
    hosts.troubles["t-w1"] = Trouble(script=script)
    slice, spec = boot_with(boot, 2)
    with pytest.raises(vm.NotSetUp) as error:
        vm.prepare(slice, spec, lambda line: None, QUICK)
    told = "the startup-script of worker 1 of t failed: no apt | E: Unable to locate package rsync"
    assert error.value.problem == told
    assert error.value.exit_code == 3


@pytest.mark.slow
def test_a_startup_script_that_never_ends_is_told(boot, hosts):
    hosts.troubles["*"] = Trouble(script="sleep 600")
    slice = boot()
    with pytest.raises(vm.NotSetUp, match="the startup-script of t is not done after 1 s"):
        vm.prepare(slice, SPEC, lambda line: None, replace(QUICK, ready=1.0))


def test_a_machine_that_never_answers_is_told_with_what_the_tunnel_says(boot, hosts):
    slice = boot()
    hosts.halt("t-w0")
    with pytest.raises(ssh_errors.Unreachable, match="no machine 't-w0' is on"):
        vm.prepare(slice, SPEC, lambda line: None, replace(QUICK, ready=0.2))


@pytest.mark.slow
def test_another_host_key_is_not_waited_for(boot, hosts):
    slice, spec = boot_with(boot)
    until(lambda: slice.run(0, ["true"]).ok)
    slice, spec = boot_with(boot)
    with pytest.raises(ssh_errors.OtherKey):
        vm.prepare(slice, spec, lambda line: None, QUICK)


UV = """\
#!/bin/sh
echo "$@" >>"$HOME/uv"
case "$*" in *--requirements*) cp "$HOME/.taetpu/held" "$HOME/.taetpu/wanted" "$HOME" ;; esac
"""


@pytest.mark.slow
def test_the_environment_is_installed_once_for_each_set_of_requirements(boot, hosts, tmp_path):
    """`uv` is a stub that writes down what it was asked for: nothing is downloaded in a test."""
    stub = tmp_path / "bin" / "uv"
    stub.parent.mkdir()
    stub.write_text(UV)
    stub.chmod(0o755)
    hosts.troubles["*"] = Trouble(environment={"PATH": f"{stub.parent}:{os.environ['PATH']}"})
    slice, spec = boot_with(boot)
    home = hosts.find("t-w0").home
    (home / ".taetpu/environment").unlink()
    for _ in range(2):
        vm.prepare(slice, spec, lambda line: None, QUICK)
    asked = (home / "uv").read_text().splitlines()
    assert [line.split(" --")[0] for line in asked] == ["venv", "pip install", "pip install"]
    assert asked[0].endswith(f"--python {vm.python_version()} {home}/.taetpu/venv")
    held = (home / "held").read_text().splitlines()
    assert all(re.fullmatch(r"[\w.-]+==\S+", line) for line in held)
    assert any(line.startswith("jax==") for line in held)
    assert "jax[tpu]" in (home / "wanted").read_text().splitlines()


def test_an_image_is_fetched_with_the_machines_own_token(boot, hosts, tmp_path):
    """`docker` is a stub that writes down what it was asked for: it is not installed here."""
    stub = tmp_path / "bin" / "docker"
    stub.parent.mkdir()
    stub.write_text('#!/bin/sh\necho "$@" >>"$HOME/docker"\n[ "$1" != login ] || cat >>"$HOME/docker"\n')
    stub.chmod(0o755)
    hosts.troubles["*"] = Trouble(environment={"PATH": f"{stub.parent}:{os.environ['PATH']}"})
    image = "us-docker.pkg.dev/p/r/i@sha256:0"
    slice, spec = boot_with(boot, image=image)
    vm.prepare(slice, spec, lambda line: None, QUICK)
    login = "login -u oauth2accesstoken --password-stdin https://us-docker.pkg.dev"
    asked = (hosts.find("t-w0").home / "docker").read_text().splitlines()
    assert asked == ["info", login, "fake-token", f"pull --quiet {image}"]


def test_the_startup_script_fits_into_metadata_and_is_bash(tmp_path):
    script = vm.startup(of(4), SETTINGS)
    assert len(script.encode()) < 256 * 1024  # the limit of a value in metadata
    (tmp_path / "s").write_text(script)
    subprocess.run(["bash", "-n", str(tmp_path / "s")], check=True)
    for needed in ("systemctl", "apt-get", "instance/preempted"):
        assert needed in script

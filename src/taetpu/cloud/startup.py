"""Prepare a machine for jobs, from its first boot.

A machine runs `startup.sh` as root at each boot. The script starts the timer that deletes the machine, and installs
rsync. `prepare` waits for the script and installs taetpu, with the same versions of packages as on this computer. The
script and the installation have not been tested with apt, systemd and uv on a real machine.
"""

import shlex
import sys
import time
from collections.abc import Callable
from importlib.metadata import Distribution, PackageNotFoundError, distribution, requires, version
from importlib.resources import files
from importlib.util import find_spec
from pathlib import Path

from taetpu.cloud import names_and_labels, transfer
from taetpu.cloud.gcloud import CloudError, OutcomeUnknown
from taetpu.cloud.machine_api import Machine, Spec
from taetpu.cloud.settings import Settings
from taetpu.cloud.ssh import CommandResult, Hosts, RemoteFailed, Unreachable
from taetpu.core.errors import UserError

OPTIONAL = ("pyarrow",)
"""Packages that machines get if this computer has them: studies may read their formats."""
READY_CHECK = """\
state="${STATE_DIRECTORY:-/var/lib/taetpu}"
if [ -f "$state/failed" ]; then cat "$state/failed"; exit 3; fi
[ -f "$state/ready" ] || exit 4
"""
FAILED = 3
PULL = """\
set -eu
docker=docker; docker info >/dev/null 2>&1 || docker="sudo -n docker"
gcloud auth print-access-token | $docker login -u oauth2accesstoken --password-stdin "https://${1%%/*}"
$docker pull --quiet "$1"
"""


class NotSetUp(CloudError):
    """A running machine cannot be set up."""

    exit_code = 3


def startup_script(spec: Spec, zone: str, settings: Settings) -> str:
    """Return the startup script of a machine, which bash runs as root at every boot."""
    values = {
        "name": spec.name, "project": settings.project, "zone": zone, "api": spec.api, "image": settings.image,
        "minutes": f"{spec.hours * 60:.0f}", "latest": spec.labels()[names_and_labels.EXPIRES],
        "idle": str(settings.idle_minutes if spec.tpu.hosts == 1 else 0),
    }  # fmt: skip
    lines = [f"{key}={shlex.quote(value)}" for key, value in values.items()]
    return "\n".join(["#!/bin/bash", *lines, _script("startup.sh")])


def _script(name: str) -> str:
    return files("taetpu.cloud").joinpath(name).read_text(encoding="utf-8")


def _installed_package() -> Distribution:
    """Return the metadata of taetpu on this computer.

    Raises:
        UserError: if taetpu is not installed.
    """
    try:
        return distribution("taetpu")
    except PackageNotFoundError:
        raise UserError("taetpu is not installed", remedy="Run `pip install 'taetpu[gcp]'`.") from None


def prepare(machine: Machine, settings: Settings, tell: Callable[[str], None]) -> Hosts:
    """Wait until all hosts of a machine are ready, install the software for jobs, and return the hosts.

    A repeated call performs only the missing steps.

    Raises:
        Unreachable: if a host does not answer within `ready_minutes`.
        NotSetUp: if a startup script fails or takes longer than `ready_minutes`.
        CloudError: if the environment cannot be installed.
    """
    end = time.monotonic() + settings.ready_minutes * 60
    hosts = _connect(machine, settings, end)
    _wait(hosts, settings, end, tell)
    transfer.mirror(hosts, Path(str(files("taetpu"))), ".taetpu/src/taetpu")
    package = _installed_package()
    about = package.read_text("METADATA") or f"Name: taetpu\nVersion: {package.version}\n"
    ended = hosts.run_all(["sh", "-c", _script("install.sh"), "install", package.version], stdin=lambda _: about)
    hosts.require_success(ended, "install taetpu")
    if settings.image:
        tell(f"pulling {settings.image}")
        hosts.require_success(hosts.run_all(["sh", "-c", PULL, "pull", settings.image]), "pull the image")
        return hosts
    tell("installing Python packages")
    python, needed = f"{sys.version_info.major}.{sys.version_info.minor}", requirements()
    ended = hosts.run_all(["sh", "-c", _script("environment.sh"), "environment", python], stdin=lambda _: needed)
    hosts.require_success(ended, "install Python packages")
    return hosts


def requirements() -> str:
    """Return taetpu's requirements on a TPU, an empty line, and the package versions installed on this computer.

    Raises:
        UserError: if taetpu is not installed, so that its requirements are unknown.
    """
    from packaging.requirements import Requirement

    def needed(package: str, extras: tuple[str, ...] = ()) -> list[Requirement]:
        listed = [Requirement(text) for text in requires(package) or []]
        cases = [{"extra": extra} for extra in ("", *extras)]
        return [
            requirement
            for requirement in listed
            if not requirement.marker or any(requirement.marker.evaluate(case) for case in cases)
        ]

    _installed_package()
    direct, pinned = needed("taetpu"), dict[str, str]()
    more = ["google-cloud-storage", *(name for name in OPTIONAL if find_spec(name))]
    waiting = [*direct, *map(Requirement, more)]
    while waiting:
        requirement = waiting.pop()
        if requirement.name.lower() not in pinned:
            try:
                pinned[requirement.name.lower()] = version(requirement.name)
            except PackageNotFoundError:  # the package is for another platform
                continue
            waiting += needed(requirement.name, tuple(requirement.extras))
    first = [*(requirement.name for requirement in direct if requirement.name != "jax"), "jax[tpu]", *more]
    return "\n".join([*sorted(first), "", *(f"{name}=={pinned[name]}" for name in sorted(pinned))]) + "\n"


def _connect(machine: Machine, settings: Settings, end: float) -> Hosts:
    """Wait until the hosts of a machine have booted and reported their names, and return the hosts."""
    while True:
        try:
            return Hosts.configure(machine, settings.user, settings.project)
        except (Unreachable, OutcomeUnknown):
            if time.monotonic() > end:
                raise
        time.sleep(settings.poll_seconds)


def _wait(hosts: Hosts, settings: Settings, end: float, tell: Callable[[str], None]) -> None:
    """Wait until every host accepts ssh and has finished its startup script."""
    missing, last = list(hosts.all), ""
    while True:
        ended = hosts.run_all(["sh", "-c", READY_CHECK], limit=30.0, workers=missing)
        for result in ended:
            if result.code == FAILED:
                problem = f"the startup script of {hosts.describe(result.worker)} failed: {result.out.strip()}"
                remedy = f"Read /var/lib/taetpu/startup.log with `taetpu tpu ssh --tpu {hosts.name}`."
                raise NotSetUp(problem, remedy=remedy)
        waiting = [result for result in ended if result.code != 0]
        if not waiting:
            return
        missing = [result.worker for result in waiting]
        now = ", ".join(f"{hosts.describe(result.worker)}: {_describe(result)}" for result in waiting)
        if now != last:
            tell(now)
            last = now
        if time.monotonic() > end:
            error = hosts.failure(waiting[0], "become ready")
            if isinstance(error, RemoteFailed):
                raise NotSetUp(f"not ready after {settings.ready_minutes:g} min: {now}")
            raise error
        time.sleep(settings.poll_seconds)


def _describe(ended: CommandResult) -> str:
    return "startup script running" if ended.code == 4 else "no ssh connection yet"

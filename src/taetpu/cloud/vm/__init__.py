"""A TPU machine from its first boot to the moment when jobs can run on it: `startup` is what it runs by itself,
`prepare` waits for that and brings the rest. What is done on a real machine alone (apt, systemd, uv) has only been read
about, never run.
"""

import json
import shlex
from collections.abc import Callable
from importlib.resources import files
from pathlib import Path
from typing import TYPE_CHECKING

from taetpu.cloud import agents
from taetpu.cloud.agents import ANSWER, PRIVATE
from taetpu.cloud.errors import CloudError
from taetpu.cloud.spec import Spec
from taetpu.core.errors import UserError

if TYPE_CHECKING:
    from taetpu.cloud.project import Waits
    from taetpu.cloud.settings import Settings
    from taetpu.cloud.ssh import Slice

MACHINE = ("__init__", "processes", "jobs", "supervisor", "agent", "cloud", "neighbours", "guard")
LOOK = (
    f'p="{PRIVATE}"; if [ -f "$p/failed" ]; then cat "$p/failed"; tail -n 5 "$p/startup.log"; exit 3; fi; '
    '[ -f "$p/ready" ] || exit 4'
)
"""A host's state: 0 ready, 3 its startup-script has failed, 4 not yet."""
FAILED, NOT_YET = 3, 4


class NotSetUp(CloudError):
    """A machine runs, and cannot be set up."""

    exit_code = 3


def startup(spec: Spec, settings: "Settings") -> str:
    """The startup-script of each host of a spec: bash, run as root at every boot."""
    facts = {
        "stack": spec.stack, "project": settings.project, "backend": spec.backend, "hours": spec.hours,
        "idle_minutes": spec.idle_minutes, "hosts": spec.tpu.hosts,
    }  # fmt: skip
    here = files("taetpu.cloud.vm")
    parts = ["#!/bin/bash", f'private="{PRIVATE}"', f"image={shlex.quote(spec.image)}", 'mkdir -p "$private/machine"']
    parts.append(_written("facts.json", json.dumps(facts)))
    for name in MACHINE:
        text = here.joinpath("machine", f"{name}.py").read_text(encoding="utf-8")
        parts.append(_written(f"machine/{name}.py", text))
    parts.append(here.joinpath("startup.sh").read_text(encoding="utf-8"))
    return "\n".join(parts)


def prepare(
    slice: "Slice", spec: Spec, tell: Callable[[str], None], waits: "Waits | None" = None,
    check: Callable[[], None] = lambda: None,
) -> None:  # fmt: skip
    """Make every host of a slice ready for jobs. Given again, it does only what is missing.

    Args:
        check: raises where waiting is in vain; asked now and then.

    Raises:
        Unreachable: a host does not answer in time.
        NotSetUp: a startup-script failed, or is not done in time though the API calls the machine running.
        CloudError: the environment could not be installed, or the package not copied.
    """
    from taetpu.cloud import ssh, transfer
    from taetpu.cloud.project import Waits

    _await(slice, waits or Waits.here(), tell, check)
    if spec.image:
        tell(f"fetching the image {spec.image}")
        ssh.together(slice.everywhere(["sh", "-c", PULL, "pull", spec.image]), "fetch the image")
    else:
        tell("setting up the environment")
        script = files("taetpu.cloud.vm").joinpath("environment.sh").read_text(encoding="utf-8")
        command = ["sh", "-c", script, "environment", python_version()]
        ssh.together(slice.everywhere(command, input=requirements()), "set up its environment")
    package = Path(str(files("taetpu")))
    transfer.mirror(slice, package, ".taetpu/src/taetpu")
    _introduce(slice)


def python_version() -> str:
    """This interpreter's, `3.11`: programs are pinned to what runs here."""
    import sys

    return f"{sys.version_info.major}.{sys.version_info.minor}"


def requirements() -> str:
    """What taetpu needs on a TPU, then an empty line, then the version of everything that it needs here.

    Raises:
        UserError: taetpu is not installed, so that its requirements are not known.
    """
    from importlib.metadata import PackageNotFoundError, requires, version

    from packaging.requirements import Requirement

    def needed(package: str, extras: tuple[str, ...] = ()) -> list[Requirement]:
        found = [Requirement(text) for text in requires(package) or []]
        wanted = [{"extra": extra} for extra in ("", *extras)]
        return [one for one in found if not one.marker or any(one.marker.evaluate(case) for case in wanted)]

    try:
        own, held = needed("taetpu"), {}
    except PackageNotFoundError:
        raise UserError("taetpu is not installed here", remedy="pip install 'taetpu[gcp]'") from None
    waiting = [*own, Requirement("google-cloud-storage")]
    while waiting:
        one = waiting.pop()
        if one.name.lower() not in held:
            try:
                held[one.name.lower()] = version(one.name)
            except PackageNotFoundError:  # for another platform than this
                continue
            waiting += needed(one.name, tuple(one.extras))
    first = [one.name for one in own if one.name != "jax"] + ["jax[tpu]", "google-cloud-storage"]
    return "\n".join([*sorted(first), "", *(f"{name}=={held[name]}" for name in sorted(held))]) + "\n"


# The registry takes the token of the machine's service account; the login lasts as long as the token.
PULL = """\
set -eu
docker=docker; docker info >/dev/null 2>&1 || docker="sudo -n docker"
url=http://${GCE_METADATA_HOST:-metadata.google.internal}/computeMetadata/v1/instance/service-accounts/default/token
token=$(curl -sf -H "Metadata-Flavor: Google" "$url" | sed 's/.*"access_token": *"\\([^"]*\\)".*/\\1/')
case $1 in
  *-docker.pkg.dev/*) echo "$token" | $docker login -u oauth2accesstoken --password-stdin "https://${1%%/*}" ;;
esac
$docker pull --quiet "$1"
"""


def _await(slice: "Slice", waits: "Waits", tell: Callable[[str], None], check: Callable[[], None]) -> None:
    """Wait until every host answers and its startup-script is done."""
    from taetpu.cloud import ssh, ssh_errors

    missing, said, last = list(slice.all), "", []
    for _ in waits.until(waits.ready):
        last = [one for one in slice.everywhere(["sh", "-c", LOOK], timeout=ANSWER, workers=missing) if not one.ok]
        for done in last:
            if done.rc == FAILED:
                problem = f"the startup-script of {done.place} failed: {' | '.join(done.out.strip().splitlines())}"
                remedy = f"/var/lib/taetpu/startup.log has all of it: `taetpu tpu ssh --tpu {slice.stack}`"
                raise NotSetUp(problem, remedy=remedy)
            if done.reached and done.rc != NOT_YET:
                ssh.together([done], "say whether it is ready")
            found = None if done.reached else ssh_errors.refusal(done, "be set up")
            if isinstance(found, ssh_errors.OtherKey):
                raise found
        missing = [done.worker for done in last]
        if not missing:
            return
        now = f"waiting for {', '.join(f'worker {done.worker} ({_state(done.rc)})' for done in last)}"
        if now != said:
            tell(now)
            said = now
        check()
    if last[0].reached:
        problem = f"the startup-script of {last[0].place} is not done after {waits.ready:.0f} s"
        raise NotSetUp(problem, remedy="the same command waits again; `taetpu tpu ssh` looks at it")
    # Once more with a connection of its own: what a tunnel complains of is heard only so.
    again = slice.run(last[0].worker, ["true"], timeout=ANSWER, fresh=True)
    raise ssh_errors.refusal(again if not again.ok else last[0], "be set up") or AssertionError


def _state(rc: int | None) -> str:
    return "its startup-script runs" if rc == NOT_YET else "does not answer"


def _introduce(slice: "Slice") -> None:
    """Tell the hosts of a slice of each other, for their guards."""
    from taetpu.cloud import ssh

    if len(slice.workers) == 1:
        return
    url = '"http://${GCE_METADATA_HOST:-metadata.google.internal}/computeMetadata/v1/instance/network-interfaces/0/ip"'
    ask = f'a=$(curl -sf -H "Metadata-Flavor: Google" {url}) && echo "$a:$(cat "{PRIVATE}/port")"'
    told = ssh.together(slice.everywhere(["sh", "-c", ask], timeout=ANSWER), "tell its address")
    addresses = [done.out.strip() for done in told]
    agents.ask(slice, "write", {"path": "neighbours.json", "text": json.dumps(addresses)})


def _written(name: str, text: str) -> str:
    """Lines of a shell script that write a file of the private folder."""
    return f"cat >\"$private/{name}\" <<'TAETPU_END'\n{text.rstrip()}\nTAETPU_END"

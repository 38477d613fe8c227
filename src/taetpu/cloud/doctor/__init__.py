"""Whether everything is there that a TPU needs, from this machine to the project: looked at, never changed.

`local` looks at this machine, `keys` for key files, `project` and `network` ask Google's APIs, `holdings` tells what
is there already, `dotenv` takes over the settings of the TAETPU scripts.
"""

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from email.utils import parsedate_to_datetime
from pathlib import Path

from taetpu.cloud.backends.base import Machine
from taetpu.cloud.clients import Clients
from taetpu.cloud.doctor import holdings, keys, local, network, project
from taetpu.cloud.doctor.check import Check, fails, offered, ok, skipped, warning
from taetpu.cloud.errors import Transient
from taetpu.cloud.rest import UNANSWERED, ask
from taetpu.cloud.settings import Settings
from taetpu.core.errors import UserError

__all__ = ["Check", "checks"]

ASKED = ("clock", "project", "billing", "APIs", "permissions", "quota", "firewall", "addresses", "bucket", "machines")
"""Checks that need an answer of Google's."""
LATE, WRONG = 10.0, 300.0
"""Seconds that this clock may be off before it is worth a word, and before it breaks things."""


def checks(
    folder: Path, environment: Mapping[str, str], machines: Callable[[Clients], Sequence[Machine]]
) -> Iterator[Check]:
    """Every check in turn, those of this machine first.

    Args:
        machines: every TPU machine of the project.
    """
    settings, check = local.settings(folder, environment)
    yield check
    yield from local.owner(settings)
    yield from local.account(settings)
    yield from keys.checks(folder)
    signed_in = local.credentials(environment, settings)
    yield signed_in
    yield from local.tools(settings, environment)
    installed = local.libraries()
    yield installed
    why = ""
    if settings is None:
        why = "the settings cannot be read"
    elif not settings.project:
        why = "no project is named"
    elif installed.status == "fails":
        why = "Google's libraries are not installed"
    elif signed_in.status == "fails":
        why = "nobody is signed in"
    if settings is None or why:
        yield from (skipped(name, why) for name in ASKED)
    else:
        yield from _asked(settings, machines)


def _asked(settings: Settings, machines: Callable[[Clients], Sequence[Machine]]) -> Iterator[Check]:
    """What Google's APIs tell of the project; all of it is skipped where nothing answers or there is no project."""
    try:
        clients = Clients(settings.project)
        told = ask(clients, "cloudresourcemanager", f"/v3/projects/{settings.project}", doing="reading the project")
    except UserError as error:
        if isinstance(error, Transient):
            offline = " (is this machine offline?)" if error.facts == UNANSWERED else ""
            yield from (skipped(name, f"{error.problem}{offline}") for name in ASKED)
            return
        yield skipped("clock", "the API told no time")
        yield project.unreadable(settings.project, error)
        if "services enable" not in offered(error):  # another API may answer though this one is not enabled
            yield from (skipped(name, f"{settings.project} cannot be read") for name in ASKED[2:])
            return
        clients = Clients(settings.project)
    else:
        yield _clock(told.date)
        yield project.state(settings.project, told.data)
    yield from guarded("billing", lambda: [project.billing(clients)])
    yield from guarded("APIs", lambda: [project.services(clients, settings)])
    yield from guarded("permissions", lambda: project.permissions(clients, settings))
    yield from guarded("quota", lambda: [holdings.quota(clients, settings)])
    yield from guarded("firewall", lambda: network.firewall(clients, settings))
    yield from guarded("addresses", lambda: network.addresses(clients, settings))
    yield from guarded("bucket", lambda: [holdings.bucket(clients, settings)])
    yield from guarded("machines", lambda: [holdings.machines(machines(clients), settings)])


def guarded(name: str, look: Callable[[], Sequence[Check]]) -> Sequence[Check]:
    """What a look comes to; skipped with the reason where it is refused."""
    try:
        return look()
    except UserError as error:
        command = offered(error)
        return [skipped(name, error.problem, "" if command else error.remedy or "", command)]


def _clock(date: str) -> Check:
    """This machine's clock against the API's, which labels of expiry go by (`Clients.now`)."""
    try:
        skew = time.time() - parsedate_to_datetime(date).timestamp()
    except ValueError:
        return skipped("clock", "the API told no time")
    if abs(skew) <= LATE:
        return ok("clock", f"within {LATE:.0f} s of Google's")
    way = "ahead of" if skew > 0 else "behind"
    found = f"{abs(skew):.0f} s {way} Google's: signing in and secure connections may fail"
    return (fails if abs(skew) > WRONG else warning)("clock", found, "set it by NTP", "timedatectl set-ntp true")

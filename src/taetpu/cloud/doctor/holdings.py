"""What the project has already: quota, a bucket, machines that still run."""

import time
from collections.abc import Sequence

from taetpu.cloud import quotas
from taetpu.cloud.backends.base import Machine
from taetpu.cloud.catalogue import region
from taetpu.cloud.clients import Clients
from taetpu.cloud.doctor.check import Check, fails, ok, skipped, warning
from taetpu.cloud.errors import NotFound, Permission
from taetpu.cloud.rest import PATIENCE, answered
from taetpu.cloud.settings import Settings
from taetpu.cloud.spec import label

CONSOLE = "https://console.cloud.google.com"


def quota(clients: Clients, settings: Settings) -> Check:
    """Which TPUs the project may have, where the settings look; a quota is no promise that there are any."""
    granted: dict[str, list[str]] = {}
    for pool, amount in quotas.read(clients).granted():
        places = {region(zone) for zone in settings.zones} | set(settings.zones)
        if amount.place and places and amount.place not in places:
            continue
        granted.setdefault(f"{pool.chip} {pool.kind} ({pool.backend})", []).append(amount.place or "wherever else")
    if granted:
        named = "; ".join(
            f"{what} in {', '.join(sorted(set(where), key=_last))}" for what, where in sorted(granted.items())
        )
        return ok("quota", f"of {named}")
    where = f" in {', '.join(settings.zones)}" if settings.zones else ""
    remedy = f"ask for some: {CONSOLE}/iam-admin/quotas?project={clients.project} (the two APIs count apart)"
    return warning("quota", f"none of a TPU is set{where}", remedy)


def _last(place: str) -> tuple[bool, str]:
    return " " in place, place


def bucket(clients: Clients, settings: Settings) -> Check:
    """Whether the bucket can be read, and is where the machines are."""
    if not settings.bucket:
        return skipped("bucket", "the settings name none", command=_create(f"{clients.project}-studies", settings))
    try:
        with answered("storage", "reading the bucket"):
            found = clients.storage.get_bucket(settings.bucket, timeout=PATIENCE)
    except NotFound:
        command = _create(settings.bucket, settings)
        return fails("bucket", f"there is no bucket {settings.bucket!r}", command=command)
    except Permission as error:
        remedy = "ask its owner for roles/storage.objectUser on it, or name another: names are shared by everybody"
        return fails("bucket", f"you may not look at {settings.bucket!r}: {error.problem}", remedy)
    at = (found.location or "").lower()
    regions = sorted({region(zone) for zone in settings.zones})
    if regions and at not in regions:
        remedy = "traffic between regions costs money and time: use a bucket beside the machines"
        return warning("bucket", f"{settings.bucket} is in {at}, the zones are in {', '.join(regions)}", remedy)
    return ok("bucket", f"{settings.bucket} is in {at}")


def _create(name: str, settings: Settings) -> str:
    """The command that makes a bucket beside the machines."""
    place = settings.region or next(map(region, settings.zones), "REGION")
    return f"taetpu bucket create {name} --region {place}{'' if settings.bucket else ' --write'}"


def machines(found: Sequence[Machine], settings: Settings) -> Check:
    """Machines of yours that are there: they cost money."""
    now, own = time.time(), [machine for machine in found if machine.owner == label(settings.owner)]
    others = f"; {len(found) - len(own)} of others" if len(found) > len(own) else ""
    if not own:
        return ok("machines", f"none of yours is there{others}")
    named = ", ".join(f"{one.name} ({one.type}, {one.detail or one.state}) in {one.zone}" for one in own)
    if any(one.expires is not None and one.expires <= now for one in own):
        return warning("machines", f"{named}: some should be gone{others}", "remove them", "taetpu tpu gc")
    return warning("machines", f"{named}: running{others}", "if they are not needed", "taetpu tpu down NAME")

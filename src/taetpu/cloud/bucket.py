"""A bucket for studies: made once and found again, closed to the public, and deleted only by who made it.

Whatever is below `tmp/` goes after a while by itself; nothing else ever does. What lacks our label is never changed.
"""

import re
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from taetpu.cloud import charges
from taetpu.cloud.catalogue import region as region_of
from taetpu.cloud.clients import Clients, imported
from taetpu.cloud.errors import Conflict, Invalid, NotFound, Permission
from taetpu.cloud.settings import Settings, check_region
from taetpu.cloud.spec import OWNER, label
from taetpu.cloud.storage import ADMIN, LASTS, Address, check_bucket, explained, message, patience
from taetpu.core.errors import UserError

if TYPE_CHECKING:
    from google.cloud.storage import Blob, Bucket

TEMPORARY, TEMPORARY_DAYS = "tmp/", 7
DAY = 86400
MULTI_REGION = re.compile(r"us|eu|asia|(nam|eur|asia)\d+")
"""Places of more than one region, by https://cloud.google.com/storage/docs/locations."""
THREADS = 8


@dataclass(frozen=True)
class Wanted:
    """What a bucket should be.

    Attributes:
        region: where its bytes lie, e.g. `us-east5`; or a multi-region, `us`.
        owner: the label that says whose it is.
        soft_delete_days: for which Google keeps, and bills, what was deleted; 0: not at all.
    """

    name: str
    region: str
    owner: str
    soft_delete_days: int = 7

    def told(self) -> list[str]:
        """In lines."""
        kept = f"{self.soft_delete_days} days, and billed for as long" if self.soft_delete_days else "no time"
        return [
            f"bucket gs://{self.name} in {self.region}, label {OWNER}={self.owner}",
            "access by IAM alone (uniform), never public",
            f"what lies below {TEMPORARY} is deleted after {TEMPORARY_DAYS} days, and nothing else",
            f"what is deleted or replaced, as checkpoints are, can be restored for {kept} (--soft-delete-days)",
            charges.bucket(self.region),
        ]


@dataclass(frozen=True)
class Status:
    """What a bucket is, and what is in it.

    Attributes:
        objects, bytes: of what is there now; what was deleted softly is not in them.
        held: claims of studies that are at work, or were killed within the last minute.
    """

    name: str
    location: str
    labels: dict[str, str]
    public: bool
    uniform: bool
    soft_delete_days: float
    objects: int
    bytes: int
    held: tuple[str, ...] = field(default=())


def wanted(settings: Settings, name: str = "", region: str = "", soft_delete_days: int = 7) -> Wanted:
    """What is asked for, with what the settings know.

    Raises:
        Invalid: no name or region is said, or the name cannot be.
        UserError: the region cannot be.
    """
    place = region or settings.region or next(map(region_of, settings.zones), "")
    if not place:
        remedy = "--region, the one of your TPUs, e.g. us-east5; or `region` or `zones` in taetpu.toml"
        raise Invalid("where the bucket should be is not said", remedy=remedy)
    if soft_delete_days and not 7 <= soft_delete_days < 90:  # https://cloud.google.com/storage/docs/soft-delete
        problem = f"deleted objects cannot be kept for {soft_delete_days} days"
        raise Invalid(problem, remedy="--soft-delete-days 0, or from 7 to 89")
    place = place.lower()
    if not MULTI_REGION.fullmatch(place):
        check_region(place, ("--region",))
    return Wanted(named(settings, name), place, label(settings.owner), soft_delete_days)


def named(settings: Settings, name: str = "") -> str:
    """The bucket that is meant: the one given, else the settings'.

    Raises:
        Invalid: there is none.
    """
    found = (name or settings.bucket).removeprefix("gs://").partition("/")[0]
    if not found:
        raise Invalid("which bucket is not said", remedy="name it, or `bucket` in taetpu.toml (TAETPU_BUCKET)")
    return check_bucket(found)


def apart(region: str, zones: tuple[str, ...]) -> str:
    """A warning where TPUs are not in the bucket's region; empty where they are, or either is not known."""
    others = sorted({region_of(zone) for zone in zones} - {region.lower()})
    if not others or not region:
        return ""
    return (
        f"the bucket is in {region} and your zones are in {', '.join(others)}: every checkpoint and result that "
        "crosses regions is billed as traffic (egress), and takes longer. A bucket cannot be moved afterwards"
    )


def find(clients: Clients, name: str) -> "Bucket | None":
    """The bucket, or None where there is none of this name.

    Raises:
        Permission: it is there, and not yours to see.
    """
    with explained("look at", Address(name), ADMIN):
        google = imported("google.api_core.exceptions")
        try:
            return clients.storage.get_bucket(name, retry=patience())
        except google.NotFound:
            return None
        except google.Forbidden as error:
            problem = f"gs://{name} is there, and you may not look at it: {message(error)}"
            remedy = f"it may be somebody else's, since all of Google shares the names: try {clients.project}-{name}"
            raise Permission(problem, remedy=remedy) from None


def region(clients: Clients, name: str) -> str:
    """Where a bucket is; "" where there is none, or that cannot be read."""
    with suppress(UserError):
        if name and (found := find(clients, name)):
            return str(found.location or "").lower()
    return ""


def create(clients: Clients, want: Wanted) -> bool:
    """Make the bucket, or find the one that is there; whether it was made.

    Raises:
        Conflict: the name is somebody else's, or the bucket is there and is another one.
        Permission: you may make none in the project.
    """
    if check(find(clients, want.name), want):
        return False
    google = imported("google.api_core.exceptions")
    bucket = clients.storage.bucket(want.name)
    bucket.iam_configuration.uniform_bucket_level_access_enabled = True
    bucket.iam_configuration.public_access_prevention = "enforced"
    bucket.labels = {OWNER: want.owner}
    bucket.add_lifecycle_delete_rule(age=TEMPORARY_DAYS, matches_prefix=[TEMPORARY])
    bucket.soft_delete_policy.retention_duration_seconds = want.soft_delete_days * DAY
    with explained("make", Address(want.name), ADMIN):
        try:
            bucket.create(location=want.region, retry=patience())
        except google.Conflict as error:
            # Made just now by another command, or by this one, whose first answer was lost.
            if "already own" not in message(error) or not check(find(clients, want.name), want):
                problem = f"the name gs://{want.name} is taken: {message(error)}"
                remedy = f"all of Google shares the names of buckets: try {clients.project}-{want.name}"
                raise Conflict(problem, remedy=remedy) from None
            return True
    return True


def check(bucket: "Bucket | None", want: Wanted) -> bool:
    """Whether the bucket that is wanted is there.

    Raises:
        Conflict: it is there and is not as it is wanted; what differs is named.
    """
    if bucket is None:
        return False
    if (owner := (bucket.labels or {}).get(OWNER)) != want.owner:
        whose = f"{owner}'s" if owner else "not one that taetpu made"
        remedy = f"studies can be kept in it all the same, --root gs://{want.name}/studies, or take another name"
        raise Conflict(f"gs://{want.name} is there, and is {whose}", remedy=remedy)
    differing = [
        f"{what}: {is_!r}, not {should!r}" for what, (is_, should) in _compared(bucket, want).items() if is_ != should
    ]
    if differing:
        remedy = "ask for it as it is, take another name, or change it with `gcloud storage buckets update`"
        raise Conflict(f"gs://{want.name} is there and differs: {'; '.join(differing)}", remedy=remedy)
    return True


def _compared(bucket: "Bucket", want: Wanted) -> dict[str, tuple[Any, Any]]:
    access = bucket.iam_configuration
    rules = [dict(rule) for rule in bucket.lifecycle_rules]
    rule = {
        "action": {"type": "Delete"}, "condition": {"age": TEMPORARY_DAYS, "matchesPrefix": [TEMPORARY]},
    }  # fmt: skip
    return {
        "region": (str(bucket.location).lower(), want.region),
        "uniform access": (access.uniform_bucket_level_access_enabled, True),
        "public access prevention": (access.public_access_prevention, "enforced"),
        "lifecycle": (rules, [rule]),
        "days of soft delete": (_soft_days(bucket), float(want.soft_delete_days)),
    }


def _soft_days(bucket: "Bucket") -> float:
    return int(bucket.soft_delete_policy.retention_duration_seconds or 0) / DAY


def status(clients: Clients, name: str) -> Status:
    """What the bucket is and holds. Lists every object: a request for each thousand.

    Raises:
        NotFound: there is none.
    """
    if (bucket := find(clients, name)) is None:
        remedy = f"`taetpu bucket create {name} --region REGION` makes it"
        raise NotFound(f"there is no bucket gs://{name}", remedy=remedy)
    count, size, held = 0, 0, []
    with explained("list", Address(name)):
        for blob in bucket.list_blobs(fields="items(name,size,timeCreated),nextPageToken", retry=patience()):
            count, size = count + 1, size + int(blob.size or 0)
            if str(blob.name).endswith("/lock") and _renewed(blob, clients.now()):
                held.append(f"gs://{name}/{blob.name}")
    access = bucket.iam_configuration
    return Status(
        name,
        str(bucket.location).lower(),
        dict(bucket.labels or {}),
        public=access.public_access_prevention != "enforced",
        uniform=bool(access.uniform_bucket_level_access_enabled),
        soft_delete_days=_soft_days(bucket),
        objects=count,
        bytes=size,
        held=tuple(held),
    )


def _renewed(lock: "Blob", now: float) -> bool:
    """Whether a claim still holds: who has it writes it anew, and one that is older is free (`store.lease`)."""
    return lock.time_created is None or now - lock.time_created.timestamp() < LASTS


def check_idle(found: Status) -> None:
    """Raise `Conflict` where a study is at work in the bucket."""
    if found.held:
        roots = sorted({lock.rsplit("/", 2)[0] for lock in found.held})
        problem = f"gs://{found.name} is not deleted: at work in it, or killed within the last minute: "
        remedy = (
            f"`taetpu status {roots[0]}` shows what it does; stop it, or wait until {LASTS} s after it was killed; "
            "--at-work deletes the bucket all the same"
        )
        raise Conflict(problem + ", ".join(found.held), remedy=remedy)


def check_ours(found: Status, owner: str) -> None:
    """Raise `Conflict` unless the bucket carries this owner's label."""
    if (whose := found.labels.get(OWNER)) != owner:
        told = f"it is {whose}'s" if whose else "taetpu did not make it"
        remedy = f"`gcloud storage rm gs://{found.name} --recursive`, if you are sure"
        raise Conflict(f"gs://{found.name} is not deleted: {told}", remedy=remedy)


def delete(clients: Clients, name: str, tell: Callable[[str], None] = lambda line: None) -> None:
    """Delete the bucket with all that is in it. What was interrupted goes on when it is asked for again.

    Raises:
        Conflict: something is still written into it.
    """
    google, bucket = imported("google.api_core.exceptions"), clients.storage.bucket(name)

    def remove(blob: Any) -> None:
        with suppress(google.NotFound):
            bucket.delete_blob(blob.name, generation=blob.generation, retry=patience())

    with explained("delete", Address(name), ADMIN):
        try:
            with ThreadPoolExecutor(THREADS) as pool:
                blobs = bucket.list_blobs(versions=True, fields="items(name,generation),nextPageToken")
                removed = sum(1 for _ in pool.map(remove, blobs))
            tell(f"deleted {removed:,} objects of gs://{name}")
            bucket.delete(retry=patience())
        except google.NotFound:
            return
        except google.Conflict as error:
            remedy = "stop what still writes into it, then give the same command again"
            raise Conflict(f"gs://{name} is not deleted yet: {message(error)}", remedy=remedy) from None

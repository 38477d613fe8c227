"""What commands and stores share of Cloud Storage: addresses, patience, and its errors in words."""

import re
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from os import PathLike
from typing import Any

from taetpu.cloud.clients import SIGN_IN, fake_address, imported
from taetpu.cloud.errors import CloudError, Conflict, Invalid, NotFound, Permission, Transient
from taetpu.cloud.google_status import in_short

SCHEME = "gs://"
WRITER, READER, ADMIN = "roles/storage.objectUser", "roles/storage.objectViewer", "roles/storage.admin"
"""The least roles that read and write objects, read them, and make buckets:
https://cloud.google.com/storage/docs/access-control/iam-roles."""
PATIENCE = 120.0
"""Seconds for which a request is repeated that a service does not answer well."""
LASTS = 60
"""Seconds after which a study's claim (its object `lock`) that was not renewed is free, by the server's clock."""


@dataclass(frozen=True)
class Address:
    """`gs://bucket/name`; without a name the bucket itself."""

    bucket: str
    name: str = ""

    def __str__(self) -> str:
        return f"{SCHEME}{self.bucket}/{self.name}".rstrip("/")

    def __truediv__(self, key: str) -> "Address":
        return Address(self.bucket, f"{self.name}/{key}".strip("/"))

    @property
    def parent(self) -> "Address | None":
        """The folder that the name is in; None of a bucket."""
        return Address(self.bucket, self.name.rpartition("/")[0]) if self.name else None

    @property
    def last(self) -> str:
        """The last part of the name."""
        return self.name.rpartition("/")[2]


def address(place: str | PathLike[str]) -> Address | None:
    """The address that a place is, `gs://bucket/folder`; None of a local folder. pathlib makes one slash of two.

    Raises:
        UserError: it begins as an address, and is none that is known.
    """
    text = str(place)
    found = re.fullmatch(r"gs:/{1,2}([^/]*)/*(.*)", text)
    if found:
        return Address(check_bucket(found[1]), re.sub("/+", "/", found[2]).strip("/"))
    if "://" in text:
        raise Invalid(f"studies cannot be kept at {text!r}", remedy="a local folder, or gs://BUCKET/FOLDER")
    return None


def check_bucket(name: str) -> str:
    """A name that a bucket may have, by https://cloud.google.com/storage/docs/buckets#naming.

    Raises:
        Invalid: it is none.
    """
    good = re.fullmatch(r"[a-z0-9][a-z0-9._-]{1,61}[a-z0-9]", name) and not re.fullmatch(r"\d+(\.\d+){3}", name)
    if good and not name.startswith("goog") and "google" not in name and ".." not in name:
        return name
    remedy = "3 to 63 lower-case letters, digits, - and _, a letter or digit at both ends, without `google` in it"
    raise Invalid(f"{name!r} cannot be the name of a bucket", remedy=remedy)


def patience() -> Any:
    """How the library repeats a request that was not answered well (429, 5xx, a cut connection)."""
    retry = imported("google.cloud.storage.retry").DEFAULT_RETRY
    if fake_address():
        return retry.with_delay(initial=0.01, maximum=0.05, multiplier=2.0).with_timeout(0.5)
    return retry.with_timeout(PATIENCE)


@contextmanager
def explained(doing: str, place: Address, role: str = WRITER) -> Iterator[None]:
    """Turn what Google's client raises in the body into a `CloudError` that names the address.

    Args:
        doing: the verb for the message, e.g. "write".
        role: that allows it.

    Raises:
        NotFound: the bucket is not there.
        Permission: nobody is signed in, or who is may not do it.
        Transient: no good answer came, for all patience.
    """
    try:
        yield
    except CloudError:
        raise
    except Exception as error:
        if (told := _explanation(doing, place, role, error)) is None:
            raise
        raise told from error


def _explanation(doing: str, place: Address, role: str, error: Exception) -> CloudError | None:
    google, auth = imported("google.api_core.exceptions"), imported("google.auth.exceptions")
    failed, said = f"cannot {doing} {place}", message(error)
    if isinstance(error, google.NotFound):
        remedy = f"`taetpu bucket create {place.bucket} --region REGION` makes it, if the name is not misspelt"
        return NotFound(f"{failed}: there is no bucket {place.bucket!r}", remedy=remedy)
    if isinstance(error, google.Unauthorized | auth.RefreshError | auth.DefaultCredentialsError):
        return Permission(f"{failed}: Google does not accept who is signed in ({said})", remedy=SIGN_IN)
    if isinstance(error, google.Forbidden):
        return Permission(f"{failed}: {said}", remedy=_grant(place, role))
    if isinstance(error, google.Conflict | google.PreconditionFailed):
        return Conflict(f"{failed}: {said}", remedy="somebody else changed it at the same moment: try again")
    unwell = (google.RetryError, google.TooManyRequests, google.ServerError, auth.TransportError, OSError)
    if isinstance(error, unwell):  # requests' own errors are OSErrors, too
        remedy = "nothing that was stored is lost: see to the connection, then give the same command again"
        return Transient(f"{failed}: Cloud Storage does not answer ({said})", remedy=remedy)
    if isinstance(error, google.GoogleAPICallError):
        return Invalid(f"{failed}: {said}", remedy="what it says is Google's own word")
    return None


def _grant(place: Address, role: str) -> str:
    who = f"--member=user:YOU@EXAMPLE.COM --role={role}`; a machine is --member=serviceAccount:ITS-ADDRESS"
    if role == ADMIN:
        return f"somebody has to give you {ADMIN} on the project: `gcloud projects add-iam-policy-binding PROJECT {who}"
    command = f"`gcloud storage buckets add-iam-policy-binding {SCHEME}{place.bucket} {who}"
    return f"whose bucket it is gives you {role}: {command}"


def message(error: Exception) -> str:
    """What a service said in a line, without the request that it was about."""
    if cause := getattr(error, "cause", None):  # of a RetryError
        return message(cause)
    response = getattr(error, "response", None)
    try:
        return " ".join(response.json()["error"]["message"].split())  # pyright: ignore[reportOptionalMemberAccess]
    except (AttributeError, ValueError, LookupError, TypeError):
        said = " ".join(str(getattr(error, "message", "") or error).split())
        return in_short(said)[:300] or type(error).__name__

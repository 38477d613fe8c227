"""Addresses, client, retries and errors of Cloud Storage, for the store in a bucket."""

import os
import re
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from os import PathLike
from typing import Any

from taetpu.core.errors import UserError

SCHEME = "gs://"
SIGN_IN = "gcloud auth application-default login"
WRITER, READER = "roles/storage.objectUser", "roles/storage.objectViewer"
"""The least roles that read and write objects, or read them:
https://cloud.google.com/storage/docs/access-control/iam-roles."""
RETRY_SECONDS = float(os.environ.get("TAETPU_STORAGE_PATIENCE", "120"))
"""Seconds for which a request that fails with 429, 5xx or a broken connection is repeated."""
LEASE_SECONDS = 60
"""Seconds after which a study's claim (its object `lock`) that was not renewed is free, by the server's clock."""


class BucketError(UserError):
    """A request to Cloud Storage failed."""


class StorageUnavailable(BucketError):
    """Cloud Storage did not answer well for as long as requests are repeated."""

    exit_code = 3


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


def parse_address(place: str | PathLike[str]) -> Address | None:
    """The address that a place is, `gs://bucket/folder`; None of a local folder. pathlib makes one slash of two.

    Raises:
        UserError: it begins as an address, and is none that is known.
    """
    text = str(place)
    found = re.fullmatch(r"gs:/{1,2}([^/]*)/*(.*)", text)
    if found:
        return Address(check_bucket_name(found[1]), re.sub("/+", "/", found[2]).strip("/"))
    if "://" in text:
        raise UserError(f"studies cannot be kept at {text!r}", remedy="a local folder, or gs://BUCKET/FOLDER")
    return None


def check_bucket_name(name: str) -> str:
    """A name that a bucket may have, by https://cloud.google.com/storage/docs/buckets#naming.

    Raises:
        UserError: it is none.
    """
    good = re.fullmatch(r"[a-z0-9][a-z0-9._-]{1,61}[a-z0-9]", name) and not re.fullmatch(r"\d+(\.\d+){3}", name)
    if good and not name.startswith("goog") and "google" not in name and ".." not in name:
        return name
    remedy = "3 to 63 lower-case letters, digits, - and _, a letter or digit at both ends, without `google` in it"
    raise UserError(f"{name!r} cannot be the name of a bucket", remedy=remedy)


def storage_client() -> Any:
    """Google's client, with application-default credentials.

    Raises:
        UserError: the extra is not installed, or nobody is signed in.
    """
    storage = import_google("google.cloud.storage")
    try:
        # A bucket belongs to its own project; the client only wants the name of one.
        return storage.Client(project=os.environ.get("GOOGLE_CLOUD_PROJECT") or "none")
    except import_google("google.auth.exceptions").DefaultCredentialsError:
        raise UserError("not signed in to Google Cloud", remedy=SIGN_IN) from None


def import_google(module: str) -> Any:
    """Import a module of Google's libraries.

    Raises:
        UserError: the extra is not installed.
    """
    import importlib

    try:
        return importlib.import_module(module)
    except ModuleNotFoundError as error:
        raise UserError(f"{error.name} is not installed", remedy="pip install 'taetpu[gcp]'") from None


def retry_policy() -> Any:
    """How the library repeats requests that fail with 429, 5xx or a broken connection."""
    retry = import_google("google.cloud.storage.retry").DEFAULT_RETRY
    shortest = min(1.0, RETRY_SECONDS / 20)
    return retry.with_delay(initial=shortest, maximum=10 * shortest, multiplier=2.0).with_timeout(RETRY_SECONDS)


@contextmanager
def translate_errors(doing: str, place: Address, role: str = WRITER) -> Iterator[None]:
    """Turn errors of Google's client into a `BucketError` that names the address.

    Args:
        doing: the verb for the message, e.g. "write".
        role: that allows it.

    Raises:
        StorageUnavailable: no good answer came within `RETRY_SECONDS`.
        BucketError: the bucket does not exist, or the account lacks a role.
    """
    try:
        yield
    except UserError:
        raise
    except Exception as error:
        if (told := _explanation(doing, place, role, error)) is None:
            raise
        raise told from error


def _explanation(doing: str, place: Address, role: str, error: Exception) -> BucketError | None:
    google, auth = import_google("google.api_core.exceptions"), import_google("google.auth.exceptions")
    failed, said = f"cannot {doing} {place}", error_message(error)
    if isinstance(error, google.NotFound):
        remedy = f"`taetpu bucket create {place.bucket} --region REGION` makes it, if the name is not misspelt"
        return BucketError(f"{failed}: there is no bucket {place.bucket!r}", remedy=remedy)
    if isinstance(error, google.Unauthorized | auth.RefreshError | auth.DefaultCredentialsError):
        return BucketError(f"{failed}: Google does not accept who is signed in ({said})", remedy=SIGN_IN)
    if isinstance(error, google.Forbidden):
        return BucketError(f"{failed}: {said}", remedy=_grant(place, role))
    if isinstance(error, google.Conflict | google.PreconditionFailed):
        return BucketError(f"{failed}: {said}", remedy="somebody else changed it at the same moment: try again")
    unwell = (google.RetryError, google.TooManyRequests, google.ServerError, auth.TransportError, OSError)
    if isinstance(error, unwell):  # requests' own errors are OSErrors, too
        remedy = "nothing that was stored is lost: see to the connection, then give the same command again"
        return StorageUnavailable(f"{failed}: Cloud Storage does not answer ({said})", remedy=remedy)
    if isinstance(error, google.GoogleAPICallError):
        return BucketError(f"{failed}: {said}", remedy="what it says is Google's own word")
    return None


def _grant(place: Address, role: str) -> str:
    line = f"gcloud storage buckets add-iam-policy-binding gs://{place.bucket} --role={role} --member=user:ACCOUNT"
    return f"its owner grants it: `{line}` (to a machine: `serviceAccount:ADDRESS`)"


def error_message(error: Exception) -> str:
    """What a service said in a line, without the request that it was about."""
    if cause := getattr(error, "cause", None):  # of a RetryError
        return error_message(cause)
    response = getattr(error, "response", None)
    try:
        return " ".join(response.json()["error"]["message"].split())  # pyright: ignore[reportOptionalMemberAccess]
    except (AttributeError, ValueError, LookupError, TypeError):
        said = " ".join(str(getattr(error, "message", "") or error).split())
        return said[:300] or type(error).__name__

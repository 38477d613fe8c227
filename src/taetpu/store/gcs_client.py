"""Google's client for Cloud Storage: addresses, credentials, retries and error messages."""

import importlib
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
"""The IAM roles with the fewest permissions that allow writing and reading objects (`WRITER`) or only reading them.

Source: https://cloud.google.com/storage/docs/access-control/iam-roles
"""
RETRY_SECONDS = float(os.environ.get("TAETPU_STORAGE_PATIENCE", "120"))
"""Seconds for which a request is retried if it fails with status 429 or 5xx or with a broken connection."""


class BucketError(UserError):
    """A request to Cloud Storage failed."""


class StorageUnavailable(BucketError):
    """Cloud Storage did not answer within `RETRY_SECONDS`."""

    exit_code = 3


@dataclass(frozen=True)
class Address:
    """The address `gs://bucket/name`, or `gs://bucket` if the name is empty."""

    bucket: str
    name: str = ""

    def __str__(self) -> str:
        return f"{SCHEME}{self.bucket}/{self.name}".rstrip("/")

    def __truediv__(self, key: str) -> "Address":
        return Address(self.bucket, f"{self.name}/{key}".strip("/"))

    @property
    def parent(self) -> "Address | None":
        """The address without the last part of the name; None if the name is empty."""
        return Address(self.bucket, self.name.rpartition("/")[0]) if self.name else None

    @property
    def last(self) -> str:
        """The last part of the name."""
        return self.name.rpartition("/")[2]


def parse_address(place: str | PathLike[str]) -> Address | None:
    """Parse `gs://bucket/folder`; return None for a local path.

    Args:
        place: an address or a path. The form `gs:/bucket` is accepted too, because pathlib removes the second slash.

    Raises:
        UserError: if the URL scheme is not supported, or the bucket name is invalid.
    """
    text = str(place)
    match = re.fullmatch(r"gs:/{1,2}([^/]*)/*(.*)", text)
    if match:
        return Address(check_bucket_name(match[1]), re.sub("/+", "/", match[2]).strip("/"))
    if "://" in text:
        raise UserError(f"studies cannot be stored at {text!r}", remedy="Use a local folder or gs://BUCKET/FOLDER.")
    return None


def check_bucket_name(name: str) -> str:
    """Return `name` if it is a valid bucket name.

    Raises:
        UserError: if the name is not a valid bucket name.

    Source: https://cloud.google.com/storage/docs/buckets#naming
    """
    valid = re.fullmatch(r"[a-z0-9][a-z0-9._-]{1,61}[a-z0-9]", name) and not re.fullmatch(r"\d+(\.\d+){3}", name)
    if valid and not name.startswith("goog") and "google" not in name and ".." not in name:
        return name
    remedy = "Use 3 to 63 lower-case letters, digits, `-` and `_`. Start and end with a letter or digit. Omit `google`."
    raise UserError(f"invalid bucket name {name!r}", remedy=remedy)


def storage_client() -> Any:
    """Return Google's storage client with application-default credentials.

    Raises:
        UserError: if the extra `gcp` is not installed, or no credentials were found.
    """
    storage = import_google("google.cloud.storage")
    try:
        # The client requires a project name, but no request here depends on it: a bucket belongs to its own project.
        return storage.Client(project=os.environ.get("GOOGLE_CLOUD_PROJECT") or "none")
    except import_google("google.auth.exceptions").DefaultCredentialsError:
        raise UserError("not signed in to Google Cloud", remedy=f"Run `{SIGN_IN}`.") from None


def import_google(module: str) -> Any:
    """Import a module of Google's libraries.

    Raises:
        UserError: if the extra `gcp` is not installed.
    """
    try:
        return importlib.import_module(module)
    except ModuleNotFoundError as error:
        raise UserError(f"{error.name} is not installed", remedy="Run `pip install 'taetpu[gcp]'`.") from None


def retry_policy() -> Any:
    """Return the retry policy for requests that fail with status 429 or 5xx or with a broken connection."""
    retry = import_google("google.cloud.storage.retry").DEFAULT_RETRY
    shortest = min(1.0, RETRY_SECONDS / 20)
    return retry.with_delay(initial=shortest, maximum=10 * shortest, multiplier=2.0).with_timeout(RETRY_SECONDS)


@contextmanager
def translate_errors(doing: str, place: Address, role: str = WRITER) -> Iterator[None]:
    """Convert errors of Google's client to a `BucketError` that names the address.

    Args:
        doing: the verb for the message, such as "write".
        place: the address that is read or written.
        role: the IAM role that permits the request.

    Raises:
        StorageUnavailable: if Cloud Storage did not answer within `RETRY_SECONDS`.
        BucketError: if the bucket does not exist, Google rejects the credentials, the account lacks a role, or the
            request fails for another reason.
    """
    try:
        yield
    except UserError:
        raise
    except Exception as error:
        if (translated := _bucket_error(doing, place, role, error)) is None:
            raise
        raise translated from error


def _bucket_error(doing: str, place: Address, role: str, error: Exception) -> BucketError | None:
    google, auth = import_google("google.api_core.exceptions"), import_google("google.auth.exceptions")
    failed, message = f"cannot {doing} {place}", error_message(error)
    if isinstance(error, google.NotFound):
        remedy = (
            f"Check the bucket's name, or create the bucket with `taetpu bucket create {place.bucket} --region REGION`."
        )
        return BucketError(f"{failed}: bucket {place.bucket!r} does not exist", remedy=remedy)
    if isinstance(error, google.Unauthorized | auth.RefreshError | auth.DefaultCredentialsError):
        return BucketError(f"{failed}: Google rejects the credentials ({message})", remedy=f"Run `{SIGN_IN}`.")
    if isinstance(error, google.Forbidden):
        owner = f"gcloud storage buckets add-iam-policy-binding gs://{place.bucket} --role={role} --member=user:ACCOUNT"
        remedy = f"Ask the bucket's owner to run `{owner}`. For a machine, use `serviceAccount:ADDRESS` as the member."
        return BucketError(f"{failed}: {message}", remedy=remedy)
    if isinstance(error, google.Conflict | google.PreconditionFailed):
        remedy = "Try again. Another process changed the object at the same time."
        return BucketError(f"{failed}: {message}", remedy=remedy)
    unavailable = (google.RetryError, google.TooManyRequests, google.ServerError, auth.TransportError, OSError)
    if isinstance(error, unavailable):  # errors of the library `requests` are subclasses of OSError
        remedy = "Check the connection and run the same command again. Nothing that was stored is lost."
        return StorageUnavailable(f"{failed}: Cloud Storage does not answer ({message})", remedy=remedy)
    if isinstance(error, google.GoogleAPICallError):
        return BucketError(f"{failed}: {message}", remedy="Look up this message in Google's documentation.")
    return None


def error_message(error: Exception) -> str:
    """Return the message of a Google service's error on one line, without the text of the request."""
    if cause := getattr(error, "cause", None):  # a RetryError contains the last error as its cause
        return error_message(cause)
    response = getattr(error, "response", None)
    try:
        return " ".join(response.json()["error"]["message"].split())  # pyright: ignore[reportOptionalMemberAccess]
    except (AttributeError, ValueError, LookupError, TypeError):
        text = " ".join(str(getattr(error, "message", "") or error).split())
        return text[:300] or type(error).__name__

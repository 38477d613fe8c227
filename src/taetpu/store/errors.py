"""Key names, errors and descriptions of claim holders. All kinds of stores share them."""

import getpass
import os
import socket
from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any

from taetpu.core.errors import KeyPath, UserError

WRITTEN_ONCE = "Use another study name or --root, or remove the old study. Nothing was overwritten."
"""The remedy if a key is already stored with other content."""

LATEST = "latest"
ADDRESS_FORMS = f"STUDY, STUDY/ARM, STUDY/ARM/SEED, a run's ID, {LATEST}, or a path"
"""The forms of an address (see `store.addresses`), for help texts and remedies."""

CLAIM_PATIENCE = "TAETPU_CLAIM_PATIENCE"
"""Environment variable with the number of seconds to wait for a claim that another process holds."""


class ClaimHeld(UserError):
    """Another process holds the claim."""


class NotStored(UserError, KeyError):
    """Nothing is stored under the key."""


def check_name(name: str, what: str = "name", path: KeyPath = ()) -> str:
    """Return `name` if it is valid as one part of a key.

    Args:
        name: the name. Characters such as `=`, `.`, `-`, `+`, `,` and spaces are allowed.
        what: the noun for the name in the error message.
        path: the location of the name in the study, for the error message.

    Raises:
        UserError: if the name is empty, starts with a dot, contains a slash or an unprintable character, or is longer
            than 120 bytes.
    """
    valid = name.isprintable() and not name.startswith(".") and "/" not in name and "\\" not in name
    if not valid or not 1 <= len(name.encode()) <= 120:
        remedy = "Use 1 to 120 letters, digits and characters such as `=.-+`. The name must not start with a dot."
        raise UserError(f"invalid {what} {name!r}", path=path, remedy=remedy)
    return name


def describe_process() -> dict[str, str | int]:
    """Return the description of this process that a claim stores: process ID, host, user and the current time."""
    since = datetime.now(UTC).isoformat(timespec="seconds")
    try:
        user = getpass.getuser()
    except (KeyError, OSError):  # a container's user may have no name
        user = str(os.getuid())
    return {"pid": os.getpid(), "host": socket.gethostname(), "user": user, "since": since}


def format_claim(place: str, holder: Mapping[str, Any]) -> str:
    """Return a message with the holder of the claim at `place`. If a pack is claimed, the caller names the pack."""
    return f"{'the study is ' if place.endswith('/lock') else ''}held by {format_holder(holder)}"


def format_holder(holder: Mapping[str, Any]) -> str:
    """Format the description that `describe_process` returned, for messages."""
    try:
        return f"pid {holder['pid']} on {holder['host']} (user {holder['user']}) since {holder['since']}"
    except (LookupError, TypeError):  # the holder has taken the claim but not yet written its description
        return "a process that has just started"

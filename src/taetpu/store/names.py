"""Key names, errors and descriptions of claim holders. All kinds of stores share them."""

import getpass
import os
import socket
from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any

from taetpu.core.errors import KeyPath, UserError


class ClaimHeld(UserError):
    """Another process holds the claim."""


class NotStored(UserError, KeyError):
    """Nothing is stored under the key."""


def check_name(name: str, what: str = "name", path: KeyPath = ()) -> str:
    """Return `name` if it is valid as one part of a key.

    Args:
        name: the name. Characters such as `=`, `.`, `-`, `+`, `,` and spaces are allowed.
        what: the noun for the name in the error message.
        path: the path of the error.

    Raises:
        UserError: if the name is empty, starts with a dot, contains a slash or an unprintable character, or is longer
            than 120 bytes.
    """
    if not name:
        problem = "is empty"
    elif name.startswith("."):
        problem = "starts with a dot"
    elif "/" in name or "\\" in name:
        problem = "contains a slash"
    elif not name.isprintable():
        problem = "contains an unprintable character"
    elif len(name.encode()) > 120:
        problem = "is longer than 120 bytes"
    else:
        return name
    remedy = "Use at most 120 letters, digits and = . - + , because the name becomes a folder's."
    raise UserError(f"{what} {name!r} {problem}", path=path, remedy=remedy)


def describe_process() -> dict[str, str | int]:
    """Return the description of this process that a claim stores: process ID, host, user and the current time."""
    since = datetime.now(UTC).isoformat(timespec="seconds")
    try:
        user = getpass.getuser()
    except (KeyError, OSError):  # a container's user may have no name
        user = str(os.getuid())
    return {"pid": os.getpid(), "host": socket.gethostname(), "user": user, "since": since}


def format_holder(holder: Mapping[str, Any]) -> str:
    """Format the description that `describe_process` returned, for messages."""
    try:
        return f"pid {holder['pid']} on {holder['host']} (user {holder['user']}) since {holder['since']}"
    except (LookupError, TypeError):  # the holder has taken the claim but not yet written its description
        return "a process that has just started"

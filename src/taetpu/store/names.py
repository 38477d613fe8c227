"""Key names, errors and claim holders, the same for every kind of store."""

import getpass
import os
import socket
from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any

from taetpu.core.errors import KeyPath, UserError


class ClaimHeld(UserError):
    """Another process holds a claim, or held it a moment ago."""


class NotStored(UserError, KeyError):
    """Nothing is stored under the key."""


def check_name(name: str, what: str = "name", path: KeyPath = ()) -> str:
    """Return `name` if it is safe as one part of a path on any system.

    `=`, `.`, `-`, `+`, `,` and spaces are allowed.

    Raises:
        UserError: it is empty, starts with a dot, has a slash or an unprintable character, or exceeds 120 bytes.
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
    """Return what a claim records about its holder: this process, its host and user, and the time."""
    since = datetime.now(UTC).isoformat(timespec="seconds")
    try:
        user = getpass.getuser()
    except (KeyError, OSError):  # a container's user may have no name
        user = str(os.getuid())
    return {"pid": os.getpid(), "host": socket.gethostname(), "user": user, "since": since}


def format_holder(holder: Mapping[str, Any]) -> str:
    """Format what `describe_process` recorded."""
    try:
        return f"pid {holder['pid']} on {holder['host']} (user {holder['user']}) since {holder['since']}"
    except (LookupError, TypeError):  # claimed a moment ago, and not yet recorded
        return "a process that has just started"

"""What every place has in common: how keys may be named, what is said where there is none, and who holds one."""

import getpass
import os
import socket
from datetime import UTC, datetime

from taetpu.core.errors import KeyPath, UserError


class ClaimHeld(UserError):
    """Another process holds a claim, or did until a moment ago."""


class NotStored(UserError, KeyError):
    """Nothing is stored under the key."""


def check_name(name: str, what: str = "name", path: KeyPath = ()) -> str:
    """A name that is safe as one part of a path on any system; `=`, `.`, `-`, `+`, `,` and spaces are welcome.

    Raises:
        UserError: it is empty, starts with a dot, has a slash or an unprintable character, or exceeds 120 bytes.
    """
    if not name:
        problem = "is empty"
    elif name.startswith("."):
        problem = "starts with a dot"
    elif "/" in name or "\\" in name:
        problem = "has a slash in it"
    elif not name.isprintable():
        problem = "has an unprintable character in it"
    elif len(name.encode()) > 120:
        problem = "is longer than 120 bytes"
    else:
        return name
    remedy = "use letters, digits and = . - + , up to 120 of them; it becomes a folder's name"
    raise UserError(f"{what} {name!r} {problem}", path=path, remedy=remedy)


def describe_process() -> dict[str, str | int]:
    """What a claim says of its holder."""
    since = datetime.now(UTC).isoformat(timespec="seconds")
    try:
        user = getpass.getuser()
    except (KeyError, OSError):  # a container's user may have no name
        user = str(os.getuid())
    return {"pid": os.getpid(), "host": socket.gethostname(), "user": user, "since": since}

"""Create names and labels for machines. A machine's owner and deletion deadline are read only from its labels."""

import hashlib
import re
import time
from collections.abc import Mapping

from taetpu.core.errors import UserError

OWNER, EXPIRES, STUDY, SPEC = "taetpu-owner", "taetpu-expires", "taetpu-study", "taetpu-spec"
"""Labels with the owner, the deletion deadline (seconds since 1970), the study, and the hash of the `Spec`."""
LONGEST = 48
"""Maximum number of characters in a machine's name. Compute Engine allows 63, and workers' names have a suffix."""


def check_name(name: str) -> str:
    """Return the given machine name if it is valid.

    Raises:
        UserError: if the name is not valid for the TPU APIs.
    """
    if re.fullmatch(r"[a-z]([a-z0-9-]{0,46}[a-z0-9])?", name):
        return name
    remedy = "Use at most 48 lower-case letters, digits and hyphens, with a letter first, as in `my-tpu`."
    raise UserError(f"invalid machine name {name!r}", remedy=remedy)


def default_name(owner: str, study: str = "") -> str:
    """Return the default name of an owner's machine, `tpu-OWNER`, or of a machine for a study, `tpu-OWNER-STUDY`.

    If the name is too long or has invalid characters, it is shortened or its characters are replaced, and a hash of the
    full name is appended.
    """
    whole = f"tpu-{owner}-{study}" if study else f"tpu-{owner}"
    plain = re.sub(r"[^a-z0-9]+", "-", whole.lower()).strip("-")
    if len(plain) <= LONGEST and plain == whole:
        return check_name(plain)
    return check_name(f"{plain[: LONGEST - 7].rstrip('-')}-{digest(whole)}")


def label_value(text: str) -> str:
    """Return a label value (at most 63 lower-case letters, digits, `-`, `_`) that is unique to the text."""
    if re.fullmatch(r"[a-z0-9_-]{1,63}", text):
        return text
    plain = re.sub(r"[^a-z0-9_-]+", "-", text.lower())[:56].strip("-")
    return f"{plain}-{digest(text)}" if plain else f"x{digest(text)}"


def digest(text: str) -> str:
    """Return the first six hexadecimal digits of a text's SHA-256."""
    return hashlib.sha256(text.encode(errors="surrogateescape")).hexdigest()[:6]


def format_labels(labels: Mapping[str, str]) -> str:
    """Return the argument of gcloud's option `--labels`."""
    return ",".join(f"{key}={value}" for key, value in labels.items())


def hours_left(labels: Mapping[str, str]) -> float | None:
    """Return the hours until a machine's deletion deadline, or None if the labels do not give the deadline."""
    text = labels.get(EXPIRES, "")
    return (int(text) - time.time()) / 3600 if text.isdecimal() else None

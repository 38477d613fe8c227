"""Labels and names. The labels on machines are the only record of what exists, whose it is and when it ends."""

import hashlib
import re
import time
from collections.abc import Mapping

from taetpu.core.errors import UserError

OWNER, EXPIRES, STUDY, SPEC = "taetpu-owner", "taetpu-expires", "taetpu-study", "taetpu-spec"
"""Owner of a machine; latest second (since 1970) at which it ends; study that it was made for; hash of its `Spec`."""
LONGEST = 48
"""Characters of a machine's name: Google's limit for Compute Engine is 63, and workers get a suffix."""


def check_name(name: str) -> str:
    """Return a valid machine name.

    Raises:
        UserError: neither TPU API accepts it.
    """
    if re.fullmatch(r"[a-z]([a-z0-9-]{0,46}[a-z0-9])?", name):
        return name
    remedy = "Use lower-case letters, digits and hyphens, a letter first, at most 48 characters, as in `my-tpu`."
    raise UserError(f"invalid machine name {name!r}", remedy=remedy)


def default_name(owner: str, study: str = "") -> str:
    """Return the machine of an owner (`tpu-OWNER`) or of an owner's study (`tpu-OWNER-STUDY`).

    A name that is too long or has other characters is shortened and ends with a hash of the whole.
    """
    whole = f"tpu-{owner}-{study}" if study else f"tpu-{owner}"
    plain = re.sub(r"[^a-z0-9]+", "-", whole.lower()).strip("-")
    if len(plain) <= LONGEST and plain == whole:
        return check_name(plain)
    return check_name(f"{plain[: LONGEST - 7].rstrip('-')}-{digest(whole)}")


def label_value(text: str) -> str:
    """Return the text as a label's value (lower-case letters, digits, `-`, `_`, at most 63), unique for each text."""
    if re.fullmatch(r"[a-z0-9_-]{1,63}", text):
        return text
    plain = re.sub(r"[^a-z0-9_-]+", "-", text.lower())[:56].strip("-")
    return f"{plain}-{digest(text)}" if plain else f"x{digest(text)}"


def digest(text: str) -> str:
    """Return six hexadecimal digits of a text's SHA-256."""
    return hashlib.sha256(text.encode(errors="surrogateescape")).hexdigest()[:6]


def format_labels(labels: Mapping[str, str]) -> str:
    """Return labels as gcloud's `--labels` takes them."""
    return ",".join(f"{key}={value}" for key, value in labels.items())


def hours_left(labels: Mapping[str, str]) -> float | None:
    """Return the hours until the latest end of a machine; None where its label does not tell."""
    text = labels.get(EXPIRES, "")
    return (int(text) - time.time()) / 3600 if text.isdecimal() else None

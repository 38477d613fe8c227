"""What a check comes to."""

import re
from dataclasses import dataclass
from typing import Literal

from taetpu.core.errors import UserError

Status = Literal["ok", "warning", "fails", "skipped"]


@dataclass(frozen=True)
class Check:
    """One thing that was looked at.

    Attributes:
        found: what was found; why, where it was skipped.
        remedy: what to do, in words.
        command: a line for a shell that does it. It is shown, never run.
    """

    name: str
    status: Status
    found: str
    remedy: str = ""
    command: str = ""


def offered(error: UserError) -> str:
    """The command that an error's remedy offers; "" where it offers none."""
    found = re.search(r"`(gcloud [^`]+)`", error.remedy or "")
    return found.group(1) if found else ""


def ok(name: str, found: str) -> Check:
    return Check(name, "ok", found)


def warning(name: str, found: str, remedy: str = "", command: str = "") -> Check:
    return Check(name, "warning", found, remedy, command)


def fails(name: str, found: str, remedy: str = "", command: str = "") -> Check:
    return Check(name, "fails", found, remedy, command)


def skipped(name: str, why: str, remedy: str = "", command: str = "") -> Check:
    return Check(name, "skipped", why, remedy, command)

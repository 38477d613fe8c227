"""What is remembered of a stack between commands: what was asked for, where, and where it was refused.

One JSON file a stack, in the folder that the XDG rules give programs for such things. The labels in the cloud are the
truth; the file is written before every call, so that what a killed command asked for is looked for by the next one.
"""

import fcntl
import json
import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

from taetpu.core import disk
from taetpu.core.errors import UserError

STALE = 1800.0
"""Seconds for which a zone that had no capacity is not asked again while there are others."""


@dataclass(frozen=True)
class Refusal:
    """A zone that would not make a slice, and when (seconds since 1970)."""

    zone: str
    type: str
    provisioning: str
    at: float
    why: str
    """The class of the error: `Stockout`, `Quota`."""


@dataclass(frozen=True)
class Record:
    """What is known here of a stack.

    Attributes:
        project, stack: whose it is, and its name.
        identity: what it was asked to be (`Spec.identity`); empty before the first `up`.
        zones: where something was asked for that is not known to be gone, the newest last.
        since: seconds since 1970 when the machine was ready; None while it is not.
        usd_per_hour: at the rate known then; None where none is.
        spent: USD of the machines that this stack had before.
        refusals: by which zones, the newest last.
        jobs: names of jobs begun on it, the newest last.
    """

    project: str
    stack: str
    identity: dict[str, Any] = field(default_factory=dict)
    zones: tuple[str, ...] = ()
    since: float | None = None
    usd_per_hour: float | None = None
    spent: float = 0.0
    refusals: tuple[Refusal, ...] = ()
    jobs: tuple[str, ...] = ()

    def asking(self, zone: str, identity: dict[str, Any]) -> "Record":
        """Before something is asked for in a zone."""
        zones = (*(z for z in self.zones if z != zone), zone)
        return replace(self, zones=zones, identity=identity, since=None)

    def gone(self, zone: str) -> "Record":
        """Nothing is left in a zone."""
        return replace(self, zones=tuple(z for z in self.zones if z != zone))

    def refused(self, refusal: Refusal) -> "Record":
        """A zone would not make it; its older refusals of the same are forgotten."""
        same = (refusal.zone, refusal.type, refusal.provisioning)
        others = (r for r in self.refusals if (r.zone, r.type, r.provisioning) != same)
        return replace(self, refusals=(*others, refusal)).gone(refusal.zone)


def folder() -> Path:
    """Where records are kept: `$XDG_STATE_HOME/taetpu`, else `~/.local/state/taetpu`."""
    base = os.environ.get("XDG_STATE_HOME") or "~/.local/state"
    return Path(base).expanduser() / "taetpu"


class Records:
    """The records of one project's stacks."""

    def __init__(self, project: str):
        self.project = project
        self.folder = folder() / project

    def read(self, stack: str) -> Record:
        """What is known of a stack; a fresh record where nothing is.

        Raises:
            UserError: the file is damaged.
        """
        path = self._path(stack)
        try:
            data = json.loads(path.read_text(encoding="utf-8"))
            refusals = tuple(Refusal(**one) for one in data.pop("refusals"))
            listed: dict[str, Any] = {name: tuple(data.pop(name)) for name in ("zones", "jobs")}
            return Record(**data, **listed, refusals=refusals)
        except FileNotFoundError:
            return Record(self.project, stack)
        except (ValueError, LookupError, TypeError, AttributeError):
            remedy = "delete it: `taetpu tpu list` finds machines by their labels, without it"
            raise UserError("this record of a TPU is damaged", file=path, remedy=remedy) from None

    def write(self, record: Record) -> None:
        """Keep a record, whole or not at all."""
        path = self._path(record.stack)
        with disk.explained("write", path):
            disk.write_file(path, json.dumps(asdict(record), indent=2).encode(), replace=True)

    def forget(self, stack: str) -> None:
        """Nothing is left of a stack."""
        with disk.explained("delete", self._path(stack)):
            self._path(stack).unlink(missing_ok=True)

    def stacks(self) -> list[str]:
        """Names of the stacks that there are records of."""
        return sorted(path.stem for path in self.folder.glob("*.json"))

    @contextmanager
    def held(self, stack: str) -> Iterator[None]:
        """Keep other commands of this machine from changing the stack until the block is left.

        Raises:
            UserError: another one is at it.
        """
        path = self.folder / f"{stack}.lock"
        with disk.explained("write", path):
            disk.make_folder(self.folder)
            lock = path.open("a+")
        with lock:
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                lock.seek(0)
                by = lock.read().strip() or "that has just started"
                problem = f"another command (process {by}) is changing the TPU {stack!r}"
                raise UserError(problem, file=path, remedy="wait for it, or stop it and try again") from None
            lock.truncate(0)
            lock.write(f"{os.getpid()}\n")
            lock.flush()
            yield

    def _path(self, stack: str) -> Path:
        return self.folder / f"{stack}.json"

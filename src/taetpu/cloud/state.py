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

from pydantic import TypeAdapter, ValidationError

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
class Used:
    """What a study has had of the machines of a stack, from its first to its end or the stack's `down`.

    Attributes:
        study: its name as a label has it.
        since: seconds since 1970 when it began; a machine that was there before counts from then.
        hours: of the machines that it lost, each until it was known to be gone, at most until its own end.
        lost: how many.
        idle: of them in a row, between which nothing was added to the results.
        seen: what the results were when the last one was lost, or in the beginning.
        usd: of the hours; None where the rate of one was not known.
    """

    study: str
    since: float
    hours: float = 0.0
    lost: int = 0
    idle: int = 0
    seen: str = ""
    usd: float | None = 0.0


@dataclass(frozen=True)
class Record:
    """What is known here of a stack.

    Attributes:
        project, stack: whose it is, and its name.
        identity: what it was asked to be (`Spec.identity`); empty before the first `up`.
        zones: where something was asked for that is not known to be gone, the newest last.
        since: seconds since 1970 when the machine was ready; None while it is not.
        until: seconds since 1970 when it is deleted by itself; None where it does not say.
        usd_per_hour: at the rate known then; None where none is.
        spent: USD of the machines that this stack had before.
        refusals: by which zones, the newest last.
        jobs: names of jobs begun on it, the newest last.
        used: by the study that runs on the stack's machines; None where none does.
    """

    project: str
    stack: str
    identity: dict[str, Any] = field(default_factory=dict)
    zones: tuple[str, ...] = ()
    since: float | None = None
    until: float | None = None
    usd_per_hour: float | None = None
    spent: float = 0.0
    refusals: tuple[Refusal, ...] = ()
    jobs: tuple[str, ...] = ()
    used: Used | None = None

    def asking(self, zone: str, identity: dict[str, Any]) -> "Record":
        """Before something is asked for in a zone."""
        zones = (*(z for z in self.zones if z != zone), zone)
        return replace(self, zones=zones, identity=identity, since=None, until=None)

    def ready(
        self, zone: str, identity: dict[str, Any], usd_per_hour: float | None, now: float, until: float | None
    ) -> "Record":
        """The machine in a zone is ready. One that is known to be ready has been so since then, at its rate then."""
        if self.since is not None and self.zones[-1:] == (zone,):
            rate = self.usd_per_hour if usd_per_hour is None else usd_per_hour
            return replace(self, identity=identity, until=until, usd_per_hour=rate)
        return replace(self.asking(zone, identity), since=now, until=until, usd_per_hour=usd_per_hour)

    def gone(self, zone: str, now: float) -> "Record":
        """Nothing is left in a zone; what a machine that was ready there has cost and lasted is added up."""
        zones = tuple(z for z in self.zones if z != zone)
        if self.zones[-1:] != (zone,):
            return replace(self, zones=zones)
        spent, used = self.spent + (self.cost(now) or 0.0), self.used_at(now)
        if used and self.since is not None:
            used = replace(used, lost=used.lost + 1)
        return replace(self, zones=zones, since=None, until=None, spent=spent, used=used)

    def used_at(self, now: float) -> Used | None:
        """What the study has used until now, with the machine that is there."""
        if self.used is None or self.since is None:
            return self.used
        used, hours = self.used, self._seconds(now, max(self.since, self.used.since)) / 3600
        usd = None if used.usd is None or self.usd_per_hour is None else used.usd + hours * self.usd_per_hour
        return replace(used, hours=used.hours + hours, usd=usd)

    def refused(self, refusal: Refusal) -> "Record":
        """A zone would not make it; its older refusals of the same are forgotten."""
        same = (refusal.zone, refusal.type, refusal.provisioning)
        others = (r for r in self.refusals if (r.zone, r.type, r.provisioning) != same)
        return replace(self, refusals=(*others, refusal)).gone(refusal.zone, refusal.at)

    def cost(self, now: float) -> float | None:
        """USD of the machine that is there, since it was ready and at most until its end; None where the rate or the
        moment is not known."""
        if self.usd_per_hour is None or self.since is None:
            return None
        return self.usd_per_hour * self._seconds(now, self.since) / 3600

    def _seconds(self, now: float, since: float) -> float:
        """Of the machine that is there, until now and at most until its end."""
        return max(0.0, (now if self.until is None else min(now, self.until)) - since)


def folder() -> Path:
    """Where records are kept: `$XDG_STATE_HOME/taetpu`, else `~/.local/state/taetpu`."""
    base = os.environ.get("XDG_STATE_HOME") or "~/.local/state"
    return Path(base).expanduser() / "taetpu"


class Held(UserError):
    """Another command is changing the stack."""


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
        if not path.exists():
            return Record(self.project, stack)
        with disk.explained("read", path):
            data = path.read_bytes()
        try:
            return TypeAdapter(Record).validate_json(data)
        except ValidationError:
            remedy = "delete it: `taetpu tpu list` finds machines by their labels, without it"
            remedy += "; the hours and dollars that its study has used are forgotten with it"
            raise UserError("this record of a TPU is damaged", file=path, remedy=remedy) from None

    def write(self, record: Record) -> None:
        """Keep a record, whole or not at all."""
        path = self._path(record.stack)
        with disk.explained("write", path):
            disk.write_file(path, json.dumps(asdict(record), indent=2).encode(), replace=True)

    def stacks(self) -> list[str]:
        """Names of the stacks that there are records of."""
        return sorted(path.stem for path in self.folder.glob("*.json"))

    @contextmanager
    def held(self, stack: str) -> Iterator[None]:
        """Keep other commands of this machine from changing the stack until the block is left.

        Raises:
            Held: another one is at it.
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
                raise Held(problem, file=path, remedy="wait for it, or stop it and try again") from None
            lock.truncate(0)
            lock.write(f"{os.getpid()}\n")
            lock.flush()
            yield

    def _path(self, stack: str) -> Path:
        return self.folder / f"{stack}.json"

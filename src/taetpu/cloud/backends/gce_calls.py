"""How Compute Engine is asked: questions and changes that survive a lost answer, and operations polled by ourselves.

The library's own waiting is not used: what its calls return polls Google's address whatever address the client has.
"""

import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from taetpu.cloud.backends.base import Operation
from taetpu.cloud.clients import Clients
from taetpu.cloud.errors import CloudError, Conflict, NotFound, Stockout, Transient, Unknown
from taetpu.cloud.google_calls import reading
from taetpu.cloud.google_errors import classify

TIMEOUT = 60.0
"""Seconds for one answer."""

Start = Callable[[], Operation | None]
"""Begins an operation; None: there is nothing to wait for."""


class Calls:
    """The calls of one project."""

    def __init__(self, clients: Clients):
        self.clients, self.project = clients, clients.project
        self._made: dict[str, Any] = {}

    def ask(self, service: str, method: str, doing: str, **fields: Any) -> Any:
        """What a question is answered with.

        Args:
            service: as the library names it, `Instances`.
            fields: of the request, the project apart.

        Raises:
            CloudError: see `google_errors`.
        """
        call = getattr(self._client(service), method)
        request = {"project": self.project, **fields}
        return reading(lambda: call(request=request, retry=None, timeout=TIMEOUT), _place(fields), doing)

    def found(self, service: str, doing: str, **fields: Any) -> Any | None:
        """A resource by its name, or None."""
        try:
            return self.ask(service, "get", doing, **fields)
        except NotFound:
            return None

    def listed(self, service: str, method: str, doing: str, **fields: Any) -> list[Any]:
        """All pages of a list; nothing where what it is of is not there."""
        call = getattr(self._client(service), method)
        request = {"project": self.project, **fields}
        try:
            return reading(lambda: list(call(request=request, retry=None, timeout=TIMEOUT)), _place(fields), doing)
        except NotFound:
            return []

    def everywhere(self, service: str, doing: str, **fields: Any) -> list[tuple[str, Any]]:
        """What an aggregated list holds, all of its pages: the zone or region, with what is there."""
        pages = self.listed(service, "aggregated_list", doing, **fields)
        return [(place.partition("/")[2], found) for place, found in pages]

    def change(self, service: str, method: str, doing: str, **fields: Any) -> "Polled":
        """Begin to change something, in the zone or region of the fields. Sent again where no answer comes, under an
        identity by which the server does it once.

        Raises:
            Unknown: no answer ever came.
            CloudError: it is refused.
        """
        call = getattr(self._client(service), f"{method}_unary")
        request = {"project": self.project, **fields, "request_id": str(uuid.uuid4())}
        zone = _place(fields)
        try:
            begun = reading(lambda: call(request=request, retry=None, timeout=TIMEOUT), zone, doing)
        except Transient as error:
            raise classify(error.__cause__, zone, doing) from error.__cause__
        where = {key: fields[key] for key in ("zone", "region") if key in fields}
        return Polled(self, begun.name, where, doing, inserting=method == "insert")

    def remove(self, service: str, doing: str, **fields: Any) -> "Polled | None":
        """Begin to delete something; None if it is gone already."""
        try:
            return self.change(service, "delete", doing, **fields)
        except NotFound:
            return None

    def _client(self, service: str) -> Any:
        if service not in self._made:
            self._made[service] = self.clients.compute(service)
        return self._made[service]


class Polled:
    """An operation of Compute Engine, asked for once at each `done`."""

    def __init__(self, calls: Calls, name: str, where: dict[str, str], doing: str, inserting: bool):
        self.calls, self.name, self.where, self.doing, self.inserting = calls, name, where, doing, inserting
        self.ended = False

    def done(self) -> bool:
        if self.ended:
            return True
        service = "ZoneOperations" if "zone" in self.where else "RegionOperations"
        try:
            operation = self.calls.ask(service, "get", self.doing, operation=self.name, **self.where)
        except NotFound:  # operations are forgotten after a while
            self.ended = True
            return True
        if operation.status.name != "DONE":
            return False
        if not operation.error.errors:
            self.ended = True
            return True
        error = failure(operation.error.errors, _place(self.where), self.doing, self.inserting)
        if isinstance(error, NotFound) and not self.inserting:
            self.ended = True
            return True
        raise error


def failure(errors: Sequence[Any], zone: str, doing: str, inserting: bool) -> CloudError:
    """Why an operation, or a group's attempt, ended badly.

    INTERNAL_ERROR at the making of a machine is taken for a lack of capacity: so a public field report of July 2026
    found it, in zones and at times where other requests for the same were told so.
    """
    error = classify({"errors": [type(one).to_dict(one) for one in errors]}, zone, doing)
    if inserting and any(one.code == "INTERNAL_ERROR" for one in errors):
        return Stockout(f"{error.problem} (INTERNAL_ERROR, which mostly means that {zone} has none left)")
    return error


class Kept:
    """The making of an instance that must still be there once it was made: a spot one may be taken back before."""

    def __init__(self, making: Operation, there: Callable[[], bool], doing: str):
        self.making, self.there, self.doing = making, there, doing

    def done(self) -> bool:
        if not self.making.done():
            return False
        if not self.there():
            remedy = "another zone, another kind (--flex-start), or later"
            raise Stockout(f"{self.doing}: it was made and taken back before it was ready", remedy=remedy)
        return True


class Steps:
    """Operations one after the other. One that failed is begun anew when it is asked again."""

    def __init__(self, starts: Sequence[Start]):
        self.starts, self.running = list(starts), None

    def done(self) -> bool:
        while self.starts:
            try:
                if self.running is None:
                    self.running = self.starts[0]()
                if self.running and not self.running.done():
                    return False
            except Transient:
                raise
            except CloudError:
                self.running = None
                raise
            self.running = None
            self.starts.pop(0)
        return True


class AllOrNothing:
    """Steps, after which something is checked; if they fail for good, what they made is removed before it is told.

    Args:
        check: raises where what was made will come to nothing.
        undo: begins the removal.
    """

    def __init__(self, steps: Steps, check: Callable[[], None], undo: Callable[[], Operation]):
        self.steps, self.check, self.undo = steps, check, undo
        self.failed: CloudError | None = None
        self.undoing: Operation | None = None

    def done(self) -> bool:
        if self.failed is None:
            try:
                if not self.steps.done():
                    return False
                self.check()
                return True
            except (Transient, Unknown, Conflict):  # whose it is, or whether it is there, is not known
                raise
            except CloudError as error:
                self.failed = error
        if self.undoing is None:
            self.undoing = self.undo()
        if not self.undoing.done():
            return False
        raise self.failed


def _place(fields: Mapping[str, Any]) -> str:
    """The zone, else the region, that a request is about."""
    return fields.get("zone", "") or fields.get("region", "")


def pairs(found: Sequence[tuple[str, Any]], kind: str) -> Iterator[tuple[str, Any]]:
    """Each resource of an aggregated list, with its zone or region."""
    return ((place, one) for place, scoped in found for one in getattr(scoped, kind))

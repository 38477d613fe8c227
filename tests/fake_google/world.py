"""Shared state of the fakes: a clock, calls, injected faults, and long-running operations."""

import itertools
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal, Protocol

HTTP = {3: 400, 5: 404, 6: 409, 7: 403, 8: 429, 9: 400, 10: 409, 13: 500, 14: 503, 16: 401}
NAMES = {
    3: "INVALID_ARGUMENT", 5: "NOT_FOUND", 6: "ALREADY_EXISTS", 7: "PERMISSION_DENIED", 8: "RESOURCE_EXHAUSTED",
    9: "FAILED_PRECONDITION", 10: "ABORTED", 13: "INTERNAL", 14: "UNAVAILABLE", 16: "UNAUTHENTICATED",
}  # fmt: skip
"""google.rpc.Code to HTTP and to its name, as google/rpc/code.proto maps them."""


class Refused(Exception):
    """A request that a service refuses.

    Args:
        code: of google.rpc.Code: 5 is not found, 8 exhausted.
        facts: `metadata` of an ErrorInfo, with `reason`.
        http: the status, where a service has another than the code's usual one.
    """

    def __init__(
        self, code: int, message: str, reason: str = "", facts: Mapping[str, str] | None = None, http: int | None = None
    ):
        super().__init__(message)
        self.code, self.message, self.reason, self.facts = code, message, reason, dict(facts or {})
        self.http = http or HTTP[code]


Moment = Literal["before", "inside", "after"]


@dataclass
class Fault:
    """Something that goes wrong at a call.

    Attributes:
        call: the method's name, `CreateNode`, `instances.insert`; "*": any.
        error: what is answered; None: the connection is cut without an answer.
        zone: where; "*": anywhere.
        moment: before anything is done; inside the operation that the call starts; or after it was done, so that the
            caller cannot know.
        times: how often it still happens.
        skip: calls that it lets pass first.
    """

    call: str
    error: Refused | None
    zone: str = "*"
    moment: Moment = "before"
    times: int = 1
    skip: int = 0


@dataclass(frozen=True)
class Call:
    """A request that reached a fake."""

    service: str
    name: str
    zone: str
    changes: bool


class Cut(Exception):
    """Raised to close the connection without an answer."""


class Hosts(Protocol):
    """The interface of virtual machines."""

    def boot(self, instance: str, worker: int, metadata: Mapping[str, str]) -> tuple[str, int]:
        """Start one; where its sshd listens: address and port.

        `metadata` holds its attributes (`startup-script`, `ssh-keys` ...) with its `zone` and `project`.
        """
        ...

    def halt(self, instance: str) -> None:
        """End a machine with all its processes, as if its power were cut; it need not exist."""
        ...


class NoHosts:
    """Virtual machines without ssh."""

    def boot(self, instance: str, worker: int, metadata: Mapping[str, str]) -> tuple[str, int]:
        return "127.0.0.1", 22

    def halt(self, instance: str) -> None:
        pass


@dataclass
class World:
    """Everything that is shared by the services of one fake cloud.

    Attributes:
        polls: how often an operation is asked for before it is done.
        hosts: what boots when a machine is made.
        resources: per service, what is there: `{"tpu.nodes": {name: ...}}`.
        watch: called with every call before it is answered and after what it asks for was done.
        pause: seconds after each MiB of an answer; None: answers are sent at once.
        sent: the number of bytes of all answers.
    """

    project: str = "fake-project"
    polls: int = 1
    hosts: Hosts = field(default_factory=NoHosts)
    lock: threading.RLock = field(default_factory=threading.RLock)
    calls: list[Call] = field(default_factory=list)
    faults: list[Fault] = field(default_factory=list)
    resources: dict[str, dict[str, Any]] = field(default_factory=dict)
    operations: dict[str, "Pending"] = field(default_factory=dict)
    skew: float = 0.0
    watch: Callable[[Call, Moment], None] = lambda call, moment: None
    pause: float | None = None
    sent: int = 0

    def __post_init__(self) -> None:
        self._numbers = itertools.count(1)

    def now(self) -> float:
        """Return seconds since 1970 by the cloud's clock."""
        return time.time() + self.skew

    def table(self, name: str) -> dict[str, Any]:
        """Return the resources of a kind, such as `tpu.nodes`, by name."""
        return self.resources.setdefault(name, {})

    def left(self) -> list[str]:
        """Return every existing resource by kind and name."""
        return sorted(f"{kind}: {name}" for kind, found in self.resources.items() for name in found)

    def call(self, service: str, name: str, zone: str, changes: bool, answer: Callable[[], Any]) -> Any:
        """Answer a request, unless a fault is due. Holds the world's lock.

        Raises:
            Refused: the request is.
            Cut: the caller gets no answer.
        """
        with self.lock:
            made = Call(service, name, zone, changes)
            self.calls.append(made)
            self.watch(made, "before")
            self._strike(name, zone, "before")
            answered = answer()
            self.watch(made, "after")
            self._strike(name, zone, "after")
            return answered

    def changes(self) -> list[Call]:
        """Return the calls that changed something."""
        return [call for call in self.calls if call.changes]

    def operation(self, call: str, zone: str, finish: Callable[[], Any], **about: Any) -> "Pending":
        """Start an operation that completes after `polls` reads, unless a fault is due in it."""
        fault = self._due(call, zone, "inside")
        name = f"operation-{next(self._numbers):012d}"
        self.operations[name] = Pending(name, zone, self.polls, finish, fault.error if fault else None, about)
        return self.operations[name]

    def _strike(self, name: str, zone: str, moment: Moment) -> None:
        if fault := self._due(name, zone, moment):
            raise fault.error or Cut

    def _due(self, name: str, zone: str, moment: Moment) -> Fault | None:
        for fault in self.faults:
            if fault.moment == moment and fault.call in (name, "*") and fault.zone in (zone, "*"):
                if fault.skip:
                    fault.skip -= 1
                    continue
                fault.times -= 1
                if fault.times <= 0:
                    self.faults.remove(fault)
                return fault
        return None


@dataclass
class Pending:
    """A long-running operation.

    Attributes:
        about: what a service wants to tell of it, e.g. its target.
        result: of `finish`, once it is done.
    """

    name: str
    zone: str
    polls: int
    finish: Callable[[], Any]
    error: Refused | None
    about: dict[str, Any]
    done: bool = False
    result: Any = None

    def poll(self) -> bool:
        """Count one read; return whether the operation is done or failed."""
        if not self.done:
            self.polls -= 1
            if self.polls < 0:
                self.done = True
                self.result = None if self.error else self.finish()
        return self.done


def quota(limit: str, where: str) -> Refused:
    """Return an API's error of an exceeded quota."""
    message = f"Quota limit '{limit}' has been exceeded. Limit: 0 in {where}."
    facts = {"quota_limit": limit, "quota_limit_value": "0"}
    return Refused(8, message, "RATE_LIMIT_EXCEEDED", facts)


def stockout(zone: str) -> Refused:
    """Return the Cloud TPU API's error of a zone without capacity."""
    there = "you can try in another zone where Cloud TPU Nodes are offered"
    return Refused(8, f'There is no more capacity in the zone "{zone}"; {there}')

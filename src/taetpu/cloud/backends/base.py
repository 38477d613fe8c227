"""The one interface to whatever makes TPU machines."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from enum import StrEnum
from typing import Protocol

from taetpu.cloud.spec import EXPIRES, IDLE, LASTS, OWNER, SPEC, STACK, STUDY, BackendName, Spec
from taetpu.core.chips import Slice


class State(StrEnum):
    """Where a machine is in its life."""

    WAITING = "waiting"
    """Asked for, and in a queue."""
    CREATING = "creating"
    READY = "ready"
    """Running by the API's word. Whether it answers, only ssh can tell."""
    DELETING = "deleting"
    LOST = "lost"
    """Preempted, terminated, suspended or failed: it never comes back and must be deleted."""
    STOPPED = "stopped"
    UNKNOWN = "unknown"


OVER = (State.LOST, State.DELETING, State.STOPPED)
"""A machine in one of these never becomes ready again."""


@dataclass(frozen=True)
class Worker:
    """One host of a slice, in the order of the workers."""

    address: str
    """The IP address that ssh goes to: the external one, else the internal one."""
    port: int = 22
    instance: str = ""
    """The name of its virtual machine, which a tunnel is opened to; "" where there is none."""
    inside: str = ""
    """The IP address that the other hosts reach it by; "" where it is not told."""


@dataclass(frozen=True)
class Machine:
    """A slice as the API describes it."""

    name: str
    zone: str
    backend: BackendName
    type: str
    """The accelerator type, `v6e-8`, or the machine type."""
    state: State
    detail: str = ""
    """The API's own word for the state, with its reason."""
    labels: Mapping[str, str] = field(default_factory=dict)
    workers: tuple[Worker, ...] = ()
    created: str = ""
    """ISO time; "" where it is not told."""
    started: str = ""
    """ISO time since when it has run, after any wait in a queue; "" where it has not, or that is not told."""
    spot: bool = False

    @property
    def owner(self) -> str:
        """ "" where it is not ours."""
        return self.labels.get(OWNER, "")

    @property
    def stack(self) -> str:
        return self.labels.get(STACK, "")

    @property
    def spec(self) -> str:
        """The fingerprint of the spec that it was made from."""
        return self.labels.get(SPEC, "")

    @property
    def expires(self) -> float | None:
        """Seconds since 1970 after which it should be gone; None where it does not say."""
        latest, lasts = self._number(EXPIRES), self._number(LASTS)
        if latest is None or lasts is None or not self.started:
            return latest
        return min(latest, datetime.fromisoformat(self.started).timestamp() + lasts)

    def left(self, now: float) -> float | None:
        """Seconds for which it may run yet, below 0 where it should be gone; None where it does not say."""
        if self.expires is None:
            return None
        return min(self.expires - now, self._number(LASTS) or math.inf)

    @property
    def idle_minutes(self) -> int | None:
        """Without use, after which it deletes itself; 0: never; None where it does not say."""
        return self._number(IDLE)

    @property
    def study(self) -> str:
        """The study that it was made for, as a label has it; "": for none."""
        return self.labels.get(STUDY, "")

    def _number(self, label: str) -> int | None:
        text = self.labels.get(label, "")
        return int(text) if text.isdecimal() else None


class Operation(Protocol):
    """Something asked of the API that takes a while."""

    def done(self) -> bool:
        """Whether it has ended well.

        Raises:
            CloudError: it ended otherwise.
        """
        ...


class Backend(Protocol):
    """Makes, finds and removes slices. Every failure is a `CloudError` of the class that says what can be done.

    Attributes:
        unseen: zones that the last `list` could not look into, for they did not answer.
    """

    name: BackendName
    unseen: Sequence[str]

    def zones(self, tpu: Slice) -> list[str]:
        """Zones where the API lists the slice, sorted. Not where there is quota or capacity: nothing tells that."""
        ...

    def create(self, spec: Spec, zone: str, startup: str, ssh_key: str) -> Operation:
        """Ask for the slice with everything it needs, all under the spec's labels.

        Args:
            startup: a script that each host runs as root whenever it boots.
            ssh_key: the public key of `spec.user`.

        Raises:
            Conflict: something of that name is there already.
        """
        ...

    def get(self, name: str, zone: str) -> Machine | None:
        """The machine, also one that is still waiting in a queue; None if there is none."""
        ...

    def list(self) -> Sequence[Machine]:
        """Every TPU machine of the project that this API shows, in all zones, ours or not.

        What is left of one that is gone (templates, policies, requests without a node) is LOST, without workers.
        """
        ...

    def delete(self, name: str, zone: str) -> Operation:
        """Remove the machine and all that was made with it, in whatever state. Nothing there is fine."""
        ...

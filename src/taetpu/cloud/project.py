"""A project as everything that makes and removes machines sees it: its two APIs, what is written down of what was asked
for, and how patiently they are asked."""

import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field

from taetpu.cloud.backends.base import Backend, Machine
from taetpu.cloud.errors import Disabled, Invalid
from taetpu.cloud.state import Records

Tell = Callable[[str], None]


@dataclass(frozen=True)
class Waits:
    """How patiently a cloud is asked, in seconds.

    Attributes:
        poll: between two questions.
        settle: within which something that was asked for shows up.
        ready: within which a machine that is being made is ready.
        queue: for which a request may wait in a zone's queue while another zone is left to be asked. In the last one,
            and for flex-start, which is a queue, it waits as long as the command runs.
    """

    poll: float = 5.0
    settle: float = 60.0
    ready: float = 900.0
    queue: float = 900.0
    sleep: Callable[[float], None] = time.sleep
    now: Callable[[], float] = time.time

    @classmethod
    def here(cls) -> "Waits":
        """As patient as the cloud that is asked needs: the fakes take no time."""
        from taetpu.cloud.clients import fake_address

        return cls(poll=0.05, settle=2.0, ready=60.0, queue=60.0) if fake_address() else cls()

    def until(self, seconds: float) -> Iterator[None]:
        """Once now, and once more after each pause until the time is over."""
        end = time.monotonic() + seconds
        while True:
            yield
            if time.monotonic() >= end:
                return
            self.sleep(self.poll)


@dataclass(frozen=True)
class Cloud:
    """What `up` and `down` work with: every backend of a project, its records, and whom to tell what happens."""

    backends: Sequence[Backend]
    records: Records
    owner: str
    tell: Tell = lambda line: None
    waits: Waits = field(default_factory=Waits)

    def backend(self, name: str) -> Backend:
        return next(backend for backend in self.backends if backend.name == name)

    def machines(self) -> list[Machine]:
        """Every TPU machine of the project that can be seen, ours or not, by name. An API that is off has none."""
        found: list[Machine] = []
        off: list[Disabled] = []
        for backend in self.backends:
            try:
                found += backend.list()
            except Disabled as error:
                off.append(error)
        if off and len(off) == len(self.backends):
            raise off[0]
        return sorted(found, key=lambda machine: (machine.name, machine.zone))

    def unseen(self) -> dict[str, Sequence[str]]:
        """By backend, the zones that did not answer when `machines` looked last; only those with any."""
        return {backend.name: backend.unseen for backend in self.backends if backend.unseen}

    def of(self, stack: str) -> list[Machine]:
        """What there is of a stack, by its labels; a record's zones are asked for by name besides.

        A list may lag behind what was just made, and a request in a queue may not be in it.
        """
        found = [m for m in self.machines() if m.stack == stack and m.owner == self.owner]
        places = {(m.backend, m.zone) for m in found}
        record = self.records.read(stack)
        asked = record.identity.get("backend")  # a zone of one API may be none of the other
        for zone in record.zones:
            for backend in self.backends if asked is None else [self.backend(asked)]:
                machine = None if (backend.name, zone) in places else self.look(backend, stack, zone)
                found += [machine] if machine else []
        return found

    def look(self, backend: Backend, stack: str, zone: str) -> Machine | None:
        """What is ours of this name in a zone. A zone that there is not, or that is closed, has nothing."""
        try:
            machine = backend.get(stack, zone)
        except Invalid:
            return None
        return machine if machine and machine.owner == self.owner else None

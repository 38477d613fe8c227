"""From what is there to what is wanted: `up` makes a stack or finds it, `down` leaves nothing of it.

Both may be given again at any time, from anywhere, whatever became of the last call: they look first, write down what
they are about to ask for, and ask then. An answer that never came is not a refusal: they look again.
"""

import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field, replace

from taetpu.cloud.backends.base import Backend, Machine, Operation, State
from taetpu.cloud.catalogue import region
from taetpu.cloud.errors import CloudError, Conflict, NotFound, Quota, Stockout, Transient, Unknown
from taetpu.cloud.spec import Spec, fingerprint
from taetpu.cloud.state import STALE, Record, Records, Refusal

Tell = Callable[[str], None]


@dataclass(frozen=True)
class Waits:
    """How patiently a cloud is asked, in seconds.

    Attributes:
        poll: between two questions.
        settle: within which something that was asked for shows up.
        ready: within which a machine that is being made is ready.
        queue: for which a queued request may wait; None: as long as the command runs.
    """

    poll: float = 5.0
    settle: float = 60.0
    ready: float = 900.0
    queue: float | None = None
    sleep: Callable[[float], None] = time.sleep
    now: Callable[[], float] = time.time

    @classmethod
    def here(cls) -> "Waits":
        """As patient as the cloud that is asked needs: the fakes take no time."""
        from taetpu.cloud.clients import fake_address

        return cls(poll=0.05, settle=2.0, ready=60.0) if fake_address() else cls()

    def until(self, seconds: float | None) -> Iterator[None]:
        """Once now, and once more after each pause until the time is over."""
        end = None if seconds is None else time.monotonic() + seconds
        while True:
            yield
            if end is not None and time.monotonic() >= end:
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
        """Every TPU machine of the project that can be seen, ours or not, by name."""
        found = [machine for backend in self.backends for machine in backend.list()]
        return sorted(found, key=lambda machine: (machine.name, machine.zone))

    def of(self, stack: str) -> list[Machine]:
        """What there is of a stack, by its labels; a record's zones are asked for by name besides.

        A list may lag behind what was just made, and a request in a queue may not be in it.
        """
        found = {(m.backend, m.zone): m for m in self.machines() if m.stack == stack and m.owner == self.owner}
        record = self.records.read(stack)
        asked = record.identity.get("backend")  # a zone of one API may be none of the other
        for zone in record.zones:
            for backend in self.backends if asked is None else [self.backend(asked)]:
                machine = None if (backend.name, zone) in found else backend.get(stack, zone)
                if machine and machine.owner == self.owner:
                    found[backend.name, zone] = machine
        return list(found.values())


def up(cloud: Cloud, spec: Spec, zones: Mapping[str, float | None], startup: str, ssh_key: str) -> Machine:
    """The machine of a spec, READY by the API's word: the one there is, or a new one in the first zone that has it.

    Args:
        zones: where it may be, the preferred first, with USD an hour there; None where no rate is known.

    Raises:
        Conflict: a stack of this name is there that is another machine, or not ours.
        Stockout: no zone has any.
        Quota: no zone may make it.
        CloudError: the API refuses it for good.
    """
    with cloud.records.held(spec.stack):
        if there := _kept(cloud, spec):
            return _ready(cloud, spec, there, zones.get(there.zone))
        refused: list[CloudError] = []
        for zone in _order(cloud.records.read(spec.stack), spec, zones, cloud.waits.now()):
            if any(isinstance(error, Quota) and error.facts.get("region") == region(zone) for error in refused):
                continue
            try:
                return _ready(cloud, spec, _made(cloud, spec, zone, startup, ssh_key), zones[zone])
            except CloudError as error:
                if not error.elsewhere:
                    raise
                error.facts.setdefault("region", region(zone))
                error.facts.setdefault("zone", zone)
                refused.append(error)
                _refuse(cloud, spec, zone, error)
        raise _nowhere(spec, refused)


def down(cloud: Cloud, stack: str) -> list[Machine]:
    """Remove everything of a stack; what was there. Nothing there is fine. No bucket is touched.

    Raises:
        Unknown: something is still there after all patience; the message names it. The same command goes on.
    """
    with cloud.records.held(stack):
        doomed = cloud.of(stack)
        _remove(cloud, doomed)
        record = cloud.records.read(stack)
        cost = _cost(record, cloud.waits.now())
        cloud.records.write(replace(record, zones=(), since=None, identity={}, spent=record.spent + cost))
        return doomed


def named(cloud: Cloud, machine: Machine, spec: Spec) -> Machine:
    """A machine that is ready, once it tells of its hosts, and of their names where a tunnel needs them; after some
    patience as it is.

    The Cloud TPU API learns the names from the hosts themselves, which may come after its READY.
    """
    for _ in cloud.waits.until(cloud.waits.settle):
        if machine.workers and (spec.external_ip or all(worker.instance for worker in machine.workers)):
            break
        with suppress(Transient):
            machine = cloud.backend(machine.backend).get(machine.name, machine.zone) or machine
    return machine


def lost(cloud: Cloud, machine: Machine) -> str:
    """What has become of a machine that was ready, in the API's words; "" while it is.

    Raises:
        Transient, Unknown: nothing can be told.
    """
    found = cloud.backend(machine.backend).get(machine.name, machine.zone)
    if found is None:
        return "gone"
    return "" if found.state in (State.READY, State.UNKNOWN) else found.detail or str(found.state)


def expired(machines: Sequence[Machine], owner: str, now: float) -> list[Machine]:
    """The machines of an owner that should be gone by their label. What is not his is not among them."""
    return [m for m in machines if m.owner == owner and m.expires is not None and m.expires <= now]


def collect(cloud: Cloud, doomed: Sequence[Machine]) -> None:
    """Remove machines that nobody waits for, see `expired`; the records of their stacks say so."""
    for stack in sorted({machine.stack for machine in doomed}):
        with cloud.records.held(stack):
            _remove(cloud, [machine for machine in doomed if machine.stack == stack])
            record = cloud.records.read(stack)
            cost = _cost(record, cloud.waits.now())
            cloud.records.write(replace(record, zones=(), since=None, spent=record.spent + cost))


def _kept(cloud: Cloud, spec: Spec) -> Machine | None:
    """The machine that the spec asks for, if it is there; what is left of lost ones is removed first."""
    there = cloud.of(spec.stack)
    lost = [m for m in there if m.state in (State.LOST, State.DELETING, State.STOPPED)]
    if lost:
        cloud.tell(f"removing what is left of {', '.join(f'{m.name} in {m.zone} ({m.detail})' for m in lost)}")
        _remove(cloud, lost)
    alive = [machine for machine in there if machine not in lost]
    for machine in alive:
        if machine.spec != fingerprint(spec.identity()):
            raise _other(machine, spec, cloud.records.read(spec.stack))
    if len(alive) > 1:
        _remove(cloud, alive[1:])
    return alive[0] if alive else None


def _made(cloud: Cloud, spec: Spec, zone: str, startup: str, ssh_key: str) -> Machine:
    """Ask for the machine in a zone, after writing down that it is asked for."""
    backend = cloud.backend(spec.backend)
    record = cloud.records.read(spec.stack)
    cloud.records.write(record.asking(zone, dict(spec.identity())))
    cloud.tell(f"asking for {spec.tpu.name} ({spec.provisioning}) in {zone}")
    operation: Operation | None = None
    try:
        operation = backend.create(spec, zone, startup, ssh_key)
    except Conflict as error:
        machine = backend.get(spec.stack, zone)
        if machine is None or machine.owner != cloud.owner:
            owner = machine.owner if machine else ""
            problem = f"there is a {spec.stack!r} in {zone} already that is not yours ({owner or 'it has no owner'})"
            raise Conflict(problem, remedy="choose another name for the TPU") from error
        if machine.spec != fingerprint(spec.identity()):
            raise _other(machine, spec, record) from error
    except (Transient, Unknown) as error:
        cloud.tell(f"no clear answer from {zone} ({error.problem}): looking whether it is there")
        if not _appears(cloud, backend, spec, zone):
            raise
    return _waited(cloud, backend, spec, zone, operation)


def _appears(cloud: Cloud, backend: Backend, spec: Spec, zone: str) -> bool:
    """Whether something that was asked for without an answer is there after all."""
    return any(backend.get(spec.stack, zone) for _ in cloud.waits.until(cloud.waits.settle))


def _waited(cloud: Cloud, backend: Backend, spec: Spec, zone: str, operation: Operation | None) -> Machine:
    """The machine once it is ready.

    Raises:
        Stockout: it was lost, or it did not become ready in time; what is left of it is the caller's to remove.
        Unknown: nothing of it is to be seen.
        CloudError: the operation ended so.
    """
    waits, said, started = cloud.waits, "", time.monotonic()
    for _ in waits.until(None):
        asked, machine = False, None
        with suppress(Transient):  # a question that was not answered says nothing of the machine
            asked = operation is None or operation.done()
            machine = backend.get(spec.stack, zone)
        waited = time.monotonic() - started
        if machine is None:
            if waited > (waits.settle if asked else waits.ready):
                problem = f"{spec.stack} was asked for in {zone} and is not to be seen there; it may come yet"
                raise Unknown(problem, remedy="the same command looks for it again; `taetpu tpu down` removes it")
            continue
        if machine.state is State.READY:
            return machine
        if machine.detail != said:
            said = machine.detail
            cloud.tell(f"{zone}: {said}")
        if machine.state is State.LOST:
            raise Stockout(f"{zone} took {spec.stack} back before it was ready: {said}")
        queued = machine.state is State.WAITING
        patience = waits.queue if queued else waits.ready
        if patience is not None and waited > patience:
            what = "waited in the queue" if queued else "was not ready"
            raise Stockout(f"{spec.stack} {what} in {zone} for {patience:.0f} s: {said}")
    raise AssertionError("waiting without an end has ended")


def _ready(cloud: Cloud, spec: Spec, machine: Machine, rate: float | None) -> Machine:
    """Wait for a machine that is there; note that it is."""
    record = cloud.records.read(spec.stack).asking(machine.zone, dict(spec.identity()))
    if machine.state is not State.READY:
        cloud.records.write(record)
        machine = _waited(cloud, cloud.backend(machine.backend), spec, machine.zone, None)
    before = cloud.records.read(spec.stack)
    since = before.since if before.since is not None and before.zones[-1:] == (machine.zone,) else cloud.waits.now()
    cloud.records.write(replace(record, since=since, usd_per_hour=rate, refusals=before.refusals))
    return machine


def _refuse(cloud: Cloud, spec: Spec, zone: str, error: CloudError) -> None:
    """Note that a zone has none, and leave nothing there: a failed request keeps its name and its quota."""
    cloud.tell(f"{zone}: {error.problem}")
    machine = cloud.backend(spec.backend).get(spec.stack, zone)
    if machine and machine.owner == cloud.owner:
        _remove(cloud, [machine])
    refusal = Refusal(zone, spec.tpu.name, spec.provisioning, cloud.waits.now(), type(error).__name__)
    cloud.records.write(cloud.records.read(spec.stack).refused(refusal))


def _order(record: Record, spec: Spec, zones: Iterable[str], now: float) -> list[str]:
    """Zones as they are to be tried: those that refused the same a short while ago come last."""
    fresh = {
        r.zone
        for r in record.refusals
        if (r.type, r.provisioning) == (spec.tpu.name, spec.provisioning) and now - r.at < STALE
    }
    return sorted(zones, key=lambda zone: zone in fresh)


def _remove(cloud: Cloud, doomed: Sequence[Machine]) -> None:
    """Delete machines and wait until they are gone."""
    operations = [(machine, _asked_to_go(cloud, machine)) for machine in doomed]
    for machine, operation in operations:
        backend = cloud.backend(machine.backend)
        for _ in cloud.waits.until(cloud.waits.ready):
            with _unsure():
                if operation is None:
                    operation = _asked_to_go(cloud, machine)
                if (operation is None or operation.done()) and backend.get(machine.name, machine.zone) is None:
                    break
        else:
            problem = f"{machine.name} in {machine.zone} is still there ({machine.detail}): it may still cost money"
            raise Unknown(problem, remedy="give the same command again, or delete it in the console")
        cloud.tell(f"{machine.name} in {machine.zone} is gone")
        record = cloud.records.read(machine.stack)
        cloud.records.write(record.gone(machine.zone))


def _asked_to_go(cloud: Cloud, machine: Machine) -> Operation | None:
    """Ask for a machine's end; None where there was no clear answer, so that it is asked again."""
    try:
        return cloud.backend(machine.backend).delete(machine.name, machine.zone)
    except (Transient, Unknown, Conflict):  # a machine that is being made may refuse for a while
        return None


@contextmanager
def _unsure() -> Iterator[None]:
    """A question that was not answered is asked again at the next turn."""
    with suppress(Transient, Unknown, Conflict, NotFound):
        yield


def _other(machine: Machine, spec: Spec, record: Record) -> Conflict:
    """A stack of this name is there, and is another machine: in what they differ."""
    wanted = spec.identity()
    if record.identity:
        pairs = [(key, record.identity.get(key), wanted[key]) for key in wanted]
    else:
        pairs = [("type", machine.type, spec.tpu.name), ("backend", machine.backend, spec.backend)]
    differ = [f"{key} is {there!r}, not {asked!r}" for key, there, asked in pairs if there != asked]
    told = "; ".join(differ) or "it was made with other settings, on another machine"
    remedy = f"`taetpu tpu down {spec.stack}` removes it; or choose another name"
    return Conflict(f"{spec.stack!r} in {machine.zone} is there already and differs: {told}", remedy=remedy)


def _nowhere(spec: Spec, refused: Sequence[CloudError]) -> CloudError:
    """No zone would make it: why each did not."""
    kind = Stockout if any(isinstance(error, Stockout) for error in refused) else Quota
    reasons = "; ".join(f"{error.facts['zone']}: {error.problem}" for error in refused)
    problem = f"no zone gave a {spec.tpu.name} ({spec.provisioning}): {reasons or 'none was named'}"
    if kind is Quota:
        return Quota(problem, remedy="ask for quota in the console (IAM & Admin > Quotas), or another region")
    return Stockout(problem, remedy="try later, name more --zone, or ask for another kind (--spot, --flex-start)")


def _cost(record: Record, now: float) -> float:
    if record.usd_per_hour is None or record.since is None:
        return 0.0
    return record.usd_per_hour * max(0.0, now - record.since) / 3600

"""A machine from its request to being ready: written down, asked for, looked for where no answer comes, waited for."""

import time
from contextlib import suppress

from taetpu.cloud.backends.base import OVER, Backend, Machine, Operation, State
from taetpu.cloud.errors import CloudError, Conflict, Invalid, Stockout, Transient, Unknown
from taetpu.cloud.pace import wait_turn
from taetpu.cloud.project import Cloud
from taetpu.cloud.spec import Spec, fingerprint
from taetpu.cloud.state import Record


def made(cloud: Cloud, spec: Spec, zone: str, startup: str, ssh_key: str, queue: float | None) -> Machine:
    """Ask for the machine in a zone, after writing down that it is asked for.

    Where no answer comes it is looked for, and asked for again if it is not there: a zone gives a name but once.
    """
    backend, record = cloud.backend(spec.backend), cloud.records.read(spec.stack)
    cloud.records.write(record.asking(zone, dict(spec.identity())))
    cloud.tell(f"asking for {spec.tpu.name} ({spec.provisioning}) in {zone}")
    operation: Operation | None = None
    problem: CloudError | None = None
    for _ in cloud.waits.until(cloud.waits.settle):
        wait_turn(cloud.records.folder)
        try:
            operation = backend.create(spec, zone, startup, ssh_key)
            break
        except (Conflict, Transient, Unknown) as error:
            if problem is None and not isinstance(error, Conflict):
                cloud.tell(f"no clear answer from {zone} ({error.problem}): looking whether it is there")
            problem, machine = error, None
            with suppress(Transient):
                machine = backend.get(spec.stack, zone)
            if machine is None and isinstance(error, Conflict):
                raise
            if machine and (taken := _taken(machine, spec, record, cloud.owner)):
                cloud.records.write(record)
                raise taken from error
            if machine:
                break
    else:
        raise problem or AssertionError
    return _waited(cloud, backend, spec, zone, operation, queue)


def _waited(
    cloud: Cloud, backend: Backend, spec: Spec, zone: str, operation: Operation | None, queue: float | None
) -> Machine:
    """The machine once it is ready.

    Args:
        queue: seconds for which it may wait in a queue; None: for ever.

    Raises:
        Stockout: it was lost, or it did not become ready in time; what is left of it is the caller's to remove.
        Invalid: its own time was over before it was ready.
        Unknown: nothing of it is to be seen.
        CloudError: the operation ended so.
    """
    waits, said, started, seen = cloud.waits, "", time.monotonic(), None
    known: Machine | None = None
    while True:
        asked, machine, answered = False, None, False
        with suppress(Transient):  # a question that was not answered says nothing of the machine
            try:
                asked = operation is None or operation.done()
                machine = backend.get(spec.stack, zone)
            except Stockout:
                _check_time(known, waits.now())
                raise
            answered = True
        now = time.monotonic()
        if answered and (machine is None or machine.state in OVER):
            _check_time(known, waits.now())
        if machine is None:
            if now - (seen or started) > (waits.settle if asked else waits.ready):
                raise _vanished(spec, zone, seen is not None and answered)
            waits.sleep(waits.poll)
            continue
        seen, known = now, machine
        if machine.state is State.READY:
            return machine
        if machine.detail != said:
            said = machine.detail
            cloud.tell(f"{zone}: {said}")
        if machine.state in OVER:
            raise Stockout(f"{zone} took {spec.stack} back before it was ready: {said}")
        queued = machine.state is State.WAITING
        patience = queue if queued else waits.ready
        if patience is not None and now - started > patience:
            _check_time(machine, waits.now())
            what = "waited in the queue" if queued else "was not ready"
            raise Stockout(f"{spec.stack} {what} in {zone} for {patience:.0f} s: {said}")
        waits.sleep(waits.poll)


def _check_time(machine: Machine | None, now: float) -> None:
    """Raises `Invalid` where a machine that is gone, or never ready, was to go by now: no zone had a part in it."""
    left = machine.left(now) if machine else None
    if machine and left is not None and left <= 0:
        problem = f"the time of {machine.name} in {machine.zone} was over before it was ready"
        raise Invalid(problem, remedy="a longer --max-hours")


def _vanished(spec: Spec, zone: str, seen: bool) -> CloudError:
    if seen:
        return Stockout(f"{zone} took {spec.stack} back before it was ready: it is gone")
    problem = f"{spec.stack} was asked for in {zone} and is not to be seen there; it may come yet"
    return Unknown(problem, remedy="the same command looks for it again; `taetpu tpu down` removes it")


def ready(cloud: Cloud, spec: Spec, machine: Machine, rate: float | None, queue: float | None) -> Machine:
    """Wait for a machine that is there; note that it is."""
    identity = dict(spec.identity())
    if machine.state is not State.READY:
        record = cloud.records.read(spec.stack)
        if record.zones[-1:] != (machine.zone,):
            cloud.records.write(record.asking(machine.zone, identity))
        machine = _waited(cloud, cloud.backend(machine.backend), spec, machine.zone, None, queue)
    record = cloud.records.read(spec.stack)
    cloud.records.write(record.ready(machine.zone, identity, rate, cloud.waits.now(), machine.expires))
    return machine


def _taken(machine: Machine, spec: Spec, record: Record, owner: str) -> Conflict | None:
    """Whether the name is in use: by another's machine, or by another one of ours."""
    if machine.owner == owner:
        return None if machine.spec == fingerprint(spec.identity()) else other(machine, spec, record)
    whose = f"{machine.owner}'s" if machine.owner else "it has no owner that taetpu knows"
    problem = f"there is a {spec.stack!r} in {machine.zone} already that is not yours ({whose})"
    return Conflict(problem, remedy="choose another name for the TPU")


def other(machine: Machine, spec: Spec, record: Record) -> Conflict:
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

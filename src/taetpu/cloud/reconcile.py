"""From what is there to what is wanted: `up` makes a stack or finds it, `down` leaves nothing of it.

Both may be given again at any time, from anywhere, whatever became of the last call: they look first, write down what
they are about to ask for, and ask then. An answer that never came is not a refusal: they look again.
"""

from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace

from taetpu.cloud.backends.base import OVER, Machine, State
from taetpu.cloud.catalogue import region
from taetpu.cloud.creation import made, other, ready
from taetpu.cloud.errors import CloudError, Conflict, Invalid, NotOffered, Quota, Stockout, Transient, Unknown
from taetpu.cloud.project import Cloud
from taetpu.cloud.removal import remove
from taetpu.cloud.spec import Spec, fingerprint
from taetpu.cloud.state import STALE, Record, Refusal
from taetpu.core.errors import UserError


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
        return _brought(cloud, spec, zones, startup, ssh_key)


def remains(cloud: Cloud, stack: str) -> str:
    """What a user is told who leaves, or is left with, what `up` has asked for; "" if that is nothing. By the record
    alone.
    """
    record = cloud.records.read(stack)
    if not record.zones:
        return ""
    remedy = f"the same command goes on with it, `taetpu tpu down {stack}` removes it"
    if record.since is None:
        return f"{stack} may be in {' or '.join(record.zones)}, or come there yet: {remedy}"
    rate = "money" if record.usd_per_hour is None else f"${record.usd_per_hour:.2f} an hour"
    return f"{stack} is there in {record.zones[-1]} and costs {rate}: {remedy}"


def _brought(cloud: Cloud, spec: Spec, zones: Mapping[str, float | None], startup: str, ssh_key: str) -> Machine:
    """See `up`; nobody else changes the stack."""
    there = _kept(cloud, spec)
    order = _order(cloud.records.read(spec.stack), spec, zones, cloud.waits.now())
    order = [there.zone, *(zone for zone in order if zone != there.zone)] if there else order
    refused: list[CloudError] = []
    for place, zone in enumerate(order):
        if any(isinstance(error, Quota) and error.facts.get("region") == region(zone) for error in refused):
            continue
        last = place == len(order) - 1 or spec.provisioning == "flex-start"
        queue = None if last else cloud.waits.queue
        try:
            machine, there = there or made(cloud, spec, zone, startup, ssh_key, queue), None
            return ready(cloud, spec, machine, zones.get(zone), queue)
        except (Transient, Unknown, Conflict):  # it may be there, or be another's
            raise
        except CloudError as error:
            _refuse(cloud, spec, zone, error)
            if not error.elsewhere:
                raise
            refused.append(error)
    raise _nowhere(spec, refused)


def there(cloud: Cloud, spec: Spec) -> Machine | None:
    """The machine that `up` would find and go on with, or one that is lost, which it would make anew; None if it would
    make one. Only looks.

    Raises:
        Conflict: another one of ours has its name.
    """
    alive, over = _sorted(cloud.of(spec.stack))
    _check_same(alive, spec, cloud.records.read(spec.stack))
    return next(iter((*alive, *over)), None)


def down(cloud: Cloud, stack: str, *, again: bool = False) -> list[Machine]:
    """Remove everything of a stack; what was there. Nothing there is fine. No bucket is touched.

    Args:
        again: another is made in its place: what its study has used of its budget is not forgotten.

    Raises:
        Unknown: something is still there after all patience; the message names it. The same command goes on.
    """
    with cloud.records.held(stack):
        doomed: list[Machine] = []
        for _ in cloud.waits.until(cloud.waits.settle):
            if not (found := cloud.of(stack)):
                break
            remove(cloud, found)
            doomed = doomed or found  # of one that was going already a part may show only now
        record = known = cloud.records.read(stack)
        for zone in known.zones:  # where something was asked for, and nothing is
            record = record.gone(zone, cloud.waits.now())
        record = replace(record, identity={}, used=record.used if again else None)
        if record != known:
            cloud.records.write(record)
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


def collect(cloud: Cloud, doomed: Sequence[Machine]) -> list[Machine]:
    """Remove machines that are `expired`; which were. They are looked for once more: one made since under the same
    name stays.

    Raises:
        UserError: one could not be removed, or another command is at it; the others are gone.
    """
    problems: list[UserError] = []
    gone: list[Machine] = []
    for stack in sorted({machine.stack for machine in doomed}):
        try:
            with cloud.records.held(stack):
                found = expired(cloud.of(stack), cloud.owner, cloud.waits.now())
                remove(cloud, found)
                gone += found
        except UserError as problem:
            problems.append(problem)
    for problem in problems[1:]:
        cloud.tell(problem.problem)
    if problems:
        raise problems[0]
    return gone


def _kept(cloud: Cloud, spec: Spec) -> Machine | None:
    """The machine that the spec asks for, if it is there; what is left of lost ones is removed first."""
    alive, lost = _sorted(cloud.of(spec.stack))
    if lost:
        cloud.tell(f"removing what is left of {', '.join(f'{m.name} in {m.zone} ({m.detail})' for m in lost)}")
        remove(cloud, lost)
    record = known = cloud.records.read(spec.stack)
    for zone in {*known.zones} - {machine.zone for machine in alive}:
        record = record.gone(zone, cloud.waits.now())
    if record != known:
        cloud.records.write(record)
    _check_same(alive, spec, record)
    if twice := [machine for machine in alive[1:] if machine.study == spec.study]:  # asked for from two computers
        cloud.tell(f"{spec.stack} is there more than once: removing it in {', '.join(m.zone for m in twice)}")
        remove(cloud, twice)
    return alive[0] if alive else None


def _sorted(found: Sequence[Machine]) -> tuple[list[Machine], list[Machine]]:
    """Those that are ready or may be, the furthest first, and those that are over."""
    over = [machine for machine in found if machine.state in OVER]
    return sorted((machine for machine in found if machine not in over), key=_progress), over


def _check_same(alive: Sequence[Machine], spec: Spec, record: Record) -> None:
    for machine in alive:
        if machine.spec != fingerprint(spec.identity()):
            raise other(machine, spec, record)


def _progress(machine: Machine) -> int:
    """How far a machine is on its way to being ready; the furthest is the least."""
    order = (State.READY, State.CREATING, State.WAITING)
    return order.index(machine.state) if machine.state in order else len(order)


def _refuse(cloud: Cloud, spec: Spec, zone: str, error: CloudError) -> None:
    """Leave nothing in a zone that would not make it: a failed request keeps its name and its quota. Remember it."""
    error.facts.setdefault("region", region(zone))
    error.facts.setdefault("zone", zone)
    if error.elsewhere:
        cloud.tell(f"{zone}: {error.problem}")
    try:
        remove(cloud, [one for one in cloud.of(spec.stack) if (one.backend, one.zone) == (spec.backend, zone)])
    except CloudError as worse:
        if error.elsewhere:
            raise
        cloud.tell(worse.problem)  # what stopped it is told in the end
        return
    now, record = cloud.waits.now(), cloud.records.read(spec.stack)
    if error.elsewhere:
        refusal = Refusal(zone, spec.tpu.name, spec.provisioning, now, type(error).__name__)
        cloud.records.write(record.refused(refusal))
    else:
        cloud.records.write(record.gone(zone, now))


def _order(record: Record, spec: Spec, zones: Iterable[str], now: float) -> list[str]:
    """Zones as they are to be tried: those that refused the same a short while ago come last."""
    fresh = {
        r.zone
        for r in record.refusals
        if (r.type, r.provisioning) == (spec.tpu.name, spec.provisioning) and abs(now - r.at) < STALE
    }
    return sorted(zones, key=lambda zone: zone in fresh)


def _nowhere(spec: Spec, refused: Sequence[CloudError]) -> CloudError:
    """No zone would make it: why each did not."""
    if not refused:
        return Invalid(f"no zone is named that might have a {spec.tpu.name}", remedy="--zone, e.g. us-east5-b")
    if all(isinstance(error, NotOffered) for error in refused):
        return refused[0]
    kind = Stockout if any(isinstance(error, Stockout) for error in refused) else Quota
    reasons = "; ".join(f"{error.facts['zone']}: {error.problem}" for error in refused)
    problem = f"no zone gave a {spec.tpu.name} ({spec.provisioning}): {reasons}"
    if kind is Quota:
        return Quota(problem, remedy="ask for quota in the console (IAM & Admin > Quotas), or another region")
    return Stockout(problem, remedy="try later, name more --zone, or ask for another kind (--spot, --flex-start)")

"""What machines cost an hour, have cost and may cost yet: by their records, else by what the cloud tells of them."""

from dataclasses import asdict, dataclass, replace
from datetime import datetime
from typing import TYPE_CHECKING, Any

from taetpu.cli.cloud import Here

if TYPE_CHECKING:
    from taetpu.cloud.backends.base import Machine
    from taetpu.cloud.prices import Quote
    from taetpu.cloud.state import Record

LINE = (
    "By published rates, from when each was seen to be ready, else from its start, to the end of its time; ~ is a "
    "guess, for no rate is known there. Disks, traffic and buckets are not in it."
)


@dataclass(frozen=True)
class Row:
    """A TPU and its USD; None where that is not known.

    Attributes:
        guess: the rate is another region's.
        end: whether it says when it is deleted.
    """

    tpu: str
    state: str
    hourly: float | None = 0.0
    so_far: float | None = 0.0
    yet: float | None = 0.0
    guess: bool = False
    end: bool = True

    def data(self) -> dict[str, Any]:
        """For JSON."""
        found = asdict(self)
        usd = {"USD an hour": found["hourly"], "so far": found["so_far"], "at most yet": found["yet"]}
        return {"tpu": self.tpu, "state": self.state, **usd, "guess": self.guess}

    def cells(self) -> dict[str, str]:
        """For a table."""
        yet = _usd(self.yet, self.guess) if self.end else "no end"
        return {
            "tpu": self.tpu,
            "state": self.state,
            "USD an hour": _usd(self.hourly, self.guess),
            "so far": _usd(self.so_far, self.guess),
            "at most yet": yet,
        }


def rows(place: Here) -> tuple[list[Row], list[str]]:
    """Every machine of the user's, and what has cost something and is gone; and what is to be said of them."""
    from taetpu.cloud.state import Record
    from taetpu.core.errors import UserError

    cloud, found, warnings = place.cloud, list[Row](), list[str]()
    alive = [machine for machine in cloud.machines() if machine.owner == cloud.owner]
    now = cloud.waits.now()
    for stack in sorted({*(machine.stack for machine in alive), *cloud.records.stacks()}):
        record = Record(cloud.records.project, stack)
        try:
            record = cloud.records.read(stack)
        except UserError as error:
            warnings.append(f"{error.problem}: {error.file}; {error.remedy}")
        machines = [machine for machine in alive if machine.stack == stack]
        for machine in machines:
            row = _row(place, machine, record, now)
            if machine is machines[0] and row.so_far is not None:
                row = replace(row, so_far=row.so_far + record.spent)
            found.append(row)
        last = record.cost(now) if record.since is not None else 0.0
        if not machines and (last is None or record.spent + last):
            found.append(Row(stack, "gone", so_far=None if last is None else record.spent + last))
    return found, warnings


def _row(place: Here, machine: "Machine", record: "Record", now: float) -> Row:
    """A machine that is there, without what the stack's earlier ones cost. One that is over may cost no more."""
    from taetpu.cloud.backends.base import OVER, State

    same = record.since is not None and record.zones[-1:] == (machine.zone,)
    known = record if same else replace(record, since=None, until=None, usd_per_hour=None)
    quote, chips = _quoted(place, machine, known)
    hourly = known.usd_per_hour
    if hourly is None and quote.usd is not None:
        hourly = quote.usd * chips
    guess = quote.guess and quote.usd is not None and hourly == quote.usd * chips
    since, left = known.since, machine.left(now)
    if since is None and machine.started and machine.state is not State.WAITING:
        since = datetime.fromisoformat(machine.started).timestamp()
    if since is None:
        so_far = 0.0
    else:
        until = machine.expires if known.until is None else known.until
        so_far = replace(known, since=since, until=until, usd_per_hour=hourly).cost(now)
    row = Row(machine.stack, str(machine.state), so_far=so_far, guess=guess)
    if machine.state in OVER:
        return row
    yet = None if hourly is None or left is None else max(0.0, left) / 3600 * hourly
    return replace(row, hourly=hourly, yet=yet, end=left is not None)


def _quoted(place: Here, machine: "Machine", record: "Record") -> "tuple[Quote, int]":
    """The rate of a machine, as one that is made would have it, and its chips. How it is paid for only its record says,
    beside spot."""
    from taetpu.cloud.prices import Quote, rate
    from taetpu.core.chips import resolve
    from taetpu.core.errors import UserError

    way = record.identity.get("provisioning") or ("spot" if machine.spot else "on-demand")
    try:
        tpu = resolve(machine.type)
    except UserError:
        return Quote(None, f"{machine.type} is no TPU that is known"), 0
    return rate(place.clients, tpu, machine.zone, way), tpu.chips


def _usd(value: float | None, guess: bool) -> str:
    return "no rate" if value is None else f"{'~' if guess and value else ''}{value:.2f}"

"""Where a TPU might be had: what is published, what the project may have, what it costs, side by side.

None of the three says whether any is free just now: Google has nothing that tells it for TPUs. Only a request does,
and `probe` is one: a real spot machine, deleted at once.
"""

import secrets
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Literal

from taetpu.cloud import catalogue
from taetpu.cloud.backends.base import OVER, Backend, Machine, State
from taetpu.cloud.errors import CloudError, Conflict, Transient, Unknown
from taetpu.cloud.prices import Quote
from taetpu.cloud.project import Tell, Waits
from taetpu.cloud.quotas import Limit, Quotas
from taetpu.cloud.spec import BackendName, Provisioning, Spec
from taetpu.core.chips import Slice
from taetpu.core.interrupt import noted

Published = Literal["by the API", "in Google's table", "in a price list only"]

PROBE_HOURS = 0.5
"""After which a probe's machine has expired, should this program be killed: Compute Engine's server then deletes it,
the guard on the machine that of the Cloud TPU API; where neither does, `taetpu tpu gc`."""


@dataclass(frozen=True)
class Row:
    """A zone and a backend.

    Attributes:
        published: who says that the slice is there at all.
        limit: of the project's quota; None where quotas are not to be had.
        usd: per chip-hour; None where no rate is known; `source` says where from. See `prices.Quote`, also of `guess`.
    """

    zone: str
    backend: BackendName
    published: Published
    limit: Limit | None
    usd: float | None
    source: str
    guess: bool = False


def rows(
    tpu: Slice,
    backends: Sequence[Backend],
    quotas: Quotas | None,
    price: Callable[[str], Quote],
    provisioning: Provisioning,
    region: str = "",
    tell: Tell = lambda line: None,
) -> list[Row]:
    """Every zone that anybody names for a slice, by backend; by what is published and then by price.

    Args:
        quotas: of the project; None where they are not to be had.
        price: of a zone, as `prices.rate` gives it.
        region: the one to look in; "": all.
        tell: what could not be asked.
    """
    found: dict[tuple[str, BackendName], Published] = {}
    for name in catalogue.offer(tpu).backends:
        for zone, source in catalogue.offer(tpu).zones.items():
            found[zone, name] = "in Google's table" if source == "regions" else "in a price list only"
        for backend in (one for one in backends if one.name == name):
            for zone in _listed(backend, tpu, tell):
                found[zone, name] = "by the API"
    here: dict[tuple[str, BackendName], Published] = {
        key: what for key, what in found.items() if not region or catalogue.region(key[0]) == region
    }
    costs = {zone: price(zone) for zone in sorted({zone for zone, _ in here})}
    table = [
        Row(zone, name, what, quotas.of(tpu, name, zone, provisioning) if quotas else None, *costs[zone])
        for (zone, name), what in here.items()
    ]
    order: list[Published] = ["by the API", "in Google's table", "in a price list only"]
    return sorted(table, key=lambda r: (order.index(r.published), *catalogue.order(r.zone, r.usd, r.guess), r.backend))


def _listed(backend: Backend, tpu: Slice, tell: Tell) -> list[str]:
    try:
        return backend.zones(tpu)
    except CloudError as error:
        tell(f"{backend.name} does not tell its zones: {error.problem}")
        return []


@dataclass(frozen=True)
class Probed:
    """What came of asking for a machine. `made`: one was given, and is gone again."""

    zone: str
    backend: BackendName
    made: bool
    said: str


def probe(
    backend: Backend, spec: Spec, zone: str, waits: Waits, startup: Callable[[Spec], str],
    tell: Tell = lambda line: None,
) -> Probed:  # fmt: skip
    """Ask for a spot machine in a zone and delete it, whatever comes of it, Ctrl-C too.

    Args:
        startup: what a machine of a spec runs when it boots; its guard ends it, should this program be killed.

    Raises:
        Unknown: it may still be there: nothing said that it is gone.
    """
    spec = replace(
        spec, stack=f"probe-{secrets.token_hex(4)}", provisioning="spot", hours=PROBE_HOURS, idle_minutes=None
    )
    tell(f"asking for {spec.tpu.name} (spot) in {zone}")
    sure = False
    try:
        made, said = _asked(backend, spec, zone, waits, startup(spec))
        sure = True
    except CloudError as error:
        made, said = False, f"{type(error).__name__.lower()}: {error.problem}"
        sure = not isinstance(error, Transient | Unknown)
    finally:
        _gone(backend, spec.stack, zone, waits, tell, sure)
    return Probed(zone, backend.name, made, said)


def _asked(backend: Backend, spec: Spec, zone: str, waits: Waits, startup: str) -> tuple[bool, str]:
    """Whether a machine is given, and the last word on it. A request that only waits in a queue is given nothing."""
    operation, said = backend.create(spec, zone, startup, ""), "nothing was heard of it"
    for _ in waits.until(waits.ready):
        machine: Machine | None = None
        with suppress(Transient):
            operation.done()
            machine = backend.get(spec.stack, zone)
        if machine is None:
            continue
        said = machine.detail or str(machine.state)
        if machine.state is State.READY:
            return True, said
        if machine.state in OVER:
            return False, said
    return False, f"not ready within {waits.ready:.0f} s: {said}"


def _gone(backend: Backend, name: str, zone: str, waits: Waits, tell: Tell, sure: bool) -> None:
    """Delete a machine and see that it is gone. Ctrl-C is heard when it is; pressed again, at once.

    Args:
        sure: it is known what became of the request. Else the machine may show up late, and is waited for.
    """
    started, operation = time.monotonic(), None
    with noted() as pressed:
        for _ in waits.until(waits.ready):
            try:
                operation = operation or backend.delete(name, zone)
                if not operation.done():
                    continue
                if backend.get(name, zone) is not None:
                    operation = None  # it came, or came back, after the deletion
                elif sure or time.monotonic() - started >= waits.settle:
                    break
            except (Transient, Conflict, Unknown):  # a machine that is being made may refuse for a while
                operation = None
        else:
            problem = f"{name} in {zone} may still be there and cost money"
            raise Unknown(problem, remedy="`taetpu tpu list` shows it, `taetpu tpu gc` removes it")
    tell(f"{name} in {zone} is gone")
    if pressed():
        raise KeyboardInterrupt

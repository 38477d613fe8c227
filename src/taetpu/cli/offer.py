"""What a command that wants a machine may find, make and cost, before anything is asked for; and how it is made."""

from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from taetpu.cli.cloud import Here, lasting, tell
from taetpu.cli.tables import count
from taetpu.cli.wanted import LONGEST, Wanted

if TYPE_CHECKING:
    from taetpu.cloud.backends.base import Machine
    from taetpu.cloud.cost import Before, Price
    from taetpu.cloud.settings import Settings
    from taetpu.cloud.spec import Spec


@dataclass(frozen=True)
class Offer:
    """A spec with the machine of it that is there, if one is; where another may be made, the preferred first; and what
    they may cost.

    Attributes:
        prices: by zone, of a machine that would be made there.
        there: what is there: ready, on its way, or over.
        rest: what the time costs that the machine has left; None where none is there, or it is over.
        notes: for the plan.
    """

    place: Here
    spec: "Spec"
    prices: "dict[str, Price]"
    there: "Machine | None" = None
    rest: "Price | None" = None
    notes: tuple[str, ...] = ()

    @classmethod
    def of(
        cls, place: Here, spec: "Spec", wanted: Wanted, *,
        again: bool = False, before: "Before | None" = None, near: str = "",
    ) -> "Offer":  # fmt: skip
        """The machine that is there; where there is none, or it is not ready yet, where one may be made.

        Args:
            again: another one is made should that be lost, so that it is priced in any case.
            before: what of the limits is used already.
            near: the region whose zones come first; "": that of the settings.

        Raises:
            Conflict: another machine of ours has the name, or its time is over.
            UserError: the slice is listed nowhere, or a zone or the limit cannot be.
            Invalid: it may cost more than is allowed.
        """
        from taetpu.cloud import reconcile
        from taetpu.cloud.backends.base import OVER, State
        from taetpu.cloud.cost import check

        limits = wanted.limits(place.settings)
        there = reconcile.there(place.cloud, spec)
        rest, notes = None, ()
        if there and there.state not in OVER:
            rest = _rest(place, spec, there)
            check(rest, spec, there.zone, limits, there=True, before=before)
            notes = _unchanged(there, spec, wanted)
            if there.state is State.READY and not again:
                return cls(place, spec, {}, there, rest, notes)
        chosen = wanted.zones or place.settings.zones
        prices, more = _offered(place, spec, chosen, limits, before, near or place.settings.region)
        return cls(place, spec, prices, there, rest, (*notes, *more))

    @property
    def only_finds(self) -> bool:
        """Whether the machine is there and ready, and nothing would be made."""
        return self.rest is not None and not self.prices

    def plan(self) -> str:
        """What is there and what would be made, in lines."""
        spec, there, hosts = self.spec, self.there, self.spec.tpu.hosts
        what = f"{spec.stack}: {spec.tpu.name} ({count(spec.tpu.chips, 'chip')}, {count(hosts, 'host')})"
        lines = [f"{what}, {spec.provisioning}, by {spec.backend} with {spec.runtime}"]
        if there and self.rest:
            left = lasting(there, self.place.cloud.waits.now())
            lines.append(f"is there already, in {there.zone} ({there.detail or there.state}): nothing would be made")
            deleted = f"deleted {left or 'at a time that it does not say'}{_idle(there.idle_minutes)}"
            lines.append(f"{deleted}: {self.rest.told()}")
        elif there:
            state = there.detail or there.state
            anew = "what is left of it is removed, and it is made anew"
            lines.append(f"the one in {there.zone} is over ({state}): {anew}")
        if self.prices:
            wide = max(map(len, self.prices))
            order = "asked for in this order until one has it:"
            made = f"deleted after {spec.hours:.3g} h{_idle(spec.idle_minutes or 0)}"
            lines.append(f"{'made anew should it be lost or not come, ' if self.rest else ''}{made}; {order}")
            lines += [f"  {zone:<{wide}}  {price.told()}" for zone, price in self.prices.items()]
        sources: dict[str, list[str]] = {}
        known = {there.zone: self.rest} if there and self.rest else {}
        for zone, price in {**known, **self.prices}.items():
            sources.setdefault(price.source, []).append(zone)
        lines += [f"price in {', '.join(zones)}: {source}" for source, zones in sources.items()]
        return "\n".join([*lines, *self.notes])

    def data(self) -> dict[str, Any]:
        """The same as plain data. Where a rate is not known, what it leads to is None; disks, traffic and buckets are
        not in any.
        """
        from dataclasses import asdict

        spec, there = self.spec, self.there
        worst = [price.worst for price in ([self.rest] if self.rest else []) + [*self.prices.values()]]
        known = [usd for usd in worst if usd is not None]
        return {
            "tpu": spec.stack,
            "spec": {"type": spec.tpu.name, "chips": spec.tpu.chips, "hosts": spec.tpu.hosts}
            | {name: value for name, value in asdict(spec).items() if name not in ("stack", "tpu")},
            "zones": [{"zone": zone} | _priced(price) for zone, price in self.prices.items()],
            "usd_at_most": max(known) if known and len(known) == len(worst) else None,
            "there": there
            and {
                "zone": there.zone,
                "state": str(there.state),
                "detail": there.detail,
                "left": self.rest and _priced(self.rest),
            },
            "notes": list(self.notes),
        }

    def made(self, hours: float | None = None) -> "Machine":
        """The machine, READY by the API's word: a new one or the one that is there.

        Args:
            hours: after which a new one is deleted, if not those of the spec.
        """
        from taetpu.cloud import reconcile, ssh_config, transfer, vm

        transfer.rsync()  # says what is missing before anything is made
        spec = self.spec if hours is None else replace(self.spec, hours=hours)
        rates = {zone: price.per_hour for zone, price in self.prices.items()}
        if self.there and self.rest and not rates:  # should it have gone meanwhile, no more is made than was told
            spec, rates = replace(spec, hours=self.rest.hours), {self.there.zone: self.rest.per_hour}
        startup, key = vm.startup(spec, self.place.settings), ssh_config.public_key()
        return reconcile.up(self.place.cloud, spec, rates, startup, key)

    def set_up(self, machine: "Machine") -> "Machine":
        """Wait until every host answers, and bring what jobs need; the machine with all that is known of its hosts.

        Raises:
            NotSetUp: it was lost meanwhile, or its startup-script failed.
        """
        from taetpu.cloud import reconcile, ssh, vm
        from taetpu.cloud.errors import Transient, Unknown

        tell(f"{machine.name} is ready in {machine.zone} by the API's word; waiting until it answers")
        machine = reconcile.named(self.place.cloud, machine, self.spec)

        def check() -> None:
            with suppress(Transient, Unknown):
                if problem := reconcile.lost(self.place.cloud, machine):
                    raise vm.NotSetUp(f"{machine.name} was lost while it was set up: it is {problem}")

        vm.prepare(ssh.Slice.of(machine, self.spec.user, self.place.settings), self.spec, tell, check=check)
        return machine


def _priced(price: "Price") -> dict[str, Any]:
    return {
        "hours": price.hours,
        "usd_per_chip_hour": price.per_chip_hour,
        "usd_per_hour": price.per_hour,
        "usd_at_most": price.worst,
        "guess": price.guess,
        "source": price.source,
    }


def _rest(place: Here, spec: "Spec", there: "Machine") -> "Price":
    """What the time costs that a machine has left.

    Raises:
        Conflict: it has none.
    """
    from taetpu.cloud.cost import Price
    from taetpu.cloud.errors import Conflict
    from taetpu.cloud.prices import rate

    now = place.cloud.waits.now()
    left = there.left(now)
    hours = LONGEST if left is None else left / 3600
    if hours <= 0:
        problem = f"{there.name} in {there.zone} is there, and should be gone: its time is over"
        raise Conflict(problem, remedy=f"`taetpu tpu down {there.name}`, then the same command")
    return Price(spec.tpu.chips, hours, *rate(place.clients, spec.tpu, there.zone, spec.provisioning))


def _unchanged(there: "Machine", spec: "Spec", wanted: Wanted) -> tuple[str, ...]:
    """What is asked for and not so, for the machine is there: its zone and limits stay as it was made with."""
    from taetpu.cloud.backends.base import State

    anew = f"`taetpu tpu down {there.name}`, then the same command, makes it anew with them"
    asked: list[str] = []
    notes: list[str] = []
    if wanted.zones and there.zone not in wanted.zones:
        goes = "stays" if there.state is State.READY else "goes on"
        zones = " ".join(f"--zone {zone}" for zone in wanted.zones)
        notes.append(f"it {goes} in {there.zone}, whatever {zones} says: `taetpu tpu down {there.name}` ends it there")
    if wanted.max_hours is not None:
        asked.append(f"--max-hours {wanted.max_hours:g}")
    if there.idle_minutes is not None and there.idle_minutes != (spec.idle_minutes or 0):
        asked.append(f"--idle-minutes {spec.idle_minutes or 0}")
    if asked:
        notes.append(f"its limits stay as they were made, whatever {' and '.join(asked)} say: {anew}")
    return tuple(notes)


def _idle(minutes: int | None) -> str:
    if minutes is None:
        return " (or once idle for as long as it was made with)"
    return f", or once idle for {minutes} min" if minutes else ""


def _offered(
    place: Here, spec: "Spec", chosen: Sequence[str], limits: "Settings", before: "Before | None", near: str
) -> "tuple[dict[str, Price], list[str]]":
    """Where it may be made, with the prices, and what is to be said of it: where the user says, in his order; else
    wherever the backend lists the slice: in the region `near` (the bucket's) first, then where the rate is known, then
    the cheapest, then in the US. Zones that cost more than is allowed, or nobody knows what, are left out.

    Raises:
        UserError: the slice is listed nowhere, or not in the zones.
        Invalid: it may cost more than is allowed everywhere.
    """
    from taetpu.cloud.catalogue import order, region
    from taetpu.cloud.cost import Price, check
    from taetpu.cloud.errors import Invalid
    from taetpu.cloud.prices import rate

    zones, notes = _having(place, spec, chosen) if chosen else (_listed(place, spec), [])
    prices, refused = dict[str, Price](), dict[str, Invalid]()
    known = {
        zone: Price(spec.tpu.chips, spec.hours, *rate(place.clients, spec.tpu, zone, spec.provisioning))
        for zone in zones
    }
    if not chosen:
        ranks = {
            zone: (region(zone) != near, order(zone, price.per_chip_hour, price.guess)) for zone, price in known.items()
        }
        known = {zone: known[zone] for zone in sorted(known, key=lambda zone: ranks[zone])}
    for zone, price in known.items():
        try:
            check(price, spec, zone, limits, before=before)
            prices[zone] = price
        except Invalid as error:
            refused[zone] = error
    if refused and not prices:
        raise next(iter(refused.values()))
    if dear := [zone for zone in refused if known[zone].worst is not None]:
        notes.append(f"left out, for they cost more than is allowed: {', '.join(dear)}")
    if unknown := [zone for zone in refused if zone not in dear]:
        notes.append(f"left out, for no rate is known there and there is a limit: {', '.join(unknown)}")
    return prices, notes


def _having(place: Here, spec: "Spec", chosen: Sequence[str]) -> tuple[list[str], list[str]]:
    """Of the zones that a user names, those that may have the slice, and what is to be said of the others.

    Raises:
        UserError: one is no zone, or neither the tables nor the API list the slice in any.
    """
    from taetpu.cloud.catalogue import offer
    from taetpu.cloud.errors import CloudError
    from taetpu.cloud.settings import check_zone
    from taetpu.core.errors import UserError

    zones = [check_zone(zone) for zone in chosen]
    unknown = [zone for zone in zones if zone not in offer(spec.tpu).zones]
    if not unknown:
        return zones, []
    what = f"{spec.tpu.name} in {', '.join(unknown)}"
    try:
        listed = place.cloud.backend(spec.backend).zones(spec.tpu)
    except CloudError as error:
        return zones, [f"warning: no table has {what}, and {spec.backend} does not tell ({error.problem})"]
    if not listed:
        return zones, [f"warning: no table has {what}, and {spec.backend} lists it nowhere"]
    missing = [zone for zone in unknown if zone not in listed]
    if len(missing) == len(zones):
        remedy = f"{', '.join(listed)}; `taetpu tpu zones --type {spec.tpu.name}` shows more"
        raise UserError(f"{spec.backend} does not list {what}", path=("--zone",), remedy=remedy)
    left_out = [f"left out, for {spec.backend} does not list {spec.tpu.name} there: {', '.join(missing)}"]
    return [zone for zone in zones if zone not in missing], left_out if missing else []


def _listed(place: Here, spec: "Spec") -> list[str]:
    """Wherever the backend lists the slice.

    Raises:
        UserError: nowhere.
    """
    from taetpu.cloud.catalogue import offer
    from taetpu.core.errors import UserError

    found = place.cloud.backend(spec.backend).zones(spec.tpu) or sorted(offer(spec.tpu).zones)
    if not found:
        raise UserError(f"{spec.backend} lists {spec.tpu.name} in no zone", remedy="`taetpu tpu zones` shows where")
    return found

"""The machine that a command asks for: its options, what they come to, what it may cost, and how it is made."""

from contextlib import suppress
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Annotated

import typer

from taetpu.cli.cloud import Here, tell
from taetpu.cli.tables import count

if TYPE_CHECKING:
    from taetpu.cloud.backends.base import Machine
    from taetpu.cloud.cost import Price
    from taetpu.cloud.spec import Provisioning, Spec

Type = Annotated[str | None, typer.Option("--type", metavar="TPU", help="The slice: v6e-8, v5e:2x4.")]
Zones = Annotated[
    list[str] | None, typer.Option("--zone", help="Where it may be, the preferred first. May be repeated.")
]
BackendOption = Annotated[str | None, typer.Option("--backend", help="gce or tpu-api; else what suits the chip.")]
Spot = Annotated[bool, typer.Option("--spot", help="Cheaper, and may be taken back at any time.")]
FlexStart = Annotated[bool, typer.Option("--flex-start", help="Wait for it in a queue, then keep it for its time.")]
Reservation = Annotated[str, typer.Option(metavar="NAME", help="Take it out of this reservation.")]
MaxHours = Annotated[float | None, typer.Option(help="Delete the TPU after so many hours; else the settings', 4.")]
MaxUsd = Annotated[float | None, typer.Option(help="Refuse a TPU whose worst case costs more.")]
IdleMinutes = Annotated[int | None, typer.Option(help="Delete the TPU once idle for so long; 0: never.")]
Runtime = Annotated[str, typer.Option(help="The software version (tpu-api) or image family (gce).")]


@dataclass(frozen=True)
class Wanted:
    """What a command line says of a machine; None and "" leave it to the settings."""

    kind: str | None
    zones: list[str] | None = None
    backend: str | None = None
    spot: bool = False
    flex_start: bool = False
    reservation: str = ""
    max_hours: float | None = None
    max_usd: float | None = None
    idle_minutes: int | None = None
    runtime: str = ""

    def way(self) -> "Provisioning":
        """How it is to be paid for.

        Raises:
            UserError: more than one way is asked for.
        """
        from taetpu.core.errors import UserError

        ways: dict[Provisioning, bool] = {
            "spot": self.spot, "flex-start": self.flex_start, "reservation": bool(self.reservation)
        }  # fmt: skip
        asked: list[Provisioning] = [way for way, wanted in ways.items() if wanted]
        if len(asked) > 1:
            raise UserError(f"--{' and --'.join(asked)} exclude each other", remedy="give one of them")
        return asked[0] if asked else "on-demand"

    def spec(self, place: Here, name: str | None) -> "Spec":
        """The whole of what is asked for, under a stack's name.

        Raises:
            UserError: no slice is named, or a value cannot be.
        """
        from taetpu.cloud.catalogue import backend_for, runtime_of
        from taetpu.cloud.image.registry import refuse_container_registry
        from taetpu.cloud.spec import Spec, label
        from taetpu.core.chips import resolve
        from taetpu.core.errors import UserError

        if self.kind is None:
            raise UserError("which TPU is not said", remedy="--type, e.g. v6e-8; `taetpu chips` lists them")
        own, tpu = place.settings, resolve(self.kind)
        hours = own.max_hours if self.max_hours is None else self.max_hours
        if not 0 < hours <= 168:
            raise UserError(
                f"a TPU cannot be kept for {hours:g} hours", path=("--max-hours",), remedy="above 0, to 168"
            )
        minutes = own.idle_minutes if self.idle_minutes is None else self.idle_minutes
        if minutes < 0:
            raise UserError(f"{minutes} minutes are no time", path=("--idle-minutes",), remedy="0 (never) or more")
        made_by = backend_for(tpu, self.backend or own.backend)
        refuse_container_registry(own.image)
        return Spec(
            place.stack(name), tpu, made_by, self.way(), self.reservation, hours, minutes or None, label(own.owner),
            runtime=self.runtime or runtime_of(tpu, made_by), network=own.network, subnetwork=own.subnetwork,
            external_ip=own.external_ip, service_account=own.service_account, image=own.image,
        )  # fmt: skip


@dataclass(frozen=True)
class Offer:
    """A spec with where it may be made, the preferred first, and what it would cost there."""

    place: Here
    spec: "Spec"
    prices: "dict[str, Price]"

    @classmethod
    def of(cls, place: Here, spec: "Spec", wanted: Wanted) -> "Offer":
        """Where the user says, in his order; else wherever the backend lists the slice: in the settings' region (the
        bucket's) first, then the cheapest, then in the US. Zones that cost more than is allowed are left out.

        Raises:
            UserError: the slice is listed nowhere, or a zone or the limit cannot be.
            Invalid: it may cost more than is allowed everywhere.
        """
        from taetpu.cloud.catalogue import order, region
        from taetpu.cloud.cost import Price, check
        from taetpu.cloud.errors import Invalid
        from taetpu.cloud.prices import rate
        from taetpu.cloud.settings import check_zone
        from taetpu.core.errors import UserError

        if wanted.max_usd is not None and wanted.max_usd <= 0:
            problem = f"no TPU costs at most ${wanted.max_usd:g}"
            raise UserError(problem, path=("--max-usd",), remedy="more than 0, or leave it out")
        limits, chosen = place.settings, wanted.zones or place.settings.zones
        if wanted.max_usd is not None:
            limits = limits.model_copy(update={"max_usd": wanted.max_usd})
        prices, refused = dict[str, Price](), list[Invalid]()
        known = {
            zone: Price(spec.tpu.chips, spec.hours, *rate(place.clients, spec.tpu, zone, spec.provisioning))
            for zone in map(check_zone, chosen or _listed(place, spec))
        }
        if not chosen:
            ranks = {zone: (region(zone) != limits.region, order(zone, known[zone].per_chip_hour)) for zone in known}
            known = {zone: known[zone] for zone in sorted(known, key=lambda zone: ranks[zone])}
        for zone, price in known.items():
            try:
                check(price, spec, zone, limits)
                prices[zone] = price
            except Invalid as error:
                refused.append(error)
        if refused and not prices:
            raise refused[0]

        return cls(place, spec, prices)

    def plan(self) -> str:
        """What would be made, in lines."""
        spec, hosts = self.spec, self.spec.tpu.hosts
        idle = f", or once idle for {spec.idle_minutes} min" if spec.idle_minutes else ""
        what = f"{spec.stack}: {spec.tpu.name} ({count(spec.tpu.chips, 'chip')}, {count(hosts, 'host')})"
        wide = max(map(len, self.prices))
        sources: dict[str, list[str]] = {}
        for zone, price in self.prices.items():
            sources.setdefault(price.source, []).append(zone)
        lines = [
            f"{what}, {spec.provisioning}, by {spec.backend} with {spec.runtime}",
            f"deleted after {spec.hours:g} h{idle}; asked for in this order until one has it:",
            *(f"  {zone:<{wide}}  {price.told()}" for zone, price in self.prices.items()),
            *(f"price in {', '.join(zones)}: {source}" for source, zones in sources.items()),
        ]
        return "\n".join(lines)

    def made(self, hours: float | None = None) -> "Machine":
        """The machine, READY by the API's word: a new one or the one that is there.

        Args:
            hours: after which a new one is deleted, if not those of the spec.
        """
        from taetpu.cloud import reconcile, ssh_config, transfer, vm

        transfer.rsync()  # says what is missing before anything is made
        spec = self.spec if hours is None else replace(self.spec, hours=hours)
        startup, key = vm.startup(spec, self.place.settings), ssh_config.public_key()
        rates = {zone: price.per_hour for zone, price in self.prices.items()}
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

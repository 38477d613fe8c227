"""The machine that a command asks for: its options, and what they come to."""

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated

import typer

from taetpu.cli.cloud import Here
from taetpu.cli.options import integer, number

if TYPE_CHECKING:
    from taetpu.cloud.settings import Settings
    from taetpu.cloud.spec import Provisioning, Spec

Type = Annotated[str | None, typer.Option("--type", metavar="TPU", help="The slice: v6e-8, v5e:2x4.")]
Zones = Annotated[
    list[str] | None, typer.Option("--zone", help="Where it may be, the preferred first. May be repeated.")
]
BackendOption = Annotated[str | None, typer.Option("--backend", help="gce or tpu-api; else what suits the chip.")]
Spot = Annotated[bool, typer.Option("--spot", help="Cheaper, and may be taken back at any time.")]
FlexStart = Annotated[bool, typer.Option("--flex-start", help="Wait for it in a queue, then keep it for its time.")]
Reservation = Annotated[str, typer.Option(metavar="NAME", help="Take it out of this reservation.")]
MaxHours = Annotated[float | None, number(help="Delete the TPU after so many hours; else the settings', 4.")]
MaxUsd = Annotated[float | None, number(help="Refuse what may cost more: all machines of a study together.")]
MaxRate = Annotated[
    float | None, typer.Option("--max-usd-per-chip-hour", help="Refuse a zone with a higher rate, e.g. for spot.")
]
IdleMinutes = Annotated[int | None, integer(help="Delete the TPU once idle for so long; 0: never.")]
Runtime = Annotated[str, typer.Option(help="The software version (tpu-api) or image family (gce).")]


LONGEST = 168.0
"""Hours for which a machine may be kept: a week."""


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
    max_rate: float | None = None
    idle_minutes: int | None = None
    runtime: str = ""

    def limits(self, own: "Settings") -> "Settings":
        """The settings with what the command line says of costs.

        Raises:
            UserError: an amount is none.
        """
        from taetpu.core.errors import UserError

        asked = {"max_usd": self.max_usd, "max_usd_per_chip_hour": self.max_rate}
        given = {name: amount for name, amount in asked.items() if amount is not None}
        for name, amount in given.items():
            if not (amount > 0 and math.isfinite(amount)):
                option = f"--{name.replace('_', '-')}"
                remedy = "an amount of more than 0, or leave it out"
                raise UserError(f"no TPU costs at most ${amount:g}", path=(option,), remedy=remedy)
        return own.model_copy(update=given)

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
        from taetpu.cloud.cost import shortest
        from taetpu.cloud.image.registry import refuse_container_registry
        from taetpu.cloud.spec import Spec, check_reservation, check_runtime, label
        from taetpu.core.chips import resolve
        from taetpu.core.errors import UserError

        if self.kind is None:
            raise UserError("which TPU is not said", remedy="--type, e.g. v6e-8; `taetpu chips` lists them")
        own, tpu = place.settings, resolve(self.kind)
        hours = own.max_hours if self.max_hours is None else self.max_hours
        if not shortest() <= hours <= LONGEST:
            why = ": it takes minutes until one is ready" if 0 < hours < LONGEST else ""
            remedy = f"{shortest():g} to {LONGEST:g}"
            raise UserError(f"a TPU cannot be kept for {hours:g} hours{why}", path=("--max-hours",), remedy=remedy)
        minutes = own.idle_minutes if self.idle_minutes is None else self.idle_minutes
        if minutes < 0:
            raise UserError(f"{minutes} minutes are no time", path=("--idle-minutes",), remedy="0 (never) or more")
        try:
            made_by = backend_for(tpu, self.backend or own.backend)
        except UserError as error:
            raise error.at("--backend" if self.backend else "backend") from None
        if self.reservation:
            check_reservation(self.reservation, made_by)
        if self.runtime:
            check_runtime(self.runtime, made_by)
        refuse_container_registry(own.image)
        return Spec(
            place.stack(name), tpu, made_by, self.way(), self.reservation, hours, minutes or None, label(own.owner),
            runtime=self.runtime or runtime_of(tpu, made_by), network=own.network, subnetwork=own.subnetwork,
            external_ip=own.external_ip, service_account=own.service_account, image=own.image,
        )  # fmt: skip

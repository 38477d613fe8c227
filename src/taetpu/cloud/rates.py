"""Where TPUs are offered and what they cost, by the dated table with sources in `core/chips.yaml`.

No command asks a price service. Published does not mean obtainable: only a request tells whether a zone has a machine.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import cast

from taetpu.cloud.machines import Api, Machine, Spec
from taetpu.core.chips import Slice, generations
from taetpu.core.errors import UserError, suggest


@dataclass(frozen=True)
class Rate:
    """USD per chip-hour; None where none is known. `elsewhere`: of the dearest known region; this one's is unknown."""

    usd: float | None
    elsewhere: bool = False


@dataclass(frozen=True)
class Cost:
    """What a machine costs in a zone, in USD, without disks, traffic and storage."""

    chips: int
    hours: float
    rate: Rate

    @property
    def hourly(self) -> float | None:
        return None if self.rate.usd is None else self.rate.usd * self.chips

    @property
    def most(self) -> float | None:
        """The cost if the machine runs for all of its hours; None where the region's rate is unknown."""
        return None if self.hourly is None or self.rate.elsewhere else self.hourly * self.hours

    def __str__(self) -> str:
        if self.hourly is None:
            return "rate unknown, and so is the most that it can cost"
        most = f"at most ${self.hourly * self.hours:.2f} in {self.hours:.3g} h"
        if self.rate.elsewhere:
            return f"rate unknown; ${self.hourly:.2f}/h, {most} if it is that of the dearest known region"
        return f"${self.hourly:.2f}/h, {most}"


def zones(tpu: Slice) -> list[str]:
    """Return the zones in which the table lists a generation, US zones first."""
    return sorted(tpu.generation.zones, key=lambda zone: (not zone.startswith("us-"), zone))


def zones_by_rate(tpu: Slice, spot: bool) -> list[str]:
    """Return the zones in which the table lists a generation, by rate; at the same rate US zones first."""
    return sorted(zones(tpu), key=lambda zone: rate(tpu, zone, spot).usd or math.inf)


def api_for(tpu: Slice, wanted: str = "") -> Api:
    """Return the API that makes a slice: the wanted one, else the usual one of its generation.

    Raises:
        UserError: the API does not exist, or does not make this slice.
    """
    known = tpu.generation.apis
    if wanted and wanted not in ("gce", "tpu-api"):
        raise UserError(f"unknown API {wanted!r}", path=("--api",), remedy=suggest(wanted, ["gce", "tpu-api"]))
    if wanted and wanted not in known:
        problem = f"{wanted} does not offer {tpu.generation.name}"
        raise UserError(problem, path=("--api",), remedy=f"Use {' or '.join(known)}.")
    if wanted != "gce" and tpu.hosts > 1 and "tpu-api" in known:
        return "tpu-api"
    found = cast(Api, wanted or known[0])
    if found == "gce" and tpu.hosts > 1:
        problem = f"{tpu.name} has {tpu.hosts} hosts, and taetpu makes Compute Engine slices of one host only"
        raise UserError(problem, remedy="Use GKE: `taetpu export kueue STUDY` writes the job.")
    return found


def runtime_for(tpu: Slice, api: Api) -> str:
    """Return the software version (tpu-api) or image family (gce) that a slice boots with.

    Raises:
        UserError: the table has none.
    """
    found = tpu.generation.image_family if api == "gce" else tpu.generation.runtime
    if found is None:
        what = "image family" if api == "gce" else "runtime version"
        raise UserError(f"no {what} is known for {tpu.generation.name}", remedy="Name one with --runtime.")
    return found


def rate(tpu: Slice, zone: str, spot: bool) -> Rate:
    """Return the rate of a slice's chips in a zone. A reservation is counted at the rate on demand."""
    known = dict(tpu.generation.usd)
    if own := known.get(zone.rpartition("-")[0]):
        return Rate(own[spot])
    return Rate(max((pair[spot] for pair in known.values()), default=None), elsewhere=True)


def cost(spec: Spec, zone: str) -> Cost:
    """Return the cost of a machine in a zone."""
    return Cost(spec.tpu.chips, spec.hours, rate(spec.tpu, zone, spec.spot))


def hourly_cost(machine: Machine) -> float | None:
    """Return the USD per hour of a machine that exists; None where its type or its rate is unknown."""
    for tpu in (one for chip in generations() for one in chip.slices()):
        if machine.type in (tpu.name, tpu.machine_type):
            return Cost(tpu.chips, 0.0, rate(tpu, machine.zone, machine.spot)).hourly
    return None


def filter_affordable(spec: Spec, zones: Sequence[str], max_usd: float | None) -> list[str]:
    """Return the zones whose worst case stays within `max_usd`; all without a limit.

    Raises:
        UserError: no zone does; the remedy is the number of hours that would.
    """
    if max_usd is None:
        return list(zones)
    costs = {zone: cost(spec, zone) for zone in zones}
    fitting = [zone for zone, one in costs.items() if one.most is not None and one.most <= max_usd * (1 + 1e-9)]
    if fitting:
        return fitting
    known = [one for one in costs.values() if one.most is not None]
    what = f"{spec.tpu.name}{' (spot)' if spec.spot else ''}"
    if not known:
        problem = f"no rate is known for {what} in {', '.join(zones)}, so --max-usd cannot be kept"
        raise UserError(
            problem, path=("--max-usd",), remedy="Look the price up and leave --max-usd out, or change --zone."
        )
    least = min(known, key=lambda one: one.most or math.inf)
    hours = math.floor(max_usd / (least.hourly or 1) * 10) / 10
    remedy = f"Use --max-hours {hours:g}, or raise --max-usd." if hours > 0 else "Raise --max-usd."
    problem = f"{what} may cost ${least.most:.2f} in {least.hours:.3g} h, more than --max-usd {max_usd:g}"
    raise UserError(problem, path=("--max-usd",), remedy=remedy)

"""Look up zones and rates of TPUs in the table `core/chips.yaml`. The table gives dates and sources.

No command queries a price service. A zone in the table may lack capacity. Only a request shows whether it has capacity.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import cast

from taetpu.cloud.machine_api import Api, Machine, Spec
from taetpu.core.chips import Slice, generations
from taetpu.core.errors import UserError, suggest


@dataclass(frozen=True)
class Rate:
    """A rate in USD per chip-hour.

    Attributes:
        usd: the rate; None if unknown.
        elsewhere: whether the region's rate is unknown. If so, `usd` is the highest known rate of any region.
    """

    usd: float | None
    elsewhere: bool = False


@dataclass(frozen=True)
class Cost:
    """The cost of a machine in a zone in USD, without disks, traffic and storage."""

    chips: int
    hours: float
    rate: Rate

    @property
    def hourly(self) -> float | None:
        """USD per hour; None if the rate is unknown."""
        return None if self.rate.usd is None else self.rate.usd * self.chips

    @property
    def most(self) -> float | None:
        """Cost in USD if the machine runs for all its hours; None if the region's rate is unknown."""
        return None if self.hourly is None or self.rate.elsewhere else self.hourly * self.hours

    def __str__(self) -> str:
        if self.hourly is None:
            return "rate unknown, so the cost has no known limit"
        most = f"at most ${self.hourly * self.hours:.2f} in {self.hours:.3g} h"
        if self.rate.elsewhere:
            return f"rate unknown; ${self.hourly:.2f}/h, {most} at the highest known rate of any region"
        return f"${self.hourly:.2f}/h, {most}"


def zones(tpu: Slice) -> list[str]:
    """Return the zones that offer a slice's generation, US zones first."""
    return sorted(tpu.generation.zones, key=lambda zone: (not zone.startswith("us-"), zone))


def zones_by_rate(tpu: Slice, spot: bool) -> list[str]:
    """Return the zones that offer a slice's generation, in increasing order of rate.

    Among zones with the same rate, US zones come first.
    """
    return sorted(zones(tpu), key=lambda zone: rate(tpu, zone, spot).usd or math.inf)


def api_for(tpu: Slice, wanted: str = "") -> Api:
    """Return the API for a slice: the wanted API, or the default API if `wanted` is "".

    Raises:
        UserError: if no API has the wanted name, or the API does not offer the slice.
    """
    known = tpu.generation.apis
    if wanted and wanted not in ("gce", "tpu-api"):
        raise UserError(f"unknown API {wanted!r}", path=("--api",), remedy=suggest(wanted, ["gce", "tpu-api"]))
    if wanted and wanted not in known:
        problem = f"{wanted} does not offer {tpu.generation.name}"
        raise UserError(problem, path=("--api",), remedy=f"Use {' or '.join(known)}.")
    if wanted != "gce" and tpu.hosts > 1 and "tpu-api" in known:
        return "tpu-api"
    api = cast(Api, wanted or known[0])
    if api == "gce" and tpu.hosts > 1:
        problem = f"{tpu.name} has {tpu.hosts} hosts, but taetpu creates only single-host slices with Compute Engine"
        raise UserError(problem, remedy="Use GKE with the job that `taetpu export kueue STUDY` writes.")
    return api


def runtime_for(tpu: Slice, api: Api) -> str:
    """Return the software version (tpu-api) or image family (gce) with which a slice boots.

    Raises:
        UserError: if the table has no value for the generation.
    """
    runtime = tpu.generation.image_family if api == "gce" else tpu.generation.runtime
    if runtime is None:
        what = "image family" if api == "gce" else "runtime version"
        raise UserError(f"no {what} is known for {tpu.generation.name}", remedy=f"Set the {what} with --runtime.")
    return runtime


def rate(tpu: Slice, zone: str, spot: bool) -> Rate:
    """Return the rate of a slice's chips in a zone. For reservations, the on-demand rate is used."""
    known = dict(tpu.generation.usd)
    if usd := known.get(zone.rpartition("-")[0]):
        return Rate(usd[spot])
    return Rate(max((pair[spot] for pair in known.values()), default=None), elsewhere=True)


def cost(spec: Spec, zone: str) -> Cost:
    """Return the cost of a machine in a zone."""
    return Cost(spec.tpu.chips, spec.hours, rate(spec.tpu, zone, spec.spot))


def hourly_cost(machine: Machine) -> float | None:
    """Return the cost of an existing machine in USD per hour, or None if its type or rate is unknown."""
    for tpu in (tpu for chip in generations() for tpu in chip.slices()):
        if machine.type in (tpu.name, tpu.machine_type):
            return Cost(tpu.chips, 0.0, rate(tpu, machine.zone, machine.spot)).hourly
    return None


def filter_affordable(spec: Spec, zones: Sequence[str], max_usd: float | None) -> list[str]:
    """Return the zones in which a machine costs at most `max_usd`, or all zones if `max_usd` is None.

    Raises:
        UserError: if no zone is left. If fewer hours would cost at most `max_usd`, the remedy gives their number.
    """
    if max_usd is None:
        return list(zones)
    costs = {zone: cost(spec, zone) for zone in zones}
    fitting = [zone for zone, cost in costs.items() if cost.most is not None and cost.most <= max_usd * (1 + 1e-9)]
    if fitting:
        return fitting
    known = [cost for cost in costs.values() if cost.most is not None]
    what = f"{spec.tpu.name}{' (spot)' if spec.spot else ''}"
    if not known:
        problem = f"--max-usd cannot be checked: no rate is known for {what} in {', '.join(zones)}"
        raise UserError(problem, path=("--max-usd",), remedy="Look up the price and omit --max-usd, or change --zone.")
    least = min(known, key=lambda cost: cost.most or math.inf)
    hours = math.floor(max_usd / (least.hourly or 1) * 10) / 10
    remedy = f"Use --max-hours {hours:g}, or raise --max-usd." if hours > 0 else "Raise --max-usd."
    problem = f"{what} may cost ${least.most:.2f} in {least.hours:.3g} h, more than --max-usd {max_usd:g}"
    raise UserError(problem, path=("--max-usd",), remedy=remedy)

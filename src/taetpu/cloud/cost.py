"""What a machine may cost before it is made; what one has cost since is its record's (`state.Record.cost`)."""

import math
from dataclasses import dataclass

from taetpu.cloud.errors import Invalid
from taetpu.cloud.settings import Settings
from taetpu.cloud.spec import Spec


@dataclass(frozen=True)
class Price:
    """What a spec costs in a zone, in USD; None where no rate is known.

    Attributes:
        per_chip_hour: the rate.
        source: where it is from, with its day.
    """

    chips: int
    hours: float
    per_chip_hour: float | None
    source: str

    @property
    def per_hour(self) -> float | None:
        return None if self.per_chip_hour is None else self.per_chip_hour * self.chips

    @property
    def worst(self) -> float | None:
        """With the machine kept for as long as it may be. Disks, traffic and buckets are not in it."""
        return None if self.per_hour is None else self.per_hour * self.hours

    def told(self) -> str:
        """The price in words, without its source."""
        if self.per_hour is None or self.worst is None:
            return "no rate is known"
        return f"${self.per_hour:.2f} an hour, at most ${self.worst:.2f} in {self.hours:.3g} h"


def check(price: Price, spec: Spec, zone: str, limits: Settings, *, there: bool = False) -> None:
    """Refuse what may cost more than the settings allow.

    Args:
        there: the machine is there already, and `price` is of the time that it has left.

    Raises:
        Invalid: the worst case or the rate is above its limit, or no rate is known while there is a limit.
    """
    limited = limits.max_usd is not None or limits.max_usd_per_chip_hour is not None
    what = f"{spec.tpu.name} ({spec.provisioning}) in {zone}"
    if price.per_chip_hour is None or price.worst is None:
        if limited:
            remedy = "look the price up, and leave --max-usd and --max-usd-per-chip-hour out if you agree with it"
            raise Invalid(f"no rate is known for {what}, so a limit on its cost cannot be kept", remedy=remedy)
        return
    if limits.max_usd is not None and price.worst > limits.max_usd:
        hours = _rounded_down(limits.max_usd / (price.worst / price.hours))
        problem = f"{what} may cost ${price.worst:.2f} in {price.hours:.3g} h, more than max_usd {limits.max_usd:g}"
        remedy = f"--max-hours {hours:g} stays below it, or raise --max-usd"
        if there:
            problem = f"{spec.stack} is there already, with limits of its own: {problem}"
            anew = f"`taetpu tpu down {spec.stack}`, then it is made anew with --max-hours {hours:g}"
            remedy = f"{anew}; or raise --max-usd"
        raise Invalid(problem, remedy=remedy)
    ceiling = limits.max_usd_per_chip_hour
    if ceiling is not None and price.per_chip_hour > ceiling:
        problem = f"{what} costs ${price.per_chip_hour:.2f} per chip-hour, more than {ceiling:g}"
        raise Invalid(problem, remedy="another zone, --spot, or a higher --max-usd-per-chip-hour")


def _rounded_down(hours: float) -> float:
    """To two digits that count."""
    step = 10.0 ** (math.floor(math.log10(hours)) - 1)
    return float(f"{math.floor(hours / step) * step:.2g}")

"""What a machine may cost before it is made; what one has cost since is its record's (`state.Record.cost`)."""

import math
from dataclasses import dataclass

from taetpu.cloud.clients import fake_address
from taetpu.cloud.errors import Invalid
from taetpu.cloud.settings import Settings
from taetpu.cloud.spec import Spec

LEAST = 0.25
"""Hours for which another machine of a study is worth making."""
NO_LIMIT = "look the price up, and leave --max-usd and --max-usd-per-chip-hour out if you agree with it"


def shortest() -> float:
    """Hours below which no machine is made: it takes minutes to be ready; the fakes' take seconds."""
    return 0.01 if fake_address() else 0.1


@dataclass(frozen=True)
class Price:
    """What a spec costs in a zone, in USD; None where no rate is known.

    Attributes:
        per_chip_hour: the rate.
        source: where it is from, with its day.
        guess: the rate is that of another region, and may be more there.
    """

    chips: int
    hours: float
    per_chip_hour: float | None
    source: str
    guess: bool = False

    @property
    def per_hour(self) -> float | None:
        return None if self.per_chip_hour is None else self.per_chip_hour * self.chips

    @property
    def worst(self) -> float | None:
        """With the machine kept for as long as it may be; None where that is not known. Disks, traffic and buckets are
        not in it."""
        return None if self.per_hour is None or self.guess else self.per_hour * self.hours

    def rate(self) -> str:
        """What an hour costs, in words."""
        if self.per_hour is None:
            return "no rate is known"
        about = f"${self.per_hour:.2f} an hour"
        return f"about {about}, may be more: no rate is known there" if self.guess else about

    def told(self) -> str:
        """The price in words, without its source."""
        return self.rate() if self.worst is None else f"{self.rate()}, at most ${self.worst:.2f} in {self.hours:.3g} h"


@dataclass(frozen=True)
class Before:
    """What the earlier machines of a study took of its limits, and the one that is there until now.

    Attributes:
        usd: None where the rate of one was not known.
    """

    hours: float = 0.0
    usd: float | None = 0.0


def check(
    price: Price, spec: Spec, zone: str, limits: Settings, *, there: bool = False, before: Before | None = None
) -> None:
    """Refuse what may cost more than the settings allow.

    Args:
        there: the machine is there already, and `price` is of the time that it has left.
        before: what counts besides.

    Raises:
        Invalid: the worst case or the rate is above its limit, or is not known while there is a limit.
    """
    before = before or Before()
    limited = limits.max_usd is not None or limits.max_usd_per_chip_hour is not None
    what = f"{spec.tpu.name} ({spec.provisioning}) in {zone}"
    if price.per_chip_hour is None or price.worst is None:
        if limited:
            remedy = f"a --zone whose rate is known (`taetpu tpu zones --type {spec.tpu.name}`), or {NO_LIMIT}"
            problem = f"no rate is known for {what}, so a limit on its cost cannot be kept"
            raise Invalid(problem, remedy=NO_LIMIT if there else remedy)
        return
    if limits.max_usd is not None:
        _check_sum(price, spec, what, limits.max_usd, there, before)
    ceiling = limits.max_usd_per_chip_hour
    if ceiling is not None and price.per_chip_hour > ceiling:
        problem = f"{what} costs ${price.per_chip_hour:.2f} per chip-hour, more than {ceiling:g}"
        raise Invalid(problem, remedy="another zone, --spot, or a higher --max-usd-per-chip-hour")


def _check_sum(price: Price, spec: Spec, what: str, most: float, there: bool, before: Before) -> None:
    """Raises `Invalid` where what was spent and the worst case of a price are more than is allowed."""
    assert price.worst is not None
    if before.usd is None:
        problem = f"what the earlier machines of {spec.stack} cost is not known, so max_usd {most:g} cannot be kept"
        raise Invalid(problem, remedy=f"leave --max-usd out, or `taetpu tpu down {spec.stack}` counts anew")
    if price.worst + before.usd <= most * (1 + 1e-9):
        return
    spent = f" beside ${before.usd:.2f} that is spent already" if before.usd else ""
    problem = f"{what} may cost ${price.worst:.2f} in {price.hours:.3g} h{spent}, more than max_usd {most:g}"
    if there:
        problem = f"{spec.stack} is there already, with limits of its own: {problem}"
    kept = Before(0.0, 0.0) if there else before  # `down` counts anew
    hours = _rounded_down(kept.hours + (most - (kept.usd or 0.0)) / (price.worst / price.hours))
    if hours - kept.hours < (LEAST if kept.hours else shortest()):
        raise Invalid(problem, remedy="raise --max-usd: no time of use stays below it")
    remedy = f"--max-hours {hours:g} stays below it, or raise --max-usd"
    if there:
        anew = f"`taetpu tpu down {spec.stack}`, then it is made anew with --max-hours {hours:g}"
        remedy = f"{anew}; or raise --max-usd"
    raise Invalid(problem, remedy=remedy)


def _rounded_down(hours: float) -> float:
    """To two digits that count; 0 for none."""
    if hours <= 0:
        return 0.0
    step = 10.0 ** (math.floor(math.log10(hours)) - 1)
    return float(f"{math.floor(hours / step) * step:.2g}")

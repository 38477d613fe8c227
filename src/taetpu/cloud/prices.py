"""What a chip costs an hour: Google's Billing Catalog, else the dated tables, else no rate.

The catalog's TPU entries have no field that says which chip or which way of paying they are for: their descriptions do.
The forms were seen in public code that reads the live catalog, not by us: `TpuV6e running in Columbus`, `TpuV6e
attached to Spot Preemptible VMs running in ...`, `DWS Defined Duration V6e running in ...` (flex-start) per chip-hour
in Compute Engine's list; `TPU-v2 Accelerator USA`, with `Preemptible` and `Pod`, per 4 chips in Cloud TPU's own list.
Reserved, committed and calendar rates are left out. Spot is not taken to be the cheapest: each kind has its own rate.
"""

import json
import re
import time
from collections.abc import Iterable, Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, NamedTuple
from urllib.parse import urlsplit

from taetpu.cloud import catalogue
from taetpu.cloud.clients import Clients, fake_address, imported
from taetpu.cloud.errors import CloudError
from taetpu.cloud.rest import answered, patience
from taetpu.cloud.spec import Provisioning
from taetpu.core import disk
from taetpu.core.chips import Slice
from taetpu.core.errors import UserError
from taetpu.core.runtime import cache_folder

LISTS = ("6F81-5844-456A", "E000-3F24-B8AA")
"""The catalog's services: Compute Engine (v5e and newer), Cloud TPU (v2 to v4)."""
FRESH = 86400.0
"""Seconds for which what was read is not read again; the catalog itself may be 12 hours old."""
SILENT = 60.0
"""Seconds for which a catalog that refused is not asked again."""
CEILING = 100.0
"""USD per chip-hour above which a figure is no price but somebody's mark for "unknown", such as 700."""

MODERN = re.compile(
    r"(?:(?P<demand>Tpu-?(?P<a>V5e|V5p|V6e|7x) running in)"
    r"|(?P<spot>Tpu-?(?P<b>V5e|V5p|V6e|7x) attached to Spot Preemptible VMs)"
    r"|(?P<flex>DWS Defined Duration (?:Tpu)?-?(?P<c>V5e|V5p|V6e|7x) running in))",
    re.IGNORECASE,
)
EARLY = re.compile(r"(?:Preemptible )?TPU-?(?P<chip>v[234])\b", re.IGNORECASE)
OTHER = re.compile(r"reserved|commitment|calendar|capacity optimized|subscription", re.IGNORECASE)


@dataclass(frozen=True)
class Rate:
    """An entry of the catalog: USD per chip-hour in some regions. `pod`: of slices of several hosts (v2 to v4)."""

    chip: str
    kind: str
    pod: bool
    regions: tuple[str, ...]
    usd: float


@dataclass(frozen=True)
class Rates:
    """What the catalog said, and when (seconds since 1970)."""

    read: float
    rates: tuple[Rate, ...]

    def of(self, tpu: Slice, zone: str, provisioning: Provisioning) -> float | None:
        """The rate of a slice; the highest, should several entries fit."""
        kind = "on-demand" if provisioning == "reservation" else provisioning
        chip, early = tpu.generation.name, tpu.generation.name in ("v2", "v3")
        fit = [
            rate.usd
            for rate in self.rates
            if (rate.chip, rate.kind) == (chip, kind)
            and catalogue.region(zone) in rate.regions
            and (not early or rate.pod == (tpu.hosts > 1))
        ]
        return max(fit, default=None)


_refused: dict[str, tuple[float, str]] = {}


class Quote(NamedTuple):
    """A rate in USD per chip-hour, None where none is known, and where it is from, with its day. A `guess` is another
    region's rate, the cheapest in the US: what it is there is not known."""

    usd: float | None
    source: str
    guess: bool = False


def rate(clients: Clients, tpu: Slice, zone: str, provisioning: Provisioning) -> Quote:
    """What a chip of a slice costs in a zone.

    A machine out of a reservation is counted at the rate on demand, as the reservation is paid for anyway.
    """
    told = "the Billing Catalog has none"
    try:
        rates = read(clients)
        if (usd := rates.of(tpu, zone, provisioning)) is not None:
            return Quote(usd, f"Billing Catalog, read {_day(rates.read)}")
    except CloudError as error:
        told = f"the Billing Catalog is not to be had: {error.problem}"
    except UserError as error:
        told = error.problem
    if (usd := _plausible(catalogue.rate(tpu, zone, provisioning))) is not None:
        return Quote(usd, f"table of {catalogue.dated()} for {catalogue.region(zone)}; {told}")
    spot = provisioning == "spot"
    usd = None if provisioning == "flex-start" else _plausible(tpu.generation.usd_per_chip_hour(spot))
    if usd is None:
        return Quote(None, f"{told}, nor has the table of {catalogue.dated()}")
    table = dict(tpu.generation.sources)["usd_spot" if spot else "usd_on_demand"].read
    return Quote(usd, f"a guess, the cheapest in the US by the table of {table}: it may be more there; {told}", True)


def read(clients: Clients) -> Rates:
    """The rates of TPUs, from the cache if they were read today.

    Raises:
        CloudError: the catalog refuses, or does not answer.
        UserError: nobody is signed in.
    """
    path = _path()
    if kept := _kept(path):
        return kept
    where = str(path)
    at, why = _refused.get(where, (0.0, ""))
    if time.monotonic() - at < SILENT and why:
        raise CloudError(why)
    try:
        rates = Rates(time.time(), tuple(_asked(clients)))
    except CloudError as error:
        _refused[where] = time.monotonic(), error.problem
        raise
    _keep(path, rates)
    return rates


def _asked(clients: Clients) -> Iterator[Rate]:
    library = imported("google.cloud.billing_v1")
    transports = imported("google.cloud.billing_v1.services.cloud_catalog.transports")
    client = clients.rest(library.CloudCatalogClient, transports.CloudCatalogRestTransport)
    for service in LISTS:
        request = library.ListSkusRequest(parent=f"services/{service}", currency_code="USD", page_size=5000)
        with answered("cloudbilling", "reading prices"):
            yield from _rates(client.list_skus(request=request, **patience()))


def _rates(skus: Iterable[Any]) -> Iterator[Rate]:
    """The entries that are a TPU's rate."""
    for sku in skus:
        description = sku.description
        if OTHER.search(description) or not sku.pricing_info:
            continue
        price = sku.pricing_info[-1].pricing_expression
        usd = max((tier.unit_price.units + tier.unit_price.nanos / 1e9 for tier in price.tiered_rates), default=0.0)
        if price.usage_unit != "h":
            continue
        regions = tuple(sku.service_regions)
        if found := MODERN.match(description):
            name = (found["a"] or found["b"] or found["c"]).lower()
            kind = "on-demand" if found["demand"] else "spot" if found["spot"] else "flex-start"
            chip, pod, each = ("tpu7x" if name == "7x" else name), False, usd
        elif found := EARLY.match(description):
            chip, pod, each = found["chip"].lower(), "pod" in description.lower(), usd / 4
            kind = "spot" if "preemptible" in description.lower() else "on-demand"
        else:
            continue
        if (known := _plausible(each)) is not None:
            yield Rate(chip, kind, pod, regions, round(known, 6))


def _plausible(usd: float | None) -> float | None:
    """None for what cannot be a rate: nothing, 0 (a placeholder of commitments), or a mark for "unknown"."""
    return usd if usd is not None and 0 < usd <= CEILING else None


def _path() -> Path:
    """Where rates are kept: apart for each cloud, so that a fake's never reach the real one."""
    address = fake_address()
    name = urlsplit(address).netloc.replace(":", "-") if address else "google"
    return cache_folder() / "prices" / f"{name}.json"


def _kept(path: Path) -> Rates | None:
    """What was read before, if it is fresh and whole."""
    try:
        data = json.loads(path.read_text(encoding="utf-8"))
        rates = tuple(Rate(**{**one, "regions": tuple(one["regions"])}) for one in data["rates"])
        return Rates(data["read"], rates) if 0 <= time.time() - data["read"] < FRESH else None
    except (OSError, ValueError, LookupError, TypeError):
        return None


def _keep(path: Path, rates: Rates) -> None:
    """A cache that cannot be written is none; the answer is as good."""
    try:
        disk.write_file(path, json.dumps(asdict(rates)).encode(), replace=True)
    except OSError:
        return


def _day(moment: float) -> str:
    return time.strftime("%Y-%m-%d", time.gmtime(moment))

"""How much of each TPU a project may have, by Google's Cloud Quotas. A quota is no promise that there is any.

The two APIs count apart: what the Cloud TPU API (`tpu.googleapis.com`) may make says nothing of what Compute Engine
(`compute.googleapis.com`) may. Seen in public projects, not by us on the real cloud: the forms of the quotas' names
(`TPUV6EPreemptiblePerProjectPerZoneForTPUAPI`, `PREEMPTIBLE-TPU-V6E-per-project-region`), and that Compute Engine
counts v6e and TPU7x on demand by family (`TPUS-PER-TPU-FAMILY-per-project-region`, dimension `tpu_family`). A quota
whose name has another form is not read, so its TPU is told to be "not set", never to be 0.
"""

import re
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, Literal

from taetpu.cloud.catalogue import region
from taetpu.cloud.clients import Clients, imported
from taetpu.cloud.rest import answered, patience
from taetpu.cloud.spec import BackendName, Provisioning
from taetpu.core.chips import Slice

Kind = Literal["on-demand", "spot", "reserved"]

SERVICES: dict[BackendName, str] = {"gce": "compute.googleapis.com", "tpu-api": "tpu.googleapis.com"}
UNLIMITED = -1
"""What Cloud Quotas writes for no limit."""

BY_TPU_API = re.compile(
    r"TPUV(?P<chip>2s?|3s?|4s?|5s|5P|6E)(?P<words>(?:Preemptible|Reserved|Litepod|Serving|Pod)*)"
    r"PerProjectPer(?P<scope>Zone|Region)ForTPUAPI"
)
BY_GCE = re.compile(
    r"(?P<spot>PREEMPTIBLE-)?TPU-(?P<chip>PODSLICE-V4|LITE-PODSLICE-V5|V5P|V6E|(?:TPU-?)?7X)"
    r"-per-project-(?P<scope>zone|region)",
    re.IGNORECASE,
)
BY_FAMILY = re.compile(r"TPUS-PER-TPU-FAMILY-per-project-(?P<scope>zone|region)", re.IGNORECASE)
CHIPS = {"2": "v2", "3": "v3", "4": "v4", "5S": "v5e", "5P": "v5p", "6E": "v6e"}
GCE_CHIPS = {"PODSLICE-V4": "v4", "LITE-PODSLICE-V5": "v5e", "V5P": "v5p", "V6E": "v6e"}
FAMILIES = {"CT3": "v3", "CT3P": "v3", "CT6E": "v6e", "TPU7X": "tpu7x"}


@dataclass(frozen=True)
class Amount:
    """A value of a quota, and where it holds.

    Attributes:
        place: a zone or a region; "" for wherever no other amount holds.
        value: what is granted; None where the API states none.
        within: regions or zones that a value for "" is for; empty: all.
    """

    place: str
    value: int | None
    within: tuple[str, ...] = ()


@dataclass(frozen=True)
class Pool:
    """One quota of one TPU generation.

    Attributes:
        part: "" or what of the generation it is for: "pod" (slices of several hosts), "serving" (v5e of one host).
    """

    quota: str
    backend: BackendName
    chip: str
    kind: Kind
    part: str
    scope: Literal["zone", "region"]
    amounts: tuple[Amount, ...]

    def at(self, zone: str) -> int | None:
        """What is granted in a zone; None where nothing states it."""
        place = zone if self.scope == "zone" else region(zone)
        own = next((amount for amount in self.amounts if amount.place == place), None)
        if own is None:
            rest = (amount for amount in self.amounts if not amount.place)
            own = next((amount for amount in rest if not amount.within or place in amount.within), None)
        return own.value if own else None


@dataclass(frozen=True)
class Limit:
    """What a project may have of a slice's generation in a zone.

    Attributes:
        value: chips (gce) or TensorCores (tpu-api); None: not set; -1: no limit.
        needed: of the same, by the slice.
        quotas: names of the quotas that say so.
    """

    value: int | None
    needed: int
    unit: str
    quotas: tuple[str, ...] = ()

    @property
    def enough(self) -> bool | None:
        """Whether it allows one such slice; None where it is not set."""
        return None if self.value is None else self.value == UNLIMITED or self.value >= self.needed

    def told(self) -> str:
        """In words, for a table."""
        if self.value is None:
            return "not set"
        return "no limit" if self.value == UNLIMITED else f"{self.value} {self.unit}"


@dataclass(frozen=True)
class Quotas:
    """The TPU quotas of a project."""

    pools: tuple[Pool, ...]

    def of(self, tpu: Slice, backend: BackendName, zone: str, provisioning: Provisioning) -> Limit:
        """What may be had of a slice in a zone.

        Flex-start takes spot quota where there is some, else that on demand (Google says so of Compute Engine; the
        Cloud TPU API is taken to do alike). A reservation on Compute Engine raises the quota by itself.
        """
        unit, needed = ("chips", tpu.chips) if backend == "gce" else ("cores", tpu.cores)
        kinds: dict[Provisioning, tuple[Kind, ...]] = {
            "on-demand": ("on-demand",),
            "spot": ("spot",),
            "flex-start": ("spot", "on-demand"),
            "reservation": ("reserved",),
        }
        found = Limit(None, needed, unit)
        for kind in kinds[provisioning]:
            pools = self._pools(tpu, backend, kind)
            stated = [(value, pool.quota) for pool in pools if (value := pool.at(zone)) is not None]
            if stated:
                limits = [value for value, _ in stated if value != UNLIMITED]
                found = Limit(min(limits, default=UNLIMITED), needed, unit, tuple(name for _, name in stated))
            if found.enough:
                break
        return found

    def granted(self) -> list[tuple[Pool, Amount]]:
        """Every amount that is more than 0."""
        return [(pool, amount) for pool in self.pools for amount in pool.amounts if amount.value]

    def _pools(self, tpu: Slice, backend: BackendName, kind: Kind) -> list[Pool]:
        """The quotas that hold for a slice: of the zone and of its region, both."""
        same = [p for p in self.pools if (p.backend, p.chip, p.kind) == (backend, tpu.generation.name, kind)]
        for part in _parts(tpu, backend):
            if chosen := [pool for pool in same if pool.part == part]:
                return chosen
        return []


def _parts(tpu: Slice, backend: BackendName) -> tuple[str, ...]:
    """What a slice's quota may be for, the most particular first.

    By Google's page on quotas: v2 and v3 have quotas of their own for pods, all of v4 is pods, and v5e of one host
    takes "serving" quota (which the newest copy of the page no longer names: it is used where the project has it).
    """
    chip = tpu.generation.name
    if backend == "gce":
        return ("",)
    if chip in ("v2", "v3"):
        return ("pod",) if tpu.hosts > 1 else ("",)
    if chip == "v4":
        return ("pod", "")
    return ("serving", "") if chip == "v5e" and tpu.hosts == 1 else ("",)


def read(clients: Clients) -> Quotas:
    """Every TPU quota of the project, from both APIs.

    Raises:
        Permission: the caller may not read quotas, or Cloud Quotas is not enabled.
        Transient: it did not answer.
    """
    library = imported("google.cloud.cloudquotas_v1")
    transports = imported("google.cloud.cloudquotas_v1.services.cloud_quotas.transports")
    client = clients.rest(library.CloudQuotasClient, transports.CloudQuotasRestTransport)
    pools: list[Pool] = []
    for backend, service in SERVICES.items():
        parent = f"projects/{clients.project}/locations/global/services/{service}"
        with answered("cloudquotas", "reading quotas"):
            pools += [
                pool for info in client.list_quota_infos(parent=parent, **patience()) for pool in _read(backend, info)
            ]
    return Quotas(tuple(pools))


def _read(backend: BackendName, info: Any) -> Iterable[Pool]:
    """The quotas of TPUs that one `QuotaInfo` holds; none for what is no TPU's."""
    if backend == "tpu-api" and (found := BY_TPU_API.fullmatch(info.quota_id)):
        words = found["words"]
        kind: Kind = "spot" if "Preemptible" in words else "reserved" if "Reserved" in words else "on-demand"
        rest = re.sub("Preemptible|Reserved|Litepod", "", words).lower()
        chip = CHIPS[found["chip"].upper() if found["chip"][0] == "5" else found["chip"].rstrip("s")]
        yield _pool(info, backend, chip, kind, rest, found["scope"], info.dimensions_infos)
    elif backend == "gce" and (found := BY_GCE.fullmatch(info.quota_id)):
        chip = GCE_CHIPS.get(found["chip"].upper(), "tpu7x")
        yield _pool(
            info, backend, chip, "spot" if found["spot"] else "on-demand", "", found["scope"], info.dimensions_infos
        )
    elif backend == "gce" and (found := BY_FAMILY.fullmatch(info.quota_id)):
        for family, chip in FAMILIES.items():
            part = "pod" if family == "CT3P" else ""
            own = [one for one in info.dimensions_infos if one.dimensions.get("tpu_family", "").upper() == family]
            if own:
                yield _pool(info, backend, chip, "on-demand", part, found["scope"], own)


def _pool(
    info: Any, backend: BackendName, chip: str, kind: Kind, part: str, scope: str, entries: Iterable[Any]
) -> Pool:
    where: Literal["zone", "region"] = "zone" if scope.lower() == "zone" else "region"
    amounts = []
    for entry in entries:
        # Google leaves a 0 out of `details`; where it leaves out `details` itself, nothing is stated.
        value = int(entry.details.value) if "details" in entry else None
        place = entry.dimensions.get(where, "")
        within = () if place else tuple(one for one in entry.applicable_locations if one != "global")
        amounts.append(Amount(place, value, within))
    return Pool(info.quota_id, backend, chip, kind, part, where, tuple(amounts))

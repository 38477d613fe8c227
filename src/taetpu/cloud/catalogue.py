"""Where TPUs are and what makes them, as `catalogue.yaml` has it: dated, with sources, for when no API tells."""

from dataclasses import dataclass
from functools import cache
from importlib.resources import files
from typing import Any, Literal, cast

from taetpu.cloud.spec import BackendName, Provisioning
from taetpu.core.chips import Slice
from taetpu.core.errors import UserError, suggest


@dataclass(frozen=True)
class Offer:
    """A generation as the cloud has it.

    Attributes:
        backends: that make it, the usual one first.
        zones: that Google's table or a price list names, with the source of each: "regions" or "prices".
        image: family of Compute Engine's boot disk; None where none is known.
    """

    backends: tuple[BackendName, ...]
    zones: dict[str, str]
    image: str | None


@cache
def _document() -> dict[str, Any]:
    from ruamel.yaml import YAML

    return YAML(typ="safe").load(files("taetpu.cloud").joinpath("catalogue.yaml").read_text(encoding="utf-8"))


def dated() -> str:
    """The day of the table, an ISO date."""
    return _document()["dated"].isoformat()


def image_project() -> str:
    """The project whose images TPU machines boot from."""
    return _document()["image_project"]


def offer(tpu: Slice) -> Offer:
    """What the table says of a slice's generation."""
    entry = _document()["tpus"][tpu.generation.name]
    zones = {zone: source for source, names in entry["zones"].items() for zone in names}
    return Offer(tuple(entry["backends"]), zones, entry["image"])


def backend_for(tpu: Slice, wanted: str = "") -> BackendName:
    """The backend that makes a slice: the wanted one, else the generation's usual one.

    Raises:
        UserError: no such backend, or not for this generation.
    """
    known = offer(tpu).backends
    if not wanted:
        return known[0]
    if wanted not in ("gce", "tpu-api"):
        raise UserError(f"there is no backend {wanted!r}", remedy=suggest(wanted, ["gce", "tpu-api"]))
    if wanted not in known:
        raise UserError(f"{wanted} does not make {tpu.generation.name}", remedy=f"use {' or '.join(known)}")
    return cast(BackendName, wanted)


def region(zone: str) -> str:
    """The region of a zone: `us-east5-b` is in `us-east5`."""
    return zone.rpartition("-")[0]


def order(zone: str, usd: float | None, guess: bool) -> tuple[bool, bool, float, bool, str]:
    """What zones are sorted by: those whose rate is known, a `guess`, none; the price; and at the same one the US."""
    return usd is None, guess, usd or 0.0, not zone.startswith("us-"), zone


Rated = Literal["on-demand", "spot", "flex-start"]


def rate(tpu: Slice, zone: str, provisioning: Provisioning) -> float | None:
    """USD per chip-hour that the dated table has for a zone's region; None where it has none.

    A reservation is paid for whether it is used or not; its machines are counted at the rate on demand.
    """
    kind: Rated = "on-demand" if provisioning == "reservation" else provisioning
    own = _document()["rates"].get(tpu.generation.name, {}).get(kind, {}).get(region(zone))
    return own[0] if own else None


def runtime_of(tpu: Slice, backend: BackendName) -> str:
    """What a machine starts with: the runtime version of the Cloud TPU API, or Compute Engine's image family.

    Raises:
        UserError: none is known.
    """
    found = offer(tpu).image if backend == "gce" else tpu.generation.runtime
    if found is None:
        what = "image family" if backend == "gce" else "runtime version"
        raise UserError(f"no {what} is known for {tpu.generation.name} on {backend}", remedy="name it with --runtime")
    return found

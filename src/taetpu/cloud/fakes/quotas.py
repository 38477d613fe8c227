"""Cloud Quotas: what a project may have. Answers `quotaInfos.list` as `cloudquotas_v1.types.QuotaInfo` names it."""

from collections.abc import Mapping, Sequence
from typing import Any

from taetpu.cloud.fakes.paging import page
from taetpu.cloud.fakes.server import Request, Route
from taetpu.cloud.fakes.world import World

TPU, COMPUTE = "tpu.googleapis.com", "compute.googleapis.com"


def info(quota: str, amounts: Mapping[str, int | None], family: str = "") -> dict[str, Any]:
    """A quota with what is granted by zone or region, whichever its name says.

    Args:
        amounts: "" is for every place that is not named; None: the API states nothing there. A 0 is left out of its
            `details`, as protocol buffers leave out zeros.
        family: of TPUs, for the quota that has them all.
    """
    where = "zone" if "zone" in quota.lower() else "region"
    entries = []
    for place, value in amounts.items():
        dimensions = {where: place} if place else {}
        if family:
            dimensions["tpu_family"] = family
        entry: dict[str, Any] = {"dimensions": dimensions, "applicableLocations": [place] if place else []}
        if value is not None:
            entry["details"] = {"value": str(value)} if value else {}
        entries.append(entry)
    service = TPU if quota.endswith("ForTPUAPI") else COMPUTE
    return {
        "quotaId": quota,
        "service": service,
        "metric": f"{service}/{quota.lower()}",
        "dimensions": [where],
        "dimensionsInfos": entries,
        "containerType": "PROJECT",
    }


def usual() -> list[dict[str, Any]]:
    """What a project might have that was granted a few of the newer chips."""
    return [
        info("CpusPerProjectPerRegion", {"": 24}),
        info("TPUV2sPerProjectPerZoneForTPUAPI", {"us-central1-b": 16, "us-central1-c": 16, "europe-west4-a": 16}),
        info("TPUV5sLitepodPerProjectPerZoneForTPUAPI", {"us-west4-a": 16}),
        info("TPUV5sPreemptibleLitepodPerProjectPerZoneForTPUAPI", {"us-west4-a": 64}),
        info("TPUV6EPreemptiblePerProjectPerZoneForTPUAPI", {"us-east5-b": 64, "europe-west4-a": 64}),
        info("PREEMPTIBLE-TPU-V6E-per-project-region", {"": 1536, "us-east5": 32}),
        info("TPUS-PER-TPU-FAMILY-per-project-region", {"us-east5": 32, "europe-west4": 32}, family="CT6E"),
    ]


def routes(world: World, infos: Sequence[Mapping[str, Any]] | None = None) -> list[Route]:
    """The service, with the quotas of a project."""
    granted = usual() if infos is None else infos

    def listed(request: Request) -> dict[str, Any]:
        service = request.parts["service"]
        names = f"projects/{world.project}/locations/global/services/{service}/quotaInfos"
        own = [{"name": f"{names}/{one['quotaId']}", **one} for one in granted if one["service"] == service]
        return page(request, "quotaInfos", own)

    pattern = r"/v1/projects/[^/]+/locations/global/services/(?P<service>[^/]+)/quotaInfos"
    return [Route("cloudquotas", "quotaInfos.list", "GET", pattern, listed)]

"""Cloud Billing's Catalog: what things cost. Answers `services.skus.list` as `billing_v1.types.Sku` names it."""

import hashlib
from collections.abc import Mapping, Sequence
from typing import Any

from taetpu.cloud.fakes.paging import page
from taetpu.cloud.fakes.server import Request, Route
from taetpu.cloud.fakes.world import World

COMPUTE, CLOUD_TPU = "6F81-5844-456A", "E000-3F24-B8AA"


def sku(description: str, usd: float, *regions: str, service: str = COMPUTE, usage: str = "OnDemand") -> dict[str, Any]:
    """An entry of the catalog: USD an hour of what the description says."""
    units, nanos = divmod(round(usd * 1e9), 10**9)
    number = hashlib.sha256(repr((description, regions)).encode()).hexdigest().upper()
    identity = "-".join(number[at : at + 4] for at in (0, 4, 8))
    price = {"currencyCode": "USD", "units": str(units), "nanos": nanos}
    hourly = {"usageUnit": "h", "displayQuantity": 1, "tieredRates": [{"startUsageAmount": 0, "unitPrice": price}]}
    return {
        "name": f"services/{service}/skus/{identity}",
        "skuId": identity,
        "description": description,
        "category": {"resourceFamily": "Compute", "resourceGroup": "TPU", "usageType": usage},
        "serviceRegions": list(regions),
        "pricingInfo": [{"effectiveTime": "2026-11-21T00:00:00Z", "pricingExpression": hourly}],
        "serviceProviderName": "Google",
    }


def usual() -> list[dict[str, Any]]:
    """Entries in the forms that the live catalog was seen to have, those that are no plain rate among them."""
    east, spot = "us-east5", "attached to Spot Preemptible VMs running in"
    return [
        sku("N1 Predefined Instance Core running in Americas", 0.0316, "us-central1", east),
        sku("TpuV6e running in Columbus", 2.70, east),
        sku("DWS Defined Duration V6e running in Columbus", 1.35, east),
        sku(f"TpuV6e {spot} Columbus", 1.4033, east, usage="Preemptible"),
        sku("Capacity Optimized TpuV6e running in Columbus", 2.65, east),
        sku("Reserved V6e TPU in Columbus in Calendar Mode", 1.89, east),
        sku("Commitment v1: TpuV6e running in Columbus for 1 Year", 1.89, east, usage="Commit1Yr"),
        sku("TpuV6e running in Netherlands", 2.97, "europe-west4"),
        sku("TpuV5e running in Las Vegas", 1.20, "us-west4"),
        sku(f"TpuV5e {spot} Las Vegas", 0.24, "us-west4", usage="Preemptible"),
        sku("TPU-v2 Accelerator USA", 4.50, "us-central1", service=CLOUD_TPU),
        sku("Preemptible TPU-v2 Accelerator USA", 1.35, "us-central1", service=CLOUD_TPU),
        sku("TPU-v2 Pod Accelerator USA", 6.00, "us-central1", service=CLOUD_TPU),
    ]


def routes(world: World, skus: Sequence[Mapping[str, Any]] | None = None) -> list[Route]:
    """The service, with a catalog."""
    catalog = usual() if skus is None else skus

    def listed(request: Request) -> dict[str, Any]:
        parent = f"services/{request.parts['service']}/"
        return page(request, "skus", [one for one in catalog if one["name"].startswith(parent)])

    return [Route("cloudbilling", "skus.list", "GET", r"/v1/services/(?P<service>[^/]+)/skus", listed)]

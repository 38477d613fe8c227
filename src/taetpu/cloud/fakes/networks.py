"""Compute Engine's networks: firewall rules, subnetworks and routers, as `compute_v1.types` names them."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from taetpu.cloud.fakes.gce_base import Compute
from taetpu.cloud.fakes.server import Request, Route
from taetpu.cloud.fakes.world import Refused, World

IAP = "35.235.240.0/20"
"""Where Identity-Aware Proxy's tunnels come from, by Google's page on TCP forwarding."""
REGIONS = ("europe-west4", "us-central1", "us-central2", "us-east1", "us-east5", "us-west4")


def rule(name: str, sources: Sequence[str], allowed: str = "tcp:22", network: str = "default") -> dict[str, Any]:
    """A firewall rule that lets something in: "tcp:22", "tcp", or "all"."""
    protocol, _, port = allowed.partition(":")
    allow: dict[str, Any] = {"IPProtocol": protocol}
    if port:
        allow["ports"] = [port]
    return {
        "name": name,
        "network": f"https://www.googleapis.com/compute/v1/projects/p/global/networks/{network}",
        "direction": "INGRESS",
        "priority": 1000,
        "sourceRanges": list(sources),
        "allowed": [allow],
        "disabled": False,
    }


@dataclass
class Networks:
    """What there is.

    Attributes:
        firewalls: rules by name, apart from what `World.left` counts: they are the network's.
        reaches_google: regions whose subnetwork has Private Google Access.
        translated: regions with a router that has a NAT.
    """

    firewalls: dict[str, dict[str, Any]] = field(
        default_factory=lambda: {one["name"]: one for one in (rule("allow-iap", [IAP]),)}
    )
    reaches_google: set[str] = field(default_factory=lambda: set(REGIONS))
    translated: set[str] = field(default_factory=lambda: set(REGIONS))

    def subnetworks(self, region: str) -> list[dict[str, Any]]:
        network = "https://www.googleapis.com/compute/v1/projects/p/global/networks/default"
        private = region in self.reaches_google
        known = region in REGIONS
        return [{"name": "default", "network": network, "privateIpGoogleAccess": private}] if known else []

    def routers(self, region: str) -> list[dict[str, Any]]:
        network = "https://www.googleapis.com/compute/v1/projects/p/global/networks/default"
        nats = [{"name": "nat", "natIpAllocateOption": "AUTO_ONLY"}]
        return [{"name": "router", "network": network, "nats": nats}] if region in self.translated else []


def routes(world: World, networks: Networks | None = None) -> list[Route]:
    """The part of Compute Engine that has networks; what became of a change is told by the rest of it, see `gce`."""
    own, compute = networks or Networks(), Compute(world)

    def listed(request: Request) -> dict[str, Any]:
        return {"kind": "compute#firewallList", "items": list(own.firewalls.values())}

    def found(request: Request) -> dict[str, Any]:
        name = request.parts["name"]
        if name not in own.firewalls:
            raise Refused(
                5, f"The resource 'projects/{world.project}/global/firewalls/{name}' was not found", "notFound"
            )
        return own.firewalls[name]

    def made(request: Request) -> dict[str, Any]:
        body = request.json()
        if body["name"] in own.firewalls:
            resource = f"projects/{world.project}/global/firewalls/{body['name']}"
            raise Refused(6, f"The resource '{resource}' already exists", "alreadyExists")
        own.firewalls[body["name"]] = {"direction": "INGRESS", "disabled": False, **body}
        return changed("insert", body["name"])

    def removed(request: Request) -> dict[str, Any]:
        found(request)
        del own.firewalls[request.parts["name"]]
        return changed("delete", request.parts["name"])

    def changed(doing: str, name: str) -> dict[str, Any]:
        return compute.operation(f"firewalls.{doing}", "global", f"global/firewalls/{name}", lambda: None)

    def subnetworks(request: Request) -> dict[str, Any]:
        return {"kind": "compute#subnetworkList", "items": own.subnetworks(request.parts["region"])}

    def routers(request: Request) -> dict[str, Any]:
        return {"kind": "compute#routerList", "items": own.routers(request.parts["region"])}

    project, rules = r"/compute/v1/projects/[^/]+", r"/global/firewalls"
    region = r"/regions/(?P<region>[^/]+)"
    one = rf"{project}{rules}/(?P<name>[^/]+)"
    return [
        Route("compute", "firewalls.list", "GET", f"{project}{rules}", listed),
        Route("compute", "firewalls.get", "GET", one, found),
        Route("compute", "firewalls.insert", "POST", f"{project}{rules}", made),
        Route("compute", "firewalls.delete", "DELETE", one, removed),
        Route("compute", "subnetworks.list", "GET", f"{project}{region}/subnetworks", subnetworks),
        Route("compute", "routers.list", "GET", f"{project}{region}/routers", routers),
    ]

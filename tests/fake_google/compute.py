"""Compute Engine (REST v1) as gcloud 528 calls it for TPU instances: instances, their operations, firewall rules."""

import re
from datetime import UTC, datetime
from typing import Any

from tests.fake_google.server import Request, Route
from tests.fake_google.world import Refused, World

INSTANCES, OPERATIONS = "compute.instances", "compute.operations"
IAP_RULE = {
    "name": "allow-iap", "network": "https://www.googleapis.com/compute/v1/projects/p/global/networks/default",
    "direction": "INGRESS", "disabled": False, "sourceRanges": ["35.235.240.0/20"],
    "allowed": [{"IPProtocol": "tcp", "ports": ["22"]}],
}  # fmt: skip
STOCKOUT = "ZONE_RESOURCE_POOL_EXHAUSTED"


class Compute:
    """The service. An insert operation that fails leaves no instance.

    Attributes:
        unreachable: zones that do not answer when all are listed.
        nat, private: whether the network has Cloud NAT, and Private Google Access, in all regions.
        user: whom operations are logged for.
        slow: how often the operations of a zone are listed before an insert is done and its instance exists.
    """

    def __init__(self, world: World, zones: tuple[str, ...]):
        self.world, self.zones = world, zones
        self.operations: list[dict[str, Any]] = []
        self.rules = [IAP_RULE]
        self.unreachable: set[str] = set()
        self.slow = 0
        self.user = "me@example.org"
        self.nat, self.private, self.closed = True, False, set[str]()  # `closed`: regions without Cloud NAT

    def routes(self) -> list[Route]:
        project = r"/compute/v1/projects/[^/]+"
        zone = rf"{project}/zones/(?P<zone>[^/]+)"
        calls = [
            ("zones.get", "GET", zone, self.zone),
            ("machineTypes.get", "GET", f"{zone}/machineTypes/(?P<type>[^/]+)", self.machine_type),
            ("instances.insert", "POST", f"{zone}/instances", self.insert),
            ("instances.delete", "DELETE", f"{zone}/instances/(?P<name>[^/]+)", self.delete),
            ("instances.list", "GET", f"{zone}/instances", self.list),
            ("instances.aggregatedList", "GET", f"{project}/aggregated/instances", self.aggregated),
            ("zoneOperations.list", "GET", f"{zone}/operations", self.list_operations),
            ("zoneOperations.wait", "POST", f"{zone}/operations/(?P<name>[^/]+)/wait", self.operation),
            ("zoneOperations.get", "GET", f"{zone}/operations/(?P<name>[^/]+)", self.operation),
            ("routers.list", "GET", f"{project}/aggregated/(?P<kind>routers)", self.regional),
            ("subnetworks.list", "GET", f"{project}/aggregated/(?P<kind>subnetworks)", self.regional),
            ("firewalls.list", "GET", f"{project}/global/firewalls", self.firewalls),
        ]
        return [Route("compute", name, method, pattern, answer) for name, method, pattern, answer in calls]

    def zone(self, request: Request) -> Any:
        return {"kind": "compute#zone", "name": request.parts["zone"], "selfLink": self._link(request, "")}

    def machine_type(self, request: Request) -> Any:
        if request.parts["zone"] not in self.zones:
            raise Refused(5, f"The resource '{request.path}' was not found")
        return {"name": request.parts["type"]}

    def insert(self, request: Request) -> Any:
        zone, asked = request.parts["zone"], request.json()
        name = asked["name"]
        if (zone, name) in self.world.table(INSTANCES):
            raise Refused(6, f"The resource 'projects/p/zones/{zone}/instances/{name}' already exists", "alreadyExists")
        pending = self.world.operation("instances.insert", zone, dict)
        if not pending.error:
            items = {item["key"]: item["value"] for item in asked.get("metadata", {}).get("items", ())}
            address, _ = self.world.hosts.boot(name, 0, {**items, "zone": zone, "project": self.world.project})
            made = {"status": "RUNNING", "creationTimestamp": datetime.now(UTC).isoformat(), "kind": "compute#instance"}
            made |= {"zone": self._link(request, ""), "selfLink": self._link(request, f"/instances/{name}"), "id": "1"}
            made["networkInterfaces"] = [{"networkIP": address}]
            self.world.table(INSTANCES)[zone, name] = {**asked, **made}
        operation = self._operation(request, name, "insert", pending.error)
        if self.slow:
            operation |= {"status": "RUNNING", "progress": 0}
        return operation

    def delete(self, request: Request) -> Any:
        zone, name = request.parts["zone"], request.parts["name"]
        if (zone, name) not in self.world.table(INSTANCES):
            raise Refused(5, f"The resource 'projects/p/zones/{zone}/instances/{name}' was not found", "notFound")
        self.world.hosts.halt(name)
        del self.world.table(INSTANCES)[zone, name]
        return self._operation(request, name, "delete", None)

    def list(self, request: Request) -> Any:
        zone = request.parts["zone"]
        there = [one for (place, _), one in self.world.table(INSTANCES).items() if place == zone]
        return {"items": [] if self.slow else there}

    def aggregated(self, request: Request) -> Any:
        by_zone: dict[str, Any] = {f"zones/{zone}": {"instances": []} for zone in self.zones}
        for (zone, _), one in self.world.table(INSTANCES).items():
            by_zone.setdefault(f"zones/{zone}", {"instances": []})["instances"].append(one)
        for zone in self.unreachable:
            warning = {"code": "UNREACHABLE", "message": f"The zone 'projects/p/zones/{zone}' is unreachable."}
            by_zone[f"zones/{zone}"] = {"warning": warning}
        return {"items": by_zone}

    def list_operations(self, request: Request) -> Any:
        zone = f"/zones/{request.parts['zone']}/"
        self.slow = max(0, self.slow - 1)
        if not self.slow:
            for one in self.operations:
                one |= {"status": "DONE", "progress": 100}
        wanted = re.findall(r'\((\w+) eq "(.*?)"\)', request.query.get("filter", ""))
        there = [one for one in reversed(self.operations) if zone in one["targetLink"]]
        return {"items": [one for one in there if all(re.fullmatch(text, one[name]) for name, text in wanted)]}

    def operation(self, request: Request) -> Any:
        return next(one for one in self.operations if one["name"] == request.parts["name"])

    def regional(self, request: Request) -> Any:
        """Return the network's router with Cloud NAT and its subnetwork in each region."""
        items, kind = dict[str, Any](), request.parts["kind"]
        for region in sorted({zone.rpartition("-")[0] for zone in self.zones}):
            one = {"name": "default", "network": IAP_RULE["network"], "region": f"https://x/regions/{region}"}
            one["selfLink"] = f"https://x/compute/v1/projects/p/regions/{region}/{kind}/default"
            more = {"nats": [{"name": "nat"}] if self.nat and region not in self.closed else []}
            items[f"regions/{region}"] = {
                kind: [one | (more if kind == "routers" else {"privateIpGoogleAccess": self.private})]
            }
        return {"items": items}

    def firewalls(self, request: Request) -> Any:
        return {"items": self.rules}

    def preempt(self, name: str) -> None:
        """Preempt a spot instance: it is deleted, as its termination action says."""
        for place in [place for place in self.world.table(INSTANCES) if place[1] == name]:
            self.world.hosts.halt(name)
            lost = self.world.table(INSTANCES).pop(place)
            self.operations.append({
                "kind": "compute#operation", "name": f"preempted-{len(self.operations)}", "status": "DONE",
                "operationType": "compute.instances.preempted", "user": "system@google.com", "progress": 100,
                "targetLink": lost["selfLink"], "zone": lost["zone"], "insertTime": datetime.now(UTC).isoformat(),
            })  # fmt: skip

    def _operation(self, request: Request, name: str, kind: str, error: Refused | None) -> dict[str, Any]:
        number = len(self.operations) + 1
        made = {
            "kind": "compute#operation", "name": f"operation-{number}", "operationType": kind, "status": "DONE",
            "id": str(number), "zone": self._link(request, ""), "targetLink": self._link(request, f"/instances/{name}"),
            "selfLink": self._link(request, f"/operations/operation-{number}"), "progress": 100,
            "insertTime": datetime.now(UTC).isoformat(), "user": self.user,
        }  # fmt: skip
        if error:
            made["error"] = {"errors": [{"code": error.reason or STOCKOUT, "message": error.message}]}
        self.operations.append(made)
        return made

    def _link(self, request: Request, rest: str) -> str:
        return f"{request.address}/compute/v1/projects/{self.world.project}/zones/{request.parts['zone']}{rest}"

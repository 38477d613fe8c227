"""The Cloud TPU API (REST v2) as gcloud 528 calls it: locations, accelerator types, queued resources, nodes.

A queued resource moves on by one state each time it is listed: ACCEPTED, WAITING_FOR_RESOURCES, PROVISIONING, ACTIVE.
States and messages are from the API's reference and from public logs; no real service was asked.
"""

from datetime import UTC, datetime
from typing import Any

from tests.fake_google.server import Request, Route
from tests.fake_google.world import Refused, World

REQUESTS, NODES = "tpu.queuedResources", "tpu.nodes"
STATES = ("ACCEPTED", "WAITING_FOR_RESOURCES", "PROVISIONING", "ACTIVE")
HOSTS = {"v4-16": 2, "v5litepod-16": 4, "v6e-16": 4}
"""Number of hosts by slice, for slices with several."""


class Tpu:
    """The service. `zones` offer every accelerator type; `unreachable` zones do not answer."""

    def __init__(self, world: World, zones: tuple[str, ...]):
        self.world, self.zones = world, zones
        self.unreachable: set[str] = set()

    def routes(self) -> list[Route]:
        place = r"/v[12]/projects/[^/]+/locations/(?P<zone>[^/]+)"
        calls = [
            ("locations.list", "GET", r"/v1/projects/[^/]+/locations", self.locations),
            ("acceleratorTypes.get", "GET", f"{place}/acceleratorTypes/(?P<type>[^/]+)", self.accelerator_type),
            ("queuedResources.create", "POST", f"{place}/queuedResources", self.create),
            ("queuedResources.list", "GET", f"{place}/queuedResources", self.list_requests),
            ("queuedResources.get", "GET", f"{place}/queuedResources/(?P<name>[^/]+)", self.get),
            ("queuedResources.delete", "DELETE", f"{place}/queuedResources/(?P<name>[^/]+)", self.delete),
            ("nodes.list", "GET", f"{place}/nodes", self.list_nodes),
            ("nodes.getGuestAttributes", "POST", f"{place}/nodes/(?P<name>[^/]+):getGuestAttributes", self.attributes),
            ("nodes.delete", "DELETE", f"{place}/nodes/(?P<name>[^/]+)", self.delete_node),
            ("operations.get", "GET", f"{place}/operations/(?P<name>[^/]+)", self.operation),
        ]
        return [
            Route("tpu", name, method, pattern, answer, changes=False if "Attributes" in name else None)
            for name, method, pattern, answer in calls
        ]

    def locations(self, request: Request) -> Any:
        return {"locations": [{"locationId": zone, "name": f"projects/p/locations/{zone}"} for zone in self.zones]}

    def accelerator_type(self, request: Request) -> Any:
        if request.parts["zone"] not in self.zones:
            raise Refused(5, f"{request.parts['type']} is not offered in {request.parts['zone']}")
        return {"name": request.path.removeprefix("/v1/"), "type": request.parts["type"]}

    def create(self, request: Request) -> Any:
        zone, name = request.parts["zone"], request.query["queuedResourceId"]
        full = self._full(zone, "queuedResources", name)
        if full in self.world.table(REQUESTS):
            raise Refused(6, f"Resource '{full}' already exists")
        made = {**request.json(), "name": full, "createTime": _now(), "state": {"state": STATES[0]}}
        self.world.table(REQUESTS)[full] = made
        operation = self.world.operation("queuedResources.create", zone, lambda: None)
        if operation.error:  # the request is taken and fails in the queue
            error = {"code": operation.error.code, "message": operation.error.message}
            made["state"] = {"state": "FAILED", "failedData": {"error": error}}
        return {"name": self._full(zone, "operations", operation.name)}

    def list_requests(self, request: Request) -> Any:
        found = [one for one in self.world.table(REQUESTS).values() if self._is_in(one, request.parts["zone"])]
        for one in found:
            self._advance(one)
        return self._listed(request, "queuedResources", found)

    def get(self, request: Request) -> Any:
        full = self._full(request.parts["zone"], "queuedResources", request.parts["name"])
        if full not in self.world.table(REQUESTS):
            raise Refused(5, f"Resource '{full}' was not found")
        return self.world.table(REQUESTS)[full]

    def list_nodes(self, request: Request) -> Any:
        found = [one for one in self.world.table(NODES).values() if self._is_in(one, request.parts["zone"])]
        return self._listed(request, "nodes", found)

    def _listed(self, request: Request, kind: str, found: list[dict[str, Any]]) -> Any:
        """Return a listing without the unreachable zones, which it names."""
        if request.parts["zone"] in self.unreachable:
            raise Refused(14, "The service is currently unavailable.")
        there = [one for one in found if one["name"].split("/")[3] not in self.unreachable]
        places = [f"projects/{self.world.project}/locations/{zone}" for zone in sorted(self.unreachable)]
        return {kind: there} | ({"unreachable": places} if places and request.parts["zone"] == "-" else {})

    def attributes(self, request: Request) -> Any:
        """Return the guest attributes of booted hosts; their names differ from the node's."""
        zone, name = request.parts["zone"], request.parts["name"]
        node = self.world.table(NODES).get(self._full(zone, "nodes", name))
        if node is None:
            raise Refused(5, f"Resource '{self._full(zone, 'nodes', name)}' was not found")
        told = []
        for worker in range(len(node["networkEndpoints"])):
            item = {"namespace": "hostkeys", "key": "hostname", "value": f"t1v-n-{name}-w-{worker}"}
            told.append({"queryPath": "", "queryValue": {"items": [item]}})
        return {"guestAttributes": told}

    def delete(self, request: Request) -> Any:
        zone, name = request.parts["zone"], request.parts["name"]
        full = self._full(zone, "queuedResources", name)
        found = self.world.table(REQUESTS).get(full)
        if found is None:
            raise Refused(5, f"Resource '{full}' was not found")
        nodes = [one for one in self.world.table(NODES).values() if one.get("queuedResource") == full]
        if nodes and request.query.get("force", "").lower() != "true":
            raise Refused(9, f"{name} is {found['state']['state']}: delete its nodes first or set force.")
        for node in nodes:
            self._drop(node)
        del self.world.table(REQUESTS)[full]
        return {"name": self._full(zone, "operations", self.world.operation("queuedResources.delete", zone, dict).name)}

    def delete_node(self, request: Request) -> Any:
        zone, full = request.parts["zone"], self._full(request.parts["zone"], "nodes", request.parts["name"])
        if full not in self.world.table(NODES):
            raise Refused(5, f"Resource '{full}' was not found")
        self._drop(self.world.table(NODES)[full])
        return {"name": self._full(zone, "operations", self.world.operation("nodes.delete", zone, dict).name)}

    def operation(self, request: Request) -> Any:
        pending, name = self.world.operations[request.parts["name"]], request.path.lstrip("/").partition("/")[2]
        done = pending.poll()
        if done and pending.error:
            return {"name": name, "done": True, "error": {"code": pending.error.code, "message": pending.error.message}}
        return {"name": name, "done": done, **({"response": {}} if done else {})}

    def preempt(self, name: str) -> None:
        """Preempt a machine: its hosts lose power, and the service suspends its request."""
        for node in [one for one in self.world.table(NODES).values() if one["name"].endswith(f"/{name}")]:
            self.world.hosts.halt(name)
            node["state"] = "PREEMPTED"
            self.world.table(REQUESTS)[node["queuedResource"]]["state"] = {
                "state": "SUSPENDED", "stateInitiator": "SERVICE"
            }  # fmt: skip

    def _advance(self, one: dict[str, Any]) -> None:
        state = one["state"]["state"]
        if state not in STATES[:-1]:
            return
        after = STATES[STATES.index(state) + 1]
        if after == "ACTIVE":
            self._boot(one)
        one["state"] = {"state": after}

    def _boot(self, request: dict[str, Any]) -> None:
        """Make the node of a request and boot its hosts."""
        spec = request["tpu"]["nodeSpec"][0]
        zone, name, node = request["name"].split("/")[3], spec["nodeId"], spec["node"]
        metadata = {**node.get("metadata", {}), "zone": zone, "project": self.world.project}
        ends = []
        for worker in range(HOSTS.get(node["acceleratorType"], 1)):
            address, _ = self.world.hosts.boot(name, worker, metadata)
            ends.append({"ipAddress": address})
        full = self._full(zone, "nodes", name)
        made = {"name": full, "state": "READY", "health": "HEALTHY", "createTime": _now(), "networkEndpoints": ends}
        self.world.table(NODES)[full] = {**node, **made, "queuedResource": request["name"]}

    def _drop(self, node: dict[str, Any]) -> None:
        self.world.hosts.halt(node["name"].rpartition("/")[2])
        self.world.table(NODES).pop(node["name"], None)

    def _full(self, zone: str, kind: str, name: str) -> str:
        return f"projects/{self.world.project}/locations/{zone}/{kind}/{name}"

    @staticmethod
    def _is_in(one: dict[str, Any], zone: str) -> bool:
        return zone == "-" or f"/locations/{zone}/" in one["name"]


def _now() -> str:
    return datetime.now(UTC).isoformat().replace("+00:00", "Z")

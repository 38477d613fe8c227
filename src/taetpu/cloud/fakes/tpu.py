"""The Cloud TPU API, faked: nodes and queued resources with their states. One state for its gRPC and its REST face.

Requests and answers are as the REST API writes them. States, and which of them a request passes through, are those of
the API's reference; texts that were seen on the real API are said to be where they stand. Our reading, seen nowhere:
that a request which ran out of its time in the queue says `DEADLINE_EXCEEDED`; that the node of a queued resource is
not deleted by itself; that a request whose run time is over stays as SUSPENDED; that a node which a preemption took is
listed as PREEMPTED for as long as its request is there; that a request whose operation failed stays as FAILED.
"""

from copy import deepcopy

from taetpu.cloud.fakes.tpu_nodes import Nodes
from taetpu.cloud.fakes.tpu_parts import RUNTIMES, Data, check_zone, missing, offered, page, part, told
from taetpu.cloud.fakes.tpu_queue import Queue
from taetpu.cloud.fakes.world import Refused, World

SERVICE = "tpu"
READING = {
    "GetNode", "ListNodes", "GetQueuedResource", "ListQueuedResources", "ListAcceleratorTypes", "ListRuntimeVersions",
    "ListLocations", "GetGuestAttributes", "GetOperation",
}  # fmt: skip
CALLS = READING | {
    "CreateNode", "DeleteNode", "UpdateNode", "CreateQueuedResource", "DeleteQueuedResource", "ResetQueuedResource",
}  # fmt: skip


class Tpu:
    """The service.

    Faults of the world may name a call, or `Provision` for the making of a queued resource's nodes, which fails
    "inside".

    Attributes:
        zones: accelerator types by zone.
        page: how many things an answer lists at most.
        unreachable: zones that do not answer, and that lists of all zones leave out.
    """

    def __init__(self, world: World, zones: dict[str, list[str]] | None = None, page: int = 100):
        self.world, self.zones, self.page = world, offered() if zones is None else zones, page
        self.unreachable: set[str] = set()
        self.nodes = Nodes(world, self.zones)
        self.queue = Queue(world, self.nodes)

    def call(self, name: str, request: Data) -> Data:
        """Answer a request as it came in by gRPC, unless a fault is due; REST has the world's faults by its routes."""
        place = zone_of(request)
        return self.world.call(SERVICE, name, place, name not in READING, lambda: self.answer(name, request))

    def answer(self, name: str, request: Data) -> Data:
        """The reply to a call. The world's lock is held.

        Raises:
            Refused: the request is.
        """
        self.queue.age()
        zone = zone_of(request)
        if zone in self.unreachable:
            raise Refused(14, f"The service is currently unavailable in {zone}.")
        if zone and zone != "-" and name != "GetOperation":
            check_zone(zone, self.zones, part(str(request), "projects"))
        part_of = next(one for one in (self, self.nodes, self.queue) if hasattr(one, name))
        return deepcopy(getattr(part_of, name)(request))  # it is written down after the lock is free again

    def preempt(self, node: str) -> None:
        """Take a node back, as the service does with spot: `node` by its name alone, or in full."""
        with self.world.lock:
            found = self.nodes.named(node)
            self.nodes.halt(found)
            found.data.update(state="PREEMPTED", healthDescription="preempted")
            self.queue.taken(found.request)

    def vanish(self, node: str) -> None:
        """Remove a node as if it had never been; its request does not know."""
        with self.world.lock:
            self.nodes.drop([self.nodes.named(node)])

    def ListNodes(self, request: Data) -> Data:
        return page("nodes", request, (one.data for one in self.nodes.all.values()), self.page, self.unreachable)

    def ListQueuedResources(self, request: Data) -> Data:
        rows = (one.data for one in self.queue.all.values())
        return page("queuedResources", request, rows, self.page, self.unreachable)

    def ListAcceleratorTypes(self, request: Data) -> Data:
        parent = request["parent"]
        types = self.zones[part(parent, "locations")]
        rows = ({"name": f"{parent}/acceleratorTypes/{name}", "type": name} for name in types)
        return page("acceleratorTypes", request, rows, self.page)

    def ListRuntimeVersions(self, request: Data) -> Data:
        rows = ({"name": f"{request['parent']}/runtimeVersions/{name}", "version": name} for name in RUNTIMES)
        return page("runtimeVersions", request, rows, self.page)

    def ListLocations(self, request: Data) -> Data:
        rows = ({"name": f"{request['name']}/locations/{zone}", "locationId": zone} for zone in self.zones)
        return page("locations", {**request, "parent": request["name"]}, rows, self.page)

    def GetOperation(self, request: Data) -> Data:
        operation = self.world.operations.get(request["name"].rpartition("/")[2])
        if operation is None:
            raise missing(request["name"])
        operation.poll()
        return told(operation)


def zone_of(request: Data) -> str:
    """The zone that a request is about."""
    place = request.get("parent") or request.get("name") or request.get("node", {}).get("name", "")
    return part(place, "locations")

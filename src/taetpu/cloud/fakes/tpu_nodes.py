"""Nodes of the fake Cloud TPU API, and their virtual machines."""

import hashlib
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

from taetpu.cloud.fakes.tpu_parts import KIND, Data, begin, check_node, missing, part, stamp, told
from taetpu.cloud.fakes.world import Pending, Refused, World
from taetpu.core.chips import resolve


@dataclass
class Node:
    """A node.

    Attributes:
        data: as the REST API has it.
        instances: the names of its virtual machines, in the order of its workers.
        deadline: when the server deletes it (seconds since 1970); None: never.
        pending: the operation on it, which goes on though nobody may ask for it.
    """

    data: Data
    instances: list[str] = field(default_factory=list)
    deadline: float | None = None
    pending: Pending | None = None

    @property
    def request(self) -> str:
        """The queued resource that it was made for; "" where it was made by itself."""
        return self.data.get("queuedResource", "")


class Nodes:
    """The calls about nodes, named as the API names them."""

    def __init__(self, world: World, zones: dict[str, list[str]]):
        self.world, self.zones = world, zones
        self.all: dict[str, Node] = world.table("tpu.nodes")

    def CreateNode(self, request: Data) -> Data:
        name = f"{request['parent']}/nodes/{request['nodeId']}"
        self.free(name)
        node = self.add(name, request["node"])
        operation = begin(self.world, "CreateNode", name, lambda: self.boot(node), lambda: self._answer(name))
        node.pending = operation
        if operation.error:  # the name is free again once the operation has failed
            del self.all[name]
        return told(operation)

    def GetNode(self, request: Data) -> Data:
        if pending := self._node(request["name"]).pending:
            pending.poll()
        return self._node(request["name"]).data

    def UpdateNode(self, request: Data) -> Data:
        name, fields = request["node"]["name"], request["updateMask"].split(",")
        node, change = self._node(name), {key: request["node"].get(key) for key in fields}
        finish = lambda: node.data.update(change)  # noqa: E731
        return told(begin(self.world, "UpdateNode", name, finish, lambda: self._answer(name)))

    def DeleteNode(self, request: Data) -> Data:
        name, node = request["name"], self._node(request["name"])
        if node.request:
            raise Refused(9, f"Node {name} belongs to {node.request}; delete that with force.")
        if node.data["state"] == "DELETING":
            raise Refused(9, f"{name} is being deleted.")
        node.data["state"] = "DELETING"
        node.pending = begin(self.world, "DeleteNode", name, lambda: self.drop([node]))
        return told(node.pending)

    def GetGuestAttributes(self, request: Data) -> Data:
        wanted = [text for text in request.get("workerIds", ()) if text]
        values: list[Data] = []
        for worker, instance in enumerate(self._node(request["name"]).instances):
            if not wanted or str(worker) in wanted:
                items = [{"namespace": "hostkeys", "key": "hostname", "value": instance}]
                values.append({"queryPath": "", "queryValue": {"items": items}})
        return {"guestAttributes": values}

    def add(self, name: str, asked: Data, request: str = "", spot: bool = False) -> Node:
        """A node that is being created, `request` the queued resource that it is for."""
        zone = part(name, "locations")
        tpu = check_node(asked, zone, self.zones[zone])
        data: Data = {"networkConfig": {"network": "default", "enableExternalIps": False}, **asked, "name": name}
        data |= {"acceleratorType": tpu.name, "state": "CREATING", "apiVersion": "V2"}
        data |= {"createTime": stamp(self.world.now()), "id": str(int(_digest(name)[:15], 16))}
        data |= {"queuedResource": request, "schedulingConfig": {"spot": spot}} if request else {}
        self.all[name] = Node(data)
        return self.all[name]

    def boot(self, node: Node) -> None:
        """Start the virtual machines of a node: it is ready then. One that was taken back meanwhile stays as it is."""
        data, name = node.data, node.data["name"]
        if data["state"] != "CREATING" or self.all.get(name) is not node:
            return
        tag = _digest(f"{name} {data['createTime']}")[:8]
        node.instances = [f"t1v-n-{tag}-w-{worker}" for worker in range(resolve(data["acceleratorType"]).hosts)]
        own = {"accelerator-type": data["acceleratorType"], "instance-id": name.rpartition("/")[2]}
        own |= {"zone": part(name, "locations"), "project": part(name, "projects")}
        endpoints: list[Data] = []
        for worker, instance in enumerate(node.instances):
            metadata = {**data.get("metadata", {}), **own, "agent-worker-number": str(worker)}
            address, port = self.world.hosts.boot(instance, worker, metadata)
            endpoint: dict[str, Any] = {"ipAddress": address, "port": port}
            if data["networkConfig"].get("enableExternalIps"):
                endpoint["accessConfig"] = {"externalIp": address}
            endpoints.append(endpoint)
        data.update(state="READY", health="HEALTHY", networkEndpoints=endpoints)

    def halt(self, node: Node) -> None:
        """Cut the power of a node's virtual machines."""
        for instance in node.instances:
            self.world.hosts.halt(instance)

    def drop(self, nodes: Iterable[Node]) -> None:
        """Remove nodes with their virtual machines."""
        for node in list(nodes):
            self.halt(node)
            self.all.pop(node.data["name"], None)

    def of(self, request: str) -> list[Node]:
        """The nodes of a queued resource that are there."""
        return [node for node in self.all.values() if node.request == request]

    def named(self, name: str) -> Node:
        """A node by its name alone, or in full."""
        return next(node for full, node in self.all.items() if name in (full, full.rpartition("/")[2]))

    def free(self, name: str) -> None:
        """Refuse a name that is taken."""
        if name in self.all:
            raise Refused(6, f"Resource '{name}' already exists")

    def _node(self, name: str) -> Node:
        if name not in self.all:
            raise missing(name)
        return self.all[name]

    def _answer(self, name: str) -> Data:
        return {"@type": f"{KIND}Node", **self._node(name).data}


def _digest(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()

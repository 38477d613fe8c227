"""Queued resources of the fake Cloud TPU API: they wait, become nodes, and are suspended when those are lost."""

from dataclasses import dataclass
from typing import Any

from taetpu.cloud.fakes.tpu_nodes import Nodes
from taetpu.cloud.fakes.tpu_parts import KIND, Data, begin, check_node, missing, moment, part, seconds, stamp, told
from taetpu.cloud.fakes.world import Pending, Refused, World

WAITING = ("CREATING", "ACCEPTED", "WAITING_FOR_RESOURCES")
IDLE = ("ACCEPTED", "FAILED", "SUSPENDED")
"""States in which a request is deleted without `force`, by the API's reference."""
ALPHA = ("provisioningModel", "runDuration")
"""Fields that v2 does not know."""


@dataclass
class Queued:
    """A queued resource.

    Attributes:
        data: as the REST API has it.
        creation: the operation that asked for it.
        expires: when it fails if it still waits (seconds since 1970); None: never.
        making: the operation that makes its nodes, once it is PROVISIONING.
        ending: the operation that deletes it, which goes on though nobody may ask for it.
    """

    data: Data
    creation: Pending
    expires: float | None
    making: Pending | None = None
    ending: Pending | None = None

    @property
    def name(self) -> str:
        return self.data["name"]

    @property
    def state(self) -> str:
        return self.data["state"]["state"]

    def become(self, state: str, **more: Any) -> None:
        self.data["state"] = {"state": state, **more}

    def fail(self, code: int, message: str) -> None:
        self.become("FAILED", failedData={"error": {"code": code, "message": message}})


class Queue:
    """The calls about queued resources, named as the API names them. One moves on by a state when it is asked for.

    Attributes:
        starved: zones that have no room: requests wait there.
    """

    def __init__(self, world: World, nodes: Nodes):
        self.world, self.nodes = world, nodes
        self.all: dict[str, Queued] = world.table("tpu.queuedResources")
        self.starved: set[str] = set()

    def CreateQueuedResource(self, request: Data) -> Data:
        asked, zone = request["queuedResource"], part(request["parent"], "locations")
        name = f"{request['parent']}/queuedResources/{request['queuedResourceId']}"
        if name in self.all:
            raise Refused(6, f"Resource '{name}' already exists")
        for spec in asked["tpu"]["nodeSpec"]:
            check_node(spec["node"], zone, self.nodes.zones[zone])
            for node in _node_names(spec, name):
                self.nodes.free(node)
        operation = begin(self.world, "CreateQueuedResource", name, lambda: None, lambda: self._answer(name))
        data = {**asked, "name": name, "createTime": stamp(self.world.now())}
        self.all[name] = Queued(data, operation, self._end(asked.get("queueingPolicy", {})))
        self.all[name].become("CREATING")
        return told(operation)

    def GetQueuedResource(self, request: Data) -> Data:
        found = self._request(request["name"])
        self._advance(found)
        return self._request(request["name"]).data

    def ResetQueuedResource(self, request: Data) -> Data:
        name, found = request["name"], self._request(request["name"])
        if found.state not in ("SUSPENDED", "FAILED"):
            raise Refused(9, f"{name} is {found.state}: only a SUSPENDED request can be reset.")
        self.nodes.drop(self.nodes.of(name))
        found.become("ACCEPTED")
        return told(begin(self.world, "ResetQueuedResource", name, lambda: None, lambda: self._answer(name)))

    def DeleteQueuedResource(self, request: Data) -> Data:
        name, found = request["name"], self._request(request["name"])
        force = str(request.get("force", "")).lower() == "true"
        if found.state == "DELETING":
            raise Refused(9, f"{name} is being deleted.")
        if not force and found.state not in IDLE and self.nodes.of(name):
            raise Refused(9, f"{name} is {found.state}: delete its nodes first or set force.")
        operation = begin(self.world, "DeleteQueuedResource", name, lambda: self._gone(name))
        if not operation.error:
            found.become("DELETING")
            found.ending = operation
            for node in self.nodes.of(name):
                node.data["state"] = "DELETING"
        return told(operation)

    def age(self) -> None:
        """What the server does by itself as time goes by."""
        now = self.world.now()
        for request in self.all.values():
            if request.expires is not None and request.expires <= now and request.state in WAITING:
                request.fail(4, "The request could not be fulfilled before its valid-until time.")
        for node in list(self.nodes.all.values()):
            if node.deadline is not None and node.deadline <= now:
                self.nodes.drop([node])
                if request := self.all.get(node.request):
                    request.become("SUSPENDED", stateInitiator="SERVICE")

    def taken(self, name: str) -> None:
        """The service takes back the nodes of a request."""
        if request := self.all.get(name):
            request.become("SUSPENDING", stateInitiator="SERVICE")

    def _advance(self, request: Queued) -> None:
        """The next state of a request."""
        if request.state == "CREATING":
            refused = request.creation.error
            request.fail(refused.code, refused.message) if refused else request.become("ACCEPTED")
        elif request.state == "ACCEPTED":
            request.become("WAITING_FOR_RESOURCES")
        elif request.state == "WAITING_FOR_RESOURCES":
            self._provision(request)
        elif request.state == "PROVISIONING" and request.making and request.making.poll():
            if refused := request.making.error:
                self.nodes.drop(self.nodes.of(request.name))
                request.fail(refused.code, refused.message)
            else:
                request.become("ACTIVE")
        elif request.state == "SUSPENDING":
            request.become("SUSPENDED", stateInitiator="SERVICE")
        elif request.state == "DELETING" and request.ending:
            request.ending.poll()

    def _provision(self, request: Queued) -> None:
        """Begin to make the nodes of a request, if there is room."""
        zone = part(request.name, "locations")
        if zone in self.starved:
            return
        request.become("PROVISIONING")
        for spec in request.data["tpu"]["nodeSpec"]:
            for node in _node_names(spec, request.name):
                self.nodes.add(node, spec["node"], request.name, "spot" in request.data)
        request.making = self.world.operation("Provision", zone, lambda: self._start(request))

    def _start(self, request: Queued) -> None:
        limit = request.data.get("runDuration", {}).get("maxRunDuration")
        for node in self.nodes.of(request.name):
            self.nodes.boot(node)
            node.deadline = self.world.now() + seconds(limit) if limit else None

    def _gone(self, name: str) -> None:
        self.all.pop(name, None)
        self.nodes.drop(self.nodes.of(name))

    def _end(self, policy: Data) -> float | None:
        if "validUntilDuration" in policy:
            return self.world.now() + seconds(policy["validUntilDuration"])
        return moment(policy["validUntilTime"]) if "validUntilTime" in policy else None

    def _request(self, name: str) -> Queued:
        if name not in self.all:
            raise missing(name)
        return self.all[name]

    def _answer(self, name: str) -> Data:
        """What an operation answers, in the words of v2."""
        data = {key: value for key, value in self._request(name).data.items() if key not in ALPHA}
        return {"@type": f"{KIND}QueuedResource", **data}


def _node_names(spec: Data, request: str) -> list[str]:
    """The nodes that one spec of a queued resource asks for."""
    many = spec.get("multisliceParams") or spec.get("multiNodeParams")
    if not many:
        return [f"{spec['parent']}/nodes/{spec['nodeId']}"]
    prefix = many.get("nodeIdPrefix") or request.rpartition("/")[2]
    return [f"{spec['parent']}/nodes/{prefix}-{i}" for i in range(int(many["nodeCount"]))]

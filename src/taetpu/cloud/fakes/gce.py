"""A fake Compute Engine v1 (REST): machines with an end of their own, spot machines that are taken back, groups.

Written from the fields of Google's client library and from public reports; no answer was compared with the real one.
"""

from collections.abc import Mapping, Sequence
from copy import deepcopy
from typing import Any

from taetpu.cloud.fakes.gce_base import NAME, PROJECT, ZONE, Compute, Json, families, image, matches
from taetpu.cloud.fakes.gce_groups import Groups
from taetpu.cloud.fakes.server import Request, Route
from taetpu.cloud.fakes.world import Pending, Refused, World

TABLE = "gce.instances"


def routes(world: World, types: Mapping[str, Sequence[str]] | None = None) -> list[Route]:
    """The calls that taetpu makes of Compute Engine.

    Args:
        types: machine types by zone; by default where the catalogue says that TPUs are.
    """
    compute = Compute(world, types)
    instances = Instances(compute)
    groups = Groups(compute, instances.made, instances.ended)
    images = Route("gce", "images.getFromFamily", "GET", PROJECT + "/global/images/family" + NAME, image)
    answers = [*instances.routes(), *groups.routes(), *compute.operations(), images]
    return [_aged(route, instances) for route in answers]


def preempt(world: World, name: str) -> None:
    """Take a machine back, as Google does with spot ones: it stops, and is deleted if its termination action says so.

    Raises:
        KeyError: there is none of that name.
    """
    with world.lock:
        found = [(key, one) for key, one in world.table(TABLE).items() if one["name"] == name]
        if not found:
            raise KeyError(f"no machine of this name: {name!r}")
        key, instance = found[0]
        Instances(Compute(world)).stopped(key, instance, "instances.preempted")


def _aged(route: Route, instances: "Instances") -> Route:
    """The same call, after everything whose time is up was ended."""

    def answer(request: Request) -> Any:
        instances.age()
        return route.answer(request)

    return Route(route.service, route.name, route.method, route.pattern, answer, route.changes)


class Instances:
    """Virtual machines. Fields of one that begin with `_` are the fake's own and told to nobody."""

    def __init__(self, compute: Compute):
        self.compute, self.world = compute, compute.world

    @property
    def table(self) -> dict[str, Json]:
        return self.world.table(TABLE)

    def routes(self) -> list[Route]:
        one, all_zones = ZONE + "/instances" + NAME, PROJECT + "/aggregated"
        return [
            Route("gce", "machineTypes.aggregatedList", "GET", all_zones + "/machineTypes", self.types),
            Route("gce", "instances.insert", "POST", ZONE + "/instances", self.insert),
            Route("gce", "instances.get", "GET", one, self.get),
            Route("gce", "instances.list", "GET", ZONE + "/instances", self.list),
            Route("gce", "instances.aggregatedList", "GET", all_zones + "/instances", self.list_all),
            Route("gce", "instances.delete", "DELETE", one, self.delete),
            Route("gce", "instances.setLabels", "POST", one + "/setLabels", self.label),
        ]

    def types(self, request: Request) -> Json:
        found = [(zone, {"name": name, "zone": zone}) for zone, names in self.compute.types.items() for name in names]
        return self.compute.aggregated("zones", "machineTypes", found, request.query)

    def insert(self, request: Request) -> Json:
        zone, body = request.parts["zone"], request.json()

        def begin() -> Json:
            kind = body["machineType"].rpartition("/")[2]
            if kind not in self.compute.types[self.compute.known(zone)]:
                problem = f"Invalid value for field 'resource.machineType': '{body['machineType']}'. "
                problem += f"Machine type with name '{kind}' does not exist in zone '{zone}'."
                raise Refused(3, problem, "invalid")
            self.compute.fresh(TABLE, f"zones/{zone}", "instances", body["name"])
            return self.compute.operation_json(self.made(zone, body))

        return self.compute.once(request, begin)

    def made(self, zone: str, body: Json, worker: int = 0) -> Pending:
        """Begin to make a machine: it is there at once, runs when the operation is done, and is gone if that fails.

        Raises:
            Refused: its image does not exist.
        """
        source = body["disks"][0]["initializeParams"]["sourceImage"]
        if (family := source.rpartition("/")[2]) not in families():
            problem = "Invalid value for field 'resource.disks[0].initializeParams.sourceImage': "
            raise Refused(3, f"{problem}'{source}'. No image is found in family '{family}'.", "invalid")
        name, key = body["name"], f"{zone}/{body['name']}"
        waits = body.get("scheduling", {}).get("provisioningModel") == "FLEX_START"
        instance = deepcopy(body) | {
            "kind": "compute#instance", "id": self.compute.number(), "creationTimestamp": self.compute.stamp(),
            "zone": self.compute.link(f"zones/{zone}"), "selfLink": self.compute.link(f"zones/{zone}/instances/{name}"),
            "status": "PENDING" if waits else "PROVISIONING", "labelFingerprint": "42", "_worker": worker,
            "machineType": self.compute.link(f"zones/{zone}/machineTypes/{body['machineType'].rpartition('/')[2]}"),
        }  # fmt: skip
        self.table[key] = instance
        target = f"zones/{zone}/instances/{name}"
        finish, fail = (lambda: self.running(key, instance)), (lambda: self.table.pop(key, None))
        instance["_doing"] = self.compute.begin("instances.insert", f"zones/{zone}", target, finish, fail)
        return instance["_doing"]

    def running(self, key: str, instance: Json) -> None:
        if self.table.get(key) is not instance or instance["status"] == "STOPPING":
            return
        metadata = {item["key"]: item.get("value", "") for item in instance.get("metadata", {}).get("items", [])}
        metadata |= {"zone": key.partition("/")[0], "project": self.world.project}
        metadata |= {"machine-type": instance["machineType"].rpartition("/")[2]}
        address, _ = self.world.hosts.boot(instance["name"], instance["_worker"], metadata)
        for interface in instance["networkInterfaces"]:
            interface["networkIP"] = address
            for access in interface.get("accessConfigs", []):
                access["natIP"] = address
        instance |= {"status": "RUNNING", "lastStartTimestamp": self.compute.stamp(), "_since": self.world.now()}

    def age(self) -> None:
        """End what has run for longer than its `maxRunDuration`."""
        for key, instance in list(self.table.items()):
            longest = instance.get("scheduling", {}).get("maxRunDuration", {}).get("seconds")
            over = longest is not None and "_since" in instance and self.world.now() - instance["_since"] > int(longest)
            if over and instance["status"] == "RUNNING":
                self.ended(key)

    def stopped(self, key: str, instance: Json, call: str) -> None:
        """Begin to stop a machine; its termination action says whether anything is left of it."""
        self.world.hosts.halt(instance["name"])
        instance["status"] = "STOPPING"
        gone = instance.get("scheduling", {}).get("instanceTerminationAction") == "DELETE"
        place = f"zones/{key.partition('/')[0]}"
        finish = (lambda: self.table.pop(key, None)) if gone else (lambda: instance.update(status="TERMINATED"))
        instance["_doing"] = self.compute.begin(call, place, f"{place}/instances/{instance['name']}", finish)

    def ended(self, key: str) -> None:
        """Nothing is left of a machine."""
        if instance := self.table.pop(key, None):
            self.world.hosts.halt(instance["name"])

    def told(self, instance: Json) -> Json:
        """A machine as it is told, after what happens to it went on by a step."""
        shown = {name: value for name, value in instance.items() if not name.startswith("_")}
        self.compute.poll(instance["_doing"])
        return shown

    def get(self, request: Request) -> Json:
        zone = self.compute.known(request.parts["zone"])
        return self.told(self.compute.found(TABLE, f"zones/{zone}", "instances", request.parts["name"]))

    def list(self, request: Request) -> Json:
        zone, asked = self.compute.known(request.parts["zone"]), request.query.get("filter", "")
        found = [i for key, i in list(self.table.items()) if key.startswith(f"{zone}/") and matches(i, asked)]
        return {"kind": "compute#instanceList", "items": [self.told(instance) for instance in found]}

    def list_all(self, request: Request) -> Json:
        found = [(key.partition("/")[0], self.told(instance)) for key, instance in list(self.table.items())]
        return self.compute.aggregated("zones", "instances", found, request.query)

    def delete(self, request: Request) -> Json:
        place, name = f"zones/{request.parts['zone']}", request.parts["name"]

        def begin() -> Json:
            instance, key = self.compute.found(TABLE, place, "instances", name), f"{place.partition('/')[2]}/{name}"
            before, instance["status"] = instance["status"], "STOPPING"
            finish, fail = (lambda: self.ended(key)), (lambda: instance.update(status=before))
            instance["_doing"] = self.compute.begin(
                "instances.delete", place, f"{place}/instances/{name}", finish, fail
            )
            return self.compute.operation_json(instance["_doing"])

        return self.compute.once(request, begin)

    def label(self, request: Request) -> Json:
        place, name = f"zones/{request.parts['zone']}", request.parts["name"]
        instance = self.compute.found(TABLE, place, "instances", name)
        finish = lambda: instance.update(labels=request.json().get("labels", {}))  # noqa: E731
        return self.compute.operation("instances.setLabels", place, f"{place}/instances/{name}", finish)

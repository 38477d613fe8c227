"""What every resource of the fake Compute Engine shares: links, operations, refusals and the filter of lists."""

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import UTC, datetime
from typing import Any

from taetpu.cloud.catalogue import image_project, offer, region
from taetpu.cloud.fakes.server import Request, Route
from taetpu.cloud.fakes.world import Pending, Refused, World
from taetpu.core.chips import generations

Json = dict[str, Any]
Answer = Callable[[Request], Any]

PROJECT = r"/compute/v1/projects/(?P<project>[^/]+)"
ZONE = PROJECT + r"/zones/(?P<zone>[^/]+)"
REGION = PROJECT + r"/regions/(?P<region>[^/]+)"
NAME = r"/(?P<name>[^/]+)"


def machine_types() -> dict[str, list[str]]:
    """The machine types of TPUs by zone, where the catalogue says that their chips are."""
    found: dict[str, list[str]] = {}
    for chip in generations():
        for zone in offer(chip.slices()[0]).zones if chip.machine_types else ():
            found.setdefault(zone, []).extend(name for _, name in chip.machine_types)
    return found


def families() -> set[str]:
    """The image families that a boot disk may be made from."""
    return {image for chip in generations() if (image := offer(chip.slices()[0]).image)}


class Compute:
    """The state of the fake, all of it in the world's tables, by `zone/name` or `region/name`.

    Attributes:
        types: machine types by zone.
        requests: the operation that each `requestId` began: the same one again begins nothing.
    """

    def __init__(self, world: World, types: Mapping[str, Sequence[str]] | None = None):
        self.world, self.types = world, machine_types() if types is None else types
        self.requests: dict[str, Json] = {}

    def link(self, path: str) -> str:
        return f"https://www.googleapis.com/compute/v1/projects/{self.world.project}/{path}"

    def stamp(self, seconds: float | None = None) -> str:
        """A moment as RFC 3339 text; now by default."""
        return datetime.fromtimestamp(self.world.now() if seconds is None else seconds, UTC).isoformat()

    def known(self, zone: str) -> str:
        if zone not in self.types:
            raise Refused(3, f"Invalid value for field 'zone': '{zone}'. Unknown zone.", "invalid")
        return zone

    def found(self, table: str, place: str, kind: str, name: str) -> Json:
        """A resource; `place` is `zones/Z` or `regions/R`."""
        resource = self.world.table(table).get(f"{place.rpartition('/')[2]}/{name}")
        if resource is None:
            raise Refused(5, f"The resource '{self.path(place, kind, name)}' was not found", "notFound")
        return resource

    def fresh(self, table: str, place: str, kind: str, name: str) -> None:
        """Refuse a name that is taken."""
        if f"{place.rpartition('/')[2]}/{name}" in self.world.table(table):
            raise Refused(6, f"The resource '{self.path(place, kind, name)}' already exists", "alreadyExists")

    def path(self, place: str, kind: str, name: str) -> str:
        return f"projects/{self.world.project}/{place}/{kind}/{name}"

    def stored(self, request: Request, table: str, place: str, kind: str, words: str) -> Json:
        """Put a resource in its table as it was asked for, with what the server adds."""
        body = request.json()
        self.fresh(table, place, kind, body["name"])
        added = {"kind": f"compute#{words}", "id": self.number(), "creationTimestamp": self.stamp()}
        scope, _, where = place.partition("/")
        if where:
            added[scope[:-1]] = self.link(place)
        resource = body | added | {"selfLink": self.link(f"{place}/{kind}/{body['name']}")}
        self.world.table(table)[f"{where or place}/{body['name']}"] = resource
        return resource

    def number(self) -> str:
        return str(10**18 + len(self.world.operations) + len(self.world.calls))

    def once(self, request: Request, begin: Callable[[], Json]) -> Json:
        """Begin an operation, or tell of the one that the same request began before."""
        identity = request.query.get("requestId", "")
        if identity and identity in self.requests:
            return self.operation_json(self.world.operations[self.requests[identity]["name"]])
        begun = begin()
        if identity:
            self.requests[identity] = begun
        return begun

    def operation(self, call: str, place: str, target: str, finish: Callable[[], Any]) -> Json:
        return self.operation_json(self.begin(call, place, target, finish))

    def begin(
        self, call: str, place: str, target: str, finish: Callable[[], Any], fail: Callable[[], Any] | None = None
    ) -> Pending:
        """Begin an operation. `fail` is called if it ends in an error."""
        zone = place.partition("/")[2]
        return self.world.operation(call, zone, finish, place=place, target=target, kind=call, fail=fail)

    def poll(self, pending: Pending) -> bool:
        """Ask an operation once; whether it is done. One whose machine does not boot has failed."""
        before = pending.done
        try:
            pending.poll()
        except Refused as error:
            pending.error = error
        if pending.done and not before and pending.error and pending.about["fail"]:
            pending.about["fail"]()
        return pending.done

    def operation_json(self, pending: Pending) -> Json:
        place = pending.about["place"]
        scope, _, where = place.partition("/")
        told: Json = {
            "kind": "compute#operation", "id": "1", "name": pending.name, "operationType": pending.about["kind"],
            "targetLink": self.link(pending.about["target"]), "status": "DONE" if pending.done else "RUNNING",
            "progress": 100 if pending.done else 30, "insertTime": self.stamp(), "user": "you@example.com",
            "selfLink": self.link(f"{place}/operations/{pending.name}"),
        }  # fmt: skip
        if where:
            told[scope[:-1]] = self.link(place)
        if pending.done and pending.error:
            told |= {"error": {"errors": [error_json(pending.error, where)]}, "httpErrorStatusCode": pending.error.http}
            told["httpErrorMessage"] = "FORBIDDEN" if pending.error.http == 403 else "SERVICE UNAVAILABLE"
        return told

    def operations(self) -> list[Route]:
        """Get and wait, for operations of zones, regions and the project."""

        def asked(request: Request) -> Json:
            pending = self.world.operations.get(request.parts["name"])
            if pending is None:
                raise Refused(5, f"The resource '{request.path[12:]}' was not found", "notFound")
            self.poll(pending)
            return self.operation_json(pending)

        scopes = {"zoneOperations": ZONE, "regionOperations": REGION, "globalOperations": PROJECT + "/global"}
        made = []
        for name, base in scopes.items():
            made.append(Route("gce", f"{name}.get", "GET", base + "/operations" + NAME, asked))
            made.append(Route("gce", f"{name}.wait", "POST", base + "/operations" + NAME + "/wait", asked, False))
        return made

    def aggregated(self, scope: str, key: str, found: Iterable[tuple[str, Json]], query: Mapping[str, str]) -> Json:
        """Resources by place, as an aggregated list tells them. `found`: the place's name, with the resource."""
        items: dict[str, Any] = {}
        for place, resource in found:
            if matches(resource, query.get("filter", "")):
                items.setdefault(f"{scope}/{place}", {key: []})[key].append(resource)
        for zone in self.types:
            place = f"{scope}/{zone if scope == 'zones' else region(zone)}"
            none = {"code": "NO_RESULTS_ON_PAGE", "message": f"There are no results for scope '{place}' on this page."}
            items.setdefault(place, {"warning": none})
        return {"kind": f"compute#{key}AggregatedList", "id": f"aggregated/{key}", "items": items}


def error_json(error: Refused, zone: str) -> Json:
    """An error inside an operation. A reason in capitals is its code; else the code follows from that of RPC."""
    codes = {3: "INVALID_USAGE", 5: "RESOURCE_NOT_FOUND", 6: "RESOURCE_ALREADY_EXISTS", 7: "PERMISSIONS_ERROR"}
    codes[8] = "QUOTA_EXCEEDED" if "quota" in error.message.lower() else "ZONE_RESOURCE_POOL_EXHAUSTED"
    code = error.reason if error.reason.isupper() and error.code != 8 else codes.get(error.code, "INTERNAL_ERROR")
    if code == "ZONE_RESOURCE_POOL_EXHAUSTED" and "DETAILS" in error.reason:
        code = error.reason
    told: Json = {"code": code, "message": error.message}
    if code == "QUOTA_EXCEEDED":
        told["errorDetails"] = [{"quotaInfo": {"limitName": error.facts.get("quota_limit", ""), "metricName": ""}}]
    elif code.startswith("ZONE_RESOURCE_POOL"):
        info = {"domain": "compute.googleapis.com", "reason": "resource_availability", "metadatas": {"zone": zone}}
        told["errorDetails"] = [{"errorInfo": info}]
    return told


def matches(resource: Json, text: str) -> bool:
    """Whether a resource passes a filter such as `(name = "a") AND (labels.b=c)`; only equality is understood."""
    for key, value in re.findall(r'([\w.-]+)\s*(?:=|\beq\b)\s*"?([\w./-]+)"?', text):
        found: Any = resource
        for part in key.split(".", 1):
            found = found.get(part, {}) if isinstance(found, dict) else {}
        if found != value:
            return False
    return True


def image(request: Request) -> Json:
    """The newest image of a family."""
    project, family = request.parts["project"], request.parts["name"]
    if project != image_project() or family not in families():
        raise Refused(5, f"The resource 'projects/{project}/global/images/family/{family}' was not found", "notFound")
    return {"kind": "compute#image", "name": f"{family}-v1", "family": family, "diskSizeGb": "10", "status": "READY"}


def quota(limit: str, where: str) -> Refused:
    """The project may not have so much there, as Compute Engine says it."""
    message = f"Quota '{limit}' exceeded.  Limit: 0.0 in region {where}."
    return Refused(8, message, "quotaExceeded", {"quota_limit": limit}, http=403)


def stockout(project: str, zone: str) -> Refused:
    """The zone has none left: the text as operations of Compute Engine have it in public reports."""
    message = f"The zone 'projects/{project}/zones/{zone}' does not have enough resources available to fulfill the "
    message += "request.  '(resource type:compute)'."
    return Refused(8, message, "ZONE_RESOURCE_POOL_EXHAUSTED_WITH_DETAILS", http=503)


def denied(permission: str, resource: str) -> Refused:
    """The caller lacks a permission, e.g. `compute.instances.create`."""
    return Refused(7, f"Required '{permission}' permission for '{resource}'", "forbidden")


def disabled(project: str) -> Refused:
    """The API is not enabled in the project."""
    page = f"https://console.developers.google.com/apis/api/compute.googleapis.com/overview?project={project}"
    message = f"Compute Engine API has not been used in project {project} before or it is disabled. "
    message += f"Enable it by visiting {page} then retry."
    facts = {"service": "compute.googleapis.com", "consumer": f"projects/{project}"}
    return Refused(7, message, "accessNotConfigured", facts)

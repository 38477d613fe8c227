"""The REST face of the fake Cloud TPU API: v2, and v2alpha1 for what only that has."""

from collections.abc import Callable
from typing import Any

from taetpu.cloud.fakes.server import Request, Route
from taetpu.cloud.fakes.tpu import READING, SERVICE, Tpu
from taetpu.cloud.fakes.tpu_parts import Data
from taetpu.cloud.fakes.tpu_queue import ALPHA
from taetpu.cloud.fakes.world import Refused

PARENT = r"/(?P<version>v2|v2alpha1)/(?P<parent>projects/[^/]+/locations/(?P<zone>[^/]+))"
NAME = r"/(?P<version>v2|v2alpha1)/(?P<name>projects/[^/]+/locations/(?P<zone>[^/]+)/{kind}/[^/:]+)"
NODE, QUEUED = NAME.replace("{kind}", "nodes"), NAME.replace("{kind}", "queuedResources")

CALLS: tuple[tuple[str, str, str], ...] = (
    ("CreateNode", "POST", PARENT + "/nodes"),
    ("ListNodes", "GET", PARENT + "/nodes"),
    ("GetNode", "GET", NODE),
    ("UpdateNode", "PATCH", NODE),
    ("DeleteNode", "DELETE", NODE),
    ("GetGuestAttributes", "POST", NODE + ":getGuestAttributes"),
    ("CreateQueuedResource", "POST", PARENT + "/queuedResources"),
    ("ListQueuedResources", "GET", PARENT + "/queuedResources"),
    ("GetQueuedResource", "GET", QUEUED),
    ("DeleteQueuedResource", "DELETE", QUEUED),
    ("ResetQueuedResource", "POST", QUEUED + ":reset"),
    ("ListAcceleratorTypes", "GET", PARENT + "/acceleratorTypes"),
    ("ListRuntimeVersions", "GET", PARENT + "/runtimeVersions"),
    ("ListLocations", "GET", r"/(?P<version>v2|v2alpha1)/(?P<name>projects/[^/]+)/locations"),
    ("GetOperation", "GET", NAME.replace("{kind}", "operations")),
)


def routes(tpu: Tpu) -> list[Route]:
    """What `fakes.server` serves of the service."""
    return [
        Route(SERVICE, name, method, pattern, _answering(tpu, name), changes=name not in READING)
        for name, method, pattern in CALLS
    ]


def _answering(tpu: Tpu, name: str) -> Callable[[Request], Any]:
    return lambda request: tpu.answer(name, _request(name, request))


def _request(name: str, request: Request) -> Data:
    """A request of REST as the call has it: the path, the query and the body in one."""
    parts = {key: text for key, text in request.parts.items() if key in ("parent", "name")}
    query = {key: text for key, text in request.query.items() if not key.startswith(("$", "alt"))}
    body = request.json() if request.body else {}
    if name == "CreateNode":
        return {**parts, **query, "node": body}
    if name == "CreateQueuedResource":
        unknown = next((field for field in ALPHA if field in body), None)
        if unknown and request.parts["version"] == "v2":
            message = (
                f"Invalid JSON payload received. Unknown name \"{unknown}\" at 'queued_resource': Cannot find field."
            )
            raise Refused(3, message)
        return {**parts, **query, "queuedResource": body}
    if name == "UpdateNode":
        return {**query, "node": {**body, "name": parts["name"]}}
    return {**parts, **query, **body}

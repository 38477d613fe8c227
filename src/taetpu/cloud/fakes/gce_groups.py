"""Groups of the fake Compute Engine: workload policies, instance templates, and what makes several hosts of them.

A group in bulk mode makes all of its hosts or none, and keeps trying. That a group of TPUs needs this mode, and that
it takes no resize requests, is from a public field report of July 2026, with the texts of the refusals.
"""

import itertools
from collections.abc import Callable
from typing import Any

from taetpu.cloud.fakes.gce_base import NAME, PROJECT, REGION, ZONE, Compute, Json, error_json
from taetpu.cloud.fakes.server import Request, Route
from taetpu.cloud.fakes.world import Pending, Refused

GROUPS, TEMPLATES, POLICIES, INSTANCES = "gce.groups", "gce.templates", "gce.policies", "gce.instances"


class Groups:
    """Args:
    made: begins to make a machine: zone, body, worker.
    ended: removes one, by `zone/name`.
    """

    def __init__(self, compute: Compute, made: Callable[[str, Json, int], Pending], ended: Callable[[str], None]):
        self.compute, self.world, self.made, self.ended = compute, compute.world, made, ended
        self.suffixes = ("".join(four) for four in itertools.product("bcdfghjk", "0123456789", "lmnp", "qrst"))

    def routes(self) -> list[Route]:
        everywhere, groups = PROJECT + "/aggregated", ZONE + "/instanceGroupManagers"
        word = "instanceGroupManagers"
        return [
            *self._regional("resourcePolicies", POLICIES, "resourcePolicy"),
            *self._regional("instanceTemplates", TEMPLATES, "instanceTemplate"),
            Route("gce", f"{word}.insert", "POST", groups, self.insert),
            Route("gce", f"{word}.get", "GET", groups + NAME, lambda request: self.told(self._group(request))),
            Route("gce", f"{word}.delete", "DELETE", groups + NAME, self.delete),
            Route("gce", f"{word}.aggregatedList", "GET", f"{everywhere}/{word}", self.list_all),
            Route("gce", f"{word}.listManagedInstances", "POST", groups + NAME + "/listManagedInstances",
                  self.managed, False),
            Route("gce", "instanceGroupManagerResizeRequests.insert", "POST", groups + NAME + "/resizeRequests",
                  self.resize),
        ]  # fmt: skip

    def _regional(self, kind: str, table: str, words: str) -> list[Route]:
        """Get, insert, delete and list, for what belongs to a region and groups use."""
        compute, base = self.compute, REGION + f"/{kind}"

        def place(request: Request) -> str:
            return f"regions/{request.parts['region']}"

        def get(request: Request) -> Json:
            return compute.found(table, place(request), kind, request.parts["name"])

        def insert(request: Request) -> Json:
            def begin() -> Json:
                made = compute.stored(request, table, place(request), kind, words)
                key = f"{request.parts['region']}/{made['name']}"
                drop = lambda: self.world.table(table).pop(key, None)  # noqa: E731
                target = f"{place(request)}/{kind}/{made['name']}"
                return compute.operation_json(
                    compute.begin(f"{kind}.insert", place(request), target, lambda: None, drop)
                )

            return compute.once(request, begin)

        def delete(request: Request) -> Json:
            def begin() -> Json:
                link = get(request)["selfLink"]
                self._unused(link, words)
                drop = lambda: self.world.table(table).pop(f"{request.parts['region']}/{name}", None)  # noqa: E731
                name = request.parts["name"]
                return compute.operation(f"{kind}.delete", place(request), f"{place(request)}/{kind}/{name}", drop)

            return compute.once(request, begin)

        def list_all(request: Request) -> Json:
            found = ((key.partition("/")[0], one) for key, one in self.world.table(table).items())
            return compute.aggregated("regions", kind, found, request.query)

        return [
            Route("gce", f"{kind}.get", "GET", base + NAME, get),
            Route("gce", f"{kind}.insert", "POST", base, insert),
            Route("gce", f"{kind}.delete", "DELETE", base + NAME, delete),
            Route("gce", f"{kind}.aggregatedList", "GET", PROJECT + f"/aggregated/{kind}", list_all),
        ]

    def _unused(self, link: str, words: str) -> None:
        for group in self.world.table(GROUPS).values():
            used = [group["instanceTemplate"], group.get("resourcePolicies", {}).get("workloadPolicy", "")]
            if any(one and link.endswith(one.partition("projects/")[2]) for one in used):
                ours, theirs = link.partition("v1/")[2], group["selfLink"].partition("v1/")[2]
                problem = f"The {words} resource '{ours}' is already being used by '{theirs}'"
                raise Refused(9, problem, "resourceInUseByAnotherResource")

    def _group(self, request: Request) -> Json:
        zone = self.compute.known(request.parts["zone"])
        return self.compute.found(GROUPS, f"zones/{zone}", "instanceGroupManagers", request.parts["name"])

    def insert(self, request: Request) -> Json:
        zone, body = self.compute.known(request.parts["zone"]), request.json()

        def begin() -> Json:
            template = self._referred(TEMPLATES, body["instanceTemplate"])
            if policy := body.get("resourcePolicies", {}).get("workloadPolicy"):
                topology = self._referred(POLICIES, policy)["workloadPolicy"].get("acceleratorTopology")
                if topology and body.get("targetSizePolicy", {}).get("mode") != "BULK":
                    problem = "MIGs with TPU accelerator topology require BULK mode in target size policy"
                    raise Refused(3, problem, "invalid")
            group = self.compute.stored(request, GROUPS, f"zones/{zone}", "instanceGroupManagers", "group")
            base = body.get("baseInstanceName", body["name"])
            names = sorted(f"{base}-{next(self.suffixes)}" for _ in range(int(body.get("targetSize", 0))))
            group |= {"_zone": zone, "_template": template, "_hosts": names, "_begun": False, "_ready": False}
            group["_deleting"] = False
            finish, drop = (lambda: group.update(_ready=True)), self.world.table(GROUPS).pop
            target = f"zones/{zone}/instanceGroupManagers/{body['name']}"
            fail = lambda: drop(f"{zone}/{body['name']}", None)  # noqa: E731
            call = "instanceGroupManagers.insert"
            group["_doing"] = self.compute.begin(call, f"zones/{zone}", target, finish, fail)
            return self.compute.operation_json(group["_doing"])

        return self.compute.once(request, begin)

    def _referred(self, table: str, link: str) -> Json:
        """The resource that a link names: `.../regions/R/KIND/NAME`."""
        parts = link.rpartition("regions/")[2].split("/")
        if "projects/" not in link or len(parts) != 3:
            raise Refused(3, f"Invalid value for field: '{link}'. The URL is malformed.", "invalid")
        return self.compute.found(table, f"regions/{parts[0]}", parts[1], parts[2])

    def _go_on(self, group: Json) -> None:
        """Try to make all hosts, if there are none yet: one that cannot be had keeps the others from being made."""
        if group["_begun"] or not group["_ready"]:
            return
        zone, properties = group["_zone"], group["_template"]["properties"]
        by = f"projects/1234/zones/{zone}/instanceGroupManagers/{group['name']}"
        items = [*properties.get("metadata", {}).get("items", []), {"key": "created-by", "value": by}]
        bodies = [properties | {"name": name, "metadata": {"items": items}} for name in group["_hosts"]]
        begun = [self.made(zone, body, worker) for worker, body in enumerate(bodies)]
        failed = next((pending.error for pending in begun if pending.error), None)
        if failed:
            for name in group["_hosts"]:
                self.world.table(INSTANCES).pop(f"{zone}/{name}")
            group["_error"] = error_json(failed, zone)
        else:
            group["_begun"] = True
            group.pop("_error", None)

    def told(self, group: Json) -> Json:
        """A group as it is told, after what happens to it went on by a step."""
        self.compute.poll(group["_doing"])
        self._go_on(group)
        for host in group["_hosts"]:
            if instance := self.world.table(INSTANCES).get(f"{group['_zone']}/{host}"):
                self.compute.poll(instance["_doing"])
        shown = {name: value for name, value in group.items() if not name.startswith("_")}
        managed = self._managed(group)
        bulk: Json = {"inProgress": not group["_begun"]}
        if "_error" in group:
            bulk["lastProgressCheck"] = {"error": {"errors": [group["_error"]]}, "timestamp": self.compute.stamp()}
        stable = group["_begun"] and all(one["currentAction"] == "NONE" for one in managed)
        return shown | {"status": {"isStable": stable, "bulkInstanceOperation": bulk}}

    def _managed(self, group: Json) -> list[Json]:
        """What the group says of each host; one that was deleted has no status, for nothing is repaired."""
        found = []
        flexible = group["_template"]["properties"].get("scheduling", {}).get("provisioningModel") == "FLEX_START"
        for name in group["_hosts"]:
            instance = self.world.table(INSTANCES).get(f"{group['_zone']}/{name}")
            status = instance["status"] if instance else "PENDING" if flexible and not group["_begun"] else ""
            doing = status in ("PROVISIONING", "STAGING", "PENDING") or not group["_begun"]
            link = self.compute.link(f"zones/{group['_zone']}/instances/{name}")
            action = "DELETING" if group["_deleting"] else "CREATING" if doing else "NONE"
            one: Json = {"name": name, "instance": link, "currentAction": action}
            if status:
                one["instanceStatus"] = status
            if "_error" in group:
                one["lastAttempt"] = {"errors": {"errors": [group["_error"]]}}
            found.append(one)
        return found

    def managed(self, request: Request) -> Json:
        return {"managedInstances": self._managed(self._group(request))}

    def list_all(self, request: Request) -> Json:
        found = [(group["_zone"], self.told(group)) for group in list(self.world.table(GROUPS).values())]
        return self.compute.aggregated("zones", "instanceGroupManagers", found, request.query)

    def delete(self, request: Request) -> Json:
        zone, name = request.parts["zone"], request.parts["name"]

        def begin() -> Json:
            group = self._group(request)

            def finish() -> Any:
                for host in group["_hosts"]:
                    self.ended(f"{zone}/{host}")
                return self.world.table(GROUPS).pop(f"{zone}/{name}", None)

            target = f"zones/{zone}/instanceGroupManagers/{name}"
            group["_deleting"] = True
            fail = lambda: group.update(_deleting=False)  # noqa: E731
            group["_doing"] = self.compute.begin("instanceGroupManagers.delete", f"zones/{zone}", target, finish, fail)
            return self.compute.operation_json(group["_doing"])

        return self.compute.once(request, begin)

    def resize(self, request: Request) -> Json:
        self._group(request)
        raise Refused(3, "Creating resize requests for managed instance group with TPU is not allowed.", "invalid")

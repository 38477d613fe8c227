"""Slices by the Cloud TPU API: v2 to v4 and v5e, and v5p and v6e where the quota for them is of this API.

A stack is a queued resource and its node, both of the stack's name; the labels are on the node that the request
describes, so that they are told of a request without a node too.

The API deletes nothing by itself, except a flex-start machine at the end of its run time. What else ends a machine of
this backend is weaker: the guard that runs on the machine, and `taetpu tpu gc` by the label of its expiry. A request
that is still in the queue when it should be gone fails there (`valid_until_duration`), so that no machine comes later.

Known from the API's reference and from gcloud's sources alone, never seen on the real cloud: that a request tells the
labels of its node again, and the whole of flex-start.
"""

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from taetpu.cloud.backends.base import Machine, Operation, State
from taetpu.cloud.backends.tpu_machines import failure, joined, last, word
from taetpu.cloud.catalogue import runtime_of
from taetpu.cloud.clients import SCOPE, Clients, fake_address, imported
from taetpu.cloud.errors import CloudError, Conflict, Invalid, NotFound, Permission, Stockout, Transient, Unknown
from taetpu.cloud.google_calls import explained, reading
from taetpu.cloud.google_errors import classify
from taetpu.cloud.spec import OWNER, TAG, BackendName, Spec
from taetpu.core.chips import Slice

if TYPE_CHECKING:
    from google.cloud import tpu_v2

ADDRESS = "https://tpu.googleapis.com"
TIMEOUT = 30.0
"""Seconds that one call may take. The library itself would wait for ever."""
AT_ONCE = 16
"""Zones that are asked at the same time."""


class TpuApi:
    """The backend `tpu-api`, see `Backend`."""

    name: BackendName = "tpu-api"

    def __init__(self, clients: Clients):
        self.clients = clients
        self.unseen: Sequence[str] = ()

    def zones(self, tpu: Slice) -> list[str]:
        """Zones where the API lists the slice, sorted. Zones that are closed to the project or do not answer are none.

        Raises:
            CloudError: no zone may be asked, or the list of zones itself is not given.
        """
        from concurrent.futures import ThreadPoolExecutor

        places = self._places()
        with ThreadPoolExecutor(AT_ONCE) as threads:
            answers = list(threads.map(lambda zone: self._lists(zone, tpu), places))
        refused = [answer for answer in answers if isinstance(answer, Permission)]
        if refused and len(refused) == len(places):
            raise refused[0]
        return sorted(zone for zone, answer in zip(places, answers, strict=True) if answer is True)

    def create(self, spec: Spec, zone: str, startup: str, ssh_key: str) -> Operation:
        """Ask for the slice. On-demand, spot and reserved requests wait in the same queue.

        Raises:
            Conflict: something of that name is there already.
            Unknown: no answer came; it may have been asked for.
            CloudError: see `google_errors.classify`.
        """
        request, doing = self._described(spec, zone, startup, ssh_key), f"creating {spec.stack} ({spec.tpu.name})"
        with explained(zone, doing):
            if spec.provisioning == "flex-start":
                name = self._flex(request, spec, zone)
            else:
                made = self.clients.tpu.create_queued_resource(
                    parent=self._in(zone), queued_resource=request, queued_resource_id=spec.stack, timeout=TIMEOUT
                )
                name = made.operation.name
        return _Creation(self, name, spec.stack, zone, doing)

    def get(self, name: str, zone: str) -> Machine | None:
        """The machine, its node asked for after its request so that a request which is ACTIVE has one."""
        request = self.request(name, zone)
        node = self._node(name, zone)
        if request is None and node is None:
            return None
        return joined(request, node, self._instances(node) if node else ())

    def list(self) -> Sequence[Machine]:
        """Nodes, and requests that have none (yet), of all zones that answer; see `unseen`.

        The names of virtual machines are only asked for ours.
        """
        client = self.clients.tpu
        nodes, dark = self._all(client.list_nodes, "nodes")
        requests, darker = self._all(client.list_queued_resources, "queued_resources")
        self.unseen = tuple(sorted(dark | darker))
        by_place = {_place(request.name): request for request in requests}
        machines: list[Machine] = []
        for node in nodes:
            place = (_place(node.name)[0], last(node.queued_resource or node.name))
            ours = OWNER in node.labels
            machines.append(joined(by_place.get(place), node, self._instances(node) if ours else ()))
        with_node = {(_place(node.name)[0], last(node.queued_resource or node.name)) for node in nodes}
        machines += [joined(request, None) for place, request in by_place.items() if place not in with_node]
        return sorted(machines, key=lambda machine: (machine.zone, machine.name))

    def delete(self, name: str, zone: str) -> Operation:
        """Remove the request by force, which takes its node with it, or a node that has none.

        The operation is done when neither is there any more; until then it asks again where it has to.

        Raises:
            Conflict: what is there is not ours.
        """
        return _Deletion(self, name, zone)

    def request(self, name: str, zone: str) -> "tpu_v2.QueuedResource | None":
        """The queued resource; None if there is none."""
        full, client = f"{self._in(zone)}/queuedResources/{name}", self.clients.tpu
        return _found(lambda: client.get_queued_resource(name=full, timeout=TIMEOUT), zone, f"looking for {name}")

    def remove(self, name: str, zone: str) -> str | None:
        """Ask for the end of what is there; the operation's name, None if there is nothing to ask for now."""
        request, node = self.request(name, zone), self._node(name, zone)
        if request is None and node is None:
            return None
        machine = joined(request, node)
        if not machine.owner:
            problem = f"{name} in {zone} was not made by taetpu: it has no label {OWNER}"
            raise Conflict(problem, remedy="delete it in the console, if it is yours")
        if machine.state is State.DELETING:
            return None
        owner = last(node.queued_resource) if node else ""
        client, place = self.clients.tpu, self._in(zone)
        try:
            with explained(zone, f"deleting {name}"):
                if request is None and not owner:
                    made = client.delete_node(name=f"{place}/nodes/{name}", timeout=TIMEOUT)
                else:
                    asked = {"name": f"{place}/queuedResources/{owner or name}", "force": True}
                    made = client.delete_queued_resource(request=asked, timeout=TIMEOUT)
                return made.operation.name
        except NotFound:
            return None

    def ended(self, operation: str, zone: str, doing: str) -> bool:
        """Whether an operation has ended well. One that is forgotten has ended.

        Raises:
            CloudError: it ended otherwise.
        """
        client = self.clients.tpu
        told = _found(lambda: client.get_operation({"name": operation}, timeout=TIMEOUT), zone, doing)
        if told is None:
            return True
        if told.done and told.error.code:
            raise classify(told.error, zone, doing)
        return told.done

    def _described(self, spec: Spec, zone: str, startup: str, ssh_key: str) -> "tpu_v2.QueuedResource":
        """The request for a spec, all but what v2 has no words for."""
        tpu_v2 = imported("google.cloud.tpu_v2")
        node = tpu_v2.Node(
            accelerator_type=spec.tpu.name,
            runtime_version=spec.runtime or runtime_of(spec.tpu, "tpu-api"),
            network_config=tpu_v2.NetworkConfig(
                network=spec.network, subnetwork=spec.subnetwork, enable_external_ips=spec.external_ip
            ),
            service_account=tpu_v2.ServiceAccount(email=spec.service_account, scope=[SCOPE]),
            labels=spec.labels(self.clients.now()),
            metadata=spec.metadata(startup, ssh_key),
            tags=[TAG],
        )
        kind = tpu_v2.QueuedResource
        until = kind.QueueingPolicy(valid_until_duration={"seconds": int(spec.queue_hours * 3600)})
        wanted = kind.Tpu.NodeSpec(parent=self._in(zone), node_id=spec.stack, node=node)
        request = kind(tpu=kind.Tpu(node_spec=[wanted]), queueing_policy=until)
        if spec.provisioning == "spot":
            request.spot = kind.Spot()
        if spec.provisioning == "reservation":
            own = f"{self._in(zone)}/reservations/{spec.reservation}"
            request.reservation_name = spec.reservation if "/" in spec.reservation else own
        return request

    def _flex(self, request: "tpu_v2.QueuedResource", spec: Spec, zone: str) -> str:
        """Ask for a flex-start machine: only v2alpha1 has the fields, and Google's library has not.

        After gcloud 528's `tpu_v2alpha1_messages.py`; the server ends the machine after `maxRunDuration`.
        """
        body = imported("google.protobuf.json_format").MessageToDict(type(request).pb(request))
        body["provisioningModel"] = "FLEX_START"
        body["runDuration"] = {"maxRunDuration": f"{int(spec.hours * 3600)}s"}
        address = f"{fake_address() or ADDRESS}/v2alpha1/{self._in(zone)}/queuedResources"
        answer = self.clients.session.post(address, params={"queuedResourceId": spec.stack}, json=body, timeout=TIMEOUT)
        if not answer.ok:
            raise imported("google.api_core.exceptions").from_http_response(answer)
        return answer.json()["name"]

    def _node(self, name: str, zone: str) -> "tpu_v2.Node | None":
        full, client = f"{self._in(zone)}/nodes/{name}", self.clients.tpu
        return _found(lambda: client.get_node(name=full, timeout=TIMEOUT), zone, f"looking for {name}")

    def _instances(self, node: "tpu_v2.Node") -> Sequence[str]:
        """The names of a node's virtual machines by worker, which a tunnel goes to; none if it needs none or says none.

        As gcloud's `tpu-vm ssh --tunnel-through-iap` finds them: the guest attribute `hostname` of each worker.
        """
        if word(node.state) != "READY" or all(end.access_config.external_ip for end in node.network_endpoints):
            return ()
        client, asked = self.clients.tpu, {"name": node.name, "worker_ids": [""]}
        try:
            told = reading(lambda: client.get_guest_attributes(request=asked, timeout=TIMEOUT))
        except CloudError:  # an organisation may forbid guest attributes; and a machine that just booted has none yet
            return ()
        items = [{item.key: item.value for item in one.query_value.items} for one in told.guest_attributes]
        return [values.get("hostname", "") for values in items]

    def _places(self) -> Sequence[str]:
        """Every zone that the API has. This call alone is not paged by the library."""
        client, found, token = self.clients.tpu, [], ""
        while True:
            asked = {"name": f"projects/{self.clients.project}", "page_token": token}
            told = reading(lambda asked=asked: client.list_locations(asked, timeout=TIMEOUT), "", "listing zones")
            found += [place.location_id for place in told.locations]
            token = told.next_page_token
            if not token:
                return found

    def _lists(self, zone: str, tpu: Slice) -> bool | CloudError:
        """Whether a zone lists a slice, or why it would not say."""
        client, parent = self.clients.tpu, self._in(zone)

        def types() -> set[str]:
            return {kind.type_ for kind in client.list_accelerator_types(parent=parent, timeout=TIMEOUT)}

        try:
            return tpu.name in reading(types, zone, "listing accelerator types")
        except (Permission, Invalid, NotFound, Transient) as error:
            return error

    def _all(self, call: Callable[..., Any], kind: str) -> tuple[Sequence[Any], set[str]]:
        """Everything of a kind in all zones, and the zones that did not answer."""

        def pages() -> tuple[Sequence[Any], set[str]]:
            found, dark = [], set()
            for page in call(parent=self._in("-"), timeout=TIMEOUT).pages:
                found += getattr(page, kind)
                dark |= {last(name) for name in page.unreachable}
            return found, dark

        return reading(pages, "", "listing TPUs")

    def _in(self, zone: str) -> str:
        return f"projects/{self.clients.project}/locations/{zone}"


class _Creation:
    """A request that was made: done once it is in the queue, unless it fails there later."""

    def __init__(self, api: TpuApi, operation: str, name: str, zone: str, doing: str):
        self.api, self.operation, self.name, self.zone, self.doing = api, operation, name, zone, doing
        self.accepted = False

    def done(self) -> bool:
        try:
            self.accepted = self.accepted or self.api.ended(self.operation, self.zone, self.doing)
        except (Transient, Unknown) as error:
            raise self.over(error) from error
        request = self.api.request(self.name, self.zone)
        if request is not None and word(request.state.state) == "FAILED":
            raise self.over(classify(failure(request), self.zone, self.doing))
        return self.accepted

    def over(self, error: CloudError) -> CloudError:
        """The error of a request that has ended: one that might have been granted at another time is a stockout."""
        if not isinstance(error, (Transient, Unknown)):
            return error
        return Stockout(error.problem, remedy="another zone, or later", facts=error.facts)


class _Deletion:
    """An end that was asked for: done once nothing is left. What failed or left something is asked for again."""

    def __init__(self, api: TpuApi, name: str, zone: str):
        self.api, self.name, self.zone = api, name, zone
        self.operation = api.remove(name, zone)

    def done(self) -> bool:
        operation, self.operation = self.operation, None
        try:
            if operation and not self.api.ended(operation, self.zone, f"deleting {self.name}"):
                self.operation = operation
                return False
        except NotFound:
            pass
        if self.api.get(self.name, self.zone) is None:
            return True
        self.operation = self.api.remove(self.name, self.zone)
        return False


def _found(call: Callable[[], Any], zone: str, doing: str) -> Any:
    """What a reading call answers; None if there is no such thing."""
    try:
        return reading(call, zone, doing)
    except NotFound:
        return None


def _place(name: str) -> tuple[str, str]:
    """The zone of a resource and its own name."""
    return name.split("/locations/")[1].split("/")[0], last(name)

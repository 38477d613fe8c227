"""The fake Cloud TPU API by Google's own client: it refuses and reports as the API's reference has it."""

from datetime import UTC, datetime

import pytest
import requests
from google.api_core import exceptions as api
from google.api_core.future import polling
from google.cloud import tpu_v2
from tests.cloud.tpu_faces import FACES, ZONE, cloud

from taetpu.cloud.fakes.tpu_parts import offered
from taetpu.cloud.fakes.world import Cut, Fault, Refused
from taetpu.core.chips import resolve

PLACE = f"projects/fake-project/locations/{ZONE}"
QUICK = polling.DEFAULT_POLLING.with_delay(initial=0.001, maximum=0.002, multiplier=1.0).with_timeout(5)
NODE = tpu_v2.Node(accelerator_type="v6e-16", runtime_version="v2-alpha-tpuv6e", labels={"team": "a"})


@pytest.fixture(params=FACES)
def place(request):
    with cloud(request.param) as made:
        yield made


def ask(place, name="q", node=NODE, **more):
    wanted = tpu_v2.QueuedResource.Tpu.NodeSpec(parent=PLACE, node_id="n", node=node)
    if count := more.pop("count", 0):
        wanted = tpu_v2.QueuedResource.Tpu.NodeSpec(
            parent=PLACE, node=node, multislice_params={"node_count": count, "node_id_prefix": "slice"}
        )
    request = tpu_v2.QueuedResource(tpu=tpu_v2.QueuedResource.Tpu(node_spec=[wanted]), **more)
    return place.clients.tpu.create_queued_resource(parent=PLACE, queued_resource_id=name, queued_resource=request)


def state(place, name="q"):
    return place.clients.tpu.get_queued_resource(name=f"{PLACE}/queuedResources/{name}").state


def until(place, wanted, name="q"):
    for _ in range(20):
        if state(place, name).state.name == wanted:
            return
    raise AssertionError(f"{name} is not {wanted} but {state(place, name)}")


def names(found):
    return [one.name.rpartition("/")[2] for one in found]


def test_an_operation_gives_what_it_made_in_the_end():
    with cloud("grpc") as place:
        client = place.clients.tpu
        operation = client.create_node(parent=PLACE, node_id="n", node=NODE)
        assert (operation.metadata.verb, operation.done()) == ("create", False)
        node = operation.result(polling=QUICK)
        assert (node.state.name, node.health.name, dict(node.labels)) == ("READY", "HEALTHY", {"team": "a"})
        assert len(node.network_endpoints) == resolve("v6e-16").hosts == 4
        mask = {"paths": ["labels"]}
        changed = tpu_v2.Node(name=node.name, labels={"team": "b"})
        assert dict(client.update_node(node=changed, update_mask=mask).result(polling=QUICK).labels) == {"team": "b"}
        client.delete_node(name=node.name).result(polling=QUICK)
        assert place.world.left() == []
        with pytest.raises(api.NotFound, match="nodes/n' was not found"):
            client.get_node(name=node.name)


def test_an_operation_tells_its_error_when_it_is_over():
    with cloud("grpc") as place:
        place.world.faults.append(Fault("CreateNode", Refused(8, "There is no more capacity"), moment="inside"))
        operation = place.clients.tpu.create_node(parent=PLACE, node_id="n", node=NODE)
        with pytest.raises(api.ResourceExhausted, match="no more capacity"):
            operation.result(polling=QUICK)
        assert place.world.left() == []


def test_a_request_passes_through_its_states_and_is_reset_after_a_preemption(place):
    ask(place, spot=tpu_v2.QueuedResource.Spot())
    seen = [state(place).state.name for _ in range(6)]
    assert seen == ["ACCEPTED", "WAITING_FOR_RESOURCES", *["PROVISIONING"] * 2, "ACTIVE", "ACTIVE"]
    place.tpu.preempt("n")
    (node,) = place.clients.tpu.list_nodes(parent=PLACE)
    assert (node.state.name, node.scheduling_config.spot) == ("PREEMPTED", True)
    lost = state(place)
    assert (lost.state.name, lost.state_initiator.name) == ("SUSPENDED", "SERVICE")
    place.clients.tpu.reset_queued_resource(name=f"{PLACE}/queuedResources/q")
    until(place, "ACTIVE")
    (node,) = place.clients.tpu.list_nodes(parent=PLACE)
    assert node.state.name == "READY"


def test_what_still_has_a_node_is_only_deleted_by_force(place):
    ask(place)
    until(place, "ACTIVE")
    client, name = place.clients.tpu, f"{PLACE}/queuedResources/q"
    with pytest.raises(api.BadRequest, match=r"belongs to .*queuedResources/q; delete that with force"):
        client.delete_node(name=f"{PLACE}/nodes/n")
    with pytest.raises(api.BadRequest, match="is ACTIVE: delete its nodes first or set force"):
        client.delete_queued_resource(name=name)
    with pytest.raises(api.BadRequest, match="only a SUSPENDED request can be reset"):
        client.reset_queued_resource(name=name)
    client.delete_queued_resource(request={"name": name, "force": True})
    assert state(place).state.name == "DELETING"
    with pytest.raises(api.BadRequest, match="is being deleted"):
        client.delete_queued_resource(request={"name": name, "force": True})
    place.settle()
    assert place.world.left() == []


def test_a_waiting_request_is_deleted_without_force(place):
    ask(place)
    place.clients.tpu.delete_queued_resource(name=f"{PLACE}/queuedResources/q")
    place.settle()
    assert place.world.left() == []


@pytest.mark.parametrize("field", ["valid_until_duration", "valid_until_time"])
def test_a_request_fails_when_its_time_in_the_queue_is_over(place, field):
    place.tpu.queue.starved.add(ZONE)
    end = {"seconds": 60} if field.endswith("duration") else datetime.fromtimestamp(place.world.now() + 60, UTC)
    ask(place, queueing_policy={field: end})
    until(place, "WAITING_FOR_RESOURCES")
    place.world.skew += 61
    failed = state(place)
    assert (failed.state.name, failed.failed_data.error.code) == ("FAILED", 4)
    with pytest.raises(api.Conflict, match="already exists"):
        ask(place)


def test_a_request_for_many_nodes_makes_them_all(place):
    ask(place, count=3)
    until(place, "ACTIVE")
    assert names(place.clients.tpu.list_nodes(parent=PLACE)) == ["slice-0", "slice-1", "slice-2"]
    assert len(place.hosts.up) == 12


def test_a_type_may_be_given_by_its_topology(place):
    by_shape = tpu_v2.Node(accelerator_config={"type_": "V6E", "topology": "2x4"}, runtime_version="v2-alpha-tpuv6e")
    ask(place, node=by_shape)
    until(place, "ACTIVE")
    (node,) = place.clients.tpu.list_nodes(parent=PLACE)
    assert (node.accelerator_type, len(node.network_endpoints)) == ("v6e-8", 1)


def test_zones_types_and_versions_are_listed_in_pages():
    with cloud("grpc", page=2) as place:
        client = place.clients.tpu
        assert [kind.type_ for kind in client.list_accelerator_types(parent=PLACE)] == ["v6e-1", "v6e-8", "v6e-16"]
        assert "v2-alpha-tpuv6e" in [one.version for one in client.list_runtime_versions(parent=PLACE)]
        first = client.list_locations({"name": "projects/fake-project"})
        assert ([place.location_id for place in first.locations], first.next_page_token) == (
            ["us-central2-b", ZONE],
            "2",
        )


def test_by_itself_it_offers_what_the_catalogue_has():
    zones = offered()
    assert "v4-32" in zones["us-central2-b"]
    assert not any(kind.startswith("tpu7x") for types in zones.values() for kind in types)


def test_details_of_an_error_come_through_both_faces(place):
    facts = {"quota_limit": "TPUs", "consumer": "projects/1"}
    place.world.faults.append(Fault("CreateQueuedResource", Refused(8, "Too much.", "RATE_LIMIT_EXCEEDED", facts)))
    with pytest.raises(api.TooManyRequests) as told:
        ask(place)
    assert (told.value.reason, dict(told.value.metadata)) == ("RATE_LIMIT_EXCEEDED", facts)


def test_calls_that_are_cut_are_made_nonetheless(place):
    place.world.faults.append(Fault("CreateQueuedResource", None, moment="after"))
    with pytest.raises((api.ServiceUnavailable, requests.ConnectionError)):
        ask(place)
    assert len(place.world.left()) == 1
    place.world.faults.append(Fault("GetNode", None))
    with pytest.raises(Cut):
        place.tpu.call("GetNode", {"name": f"{PLACE}/nodes/n"})


def test_v2_does_not_know_what_only_v2alpha1_has(place):
    body = {"provisioningModel": "FLEX_START", "tpu": {"nodeSpec": []}}
    answers = {
        version: requests.post(
            f"{place.address}/{version}/{PLACE}/queuedResources?queuedResourceId=f", json=body, timeout=5
        )
        for version in ("v2", "v2alpha1")
    }
    assert {version: answer.status_code for version, answer in answers.items()} == {"v2": 400, "v2alpha1": 200}
    assert 'Unknown name "provisioningModel"' in answers["v2"].json()["error"]["message"]

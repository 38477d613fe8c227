"""A queued resource and its node as one machine: whichever of the two tells of a loss is believed."""

import pytest
from google.cloud import tpu_v2

from taetpu.cloud.backends.base import State, Worker
from taetpu.cloud.backends.tpu_machines import NODE, REQUEST, joined
from taetpu.cloud.clients import FAKE

PLACE = "projects/123456/locations/us-east5-b"  # the API may tell a project by its number
NODES, REQUESTS = tpu_v2.Node.State, tpu_v2.QueuedResourceState.State


@pytest.fixture(autouse=True)
def the_real_cloud(monkeypatch):
    monkeypatch.delenv(FAKE, raising=False)


def node(state="READY", **more):
    return tpu_v2.Node(name=f"{PLACE}/nodes/lab", state=state, accelerator_type="v6e-8", **more)


def request(state="ACTIVE", **more):
    wanted = tpu_v2.QueuedResource.Tpu.NodeSpec(
        parent=PLACE, node_id="lab", node=tpu_v2.Node(accelerator_type="v6e-8", labels={"taetpu-owner": "ada"})
    )
    told = tpu_v2.QueuedResourceState(state=state, **more)
    return tpu_v2.QueuedResource(
        name=f"{PLACE}/queuedResources/lab", state=told, tpu=tpu_v2.QueuedResource.Tpu(node_spec=[wanted])
    )


def test_every_state_of_the_api_has_its_own_or_is_said_to_be_unknown():
    assert NODE.keys() <= {state.name for state in NODES}
    assert REQUEST.keys() | {"ACTIVE", "STATE_UNSPECIFIED"} == {state.name for state in REQUESTS}
    unknown = {state.name for state in NODES} - NODE.keys()
    assert unknown == {"STATE_UNSPECIFIED", "HIDING", "HIDDEN", "UNHIDING", "UNKNOWN"}
    assert {joined(None, node(name)).state for name in unknown} == {State.UNKNOWN}


def test_a_state_that_this_library_does_not_know_is_told_by_its_number():
    new = tpu_v2.Node.serialize(node()) + bytes([9 << 3, 77])  # field 9 is the state; the last one counts
    with pytest.warns(UserWarning, match="Unrecognized State enum value: 77"):
        machine = joined(None, tpu_v2.Node.deserialize(new))
    assert (machine.name, machine.state, machine.detail) == ("lab", State.UNKNOWN, "77")


@pytest.mark.parametrize(
    ("asked", "made", "state", "detail"),
    [
        ("WAITING_FOR_RESOURCES", None, State.WAITING, "WAITING_FOR_RESOURCES"),
        ("PROVISIONING", "CREATING", State.CREATING, "PROVISIONING"),
        ("ACTIVE", "READY", State.READY, "READY"),
        ("ACTIVE", "PREEMPTED", State.LOST, "PREEMPTED"),
        ("ACTIVE", "TERMINATED", State.LOST, "TERMINATED"),
        ("ACTIVE", "STOPPED", State.STOPPED, "STOPPED"),
        ("ACTIVE", None, State.LOST, "ACTIVE, but its node is gone"),
        ("PROVISIONING", "PREEMPTED", State.LOST, "PREEMPTED"),
        ("SUSPENDING", "READY", State.LOST, "SUSPENDING"),
        ("SUSPENDED", None, State.LOST, "SUSPENDED"),
        ("DELETING", "READY", State.DELETING, "DELETING"),
        ("FAILED", None, State.LOST, "FAILED"),
    ],
)
def test_the_two_states_are_one(asked, made, state, detail):
    machine = joined(request(asked), node(made) if made else None)
    assert (machine.state, machine.detail) == (state, detail)
    assert (machine.name, machine.zone, machine.type) == ("lab", "us-east5-b", "v6e-8")


def test_a_loss_says_who_and_why():
    assert joined(request("SUSPENDED", state_initiator="USER"), None).detail == "SUSPENDED by USER"
    failed = request("FAILED", failed_data={"error": {"code": 8, "message": "Quota 'X' exhausted."}})
    assert joined(failed, None).detail == "FAILED: Quota 'X' exhausted."
    ill = node("READY", health="UNHEALTHY_MAINTENANCE", health_description="for a while")
    assert joined(None, ill).detail == "READY: UNHEALTHY_MAINTENANCE: for a while"


def test_ssh_goes_to_its_own_port_not_to_the_tpus():
    ends = [{"ip_address": "10.0.0.2", "port": 8470}, {"ip_address": "10.0.0.3", "port": 8470}]
    machine = joined(None, node(network_endpoints=ends), ["w-0"])
    assert machine.workers == (Worker("10.0.0.2", 22, "w-0", "10.0.0.2"), Worker("10.0.0.3", 22, "", "10.0.0.3"))
    ends[0]["access_config"] = {"external_ip": "34.1.2.3"}
    assert joined(None, node(network_endpoints=ends)).workers[0] == Worker("34.1.2.3", 22, inside="10.0.0.2")

"""Zones: three columns that no word mixes up, and a probe that leaves no machine, whatever goes wrong."""

from dataclasses import replace
from functools import partial

import pytest
from tests.cloud.looking import Memory
from tests.cloud.machines import until

from taetpu.cloud import quotas, vm, zones
from taetpu.cloud.backends.base import State
from taetpu.cloud.backends.tpu_api import TpuApi
from taetpu.cloud.clients import Clients
from taetpu.cloud.errors import Unknown
from taetpu.cloud.fakes.quotas import info
from taetpu.cloud.fakes.world import Fault, Refused, World, stockout
from taetpu.cloud.prices import Quote
from taetpu.cloud.project import Waits
from taetpu.cloud.settings import Settings
from taetpu.cloud.spec import Spec
from taetpu.core.chips import resolve

V6E = resolve("v6e-8")
SPEC = Spec("any", V6E, "gce", owner="me", runtime="image")
ZONE = "us-east5-b"
WAITS = Waits(poll=0.001, settle=0.02, ready=0.2)
NO_RATE = Quote(None, "nobody says")


def script(spec):
    return f"the script of {spec.stack}"


def rows(backends, found=None, price=lambda zone: NO_RATE, region="", told=None):
    return zones.rows(V6E, backends, found, price, "spot", region, (told if told is not None else []).append)


def test_who_publishes_a_zone_is_told_for_each_backend():
    table = rows([Memory(World(), "gce", [ZONE, "us-west9-z"]), Memory(World(), "tpu-api", ["us-east1-d"])])
    said = {(row.zone, row.backend): row.published for row in table}
    assert said[ZONE, "gce"] == said["us-west9-z", "gce"] == said["us-east1-d", "tpu-api"] == "by the API"
    assert said[ZONE, "tpu-api"] == said["us-east1-d", "gce"] == "in Google's table"
    assert said["asia-northeast1-b", "gce"] == "in a price list only"
    assert ("us-west9-z", "tpu-api") not in said
    assert [row.published for row in table] == sorted(
        (row.published for row in table), key=["by the API", "in Google's table", "in a price list only"].index
    )


def test_quota_and_price_stand_beside_it(looked):
    looked.infos.append(info("PREEMPTIBLE-TPU-V6E-per-project-region", {"us-east5": 4}))
    costs = {ZONE: (1.4, "a list"), "us-east5-a": (1.2, "a list")}
    table = rows([], quotas.read(looked.clients), lambda zone: costs.get(zone, NO_RATE), region="us-east5")
    assert [(row.zone, row.backend) for row in table] == [
        ("us-east5-a", "gce"), ("us-east5-a", "tpu-api"), (ZONE, "gce"), (ZONE, "tpu-api")
    ]  # fmt: skip
    limits = {row.backend: row.limit for row in table}
    told = {name: limit and (limit.value, limit.enough) for name, limit in limits.items()}
    assert told == {"gce": (4, False), "tpu-api": (None, None)}
    assert {row.usd for row in table} == {1.2, 1.4}


def test_a_backend_that_does_not_answer_leaves_the_tables():
    world, told = World(), []
    world.faults.append(Fault("zones", Refused(14, "busy")))
    table = rows([Memory(world, "gce", [ZONE])], told=told)
    assert {row.published for row in table} == {"in Google's table", "in a price list only"}
    assert told == ["gce does not tell its zones: busy"]


def test_a_probe_that_is_given_a_machine_deletes_it():
    world, told = World(), []
    backend = Memory(world, "gce", [ZONE])
    found = zones.probe(backend, SPEC, ZONE, WAITS, script, told.append)
    assert (found.made, found.said, world.left()) == (True, "READY", [])
    (spec,) = backend.specs
    assert (spec.provisioning, spec.owner, spec.hours) == ("spot", "me", 0.5)
    assert spec.stack.startswith("probe-")
    assert backend.startups == [f"the script of {spec.stack}"]
    assert told == [f"asking for v6e-8 (spot) in {ZONE}", f"{spec.stack} in {ZONE} is gone"]


@pytest.mark.parametrize("fate", [State.LOST, State.WAITING, State.STOPPED])
def test_a_probe_that_is_given_none_deletes_what_there_is(fate):
    world = World()
    found = zones.probe(Memory(world, "gce", [ZONE], fate=fate), SPEC, ZONE, WAITS, script)
    assert (found.made, world.left()) == (False, [])
    assert fate.name in found.said


FAULTS = [
    (Fault("create", stockout(ZONE)), "stockout: There is no more capacity"),
    (Fault("create", stockout(ZONE), moment="inside"), "stockout: There is no more capacity"),
    (Fault("create", None), f"unknown: {ZONE} gave no answer"),
    (Fault("create", None, moment="after"), f"unknown: {ZONE} gave no answer"),
    (Fault("create", Refused(14, "busy"), moment="after"), "transient: busy"),
    (Fault("get", Refused(14, "busy"), times=3), "READY"),
    (Fault("delete", Refused(14, "busy"), times=3), "READY"),
    (Fault("delete", None, moment="after"), "READY"),
    (Fault("delete", Refused(14, "busy"), moment="inside"), "READY"),
]


@pytest.mark.parametrize(("fault", "said"), FAULTS, ids=[f"{f.call} {f.moment} {s[:9]}" for f, s in FAULTS])
def test_whatever_goes_wrong_nothing_is_left(fault, said):
    world = World()
    world.faults.append(Fault(fault.call, fault.error, moment=fault.moment, times=fault.times))
    found = zones.probe(Memory(world, "gce", [ZONE]), SPEC, ZONE, WAITS, script)
    assert found.said.startswith(said)
    assert found.made == (said == "READY")
    assert world.left() == []


def test_what_cannot_be_deleted_is_told_by_name():
    world = World()
    world.faults.append(Fault("delete", Refused(14, "busy"), times=10**6))
    with pytest.raises(Unknown, match=r"probe-[0-9a-f]{8} in us-east5-b may still be there and cost money") as error:
        zones.probe(Memory(world, "gce", [ZONE]), SPEC, ZONE, WAITS, script)
    assert "`taetpu tpu gc` removes it" in (error.value.remedy or "")


def test_ctrl_c_at_any_call_leaves_nothing():
    calls = Memory(World(), "gce", [ZONE])
    zones.probe(calls, SPEC, ZONE, WAITS, script)
    for at in range(1, calls.count + 1):
        world = World()
        with pytest.raises(KeyboardInterrupt):
            zones.probe(Memory(world, "gce", [ZONE], press_at=at), SPEC, ZONE, WAITS, script)
        assert world.left() == [], f"pressed at call {at}"


@pytest.mark.slow
def test_the_guard_ends_the_probe_of_a_program_that_was_killed(fake, monkeypatch):
    """On the Cloud TPU API no server does; the time is shortened, and nothing is deleted from here."""
    monkeypatch.setattr(zones, "PROBE_HOURS", 8 / 3600)
    monkeypatch.setattr(zones, "_gone", lambda *_: None)
    clients = Clients(fake.world.project)
    startup = partial(vm.startup, settings=Settings(project=fake.world.project, owner="me"))
    spec = replace(SPEC, backend="tpu-api", runtime="v2-alpha-tpuv6e")
    found = zones.probe(TpuApi(clients), spec, ZONE, Waits(poll=0.05, settle=1, ready=8), startup)
    assert found.made
    assert any(line.startswith("tpu.") for line in fake.left())
    until(lambda: not any(line.startswith("tpu.") for line in fake.left()), seconds=30)

"""From `taetpu tpu up` to a job's log and to the machine's own end, over both backends' fakes and real hosts."""

import json
import re

import pytest
from tests.cli.test_remote import project, taetpu  # noqa: F401 (fixture)
from tests.cloud.machines import until

from taetpu.cloud.fakes import gce, networks, prices, projects, quotas, tpu_rest
from taetpu.cloud.fakes.server import Server
from taetpu.cloud.fakes.tpu import Tpu
from taetpu.cloud.fakes.tpu_grpc import GrpcServer
from taetpu.cloud.fakes.world import World


@pytest.fixture
def world(hosts, monkeypatch):
    """Both backends' fakes, whose machines really boot."""
    found = World(hosts=hosts)
    tpu = Tpu(found)
    routes = [route for service in (gce, networks, prices, projects, quotas) for route in service.routes(found)]
    routes += [*tpu_rest.routes(tpu), *hosts.routes()]
    with Server(found, routes) as server, GrpcServer(tpu) as grpc:
        monkeypatch.setenv("TAETPU_FAKE_CLOUD", server.address)
        monkeypatch.setenv("TAETPU_FAKE_CLOUD_GRPC", grpc.address)
        yield found


def machines(world) -> list[str]:
    return [name for name in world.left() if name.startswith(("gce.instances", "tpu.nodes", "tpu.queued"))]


SINGLE, SEVERAL = ("v6e-8", "gce", 1), ("v4-16", "tpu-api", 2)
CHIPS = {"v6e-8": 8, "v4-16": 4}
"""On each host, of 32 GiB each."""


@pytest.mark.slow
@pytest.mark.parametrize(("kind", "backend", "workers"), [SINGLE, SEVERAL])
def test_a_machine_is_made_used_and_removed(world, hosts, project, kind, backend, workers):  # noqa: F811
    chips = CHIPS[kind]
    made = taetpu("tpu", "up", "--type", kind, "--backend", backend, "--yes", "--json")
    assert json.loads(made.stdout)["state"] == "ready"
    out = taetpu("tpu", "run", "python", "show.py", "x").stdout.splitlines()
    numbers = [""] if workers == 1 else [f"[{worker}] " for worker in range(workers)]
    assert sorted(out) == [f"{number}my work ['x']" for number in numbers]
    told = json.loads(taetpu("tpu", "status", "--json").stdout)
    assert [host["jobs"][0]["rc"] for host in told["hosts"]] == [0] * workers
    shown = taetpu("tpu", "status").stdout
    assert shown.startswith(f"t: {kind} in ")
    assert re.search(rf"\b{chips}\b.* nobody +not known +not known", shown), "no chip tells of itself: nothing runs"
    assert "ended with 0" in shown
    taetpu("tpu", "run", "--detach", "sleep", "600")
    shown = taetpu("tpu", "status").stdout
    use = rf"\b{chips}\b.* nobody +{chips * 16}.0 of {chips * 32} GiB +\d\d %"
    assert len(re.findall(use, shown)) == workers, "as the fake's simulated chips tell"
    taetpu("tpu", "stop", "--grace", "5")
    again = taetpu("tpu", "up", "--type", kind, "--backend", backend, "--yes")
    assert "setting up the environment" in again.stderr
    assert "asking for" not in again.stderr
    taetpu("tpu", "down", "--yes")
    assert machines(world) == []
    assert hosts.vms == {}
    assert "there is no TPU 't' of yours" in taetpu("tpu", "logs", code=2).stderr


@pytest.mark.slow
@pytest.mark.parametrize(("kind", "backend", "workers"), [SINGLE, pytest.param(*SEVERAL, marks=pytest.mark.nightly)])
def test_a_machine_whose_maker_is_gone_ends_itself(world, hosts, project, kind, backend, workers):  # noqa: F811
    taetpu("tpu", "up", "--type", kind, "--backend", backend, "--max-hours", "0.01", "--yes")
    assert len(hosts.vms) == workers
    until(lambda: json.loads(taetpu("tpu", "list", "--json").stdout)["machines"] == [], seconds=90)
    assert (machines(world), hosts.vms) == ([], {})

"""`taetpu tpu up --dry-run`, `list` and `gc`: what a user reads of plans, leftovers and zones that did not answer."""

import json

import pytest
from tests.cloud.gce import KEY, SLICE, ZONE

from taetpu.cloud.backends import gce_requests
from taetpu.cloud.backends.gce import Gce
from taetpu.cloud.clients import FAKE, FAKE_GRPC, Clients
from taetpu.cloud.fakes import gce, prices, tpu_rest
from taetpu.cloud.fakes.server import Route, Server
from taetpu.cloud.fakes.tpu import Tpu
from taetpu.cloud.fakes.world import World

UP = ("tpu", "up", "--type", "v6e-8", "--spot", "--dry-run")


class Place:
    """Both APIs, whose machines nobody can log into."""

    def __init__(self):
        self.world = World()
        self.tpu, self.skus, self.dark = Tpu(self.world), [], []

    def routes(self) -> list[Route]:
        def some(request):
            answer = listed.answer(request)
            for zone in self.dark:
                warning = {"code": "UNREACHABLE", "message": f"the scope zones/{zone} cannot be reached"}
                answer["items"][f"zones/{zone}"] = {"warning": warning}
            return answer

        answers = gce.routes(self.world)
        listed = next(route for route in answers if route.name == "instances.aggregatedList")
        first = Route("gce", listed.name, "GET", listed.pattern, some)
        return [first, *answers, *tpu_rest.routes(self.tpu), *prices.routes(self.world, self.skus)]


@pytest.fixture
def place(monkeypatch, tmp_path):
    found = Place()
    for name in ("ZONES", "REGION", "BACKEND", "IMAGE", "MAX_USD", "STACK"):
        monkeypatch.delenv(f"TAETPU_{name}", raising=False)
    monkeypatch.delenv(FAKE_GRPC, raising=False)
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    monkeypatch.setenv("TAETPU_CACHE", str(tmp_path / "cache"))
    monkeypatch.setenv("TAETPU_PROJECT", found.world.project)
    monkeypatch.setenv("TAETPU_OWNER", "me")
    with Server(found.world, found.routes()) as server:
        monkeypatch.setenv(FAKE, server.address)
        yield found


def asked(told: str) -> list[str]:
    """The zones of a plan, in their order."""
    return [line.split()[0] for line in told.splitlines() if line.startswith("  ") and " an hour" in line]


def test_a_plan_fits_the_terminal_and_says_where_prices_are_from(taetpu, place):
    code, out, err = taetpu(*UP)
    assert (code, out) == (0, "")
    lines = err.splitlines()
    assert max(map(len, lines)) <= 80
    assert lines[0].startswith("tpu-me: v6e-8 (8 chips, 1 host), spot, by gce with")
    assert "  us-central1-b" in err
    assert "$4.32 an hour, at most $17.28 in 4 h" in err
    assert "price in us-south1-ai1b" in err
    assert lines[-1] == "dry run: nothing was changed"
    assert place.world.changes() == []


def test_at_the_same_price_zones_of_the_us_come_first_and_the_settings_region_before_all(taetpu, place, monkeypatch):
    order = asked(taetpu(*UP).err)
    assert order[0] == "us-central1-b"
    assert order.index("us-east5-b") < order.index("asia-northeast1-b")
    assert order[-1] == "us-south1-ai1b", "the dearest comes last"
    monkeypatch.setenv("TAETPU_REGION", "europe-west4")
    assert asked(taetpu(*UP).err)[:2] == ["europe-west4-a", "us-central1-b"]
    assert asked(taetpu(*UP, "--zone", "us-east5-b", "--zone", "us-central1-b").err) == ["us-east5-b", "us-central1-b"]


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (("--zone", "nowhere"), "'nowhere' is no zone"),
        (("--max-usd", "-1"), "no TPU costs at most $-1"),
        (("--max-usd", "1"), "v6e-8 (spot) in us-central1-b may cost $17.28 in 4 h, more than max_usd 1"),
        (("--type", "tpu7x-8", "--runtime", "x", "--max-usd", "900"), "no rate is known for tpu7x-8 (spot) in us-"),
    ],
)
def test_what_no_machine_can_be_is_refused_before_anything_is_asked_for(taetpu, place, options, words):
    code, _, err = taetpu(*UP[:-1], *options, "--yes")
    assert (code, err.startswith(f"error: {words}")) == (2, True), err
    assert place.world.changes() == []


def test_cost_counts_only_what_cost(taetpu, place):
    assert taetpu("tpu", "down", "never-made").code == 0
    assert taetpu("tpu", "cost").out == "nothing has been made yet\n"
    assert taetpu("tpu", "cost", "--json").json() == []


def test_an_image_of_container_registry_is_refused_before_anything_is_asked_for(taetpu, place, monkeypatch):
    monkeypatch.setenv("TAETPU_IMAGE", "gcr.io/p/taetpu:1")
    code, _, err = taetpu(*UP[:-1], "--yes")
    assert code == 2
    assert err.startswith("error: 'gcr.io/p/taetpu:1' is in Container Registry, which was shut down on 2025-03-18")
    assert place.world.changes() == []


def test_what_a_slice_left_is_told_once_and_removed(taetpu, place):
    calls = Gce(Clients(place.world.project)).calls
    made = gce_requests.template(SLICE, place.world.project, ZONE, "", KEY, SLICE.labels())
    made = calls.change("RegionInstanceTemplates", "insert", "", region="us-east5", instance_template_resource=made)
    while not made.done():
        pass
    code, out, _ = taetpu("tpu", "list")
    assert code == 0
    assert out == (
        "no TPU machine is there\n"
        "left over: my-tpu in us-east5-b: only its policy or template is left (`taetpu\n"
        "  tpu down my-tpu` removes it)\n"
    )
    told = taetpu("tpu", "list", "--json").json()
    assert [(one["name"], one["state"], one["workers"]) for one in told["machines"]] == [("my-tpu", "lost", [])]
    assert taetpu("tpu", "down", "my-tpu", "--yes").code == 0
    assert place.world.left() == []


@pytest.mark.parametrize(("backend", "zone"), [("tpu-api", "us-west4-a"), ("gce", "us-east1-d")])
def test_zones_that_did_not_answer_are_named(taetpu, place, backend, zone):
    place.tpu.unreachable |= {zone} if backend == "tpu-api" else set()
    place.dark += [zone] if backend == "gce" else []
    words = f"not seen: {backend} did not answer for {zone}; what is there is not known"
    assert words in taetpu("tpu", "list").err
    assert words in taetpu("tpu", "gc").err
    assert json.loads(taetpu("tpu", "list", "--json").out) == {"machines": [], "unseen": {backend: [zone]}}

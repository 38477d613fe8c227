"""`taetpu tpu up --dry-run`, `list` and `gc`: what a user reads of plans, leftovers and zones that did not answer."""

import json

import pytest
from tests.cli.places import Place
from tests.cloud.gce import KEY, SLICE, ZONE

from taetpu.cloud.backends import gce_requests
from taetpu.cloud.backends.gce import Gce
from taetpu.cloud.clients import FAKE, FAKE_GRPC, Clients
from taetpu.cloud.fakes.server import Server

UP = ("tpu", "up", "--type", "v6e-8", "--spot", "--dry-run")


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
        (("--zone", "us-central2-b"), "gce does not list v6e-8 in us-central2-b"),
        (("--max-usd", "-1"), "no TPU costs at most $-1"),
        (("--max-usd", "nan"), "no TPU costs at most $nan"),
        (("--max-usd", "inf"), "no TPU costs at most $inf"),
        (("--max-hours", "nan"), "a TPU cannot be kept for nan hours"),
        (("--max-hours", "inf"), "a TPU cannot be kept for inf hours"),
        (("--max-usd", "1"), "v6e-8 (spot) in us-central1-b may cost $17.28 in 4 h, more than max_usd 1"),
        (("--max-usd-per-chip-hour", "0"), "no TPU costs at most $0"),
        (("--max-usd-per-chip-hour", "0.5"), "v6e-8 (spot) in us-central1-b costs $0.54 per chip-hour, more than 0.5"),
        (("--type", "tpu7x-8", "--runtime", "x", "--max-usd", "900"), "no rate is known for tpu7x-8 (spot) in us-"),
    ],
)
def test_what_no_machine_can_be_is_refused_before_anything_is_asked_for(taetpu, place, options, words):
    code, _, err = taetpu(*UP[:-1], *options, "--yes")
    assert (code, err.startswith(f"error: {words}")) == (2, True), err
    assert place.world.changes() == []


def test_zones_whose_rate_is_too_high_are_left_out(taetpu, place):
    dear = asked(taetpu(*UP, "--zone", "us-south1-ai1b", "--zone", "us-east5-b").err)
    assert dear == ["us-south1-ai1b", "us-east5-b"]
    limit = ("--max-usd-per-chip-hour", "0.6")
    assert asked(taetpu(*UP, "--zone", "us-south1-ai1b", "--zone", "us-east5-b", *limit).err) == ["us-east5-b"]


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


UP_ANYWAY = (*UP[:-1], "--yes")


def told(err: str) -> str:
    """What was said as one line, however it was broken."""
    return " ".join(err.split())


def test_a_machine_that_is_there_is_told_with_its_own_limits(taetpu, place):
    place.made(hours=1.0, idle_minutes=30)
    code, _, err = taetpu(*UP, "--zone", "us-central1-b", "--idle-minutes", "0", "--max-hours", "100")
    said = told(err)
    assert code == 0
    assert "is there already, in us-east5-b (RUNNING): nothing would be made" in said
    assert "deleted in 1:00 h, or once idle for 30 min: $4.32 an hour, at most $4.32 in 1 h" in said
    assert "its limits stay as they were made, whatever --max-hours 100 and --idle-minutes 0 say" in said
    assert "`taetpu tpu down tpu-me`, then the same command, makes it anew with them" in said
    assert "100 h" not in said
    assert asked(err) == []
    assert place.world.changes() == []


def test_one_that_never_ends_itself_is_told_so(taetpu, place):
    place.made(idle_minutes=None)
    err = taetpu(*UP).err
    assert "deleted in 4:00 h: $4.32 an hour, at most $17.28 in 4 h" in err
    assert "its limits stay as they were made, whatever --idle-minutes 30 say" in told(err), "the settings' own"
    place.world.table("gce.instances").clear()
    place.made()
    assert "its limits stay" not in taetpu(*UP).err


@pytest.mark.parametrize("options", [UP, UP_ANYWAY])
@pytest.mark.parametrize(
    ("limit", "words"),
    [
        ("MAX_USD", "may cost $17.28 in 4 h, more than max_usd 0.5"),
        ("MAX_USD_PER_CHIP_HOUR", "costs $0.54 per chip-hour, more than 0.5"),
    ],
)
def test_limits_are_held_against_the_time_that_a_machine_has_left(taetpu, place, monkeypatch, options, limit, words):
    place.made(hours=4.0)
    monkeypatch.setenv(f"TAETPU_{limit}", "0.5")
    code, _, err = taetpu(*options, "--max-hours", "0.1")
    assert (code, words in told(err)) == (2, True), err
    assert place.world.changes() == []


def test_an_hour_that_is_left_is_not_held_against_a_limit_as_four(taetpu, place):
    place.made(hours=1.0)
    assert taetpu(*UP, "--max-usd", "5").code == 0


@pytest.mark.parametrize("options", [UP, UP_ANYWAY])
def test_another_machine_of_the_name_is_told_before_anything_is_asked_for(taetpu, place, options):
    place.made(disk_gb=100)
    code, _, err = taetpu(*options)
    assert code == 2
    assert err.startswith("error: 'tpu-me' in us-east5-b is there already and differs: ")
    assert place.world.changes() == []


def test_a_machine_whose_time_is_over_is_not_called_there(taetpu, place):
    place.made(hours=1.0)
    (instance,) = place.world.table("gce.instances").values()
    instance["labels"]["taetpu-expires"] = "1"
    code, _, err = taetpu(*UP)
    assert (code, place.world.changes()) == (2, [])
    assert "tpu-me in us-east5-b is there, and should be gone: its time is over" in told(err)


def test_a_lost_one_is_told_to_be_made_anew(taetpu, place):
    place.made()
    (instance,) = place.world.table("gce.instances").values()
    instance["status"] = "STOPPING"
    code, _, err = taetpu(*UP)
    assert "the one in us-east5-b is over (STOPPING): what is left of it is removed, and it is made anew" in told(err)
    assert (code, asked(err)[0], place.world.changes()) == (0, "us-central1-b", [])


def test_zones_that_nobody_lists_are_left_out_and_said(taetpu, place):
    err = taetpu(*UP, "--zone", "us-central2-b", "--zone", "us-east5-b").err
    assert asked(err) == ["us-east5-b"]
    assert "left out, for gce does not list v6e-8 there: us-central2-b" in told(err)


@pytest.mark.parametrize("name", ["a b/c", "-x", "X", "a/b", "projects/p/locations/z/reservations/r"])
def test_what_no_reservation_can_be_called_is_refused(taetpu, place, name):
    code, _, err = taetpu("tpu", "up", "--type", "v6e-8", f"--reservation={name}", "--dry-run")
    assert (code, err.splitlines()[0]) == (2, f"error: {name!r} cannot be the name of a reservation")
    assert "projects/PROJECT/reservations/NAME" in err
    for good in ("mine", "projects/p-1/reservations/mine"):
        assert taetpu("tpu", "up", "--type", "v6e-8", "--reservation", good, "--dry-run").code == 0


def test_what_was_removed_is_told_as_json(taetpu, place):
    place.made()
    dry = taetpu("tpu", "down", "--json", "--dry-run").json()
    assert ([one["name"] for one in dry["found"]], dry["removed"]) == (["tpu-me"], [])
    done = taetpu("tpu", "down", "--json", "--yes").json()
    assert [(one["name"], one["zone"]) for one in done["removed"]] == [("tpu-me", "us-east5-b")]
    assert taetpu("tpu", "down", "--json", "--yes").json() == {"found": [], "removed": []}


def test_what_had_expired_is_told_as_json(taetpu, place):
    place.made("old")
    place.made("young")
    (old,) = [one for one in place.world.table("gce.instances").values() if one["name"] == "old"]
    old["labels"]["taetpu-expires"] = "1"
    dry = taetpu("tpu", "gc", "--json", "--dry-run").json()
    assert ([one["name"] for one in dry["found"]], dry["removed"]) == (["old"], [])
    assert [one["name"] for one in taetpu("tpu", "gc", "--json", "--yes").json()["removed"]] == ["old"]
    assert taetpu("tpu", "gc", "--json", "--yes").json() == {"found": [], "removed": []}
    assert [one["name"] for one in place.world.table("gce.instances").values()] == ["young"]


def test_a_plan_is_told_as_json_too(taetpu, place):
    code, out, err = taetpu(*UP, "--zone", "us-east5-b", "--max-hours", "2", "--json")
    plan = json.loads(out)
    assert (code, err.splitlines()[-1]) == (0, "dry run: nothing was changed")
    spec = {name: plan["spec"][name] for name in ("type", "chips", "hosts", "backend", "provisioning", "hours")}
    assert spec == {"type": "v6e-8", "chips": 8, "hosts": 1, "backend": "gce", "provisioning": "spot", "hours": 2.0}
    assert (plan["tpu"], plan["there"], plan["notes"]) == ("tpu-me", None, [])
    (zone,) = plan["zones"]
    assert zone["usd_at_most"] == plan["usd_at_most"] == pytest.approx(2 * zone["usd_per_hour"])
    assert zone["usd_per_hour"] == pytest.approx(8 * zone["usd_per_chip_hour"])
    assert f"price in us-east5-b: {zone['source']}" in " ".join(err.split())
    place.made(hours=2.0)
    ready = json.loads(taetpu(*UP, "--json").out)
    assert (ready["zones"], ready["there"]["zone"]) == ([], "us-east5-b")
    assert ready["usd_at_most"] == ready["there"]["left"]["usd_at_most"]

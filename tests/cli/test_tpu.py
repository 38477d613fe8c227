"""`taetpu tpu up --dry-run`, `list` and `gc`: what a user reads of plans, leftovers and zones that did not answer."""

import json
import re
import time
from datetime import UTC, datetime

import pytest
from tests.cli.places import Place
from tests.cloud.gce import KEY, SLICE, ZONE

from taetpu.cloud.backends import gce_requests
from taetpu.cloud.backends.gce import Gce
from taetpu.cloud.backends.tpu_api import TpuApi
from taetpu.cloud.clients import FAKE, FAKE_GRPC, Clients
from taetpu.cloud.fakes.prices import sku
from taetpu.cloud.fakes.server import Server
from taetpu.cloud.spec import Spec
from taetpu.cloud.state import Record, Records
from taetpu.core.chips import resolve

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


EAST = sku("TpuV6e attached to Spot Preemptible VMs running in Columbus", 0.54, "us-east5", usage="Preemptible")
"""The tables have no rate of this region on spot."""


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
    assert order[:3] == ["us-central1-b", "us-east1-d", "us-south1-ai1b"], "known rates first, by price; then guesses"
    monkeypatch.setenv("TAETPU_REGION", "europe-west4")
    assert asked(taetpu(*UP).err)[:2] == ["europe-west4-a", "us-central1-b"]
    assert asked(taetpu(*UP, "--zone", "us-east5-b", "--zone", "us-central1-b").err) == ["us-east5-b", "us-central1-b"]


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (("--zone", "nowhere"), "'nowhere' is no zone"),
        (("--backend", "foo"), "there is no backend 'foo'\n  where:  --backend\n"),
        (("--type", "v5e-8", "--backend", "gce"), "gce does not make v5e\n  where:  --backend\n"),
        (("--runtime", "x y"), "'x y' cannot be the name of an image family of Compute Engine\n  where:  --runtime\n"),
        (
            ("--runtime", "v2-alpha-tpuv6e"),
            "'v2-alpha-tpuv6e' is a runtime version of the Cloud TPU API, and gce starts an image family of Compute "
            "Engine\n  where:  --runtime\n  remedy: --backend tpu-api, or an image family",
        ),
        (
            ("--runtime", "ubuntu-accel-2204-amd64-tpu-v5e-v5p-v6e", "--backend", "tpu-api"),
            "'ubuntu-accel-2204-amd64-tpu-v5e-v5p-v6e' is an image family of Compute Engine, and tpu-api starts a "
            "runtime version of the Cloud TPU API\n  where:  --runtime\n  remedy: --backend gce, or a runtime version",
        ),
        (("--zone", "us-central2-b"), "gce does not list v6e-8 in us-central2-b"),
        (("--max-usd", "-1"), "no TPU costs at most $-1"),
        (("--max-usd", "nan"), "invalid value for '--max-usd': 'nan' is not a number"),
        (("--max-usd", "inf"), "invalid value for '--max-usd': 'inf' is not a number"),
        (("--max-hours", "nan"), "invalid value for '--max-hours': 'nan' is not a number"),
        (("--max-hours", "inf"), "invalid value for '--max-hours': 'inf' is not a number"),
        (("--max-hours", "0.0001"), "a TPU cannot be kept for 0.0001 hours: it takes minutes until one is ready"),
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


def test_a_rate_that_is_a_guess_is_told_so_and_keeps_no_limit(taetpu, place):
    said = told(taetpu(*UP).err)
    assert "us-east5-b about $4.32 an hour, may be more: no rate is known there" in said
    limited = taetpu(*UP, "--max-usd", "50")
    assert asked(limited.err) == ["us-central1-b", "us-east1-d", "us-south1-ai1b"]
    assert "left out, for no rate is known there and there is a limit: us-east5-" in told(limited.err)
    refused = taetpu(*UP, "--max-usd", "50", "--zone", "us-east5-b")
    assert refused.code == 2
    assert "no rate is known for v6e-8 (spot) in us-east5-b, so a limit on its cost cannot be kept" in refused.err
    place.skus.append(EAST)
    assert taetpu(*UP, "--max-usd", "50", "--zone", "us-east5-b").code == 2, "the catalog is read once a day"


def test_zones_whose_rate_is_too_high_are_left_out(taetpu, place):
    place.skus.append(EAST)
    dear = asked(taetpu(*UP, "--zone", "us-south1-ai1b", "--zone", "us-east5-b").err)
    assert dear == ["us-south1-ai1b", "us-east5-b"]
    limit = ("--max-usd-per-chip-hour", "0.6")
    assert asked(taetpu(*UP, "--zone", "us-south1-ai1b", "--zone", "us-east5-b", *limit).err) == ["us-east5-b"]
    said = told(taetpu(*UP, "--zone", "us-south1-ai1b", "--zone", "us-east5-b", *limit).err)
    assert "left out, for they cost more than is allowed: us-south1-ai1b" in said


def test_cost_counts_only_what_cost(taetpu, place):
    assert taetpu("tpu", "down", "never-made").code == 0
    assert taetpu("tpu", "cost").out == "nothing has been made yet\n"
    assert taetpu("tpu", "cost", "--json").json() == []


def costs(taetpu) -> dict:
    """What `taetpu tpu cost` says, by TPU, in whole cents."""
    rows = taetpu("tpu", "cost", "--json").json()
    return {row["tpu"]: {k: round(v, 2) if isinstance(v, float) else v for k, v in row.items()} for row in rows}


def test_a_machine_that_no_record_prices_is_priced_as_one_that_would_be_made(taetpu, place):
    place.skus.append(EAST)
    place.made(hours=4.0)
    place.made("far", zone="asia-northeast1-b")
    (far,) = [one for one in place.world.table("gce.instances").values() if one["name"] == "far"]
    far["lastStartTimestamp"] = datetime.fromtimestamp(time.time() - 3600, UTC).isoformat()
    assert taetpu("tpu", "list").code == 0
    found = costs(taetpu)
    assert (found["tpu-me"]["USD an hour"], found["tpu-me"]["at most yet"]) == (4.32, pytest.approx(17.28, abs=0.02))
    assert (found["tpu-me"]["guess"], found["far"]["guess"]) == (False, True)
    assert found["far"]["so far"] == pytest.approx(4.32, abs=0.02), "an hour since its start"
    shown = taetpu("tpu", "cost").out
    assert "no rate" not in shown.partition("By published")[0]
    assert "~4.32" in shown
    assert "~ is a guess, for no rate is known there" in " ".join(shown.split())


def test_a_machine_that_is_over_may_cost_no_more(taetpu, place):
    place.made(zone="us-central1-b")
    (instance,) = place.world.table("gce.instances").values()
    instance["status"] = "STOPPING"
    (row,) = costs(taetpu).values()
    assert (row["state"], row["USD an hour"], row["at most yet"]) == ("lost", 0.0, 0.0)


def test_the_rate_of_an_earlier_machine_is_not_that_of_one_whose_maker_was_killed(taetpu, place):
    place.made(zone="us-central1-b")
    records = Records(place.world.project)
    records.write(Record(place.world.project, "tpu-me", zones=("us-central1-b",), usd_per_hour=99.0, spent=7.0))
    (row,) = costs(taetpu).values()
    assert (row["USD an hour"], row["at most yet"]) == (4.32, pytest.approx(17.28, abs=0.02))
    assert row["so far"] == pytest.approx(7.0, abs=0.02), "what came before counts"


def test_one_damaged_record_is_named_and_the_others_are_shown(taetpu, place):
    place.made(zone="us-central1-b")
    records = Records(place.world.project)
    records.write(Record(place.world.project, "old", spent=3.0))
    (records.folder / "tpu-me.json").write_text("{")
    done = taetpu("tpu", "cost")
    assert done.code == 0
    assert re.search(r"old +gone +0.00 +3.00 +0.00", done.out)
    assert re.search(r"tpu-me +ready +4.32 +0.0\d +17.2\d", done.out)
    said = "".join(done.err.split())
    assert f"warning:thisrecordofaTPUisdamaged:{records.folder / 'tpu-me.json'};deleteit:" in said
    assert "the hours and dollars that its study has used are forgotten with it" in told(done.err)


WAITING = ("tpu", "up", "--type", "v5e-8", "--dry-run", "--zone", "us-south1-a")


def test_what_waits_is_told_alike_by_all_and_goes_on_where_it_is(taetpu, place):
    place.tpu.queue.starved.add("us-west4-a")
    runtime = "v2-alpha-tpuv5-lite"
    spec = Spec("tpu-me", resolve("v5e-8"), "tpu-api", owner="me", runtime=runtime, hours=4.0)
    TpuApi(Clients(place.world.project)).create(spec, "us-west4-a", "", KEY)
    code, _, err = taetpu(*WAITING)
    assert code == 0, err
    assert "deleted 4:00 h after it starts, or once idle for 30 min: " in told(err)
    assert "it goes on in us-west4-a, whatever --zone us-south1-a says" in told(err)
    assert "4:00 h after it starts" in " ".join(taetpu("tpu", "list").out.split())
    assert "deleted 4:00 h after it starts" in taetpu("tpu", "status", "tpu-me").out
    place.world.skew += 7200
    assert "4:00 h after it starts" in " ".join(taetpu("tpu", "list").out.split()), "its time has not begun"


def test_times_are_by_the_clouds_clock(taetpu, place):
    place.made(zone="us-central1-b", hours=4.0)
    place.world.skew += 3 * 3600
    assert "in 1:00 h" in taetpu("tpu", "list").out
    assert "deleted in 1:00 h" in taetpu(*UP).err
    (instance,) = place.world.table("gce.instances").values()
    instance["labels"]["taetpu-expires"] = str(int(place.world.now() - 3600))
    assert "expired 1:00 h ago" in taetpu("tpu", "gc", "--dry-run").err


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
    place.skus.append(EAST)
    place.made(hours=1.0, idle_minutes=30)
    code, _, err = taetpu(*UP, "--zone", "us-central1-b", "--idle-minutes", "0", "--max-hours", "100")
    said = told(err)
    assert code == 0
    assert "is there already, in us-east5-b (RUNNING): nothing would be made" in said
    assert "deleted in 1:00 h, or once idle for 30 min: $4.32 an hour, at most $4.32 in 1 h" in said
    assert "its limits stay as they were made, whatever --max-hours 100 and --idle-minutes 0 say" in said
    assert "`taetpu tpu down tpu-me`, then the same command, makes it anew with them" in said
    assert "100 h" not in said
    assert "it stays in us-east5-b, whatever --zone us-central1-b says: `taetpu tpu down tpu-me` ends it there" in said
    assert asked(err) == []
    assert place.world.changes() == []


def test_one_that_never_ends_itself_is_told_so(taetpu, place):
    place.skus.append(EAST)
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
    place.skus.append(EAST)
    place.made(hours=4.0)
    monkeypatch.setenv(f"TAETPU_{limit}", "0.5")
    code, _, err = taetpu(*options, "--max-hours", "0.1")
    assert (code, words in told(err)) == (2, True), err
    assert place.world.changes() == []


def test_an_hour_that_is_left_is_not_held_against_a_limit_as_four(taetpu, place):
    place.skus.append(EAST)
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


def test_people_whose_names_are_alike_have_machines_of_their_own(taetpu, place, monkeypatch):
    place.made()
    for owner, plan in (("mé", "tpu-m-"), ("é", "tpu-x"), ("m.e", "tpu-m-e-")):
        monkeypatch.setenv("TAETPU_OWNER", owner)
        assert taetpu(*UP).err.startswith(plan)
        told = taetpu("tpu", "down", "tpu-me", "--yes")
        assert (told.code, "nothing is there of 'tpu-me'" in told.err) == (0, True)
    assert place.world.changes() == []


def test_an_owner_that_many_are_is_told_in_plans(taetpu, place, monkeypatch):
    warning = "warning: owner root: shared by everybody who is root in this project, with `down` and `gc`; set `owner`"
    assert "warning: owner" not in taetpu(*UP).err
    monkeypatch.delenv("TAETPU_OWNER")
    monkeypatch.setenv("USER", "root")
    told = " ".join(taetpu(*UP).err.split())
    assert told.count(f"{warning} in taetpu.toml, or TAETPU_OWNER") == 1


NO_NETWORK = [
    ("tpu", "list"),
    ("tpu", "cost"),
    ("tpu", "gc", "--yes"),
    ("tpu", "up", "--type", "v6e-8", "--yes"),
    ("image", "list", "--region", "us-east5"),
]


@pytest.mark.parametrize("words", NO_NETWORK, ids=" ".join)
def test_no_network_is_told_in_words(taetpu, place, monkeypatch, words):
    monkeypatch.setenv(FAKE, "http://127.0.0.1:1")
    code, out, err = taetpu(*words)
    doing = "listing images" if words[0] == "image" else "listing machines"
    assert (code, out) == (3, "")
    assert err == (
        f"error: {doing}: Google does not answer (127.0.0.1: Connection refused)\n"
        "  remedy: see to the connection, then give the same command again\n"
    )


@pytest.mark.parametrize("words", [("left",), ("preempt", "tpu-me")], ids=" ".join)
def test_a_fake_cloud_that_is_gone_is_told(taetpu, monkeypatch, words):
    monkeypatch.setenv(FAKE, "http://127.0.0.1:1")
    told = taetpu("dev", *words)
    assert (told.code, told.err.splitlines()[:2]) == (
        2,
        ["error: no fake cloud answers at http://127.0.0.1:1: [Errno 111] Connection refused", f"  where:  {FAKE}"],
    )
    assert "remedy: it has ended; `taetpu dev fake-cloud -- COMMAND` runs one" in told.err


def test_a_plan_is_told_as_json_too(taetpu, place):
    code, out, err = taetpu(*UP, "--zone", "us-central1-b", "--max-hours", "2", "--json")
    plan = json.loads(out)
    assert (code, err.splitlines()[-1]) == (0, "dry run: nothing was changed")
    spec = {name: plan["spec"][name] for name in ("type", "chips", "hosts", "backend", "provisioning", "hours")}
    assert spec == {"type": "v6e-8", "chips": 8, "hosts": 1, "backend": "gce", "provisioning": "spot", "hours": 2.0}
    assert (plan["tpu"], plan["there"], plan["notes"]) == ("tpu-me", None, [])
    (zone,) = plan["zones"]
    assert zone["usd_at_most"] == plan["usd_at_most"] == pytest.approx(2 * zone["usd_per_hour"])
    assert zone["usd_per_hour"] == pytest.approx(8 * zone["usd_per_chip_hour"])
    assert f"price in us-central1-b: {zone['source']}" in " ".join(err.split())
    place.made(hours=2.0)
    ready = json.loads(taetpu(*UP, "--json").out)
    assert (ready["zones"], ready["there"]["zone"]) == ([], "us-east5-b")
    assert ready["usd_at_most"] == ready["there"]["left"]["usd_at_most"]

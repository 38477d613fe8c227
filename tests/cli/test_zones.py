"""`taetpu tpu zones`: three columns side by side in 80, a probe only if agreed to, zones written into the file."""

import pytest
from tests.cloud.looking import Memory

from taetpu.cli.cloud import Here
from taetpu.cloud.fakes import prices, quotas
from taetpu.cloud.fakes.world import Fault, Refused, stockout
from taetpu.cloud.project import Cloud, Waits
from taetpu.cloud.state import Records

TOML = '# mine\n[cloud]\nproject = "fake-project"\nregion = "us-east5"\nowner = "me"\n'


@pytest.fixture
def ready(looked, here, monkeypatch):
    """Settings, quotas and prices, and two backends that list one zone each."""
    (here / "taetpu.toml").write_text(TOML)
    looked.infos += quotas.usual()
    looked.skus += prices.usual()
    backends = [Memory(looked.world, "gce", ["us-east5-b"]), Memory(looked.world, "tpu-api", ["us-east5-a"])]
    waits = Waits(poll=0.001, settle=0.02, ready=0.2)
    monkeypatch.setattr(Here, "cloud", Cloud(backends, Records("fake-project"), "me", waits=waits))
    return looked


def test_three_columns_stand_side_by_side(ready, taetpu):
    done = taetpu("tpu", "zones", "--type", "v6e-8", "--spot")
    assert done.code == 0, done.err
    assert max(map(len, done.out.splitlines())) <= 80
    rows = {tuple(line.split()[:2]): line.split()[2:] for line in done.out.splitlines() if line.startswith("us-east5-")}
    assert rows["us-east5-b", "gce"] == ["API", "32", "chips", "1.403"]
    assert rows["us-east5-a", "tpu-api"] == ["API", "not", "set", "1.403"]
    assert rows["us-east5-b", "tpu-api"] == ["Google's", "table", "64", "cores", "1.403"]
    assert len(rows) == 4
    told = " ".join(done.out.split())
    assert "None of these says whether any is free just now: nothing tells that but a request." in told
    assert "available" not in told
    assert "Price (spot) in us-east5-a, us-east5-b: Billing Catalog, read" in told
    assert ready.world.changes() == []


def test_regions_are_the_settings_the_one_asked_for_or_all(ready, taetpu):
    def zones(*options):
        return {row["zone"] for row in taetpu("tpu", "zones", "--type", "v6e-8", "--json", *options).json()["zones"]}

    assert zones() == {"us-east5-a", "us-east5-b"}
    assert zones("--region", "us-south1") == {"us-south1-ai1b"}
    assert {"us-east5-a", "asia-northeast1-b", "europe-west4-a"} < zones("--all-regions")
    done = taetpu("tpu", "zones", "--type", "v6e-8", "--region", "us-east5-a")
    told = "error: 'us-east5-a' is no region but a zone\n  where:  --region\n  remedy: its region, us-east5\n"
    assert (done.code, done.err) == (2, told)
    done = taetpu("tpu", "zones", "--type", "v6e-8", "--region", "us-east9")
    assert (done.code, "nobody names a zone in us-east9 that has v6e-8" in done.err) == (2, True)
    assert taetpu("tpu", "zones", "--type", "v6e-8", "--region", "us-east5", "--all-regions").code == 2


def test_json_says_not_set_as_null_and_who_publishes(ready, taetpu):
    table = taetpu("tpu", "zones", "--type", "v6e-8", "--json").json()
    assert (table["type"], table["provisioning"]) == ("v6e-8", "on-demand")
    rows = {(row["zone"], row["backend"]): row for row in table["zones"]}
    assert rows["us-east5-a", "tpu-api"]["quota"] == {"value": None, "unit": "cores", "needed": 8, "names": []}
    assert rows["us-east5-b", "gce"]["quota"]["value"] == 32
    assert rows["us-east5-b", "gce"]["published"] == "by the API"
    assert rows["us-east5-b", "gce"]["usd_per_chip_hour"] == 2.7


def test_without_quotas_or_a_catalog_the_table_still_stands(ready, taetpu):
    ready.world.faults += [Fault("quotaInfos.list", Refused(7, "no")), Fault("skus.list", Refused(7, "no"))]
    done = taetpu("tpu", "zones", "--type", "v6e-8")
    assert done.code == 0
    assert "quotas are not to be had" in done.err
    told = " ".join(done.out.split())
    assert "not known" in told
    assert "2.7" in told
    assert "the Billing Catalog is not to be had" in told


def test_a_probe_is_agreed_to_and_leaves_nothing(ready, taetpu, here):
    asked = ("tpu", "zones", "--type", "v6e-8", "--probe")
    done = taetpu(*asked)
    assert done.code == 2
    assert "nobody is here to agree to this" in done.err
    done = taetpu(*asked, "--dry-run", "--write")
    assert done.code == 0
    assert "us-east5-b by gce: $11.23 an hour while it is there" in done.err
    assert ready.world.changes() == []
    ready.world.faults.append(Fault("create", stockout("us-east5-a"), zone="us-east5-a", times=2))
    done = taetpu(*asked, "--write", "--yes")
    assert done.code == 0, done.err
    assert ready.world.left() == []
    told = " ".join(done.out.split())
    assert "Asked for in us-east5-b by gce: a spot machine was given, and is gone again (READY)." in told
    assert "Asked for in us-east5-a by gce: none was given (stockout: There is no more capacity" in told
    assert 'zones = ["us-east5-b"]' in (here / "taetpu.toml").read_text(), "zones that gave one are written"


def test_googles_own_clients_probe_both_apis_and_leave_nothing(looked, taetpu, here):
    (here / "taetpu.toml").write_text(TOML)
    done = taetpu("tpu", "zones", "--type", "v6e-16", "--probe", "--yes", "--json")
    rows = done.json()["zones"]
    assert {(row["zone"], row["backend"]) for row in rows} == {
        (zone, backend) for zone in ("us-east5-a", "us-east5-b") for backend in ("gce", "tpu-api")
    }
    assert {row["published"] for row in rows} == {"by the API"}
    assert [row["probe"]["made"] for row in rows] == [True] * 4, rows
    assert looked.world.left() == []


def test_zones_are_written_into_the_file_and_nothing_else_changes(ready, taetpu, here, monkeypatch):
    asked = ("tpu", "zones", "--type", "v6e-8", "--write")
    assert taetpu(*asked, "--dry-run").code == 0
    assert (here / "taetpu.toml").read_text() == TOML
    assert taetpu(*asked, "--yes").code == 0
    written = (here / "taetpu.toml").read_text()
    assert written == TOML.replace("[cloud]\n", '[cloud]\nzones = ["us-east5-a", "us-east5-b"]\n')
    again = taetpu(*asked, "--yes", "--region", "europe-west4").err
    assert "zones = us-east5-a, us-east5-b -> europe-west4-a" in " ".join(again.split())
    assert "warning" not in again
    ready.buckets["mine"] = "US-EAST5"
    monkeypatch.setenv("TAETPU_BUCKET", "mine")
    warned = " ".join(taetpu(*asked, "--dry-run", "--region", "europe-west4").err.split())
    assert "warning: the bucket is in us-east5 and your zones are in europe-west4: every checkpoint and" in warned
    assert "warning" not in taetpu(*asked, "--dry-run").err
    monkeypatch.setenv("TAETPU_BUCKET", "none-there")
    assert "warning" not in taetpu(*asked, "--dry-run").err
    (here / "taetpu.toml").unlink()
    monkeypatch.setenv("TAETPU_PROJECT", "fake-project")
    assert taetpu(*asked, "--yes", "--region", "us-east5").code == 0
    assert (here / "taetpu.toml").read_text() == '[cloud]\nzones = ["us-east5-a", "us-east5-b"]\n'

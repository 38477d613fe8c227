"""Quotas, by Google's client: what is not set is no 0, the two APIs count apart, and zone and region both hold."""

import pytest

from taetpu.cloud import quotas
from taetpu.cloud.errors import Permission, Transient
from taetpu.cloud.fakes.projects import disabled
from taetpu.cloud.fakes.quotas import info, usual
from taetpu.cloud.fakes.world import Fault, Refused
from taetpu.cloud.quotas import Limit
from taetpu.core.chips import resolve

ZONE, DEMAND, SPOT = "us-east5-b", "TPUV6EPerProjectPerZoneForTPUAPI", "TPUV6EPreemptiblePerProjectPerZoneForTPUAPI"
V6E = resolve("v6e-8")


def of(looked, tpu=V6E, backend="tpu-api", zone=ZONE, way="on-demand"):
    return quotas.read(looked.clients).of(tpu, backend, zone, way)


def test_what_is_not_set_is_not_0(looked):
    assert of(looked) == Limit(None, 8, "cores")
    assert (of(looked).enough, of(looked).told()) == (None, "not set")
    looked.infos.append(info(DEMAND, {"us-east5-a": 16, "us-east5-c": 0, ZONE: None}))
    assert of(looked).told() == "not set"
    assert (of(looked, zone="us-east5-c").value, of(looked, zone="us-east5-c").told()) == (0, "0 cores")
    assert of(looked, zone="us-east5-c").enough is False
    assert (of(looked, zone="us-east5-a").value, of(looked, zone="us-east5-a").enough) == (16, True)


def test_the_two_apis_count_apart(looked):
    looked.infos += [info(DEMAND, {ZONE: 512}), info("PREEMPTIBLE-TPU-V6E-per-project-region", {"us-east5": 32})]
    assert of(looked).value == 512
    assert of(looked, backend="gce").value is None
    assert of(looked, backend="gce", way="spot").quotas == ("PREEMPTIBLE-TPU-V6E-per-project-region",)
    assert of(looked, way="spot").value is None


def test_compute_engine_counts_v6e_and_7x_by_family_and_v5p_by_its_own_name(looked):
    family = "TPUS-PER-TPU-FAMILY-per-project-region"
    both = info(family, {"us-east5": 32}, family="CT6E")
    both["dimensionsInfos"] += info(family, {"us-central1": 4}, family="tpu7x")["dimensionsInfos"]
    both["dimensionsInfos"] += info(family, {"us-east5": 7}, family="CT3")["dimensionsInfos"]
    looked.infos += [both, info("TPU-V5P-per-project-region", {"us-east5": 8})]
    assert of(looked, backend="gce").told() == "32 chips"
    assert of(looked, resolve("tpu7x-8"), "gce", "us-central1-c").told() == "4 chips"
    assert of(looked, resolve("tpu7x-8"), "gce").told() == "not set"
    assert (of(looked, resolve("v5p-16"), "gce").value, of(looked, resolve("v5p-32"), "gce").enough) == (8, False)


def test_the_smaller_of_zone_and_region_holds_and_no_limit_is_none(looked):
    region = DEMAND.replace("Zone", "Region")
    looked.infos += [info(DEMAND, {ZONE: 64, "us-east5-a": -1}), info(region, {"us-east5": 0})]
    assert of(looked) == Limit(0, 8, "cores", (DEMAND, region))
    looked.infos[1] = info(region, {"us-east5": -1})
    assert of(looked).value == 64
    assert (of(looked, zone="us-east5-a").told(), of(looked, zone="us-east5-a").enough) == ("no limit", True)


def test_an_amount_for_everywhere_holds_where_no_other_does(looked):
    name = "PREEMPTIBLE-TPU-V6E-per-project-region"
    looked.infos.append(info(name, {"": 1536, "us-east5": 32}))
    assert of(looked, backend="gce", way="spot").value == 32
    assert of(looked, backend="gce", zone="us-west1-c", way="spot").value == 1536
    looked.infos[0]["dimensionsInfos"][0]["applicableLocations"] = ["us-central1"]
    assert of(looked, backend="gce", zone="us-west1-c", way="spot").value is None
    assert of(looked, backend="gce", zone="us-central1-b", way="spot").value == 1536


def test_flex_start_takes_spot_quota_first_and_reservations_their_own(looked):
    looked.infos += [info(DEMAND, {ZONE: 16}), info(SPOT, {ZONE: 4})]
    assert of(looked, way="spot").value == 4
    assert of(looked, way="flex-start").value == 16, "4 of spot are too few for 8"
    looked.infos[1] = info(SPOT, {ZONE: 8})
    assert of(looked, way="flex-start").quotas == (SPOT,)
    assert of(looked, way="reservation").value is None
    looked.infos.append(info("TPUV6EReservedPerProjectPerZoneForTPUAPI", {ZONE: 256}))
    assert of(looked, way="reservation").value == 256


def test_what_a_size_takes_its_quota_from(looked):
    looked.infos += [
        info("TPUV5sLitepodServingPerProjectPerZoneForTPUAPI", {ZONE: 4}),
        info("TPUV5sLitepodPerProjectPerZoneForTPUAPI", {ZONE: 64}),
        info("TPUV3sPerProjectPerZoneForTPUAPI", {ZONE: 16}),
        info("TPUV3sPodPerProjectPerZoneForTPUAPI", {ZONE: 32}),
        info("TPUV4sPreemptiblePodPerProjectPerRegionForTPUAPI", {"us-east5": 20800}),
        info("TPUV5PPerProjectPerZoneForTPUAPI", {ZONE: 128}),
    ]
    assert of(looked, resolve("v5e-8")).value == 4
    assert of(looked, resolve("v5e-16")).value == 64
    assert of(looked, resolve("v3-8")) == Limit(16, 8, "cores", ("TPUV3sPerProjectPerZoneForTPUAPI",))
    assert of(looked, resolve("v3-32")).value == 32
    assert of(looked, resolve("v4-8"), way="spot") == Limit(20800, 8, "cores", (looked.infos[4]["quotaId"],))
    assert of(looked, resolve("v5p-8")).needed == 8, "v5p is counted by its cores"
    del looked.infos[0]
    assert of(looked, resolve("v5e-8")).value == 64, "a project without serving quota uses the other"


def test_every_page_is_read_and_what_is_no_tpu_is_left_out(looked):
    looked.infos += [info(f"Cpus{i}PerProjectPerRegion", {"": 1}) for i in range(7)] + usual()
    looked.infos.append(info("TPUV9ZPerProjectPerZoneForTPUAPI", {ZONE: 1}))
    found = quotas.read(looked.clients)
    assert {(pool.backend, pool.chip, pool.kind) for pool in found.pools} == {
        ("gce", "v6e", "spot"), ("gce", "v6e", "on-demand"), ("tpu-api", "v2", "on-demand"),
        ("tpu-api", "v5e", "on-demand"), ("tpu-api", "v5e", "spot"), ("tpu-api", "v6e", "spot"),
    }  # fmt: skip
    assert looked.world.changes() == []


def test_a_refusal_says_what_to_do(looked):
    looked.world.faults.append(Fault("quotaInfos.list", disabled("cloudquotas")))
    with pytest.raises(Permission) as error:
        quotas.read(looked.clients)
    told = "reading quotas: the API cloudquotas.googleapis.com is not enabled in project fake-project"
    assert error.value.problem.startswith(told)
    command = "`gcloud services enable cloudquotas.googleapis.com --project=fake-project`"
    assert error.value.remedy == f"{command}, and wait a minute"
    looked.world.faults.append(Fault("quotaInfos.list", Refused(7, "you may not")))
    with pytest.raises(Permission, match=r"reading quotas: it is not allowed \(.*you may not\)"):
        quotas.read(looked.clients)


def test_a_busy_service_is_asked_again_and_a_dead_one_is_told(looked, monkeypatch):
    looked.infos.append(info(DEMAND, {ZONE: 16}))
    looked.world.faults.append(Fault("quotaInfos.list", Refused(14, "busy"), times=2))
    assert of(looked).value == 16
    monkeypatch.setenv("TAETPU_FAKE_CLOUD", "http://127.0.0.1:9")
    with pytest.raises(Transient, match=r"cloudquotas\.googleapis\.com did not answer"):
        quotas.read(looked.clients)

"""Rates, by Google's client: the catalog's, else the dated table's, else none; each with where it is from."""

import json
import time

import pytest

from taetpu.cloud import catalogue, prices
from taetpu.cloud.errors import CloudError
from taetpu.cloud.fakes.prices import sku, usual
from taetpu.cloud.fakes.projects import disabled
from taetpu.cloud.fakes.world import Fault
from taetpu.core.chips import resolve

V6E, EAST, TODAY = resolve("v6e-8"), "us-east5-b", time.strftime("%Y-%m-%d", time.gmtime())


@pytest.fixture(autouse=True)
def fresh(monkeypatch):
    """No refusal is remembered from another test."""
    monkeypatch.setattr(prices, "_refused", {})


def test_each_way_of_paying_has_its_own_entry_and_spot_need_not_be_the_cheapest(looked):
    looked.skus += usual()
    found = {way: prices.rate(looked.clients, V6E, EAST, way) for way in ("on-demand", "spot", "flex-start")}
    assert {way: usd for way, (usd, _, _) in found.items()} == {"on-demand": 2.70, "spot": 1.4033, "flex-start": 1.35}
    assert {quote[1:] for quote in found.values()} == {(f"Billing Catalog, read {TODAY}", False)}
    assert prices.rate(looked.clients, V6E, EAST, "reservation")[0] == 2.70


def test_early_chips_are_priced_by_four_and_pods_apart(looked):
    looked.skus += usual()
    zone = "us-central1-b"
    assert prices.rate(looked.clients, resolve("v2-8"), zone, "on-demand")[0] == 1.125
    assert prices.rate(looked.clients, resolve("v2-8"), zone, "spot")[0] == 0.3375
    assert prices.rate(looked.clients, resolve("v2-32"), zone, "on-demand")[0] == 1.5


def test_v4_is_always_priced_as_a_pod(looked):
    looked.skus.append(sku("TPU-v4 Pod USA", 12.88, "us-central2", service="E000-3F24-B8AA"))
    assert prices.rate(looked.clients, resolve("v4-8"), "us-central2-b", "on-demand")[0] == 3.22


def test_another_region_has_another_rate_and_one_without_falls_back_to_the_table(looked):
    looked.skus += usual()
    assert prices.rate(looked.clients, V6E, "europe-west4-a", "on-demand")[0] == 2.97
    for zone, usd in {"us-south1-ai1b": 1.35, "us-central1-b": 0.54}.items():
        source = f"table of {catalogue.dated()} for {catalogue.region(zone)}; the Billing Catalog has none"
        assert prices.rate(looked.clients, V6E, zone, "spot") == (usd, source, False)
    usd, source, guess = prices.rate(looked.clients, V6E, "asia-northeast1-b", "on-demand")
    assert (usd, guess) == (2.70, True)
    words = f"a guess, the cheapest in the US by the table of {catalogue.dated()}: it may be more there; "
    assert source.startswith(words), "one date: that of the rates"


@pytest.mark.parametrize("usd", [700.0, 0.0])
def test_a_mark_for_unknown_is_no_rate(looked, usd):
    looked.skus.append(sku("Tpu7x running in Iowa", usd, "us-central1"))
    found = prices.rate(looked.clients, resolve("tpu7x-8"), "us-central1-c", "on-demand")
    assert found[:2] == (None, f"the Billing Catalog has none, nor has the table of {catalogue.dated()}")


def test_what_is_no_plain_hourly_rate_of_a_chip_is_left_out(looked):
    looked.skus += [one for one in usual() if not one["description"].startswith("TpuV6e running in Columbus")]
    monthly = sku("TpuV6e running in Columbus", 5.0, "us-east5")
    monthly["pricingInfo"][0]["pricingExpression"]["usageUnit"] = "mo"
    looked.skus.append(monthly)
    usd, source, guess = prices.rate(looked.clients, V6E, EAST, "on-demand")
    assert (usd, guess) == (2.70, True)
    assert source.startswith("a guess")
    assert [rate for rate in prices.read(looked.clients).rates if (rate.chip, rate.kind) == ("v6e", "on-demand")] == [
        prices.Rate("v6e", "on-demand", False, ("europe-west4",), 2.97)
    ]


def test_the_highest_of_several_that_fit_is_taken(looked):
    looked.skus += [sku("TpuV6e running in Columbus", usd, "us-east5") for usd in (2.5, 3.0)]
    assert prices.rate(looked.clients, V6E, EAST, "on-demand")[0] == 3.0


def test_the_catalog_is_read_once_a_day(looked, tmp_path):
    looked.skus += usual()
    first = prices.rate(looked.clients, V6E, EAST, "spot")
    asked = len(looked.world.calls)
    assert asked >= 2
    assert prices.rate(looked.clients, V6E, EAST, "spot") == first
    assert len(looked.world.calls) == asked
    (kept,) = (tmp_path / "cache" / "prices").iterdir()
    assert kept.name.startswith("127.0.0.1-"), "a fake's rates never stand where Google's do"
    kept.write_text(json.dumps(json.loads(kept.read_text()) | {"read": time.time() - 86401}))
    looked.skus[:] = [sku("TpuV6e attached to Spot Preemptible VMs running in Columbus", 1.5, "us-east5")]
    assert prices.rate(looked.clients, V6E, EAST, "spot")[0] == 1.5
    kept.write_text("{")
    assert prices.rate(looked.clients, V6E, EAST, "spot")[0] == 1.5
    assert looked.world.changes() == []


def test_a_catalog_that_refuses_is_told_and_not_asked_for_every_zone(looked):
    looked.world.faults.append(Fault("skus.list", disabled("cloudbilling"), times=9))
    found = [prices.rate(looked.clients, V6E, zone, "on-demand") for zone in (EAST, "us-east1-d")]
    assert [usd for usd, _, _ in found] == [2.70, 2.70]
    why = "the Billing Catalog is not to be had: reading prices: the API cloudbilling.googleapis.com is not enabled"
    assert all(why in source for _, source, _ in found)
    assert len(looked.world.calls) == 1
    with pytest.raises(CloudError, match="not enabled"):
        prices.read(looked.clients)


def test_nobody_signed_in_is_no_reason_for_no_rate(looked, monkeypatch, tmp_path):
    monkeypatch.delenv("TAETPU_FAKE_CLOUD")
    monkeypatch.setenv("GOOGLE_APPLICATION_CREDENTIALS", "")
    monkeypatch.setenv("CLOUDSDK_CONFIG", str(tmp_path))
    monkeypatch.setenv("NO_GCE_CHECK", "true")
    usd, source, _ = prices.rate(looked.clients, V6E, EAST, "on-demand")
    assert usd == 2.70
    assert source.endswith("nobody is signed in to Google Cloud here")

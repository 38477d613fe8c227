"""Rates: maximum cost of a machine, affordable zones, and unknown rates."""

import pytest

from taetpu.cloud import zone_rates
from taetpu.cloud.machine_api import Machine, Spec
from taetpu.core.chips import generations, parse_slice
from taetpu.core.errors import UserError


def spec(kind: str = "v6e-8", hours: float = 4.0, **options) -> Spec:
    tpu = parse_slice(kind)
    return Spec("box", tpu, zone_rates.api_for(tpu), "me", hours, "r", **options)


def known(tpu: Spec) -> list[str]:
    """Return the zones whose own rate is in the table."""
    return [zone for zone in zone_rates.zones(tpu.tpu) if zone_rates.cost(tpu, zone).most is not None]


def test_the_worst_case_is_chips_times_hours_times_rate() -> None:
    for zone in known(spec()):
        cost = zone_rates.cost(spec(), zone)
        assert cost.rate.usd is not None
        assert cost.most == pytest.approx(8 * 4.0 * cost.rate.usd)
        assert f"${cost.most:.2f}" in str(cost)


def test_an_unknown_rate_shows_the_dearest_known_one_and_has_no_limit() -> None:
    cost_spec = spec()
    cost = zone_rates.cost(cost_spec, "europe-north9-z")
    assert cost.rate.elsewhere
    assert cost.most is None
    assert cost.rate.usd == max(
        one.usd or 0.0 for one in (zone_rates.rate(cost_spec.tpu, zone, False) for zone in known(cost_spec))
    )
    assert "rate unknown" in str(cost)
    assert f"at most ${8 * 4.0 * cost.rate.usd:.2f}" in str(cost)


def test_a_zone_is_affordable_up_to_its_worst_case_exactly() -> None:
    one = spec()
    zone = known(one)[0]
    most = zone_rates.cost(one, zone).most
    assert most
    assert zone_rates.filter_affordable(one, [zone], most) == [zone]
    assert zone_rates.filter_affordable(one, [zone], None) == [zone]
    with pytest.raises(UserError, match="max-usd"):
        zone_rates.filter_affordable(one, [zone], most - 0.01)


def test_the_remedy_is_affordable() -> None:
    one = spec()
    zone = known(one)[0]
    with pytest.raises(UserError) as raised:
        zone_rates.filter_affordable(one, [zone], 50.0)
    hours = float(str(raised.value.remedy).partition("--max-hours ")[2].partition(",")[0])
    assert zone_rates.filter_affordable(spec(hours=hours), [zone], 50.0) == [zone]


def test_without_a_rate_a_limit_cannot_be_kept() -> None:
    with pytest.raises(UserError, match=r"no rate.*europe-north9-z") as raised:
        zone_rates.filter_affordable(spec(), ["europe-north9-z"], 100.0)
    assert "--max-usd" in str(raised.value)


def test_cheaper_zones_remain_when_others_cost_too_much() -> None:
    one = spec(spot=True)
    costs = {zone: zone_rates.cost(one, zone).most for zone in known(one)}
    middle = sorted(costs.values())[len(costs) // 2]
    kept = zone_rates.filter_affordable(one, list(costs), middle)
    assert set(kept) == {zone for zone, most in costs.items() if most <= middle}


def test_every_generation_has_zones_and_an_api() -> None:
    for chip in generations():
        tpu = next(one for one in chip.slices() if one.hosts == 1)
        assert zone_rates.zones(tpu)
        assert zone_rates.api_for(tpu) in ("gce", "tpu-api")


@pytest.mark.parametrize(("kind", "wanted", "said"), [
    ("v5e-8", "gce", "tpu-api"), ("v6e-8", "gke", "gce"), ("tpu7x-64", "", "kueue"),
])  # fmt: skip
def test_an_api_that_does_not_make_it_is_refused(kind: str, wanted: str, said: str) -> None:
    with pytest.raises(UserError) as raised:
        zone_rates.api_for(parse_slice(kind), wanted)
    assert said in str(raised.value)


def test_several_hosts_are_made_by_the_tpu_api() -> None:
    assert zone_rates.api_for(parse_slice("v6e-8")) == "gce"
    assert zone_rates.api_for(parse_slice("v6e-16")) == "tpu-api"


def test_a_listed_machine_has_the_rate_of_its_type() -> None:
    one = spec()
    zone = known(one)[0]
    for kind in ("v6e-8", one.tpu.machine_type):
        machine = Machine("box", zone, "gce", str(kind), "ready", "", {})
        assert zone_rates.hourly_cost(machine) == pytest.approx(zone_rates.cost(one, zone).hourly)
    assert zone_rates.hourly_cost(Machine("box", zone, "gce", "ct99-x", "ready", "", {})) is None

"""What a machine may cost, and what keeps it from being made."""

from dataclasses import replace

import pytest

from taetpu.cloud.cost import Before, Price, check
from taetpu.cloud.errors import Invalid
from taetpu.cloud.settings import Settings
from taetpu.cloud.spec import Spec
from taetpu.core.chips import resolve

SPEC = Spec("lab", resolve("v6e-8"), "gce", "spot", hours=4.0)
PRICE = Price(chips=8, hours=4.0, per_chip_hour=0.5, source="a table")
UNKNOWN = replace(PRICE, per_chip_hour=None)


def limits(**values) -> Settings:
    return Settings(**values)


def test_the_worst_case_is_all_chips_for_all_hours():
    assert (PRICE.per_hour, PRICE.worst) == (4.0, 16.0)
    assert (UNKNOWN.per_hour, UNKNOWN.worst) == (None, None)
    assert PRICE.told().startswith("$4.00 an hour, at most $16.00 in 4 h")
    assert UNKNOWN.told().startswith("no rate is known")


def test_what_is_within_its_limits_or_has_none_may_be_made():
    check(PRICE, SPEC, "us-east5-b", limits())
    check(UNKNOWN, SPEC, "us-east5-b", limits())
    check(PRICE, SPEC, "us-east5-b", limits(max_usd=16.0, max_usd_per_chip_hour=0.5))


def test_a_worst_case_above_the_limit_is_refused_with_the_hours_that_would_do():
    with pytest.raises(Invalid) as told:
        check(PRICE, SPEC, "us-east5-b", limits(max_usd=6.0))
    assert told.value.problem == "v6e-8 (spot) in us-east5-b may cost $16.00 in 4 h, more than max_usd 6"
    assert told.value.remedy == "--max-hours 1.5 stays below it, or raise --max-usd"
    check(replace(PRICE, hours=1.5), replace(SPEC, hours=1.5), "us-east5-b", limits(max_usd=6.0))


def test_a_rate_above_the_limit_is_refused():
    with pytest.raises(Invalid) as told:
        check(PRICE, SPEC, "us-east5-b", limits(max_usd_per_chip_hour=0.4))
    assert told.value.problem == "v6e-8 (spot) in us-east5-b costs $0.50 per chip-hour, more than 0.4"
    assert told.value.remedy == "another zone, --spot, or a higher --max-usd-per-chip-hour"


@pytest.mark.parametrize("limit", [{"max_usd": 1e6}, {"max_usd_per_chip_hour": 1e6}])
def test_an_unknown_rate_keeps_no_limit_so_it_is_refused(limit):
    with pytest.raises(Invalid) as told:
        check(UNKNOWN, SPEC, "us-east5-b", limits(**limit))
    assert told.value.problem == (
        "no rate is known for v6e-8 (spot) in us-east5-b, so a limit on its cost cannot be kept"
    )
    assert "--max-usd" in told.value.remedy


@pytest.mark.parametrize("max_usd", [0.5, 1.0, 3.3, 7.7, 15.999])
def test_the_hours_that_are_advised_stay_below_the_limit(max_usd):
    with pytest.raises(Invalid) as told:
        check(PRICE, SPEC, "us-east5-b", limits(max_usd=max_usd))
    hours = float(told.value.remedy.split()[1])
    assert hours >= 0.1
    assert hours * 4.0 <= max_usd


def test_hours_in_which_no_machine_is_ready_are_not_advised():
    with pytest.raises(Invalid) as told:
        check(PRICE, SPEC, "us-east5-b", limits(max_usd=0.2))
    assert told.value.remedy == "raise --max-usd: no time of use stays below it"


GUESS = replace(PRICE, guess=True)


@pytest.mark.parametrize("limit", [{"max_usd": 1e6}, {"max_usd_per_chip_hour": 1e6}])
def test_the_rate_of_another_region_is_told_as_a_guess_and_keeps_no_limit(limit):
    assert (GUESS.per_hour, GUESS.worst) == (4.0, None)
    assert GUESS.told() == "about $4.00 an hour, may be more: no rate is known there"
    check(GUESS, SPEC, "asia-northeast1-b", limits())
    with pytest.raises(Invalid) as told:
        check(GUESS, SPEC, "asia-northeast1-b", limits(**limit))
    what = "v6e-8 (spot) in asia-northeast1-b"
    assert told.value.problem == f"no rate is known for {what}, so a limit on its cost cannot be kept"
    assert told.value.remedy.startswith("a --zone whose rate is known (`taetpu tpu zones --type v6e-8`), or look ")


def test_what_a_study_has_spent_counts_for_its_limit():
    check(PRICE, SPEC, "us-east5-b", limits(max_usd=21.0), before=Before(1.25, 5.0))
    with pytest.raises(Invalid) as told:
        check(PRICE, SPEC, "us-east5-b", limits(max_usd=20.0), before=Before(1.25, 5.0))
    assert told.value.problem.endswith(
        "may cost $16.00 in 4 h beside $5.00 that is spent already, more than max_usd 20"
    )
    assert told.value.remedy == "--max-hours 5 stays below it, or raise --max-usd", "1.25 h of them are used"
    with pytest.raises(Invalid) as told:
        check(PRICE, SPEC, "us-east5-b", limits(max_usd=5.5), before=Before(1.25, 5.0))
    assert told.value.remedy == "raise --max-usd: no time of use stays below it"
    with pytest.raises(Invalid, match="what the earlier machines of lab cost is not known, so max_usd 900 cannot be"):
        check(PRICE, SPEC, "us-east5-b", limits(max_usd=900.0), before=Before(1.25, None))

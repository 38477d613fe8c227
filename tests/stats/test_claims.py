"""Claims are parsed and checked against results."""

from typing import Any

import pytest

from taetpu.core.errors import UserError
from taetpu.stats.claims import check_claim, parse_claim


def arm(name: str, verdict: str | None, ci95: list[float] | None) -> dict[str, Any]:
    return {"name": name, "against": "baseline", "verdict": verdict, "ci95": ci95, "evidence": "So it is."}


RESULTS = {
    "study": "toy",
    "label": None,
    "arms": [
        {"name": "baseline", "against": None},
        arm("nope", "worse", [0.03, 0.09]),
        arm("new", "better", [-0.08, -0.05]),
        arm("same", "equivalent", [-0.01, 0.004]),
        arm("open", "inconclusive", [-0.1, 0.2]),
        arm("lost", "worse", None),
        arm("early", None, [0.1, 0.2]),
    ],
}


CLAIMS = {
    "nope is worse": True,
    "nope is better": False,
    "nope is not better": True,
    "nope is not worse": False,
    "nope is worse by at least 0.02": True,
    "nope is worse by at least 0.04": False,
    "nope is worse by at most 0.1": True,
    "nope is worse by at most 0.08": False,
    "new is better by at least 0.05": True,
    "new is better by at least 5.1e-2": False,
    "new  is\nbetter": True,
    "same is equivalent": True,
    "same is equivalent by at most 0.01": True,
    "same is equivalent by at most 0.005": False,
    "open is inconclusive": True,
    "open is not worse": True,
    "lost is worse": True,
    "lost is worse by at least 0.01": False,
    "early is worse": False,
    "early is not better": False,
}
"""Claims, and whether `RESULTS` support them."""
LEVELS = {
    "baseline is above 0.985": True,
    "baseline is above 0.988": False,
    "baseline is below 1": True,
    "baseline is below 0.99": False,
    "nope is below 1e-3": True,
    "sure is above 0.999": True,
    "same is above 0": False,
    "open is above 0": False,
}
"""Claims on the level of `MEASURED`, and whether it supports them."""
INVALID = [
    "nope is above",
    "nope is bad",
    "nope worse",
    "is worse",
    "nope is worse by 0.02",
    "nope is worse by at least",
    "",
    3,
    None,
    ["a"],
]
SIZED = ["nope is not worse by at least 0.1", "nope is inconclusive by at most 0.1"]
"""Claims with sizes where no size is allowed."""


def measured(name: str, *values: float | None) -> dict[str, Any]:
    return {"name": name, "against": None, "runs": [{"value": value} for value in values]}


MEASURED: Any = {
    "study": "toy", "primary": "val/accuracy",
    "arms": [measured("baseline", 0.989, 0.990, 0.991), measured("nope", 0.0, 0.0), measured("same", 0.5),
             measured("sure", 1.0, 1.0, 1.0),
             measured("open", 0.5, 0.5, None)],
}  # fmt: skip


@pytest.mark.parametrize("text", LEVELS)
def test_levels_are_compared_with_the_interval_of_the_mean(text) -> None:
    # the half width for 0.989, 0.990, 0.991 is 4.303 * 0.001 / sqrt(3) = 0.0025 (Student's t, two degrees of freedom)
    assert check_claim(parse_claim(text, ("claims", 0)), MEASURED, ("claims", 0)).holds == LEVELS[text]


@pytest.mark.parametrize("level", ["high", "nan"])
def test_levels_are_numbers(level) -> None:
    with pytest.raises(UserError, match=level):
        parse_claim(f"nope is above {level}", ("claims", 0))


def test_evidence_on_a_level_names_the_metric_of_the_arms_task() -> None:
    there = {**measured("baseline@sort", 0.989, 0.990, 0.991), "role": {"ladder": {"rung": "sort", "arm": "baseline"}}}
    plan = {"primary": "val/loss", "tasks": {"copy": {"primary": "val/loss"}, "sort": {"primary": "val/accuracy"}}}
    results = {**MEASURED, "primary": "val/loss", "plan": plan, "arms": [*MEASURED["arms"], there]}
    for arm, metric in (("baseline@sort", "val/accuracy"), ("baseline", "val/loss")):
        assert check_claim(parse_claim(f"{arm} is above 0.9", ()), results, ()).evidence.startswith(metric)


def test_levels_of_unknown_arms_are_refused() -> None:
    with pytest.raises(UserError) as caught:
        check_claim(parse_claim("sane is above 0", ("claims", 0)), MEASURED, ("claims", 0))
    assert caught.value.path == ("claims", 0)
    assert "same" in str(caught.value.remedy)


@pytest.mark.parametrize(("text", "holds"), CLAIMS.items())
def test_claims_hold_if_the_results_support_them(text: str, holds: bool) -> None:
    found = check_claim(parse_claim(text, ("claims", 0)), RESULTS, ("claims", 0))
    assert found.holds is holds
    assert "So it is." in found.evidence


def test_single_seed_supports_no_claim() -> None:
    results = {"study": "toy", "label": "single seed", "arms": [arm("nope", None, None)]}
    for text in ("nope is not worse", "nope is inconclusive", "nope is worse"):
        found = check_claim(parse_claim(text, ("claims", 0)), results, ("claims", 0))
        assert not found.holds
        assert found.evidence.startswith("a single seed")


def test_failed_claims_give_the_reason() -> None:
    def why(text: str) -> str:
        return check_claim(parse_claim(text, ()), RESULTS, ()).evidence

    assert why("nope is better") == "worse. So it is."
    least, most = "nope is worse by at least 0.04", "nope is worse by at most 0.04"
    assert why(least).partition(". ")[0].endswith("as small as 0.0300")
    assert why(most).partition(". ")[0].endswith("as large as 0.0900")
    assert "no verdict yet" in why("early is worse")


@pytest.mark.parametrize("text", INVALID)
def test_invalid_claims_are_refused(text) -> None:
    with pytest.raises(UserError, match="valid claim"):
        parse_claim(text, ("claims", 0))


@pytest.mark.parametrize("size", ["x", "nan", "inf", "-0.1"])
def test_invalid_sizes_are_refused(size: str) -> None:
    with pytest.raises(UserError, match=r"size of .*effect"):
        parse_claim(f"nope is worse by at least {size}", ("claims", 0))


@pytest.mark.parametrize("text", SIZED)
def test_sizes_of_negated_or_inconclusive_claims_are_refused(text: str) -> None:
    with pytest.raises(UserError, match="negated or inconclusive"):
        parse_claim(text, ("claims", 0))


@pytest.mark.parametrize("name", ["nop", "baseline"])
def test_unknown_arms_are_refused(name: str) -> None:
    with pytest.raises(UserError, match=f"study 'toy' has no arm '{name}'"):
        check_claim(parse_claim(f"{name} is worse", ()), RESULTS, ())


def table(number: int, mean: float | None, sd: float | None) -> dict[str, Any]:
    """A post-hoc table of an arm with four runs."""
    values = {"effective number": {"number": number, "mean": mean, "sd": sd}}
    return {"name": "heads-mean", "arms": [{"name": "baseline", "runs": 4, "values": values}]}


MEASURES: dict[str, tuple[tuple[int, float | None, float | None], bool]] = {
    # the half width for a standard deviation of 0.5 over 4 runs is 3.182 * 0.5 / 2 = 0.796
    "effective number of heads-mean in baseline is below 5.8": ((4, 5.0, 0.5), True),
    "effective number of heads-mean in baseline is below 5.7": ((4, 5.0, 0.5), False),
    "effective  number of heads-mean in baseline is above 4.2": ((4, 5.0, 0.5), True),
    "effective number of heads-mean in baseline is above 1": ((3, 5.0, 0.5), False),
    "effective number of heads-mean in baseline is above 0": ((4, None, None), False),
}
"""Claims about a measure of a table; its number of runs, mean and standard deviation, and whether the claims hold."""


@pytest.mark.parametrize("text", MEASURES)
def test_measures_of_tables_are_compared_with_the_interval_over_seeds(text) -> None:
    row, holds = MEASURES[text]
    results: Any = {**MEASURED, "post_hoc": [table(*row)]}
    assert check_claim(parse_claim(text, ()), results, ()).holds == holds


UNKNOWN = {
    "effective number of heads-zero in baseline is below 5": "heads-mean",
    "effective numbers of heads-mean in baseline is below 5": "effective number",
    "effective number of heads-mean in bassline is below 5": "baseline",
}
"""Claims about what there is not, and a name that the remedy lists."""


@pytest.mark.parametrize("text", UNKNOWN)
def test_unknown_tables_and_measures_are_refused(text) -> None:
    results: Any = {**MEASURED, "post_hoc": [table(4, 5.0, 0.5)]}
    with pytest.raises(UserError) as caught:
        check_claim(parse_claim(text, ("claims", 0)), results, ("claims", 0))
    assert UNKNOWN[text] in str(caught.value.remedy)
    assert caught.value.path == ("claims", 0)

"""The names of parts: the rule on all patterns, and its error rates on made-up studies."""

from itertools import product

import numpy as np
import pytest
from benchmarks.component_names import TRUTHS, rates
from scipy import stats

from taetpu.stats.analyse import fit_groups
from taetpu.stats.components import CONTINUED, UNCHANGED, WAYS, arms_with_own_noise, judge_components, name_part
from taetpu.stats.plan import Plan
from taetpu.stats.results_table import Cell, Table

WORDS = ("hurts", "equivalent", "helps", "unclear")


def test_names_of_all_patterns() -> None:
    names = {pattern: name_part(pattern) for pattern in product(WORDS, repeat=3)}
    assert {pattern for pattern, name in names.items() if name == "necessary"} == {("hurts",) * 3}
    assert {pattern for pattern, name in names.items() if name == "redundant"} == {("equivalent",) * 3}
    compensated = {pattern for pattern, name in names.items() if name == "compensated"}
    assert compensated == {("equivalent", "hurts", "equivalent")}
    assert all((name == "unclear") == ("unclear" in pattern) for pattern, name in names.items())


def test_rows_need_all_three_ways() -> None:
    roles = {f"{way}-{part}": {"design": "components", "part": part, "way": way} for part in "ab" for way in WAYS}
    roles["unchanged"] = {"design": "components", "against": "unchanged"}
    judged = {arm: {"verdict": "worse", "effect": 1.0, "ci95": [0.5, 1.5]} for arm in roles if arm != "healed-b"}
    del judged["unchanged"]
    (row,) = judge_components(roles, judged)
    assert row["part"] == "a"
    assert row["name"] == "necessary"


@pytest.mark.slow
@pytest.mark.parametrize("seeds", [3, 5, 8])
def test_false_names_are_rare(seeds) -> None:
    """A false name has a probability of at most alpha; the bound allows for three standard errors of the estimate."""
    studies = 40 if seeds == 5 else 300
    for truth, counter in zip(TRUTHS, rates(studies, seeds), strict=True):
        wrong = sum(counter[name] for name in ("necessary", "redundant", "compensated") if name != truth.right)
        assert wrong / studies <= 0.05 + 3 * (0.05 * 0.95 / studies) ** 0.5, (truth, counter)
        if seeds >= 5 and truth.right and "margin" not in truth.name:
            assert counter[truth.right] / studies > 0.85, (truth, counter)


def test_a_fragile_part_does_not_blur_the_removal_of_others() -> None:
    rng = np.random.default_rng(0)
    roles = {f"{way}-{part}": {"design": "components", "part": part, "way": way} for part in "ab" for way in WAYS}
    against = {arm: {"without": "baseline", "removed": UNCHANGED, "healed": CONTINUED}[role["way"]]
               for arm, role in roles.items()}  # fmt: skip
    values = {name: rng.standard_normal(5) for name in ("baseline", UNCHANGED, CONTINUED)}
    quiet, fragile = 0.01 * rng.standard_normal(5), 3 * rng.standard_normal(5)
    for arm, base in against.items():
        values[arm] = values[base] + (quiet if arm.endswith("a") else fragile)
    table = Table({arm: [Cell(seed, "finished", 10 + float(value)) for seed, value in enumerate(row)]
                   for arm, row in values.items()})  # fmt: skip
    plan = Plan("val/loss", "min", tuple(values), tuple(range(5)), (5,))
    groups = fit_groups(table, against, plan, arms_with_own_noise(roles))
    fits = {arm: group.fit.effects[arm] for group in groups for arm in group.arms}
    assert set(fits) == set(against)
    for way in ("removed", "healed"):
        low, high = fits[f"{way}-a"].interval
        expected = stats.ttest_1samp(quiet, 0).confidence_interval()
        assert (low, high) == pytest.approx((expected.low, expected.high))
    low, high = fits["without-a"].interval
    assert high - low > 1  # separately trained runs, whose noise is pooled

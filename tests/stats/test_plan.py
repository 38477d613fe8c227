"""The analysis plan is frozen and hashed, and maps numbers of seeds to analyses."""

import hashlib
import json
from dataclasses import replace
from datetime import date

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats
from scipy.optimize import brentq

from taetpu.core.errors import UserError
from taetpu.stats.group_sequential import inflated_error_rate
from taetpu.stats.plan import FIRST_FIELDS, RULES, Plan, read_plan
from taetpu.store.documents import from_yaml, to_yaml

PLAN = Plan("val/loss", "min", ("baseline", "a"), (0, 1, 2, 3, 4), (5, 8), equivalence=0.02)


@settings(max_examples=30, deadline=None)
@given(st.one_of(st.none(), st.floats(1e-12, 10)), st.floats(1e-6, 0.5), st.lists(st.integers(0, 10**9), min_size=1))
def test_plan_is_read_back_from_the_study(equivalence: float | None, alpha: float, seeds: list[int]) -> None:
    plan = Plan("val/loss", "max", ("baseline", "é,=1"), tuple(seeds), (len(seeds),), equivalence, alpha)
    stored = from_yaml(to_yaml({"plan": plan.frozen()}), "study.yaml")
    assert read_plan(stored, "runs/x") == plan


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("primary", "val/accuracy"),
        ("direction", "max"),
        ("equivalence", 0.2),
        ("alpha", 0.1),
        ("looks", [5]),
        ("arms", ["baseline"]),
        ("seeds", [0, 1, 2]),
        ("sha256", "0" * 64),
        ("more", 1),
        ("equivalence", date(2026, 1, 1)),
        (5, 1),
    ],
)
def test_changed_plan_is_refused(name: str, value) -> None:
    with pytest.raises(UserError) as error:
        read_plan({"plan": {**PLAN.frozen(), name: value}}, "runs/x")
    text = str(error.value)
    assert "plan differs" in text
    assert "runs/x at plan" in text
    assert "Restore study.yaml" in text


def test_later_fields_are_stored_only_if_they_differ_from_their_default() -> None:
    """So a plan without them has the text and the hash of a plan that was frozen before they existed."""
    own = PLAN.frozen()
    assert own.keys() == {*FIRST_FIELDS, "sha256"}
    for name in Plan.__dataclass_fields__.keys() - {*FIRST_FIELDS}:
        later = replace(
            PLAN,
            **{
                name: {"rules": RULES, "noise": "moderated", "metrics": {"loss": {"better": "max"}}}.get(name, {"a": 1})
            },
        )
        assert later.frozen().keys() - own.keys() == {name}
        assert later.sha256 != PLAN.sha256
        assert read_plan({"plan": later.frozen()}, "runs/x") == later


def test_hash_of_a_plan_is_that_of_the_version_that_froze_it() -> None:
    plan = Plan("val/loss", "min", ("baseline", "low-lr"), (0, 1), (2,), equivalence=0.02)
    assert plan.sha256 == "588502ec49bdff02441455d84dbf34852233d9fa0082f609084b97578d1be09f"


def test_plan_of_a_newer_version_asks_for_an_update() -> None:
    newer = {name: value for name, value in PLAN.frozen().items() if name != "sha256"} | {"later": [0.5]}
    newer["sha256"] = hashlib.sha256(json.dumps(newer, sort_keys=True).encode()).hexdigest()
    with pytest.raises(UserError) as error:
        read_plan({"plan": newer}, "runs/x")
    assert ("'later: [0.5]'" in error.value.problem, error.value.path) == (True, ("plan", "later"))
    assert error.value.remedy == "Update taetpu."


def test_plan_with_newer_rules_asks_for_an_update() -> None:
    with pytest.raises(UserError) as error:
        read_plan({"plan": replace(PLAN, rules=RULES + 1).frozen()}, "runs/x")
    assert (error.value.path, error.value.remedy) == (("plan", "rules"), "Update taetpu.")
    assert read_plan({"plan": replace(PLAN, rules=RULES).frozen()}, "runs/x").rules == RULES
    assert read_plan({"plan": PLAN.frozen()}, "runs/x").rules == 1


def test_incomplete_plan_is_refused() -> None:
    cut = {name: value for name, value in PLAN.frozen().items() if name != "looks"}
    with pytest.raises(UserError, match="the plan that"):
        read_plan({"plan": cut}, "runs/x")


def test_study_without_a_plan_is_refused() -> None:
    with pytest.raises(UserError, match="no analysis plan"):
        read_plan({}, "runs/x")


def test_analyses_correct_p_values_and_the_error_rate() -> None:
    assert [PLAN.analysis_index(seeds) for seeds in (4, 5, 6, 8)] == [None, 0, None, 1]
    assert PLAN.overall_p(0.01, 5) > 0.01
    assert PLAN.overall_p(0.01, 6) == 0.01
    assert PLAN.error_rate(8) == 0.05
    assert PLAN.error_rate(9) == inflated_error_rate(0.05, [8, 9]) > 0.05


def test_additional_seeds_increase_the_error_rate_only_after_verdicts() -> None:
    assert PLAN.error_rate(11) == inflated_error_rate(0.05, [8, 9, 10, 11])
    assert PLAN.error_rate(11, judged_at=[5, 8]) == inflated_error_rate(0.05, [8, 11])
    assert PLAN.error_rate(11, judged_at=[]) == 0.05
    alone = Plan("val/loss", "min", ("baseline", "a"), (0,), (1,))
    assert [alone.error_rate(seeds) for seeds in (1, 2)] == [0.05, 0.05], "a single seed gives no verdict"
    assert alone.error_rate(3) == inflated_error_rate(0.05, [2, 3])


@pytest.mark.parametrize("looks", [(5, 8), (3, 5, 8)])
def test_one_sided_tests_keep_the_error_rate_over_several_analyses(looks: tuple[int, ...]) -> None:
    """Simulate z of an effect at the equivalence margin, and count the studies with any rejection."""
    plan, rng, wrong = Plan("loss", "min", (), (), looks), np.random.default_rng(0), np.zeros(100_000, bool)
    reached, before = np.zeros(len(wrong)), 0
    for look in looks:
        reached, before = reached + rng.normal(size=len(wrong)) * np.sqrt(look - before), look
        least = brentq(lambda p, look=look: plan.overall_one_sided_p(p, look) - plan.alpha, 1e-9, 0.4)
        wrong |= stats.norm.sf(reached / np.sqrt(look)) < least
    assert plan.alpha - 0.015 < wrong.mean() < plan.alpha + 0.003
    assert Plan("loss", "min", (), (), (5,)).overall_one_sided_p(0.03, 5) == pytest.approx(0.03)


def test_strictest_level_accounts_for_interim_analyses() -> None:
    """Source of the levels of two equal analyses at 5 %: Lan and DeMets (1983)."""
    looked = replace(PLAN, looks=(4, 8))
    assert looked.strictest_level(1, 4) == pytest.approx(0.00305, abs=1e-5)
    assert looked.strictest_level(1, 8) == pytest.approx(0.0490, abs=1e-4)
    assert looked.strictest_level(6, 4) < looked.strictest_level(1, 4)
    assert replace(PLAN, looks=(5,)).strictest_level(3, 5) == pytest.approx(PLAN.alpha)

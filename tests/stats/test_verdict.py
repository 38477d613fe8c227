"""Verdicts: Holm's correction, direction, divergence, evidence, and the number of seeds still needed."""

from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats
from statsmodels.stats.multitest import multipletests

from taetpu.stats import verdict
from taetpu.stats.divergence import Count
from taetpu.stats.linear_model import Effect, Estimate, fit_model
from taetpu.stats.plan import Plan
from taetpu.stats.power import ALPHA
from taetpu.stats.verdict import Evidence, Sides, decide_verdict, format_evidence, holm, seeds_still_needed


def effect(size: float, error: float, df: float = 16) -> Effect:
    return Effect(size, (Estimate(size, error, df),))


CLEAR = effect(0.4, 0.0472)  # its interval is 0.3 to 0.5


def plan_for(direction: str = "min", metric: str = "val/loss", **more) -> Plan:
    return Plan(metric, direction, ("baseline", "a"), (0, 1, 2, 3, 4), (5,), **more)


def weigh(effects, counts, plan: Plan | None = None, worst=None) -> dict[str, Evidence]:
    """Collect the evidence at the last analysis. By default, the worst case equals the effect of finished runs."""
    plan = plan or plan_for()
    against = dict.fromkeys(effects, "baseline")
    return verdict.collect_evidence(effects, worst or effects, counts, against, plan, plan.looks[-1])


@settings(max_examples=30, deadline=None)
@given(st.lists(st.floats(0, 1), min_size=1, max_size=12))
def test_holm_keeps_the_order_and_is_never_smaller(p: list[float]) -> None:
    named = {f"arm{i}": value for i, value in enumerate(p)}
    corrected = holm(named)
    ordered = sorted(named, key=lambda arm: (named[arm], corrected[arm]))
    assert all(corrected[a] <= corrected[b] for a, b in pairwise(ordered))
    assert all(named[arm] <= corrected[arm] <= 1 for arm in named)
    assert corrected[ordered[0]] == pytest.approx(min(1, len(p) * min(p)))


def test_holm_matches_statsmodels() -> None:
    p = np.random.default_rng(0).random(9) ** 3
    _, expected, *_ = multipletests(p, method="holm")
    assert list(holm({f"arm{i}": value for i, value in enumerate(p)}).values()) == pytest.approx(expected.tolist())


def test_holm_counts_only_tested_arms() -> None:
    assert holm({"a": 0.02, "b": None, "c": 0.5}) == {"a": pytest.approx(0.04), "b": None, "c": 0.5}
    assert holm({"a": None}) == {"a": None}


def verdicts(values, direction) -> list[str]:
    counts = {arm: Count(len(row), 0) for arm, row in values.items()}
    return [decide_verdict(found, plan_for(direction)) for found in weigh(fit_model(values).effects, counts).values()]


def test_direction_swaps_better_and_worse(draw, table) -> None:
    y = draw(np.random.default_rng(0), 6, 5) * 0.05
    y[1] += 1
    y[2] -= 1
    low, high = verdicts(table(y), "min"), verdicts(table(y), "max")
    assert low[:2] == ["worse", "better"]
    assert high[:2] == ["better", "worse"]
    assert low[2:] == high[2:] == ["inconclusive"] * 3
    assert verdicts(table(-y), "max") == low


@pytest.mark.parametrize(("seeds", "expected"), [(3, "worse"), (2, "inconclusive")])
def test_arm_without_finished_runs_is_tested_for_divergence(seeds: int, expected: str) -> None:
    found = weigh({"a": Effect()}, {"baseline": Count(seeds, 0), "a": Count(0, seeds)})["a"]
    assert found.p == pytest.approx(stats.boschloo_exact([[seeds, 0], [0, seeds]]).pvalue)
    assert decide_verdict(found, plan_for("min")) == expected
    text = format_evidence(found, plan_for("min", "val/loss"), Sides((seeds, seeds)))
    assert text.startswith(f"No run finished: {seeds} of {seeds} diverged, 0 of {seeds} of the baseline (exact test")


def test_divergence_tests_are_corrected_for_the_number_of_arms() -> None:
    effects = {"a": Effect(), **{f"b{i}": effect(0.0, 0.5) for i in range(7)}}
    counts = {"baseline": Count(3, 0), "a": Count(0, 3), **{f"b{i}": Count(3, 0) for i in range(7)}}
    assert decide_verdict(weigh(effects, counts)["a"], plan_for("min")) == "inconclusive"


def test_verdict_is_inconclusive_if_divergence_may_explain_the_effect() -> None:
    counts = {"baseline": Count(5, 0), "a": Count(3, 2)}
    found = weigh({"a": CLEAR}, counts)["a"]
    assert decide_verdict(found, plan_for("min")) == "worse"
    assert decide_verdict(found, plan_for("max")) == "inconclusive"
    text = format_evidence(found, plan_for("max", "val/accuracy"), Sides((5, 5)))
    assert "2 of 5 runs diverged, 0 of 5 of the baseline (exact test p 0.187)" in text
    assert text.endswith(" a fair sample.")
    swapped = weigh({"a": CLEAR}, {"baseline": Count(3, 2), "a": Count(5, 0)})["a"]
    assert decide_verdict(swapped, plan_for("min")) == "inconclusive"


def test_one_diverged_run_is_inconclusive() -> None:
    found = weigh({"a": Effect()}, {"baseline": Count(1, 0), "a": Count(0, 1)})["a"]
    assert (found.p, decide_verdict(found, plan_for("min"))) == (None, "inconclusive")
    text = "No run finished: 1 of 1 diverged, 0 of 1 of the baseline."
    assert format_evidence(found, plan_for("min", "val/loss"), Sides((1, 1))) == text


def test_equal_divergence_is_inconclusive() -> None:
    found = weigh({"a": Effect()}, {"baseline": Count(0, 3), "a": Count(0, 3)})["a"]
    assert (found.p_holm, decide_verdict(found, plan_for("min"))) == (None, "inconclusive")


def test_evidence_has_the_numbers(wording) -> None:
    counts = {"baseline": Count(5, 0), "a": Count(5, 0)}
    text = format_evidence(weigh({"a": CLEAR}, counts)["a"], plan_for("min", "val/loss"), Sides((5, 5)))
    wording(text)


def test_evidence_names_noisy_arms_and_correlated_noise(draw, table, wording) -> None:
    """The verdict depends on the weighed noise; the sentence says why an interval is wide."""
    y, counts = draw(np.random.default_rng(2), 6, 5, {1: 10.0}), {"baseline": Count(5, 0), "arm1": Count(5, 0)}
    noisy = fit_model(table(y)).effects["arm1"]
    plan = plan_for(noise="moderated")
    assert noisy.noisier == ("arm1",)
    wording(format_evidence(weigh({"arm1": noisy}, counts)["arm1"], plan, Sides((5, 5))))
    assert fit_model(table(y)).effects["arm2"].noisier == ()
    copies = Effect(0.4, CLEAR.estimates, copies=True)
    wording(format_evidence(weigh({"arm1": copies}, counts)["arm1"], plan, Sides((5, 5))))


def test_evidence_gives_the_reason_for_a_missing_interval(wording) -> None:
    one = weigh({"a": Effect(-0.5)}, {"baseline": Count(1, 0), "a": Count(1, 0)})["a"]
    wording(format_evidence(one, plan_for("min", "val/loss"), Sides((1, 1))))
    same = weigh({"a": Effect(0.0)}, {"baseline": Count(3, 0), "a": Count(3, 0)})["a"]
    wording(format_evidence(same, plan_for("min", "val/loss"), Sides((3, 3))))


def test_seeds_still_needed_give_80_percent_power() -> None:
    seeds, size, arms = 3, 1.2, 4
    observed = effect(size, np.sqrt(2 / seeds), arms * (seeds - 1))
    more = seeds_still_needed(
        weigh({"a": observed}, {"baseline": Count(seeds, 0), "a": Count(seeds, 0)})["a"], arms, plan_for()
    )
    n = seeds + more
    rng, df = np.random.default_rng(0), arms * (n - 1)
    t = (size + rng.normal(size=4000) * np.sqrt(2 / n)) / np.sqrt(rng.chisquare(df, 4000) / df * 2 / n)
    power = np.mean(2 * stats.t.sf(abs(t), df) < ALPHA / arms)
    assert 0.77 < power < 0.87


def test_undetectable_effect_has_no_number_of_seeds() -> None:
    counts = {"baseline": Count(3, 0), "a": Count(3, 0)}
    assert seeds_still_needed(weigh({"a": effect(1e-4, 0.5)}, counts)["a"], 8, plan_for()) is None
    assert seeds_still_needed(weigh({"a": Effect(1.0)}, counts)["a"], 8, plan_for()) is None

"""The worth of arms in compute: the law, multipliers on exact data, units, bounds, refusals and intervals."""

import math

import numpy as np
import pytest

from taetpu.spec import worth as planned
from taetpu.stats import worth
from taetpu.stats.worth import Climb, Law, Runs, analyse_worth, deviations, estimate, fit_law, lack_of_fit_p

X = math.log(1e12) + math.log(4) * np.arange(4)
LAW = Law(1.2, 0.8, 0.12, float(X.mean()))


def runs(name, log_compute, values, diverged=0):
    return Runs(name, math.exp(log_compute), dict(enumerate(map(float, values))), diverged)


def ladder(multiplier=1.0, cost=1.0, law=LAW, seeds=(0.0, 0.01, -0.02), x=X):
    """Return the runs of a baseline on a law and of an arm that is worth a multiplier. Seeds shift both."""
    shift, own = np.array(seeds), x + math.log(cost)
    base, arm = law.loss(x), law.loss(own + math.log(multiplier))
    bases = {f"r{i}": runs(f"baseline@r{i}", x[i], base[i] + shift) for i in range(len(x))}
    return bases, {"a": {f"r{i}": runs(f"a@r{i}", own[i], arm[i] + shift) for i in range(len(x))}}


# --- the law ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("law", [LAW, Law(0.0, 2.0, 0.05, float(X.mean())), Law(1.7, 0.3, 0.9, float(X.mean()))])
def test_a_law_is_recovered_from_exact_means(law):
    fitted = fit_law(X, law.loss(X))
    assert fitted.floor == pytest.approx(law.floor, abs=1e-8)
    assert (fitted.scale, fitted.exponent) == pytest.approx((law.scale, law.exponent))


def test_the_law_is_that_of_least_squares():
    y = LAW.loss(X) + np.array([0.01, -0.02, 0.015, -0.01])
    law = fit_law(X, y)
    least = ((y - law.loss(X)) ** 2).sum()
    for change in (1e-4, -1e-4):
        for other in (
            Law(law.floor + change, law.scale, law.exponent, law.centre),
            Law(law.floor, law.scale + change, law.exponent, law.centre),
            Law(law.floor, law.scale, law.exponent + change, law.centre),
        ):
            assert ((y - other.loss(X)) ** 2).sum() > least


def test_the_floor_of_a_law_is_at_least_0():
    y = 2.0 - 0.2 * np.arange(4) - 0.03 * np.arange(4) ** 2  # falls faster and faster
    assert fit_law(X, y).floor == 0


@pytest.mark.parametrize("y", [[1.0, 1.1, 1.2, 1.3], [1.0, 1.0, 1.0, 1.0]])
def test_losses_that_do_not_fall_have_no_law(y):
    assert fit_law(X, np.array(y)) is None


def test_deviations_are_in_log_compute():
    y = LAW.loss(X - 0.01)  # as if each run had 1 % less compute
    assert deviations(LAW, X, y) == pytest.approx(np.full(4, -0.01), rel=0.01)


def test_deviations_that_noise_explains_have_a_uniform_p_value():
    rng = np.random.default_rng(0)
    studies = [LAW.loss(X)[:, None] + 0.01 * rng.standard_normal((4, 4)) for _ in range(200)]
    p = np.array([lack_of_fit_p(fit_law(X, y.mean(1)), X, y) for y in studies])
    assert 0.01 < (p < 0.05).mean() < 0.12
    assert lack_of_fit_p(LAW, X, LAW.loss(X)[:, None] + np.array([0.0, 0.1])) is None


# --- multipliers on exact data ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("cost", [1.0, 1.5])
@pytest.mark.parametrize("multiplier", [1.0, 1.3, 0.7, 3.0, 0.4])
def test_data_on_a_law_give_the_multiplier(multiplier, cost):
    arm = analyse_worth(*ladder(multiplier, cost))["arms"]["a"]
    assert arm["all"]["multiplier"] == pytest.approx(multiplier, rel=1e-9)
    assert arm["all"]["bound"] is None
    for each in arm["rungs"].values():
        if not each["bound"]:
            assert each["multiplier"] == pytest.approx(multiplier, rel=1e-9)


def test_an_arm_worth_several_rungs_is_read_where_the_law_reaches():
    arm = analyse_worth(*ladder(20.0))["arms"]["a"]
    assert arm["all"]["multiplier"] == pytest.approx(20)
    assert arm["rungs"]["r0"]["multiplier"] == pytest.approx(20)
    assert arm["rungs"]["r3"]["bound"] == "at_least"
    assert arm["rungs"]["r3"]["multiplier"] == pytest.approx(4)
    assert arm["all"]["extrapolated"] == ["r1", "r2", "r3"]


@pytest.mark.parametrize(("multiplier", "bound"), [(1e6, "at_least"), (1e-6, "at_most")])
def test_a_multiplier_beyond_the_law_is_a_bound_without_an_interval(multiplier, bound):
    whole = analyse_worth(*ladder(multiplier))["arms"]["a"]["all"]
    assert (whole["bound"], whole["ci95"]) == (bound, None)
    assert 1 / 4**4.1 < whole["multiplier"] < 4**4.1


def test_multipliers_do_not_depend_on_units():
    rng = np.random.default_rng(1)
    base, arm = (LAW.loss(X + shift)[:, None] + 0.01 * rng.standard_normal((4, 3)) for shift in (0.0, 0.3))
    first = estimate(Climb(X, X, base, arm), [0, 1, 2, 3])
    for unit, scale in ((math.log(1e-9), 1.0), (0.0, 1 / math.log(2)), (math.log(6.0), 100.0)):
        other = estimate(Climb(X + unit, X + unit, scale * base, scale * arm), [0, 1, 2, 3])
        assert other[0].log == pytest.approx(first[0].log, rel=1e-6)
        assert other[1] == pytest.approx(first[1], rel=1e-6)


def test_an_arm_with_the_runs_of_the_baseline_is_worth_1_on_any_law():
    rng = np.random.default_rng(2)
    base = np.array([2.4, 2.1, 2.0, 1.7])[:, None] + 0.02 * rng.standard_normal((4, 3))
    multiplier, interval = estimate(Climb(X, X, base, base), [0, 1, 2, 3])
    assert multiplier.log == pytest.approx(0, abs=1e-12)
    assert interval is None  # no noise


def test_the_order_of_rungs_and_seeds_does_not_matter():
    bases, arms = ladder(1.3, seeds=(0.0, 0.02, -0.01))
    shuffled = {rung: Runs(r.name, r.compute, dict(reversed(r.values.items()))) for rung, r in reversed(bases.items())}
    first, other = analyse_worth(bases, arms), analyse_worth(shuffled, arms)
    assert other["law"] == first["law"]
    assert other["arms"]["a"]["all"] == first["arms"]["a"]["all"]


# --- intervals -------------------------------------------------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.parametrize("multiplier", [1.0, 1.5])
def test_intervals_over_seeds_cover_the_multiplier(multiplier):
    rng, missed, studies = np.random.default_rng(3), 0, 150
    for _ in range(studies):
        base, arm = (
            LAW.loss(X + shift)[:, None] + 0.01 * rng.standard_normal((4, 4)) for shift in (0.0, math.log(multiplier))
        )
        _, interval = estimate(Climb(X, X, base, arm), [0, 1, 2, 3])
        missed += not interval[0] <= math.log(multiplier) <= interval[1]
    assert missed / studies < 0.05 + 3 * math.sqrt(0.05 * 0.95 / studies)


def test_the_interval_allows_for_deviations_from_the_law_in_proportion_to_the_shift():
    rng = np.random.default_rng(4)
    noise, wiggle = 1e-4 * rng.standard_normal((2, 4, 4)), np.array([1, -1, 1, -1])[:, None] * 0.01

    def width(multiplier, wiggle):
        base, arm = LAW.loss(X)[:, None], LAW.loss(X + math.log(multiplier))[:, None]
        _, interval = estimate(Climb(X, X, base + wiggle + noise[0], arm + wiggle + noise[1]), [0, 1, 2, 3])
        return interval[1] - interval[0]

    assert width(2.0, wiggle) > 10 * width(2.0, 0 * wiggle)
    assert width(1.0, wiggle) < 2 * width(1.0, 0 * wiggle)


def test_a_single_seed_has_a_multiplier_without_an_interval():
    whole = analyse_worth(*ladder(1.3, seeds=(0.0,)))["arms"]["a"]["all"]
    assert whole["multiplier"] == pytest.approx(1.3)
    assert whole["ci95"] is None


# --- refusals --------------------------------------------------------------------------------------------------------


def test_under_four_rungs_there_is_no_law():
    assert planned.MIN_RUNGS == worth.MIN_RUNGS == 4
    bases, arms = ladder(1.3, x=X[:3])
    found = analyse_worth(bases, arms)
    assert (found["refused"], found["law"], found["arms"]) == ("rungs", None, {})


def test_rungs_of_equal_compute_have_no_law():
    bases, arms = ladder(1.3)
    bases["r3"] = Runs("baseline@r3", bases["r2"].compute, bases["r3"].values)
    assert analyse_worth(bases, arms)["refused"] == "rungs"


def test_a_poor_fit_is_refused_and_its_law_is_shown():
    bases, arms = ladder(1.3)
    bases["r1"] = Runs("baseline@r1", bases["r1"].compute, {s: v + 0.15 for s, v in bases["r1"].values.items()})
    found = analyse_worth(bases, arms)
    assert (found["refused"], found["arms"]) == ("poor", {})
    worst = max(found["law"]["rungs"], key=lambda rung: abs(math.log(rung["off"])))
    assert abs(math.log(worst["off"])) > worth.POOR * math.log(4)


def test_a_baseline_that_does_not_fall_is_refused():
    bases, arms = ladder(1.3)
    turned = dict(zip(bases, reversed([r.values for r in bases.values()]), strict=True))
    bases = {rung: Runs(r.name, r.compute, turned[rung]) for rung, r in bases.items()}
    assert analyse_worth(bases, arms)["refused"] == "rising"


def test_diverged_runs_are_refused_by_name():
    bases, arms = ladder(1.3)
    arms["b"] = {**arms["a"], "r2": Runs("b@r2", 1e13, {0: 2.0}, diverged=2)}
    found = analyse_worth(bases, arms)
    assert (found["arms"]["b"]["refused"], found["arms"]["b"]["diverged"]) == ("diverged", ["b@r2"])
    assert found["arms"]["b"]["all"] is None
    assert found["arms"]["a"]["all"]["multiplier"] == pytest.approx(1.3)
    bases["r0"] = Runs("baseline@r0", bases["r0"].compute, {0: 2.2}, diverged=1)
    found = analyse_worth(bases, arms)
    assert (found["refused"], found["diverged"]) == ("diverged", ["baseline@r0"])

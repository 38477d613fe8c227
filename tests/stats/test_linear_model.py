"""The seed-blocked model matches closed forms and statsmodels, and is invariant to shifts, names and order."""

import time
import warnings

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats
from statsmodels.regression.linear_model import OLS
from statsmodels.tools.sm_exceptions import SingularMatrixWarning

from taetpu.stats.blocked_anova import GUARD_ALPHA
from taetpu.stats.linear_model import Fit, estimate_contrast, fit_model


def closed_form(y: np.ndarray) -> tuple[np.ndarray, float, float, int]:
    """Return effects, standard error, residual sd and degrees of freedom of a table without empty cells."""
    arms, seeds = y.shape
    residuals = y - y.mean(1, keepdims=True) - y.mean(0, keepdims=True) + y.mean()
    df = (arms - 1) * (seeds - 1)
    s2 = (residuals**2).sum() / df
    return (y[1:] - y[0]).mean(1), np.sqrt(2 * s2 / seeds), np.sqrt(s2), df


def unguarded_p(y: np.ndarray) -> np.ndarray:
    effects, error, _, df = closed_form(y)
    return 2 * stats.t.sf(abs(effects) / error, df)


def p_values(found: Fit) -> np.ndarray:
    return np.array([effect.p for effect in found.effects.values()])


@pytest.mark.parametrize(("arms", "seeds"), [(2, 2), (4, 3), (9, 5)])
def test_full_tables_match_the_closed_form(draw, table, arms: int, seeds: int) -> None:
    y = draw(np.random.default_rng(arms), arms, seeds)
    found = fit_model(table(y), noise="guard")
    effects, error, sd, df = closed_form(y)
    assert found.df == df
    assert found.residual_sd == pytest.approx(sd)
    plain = [(e, x) for e, x in zip(found.effects.values(), effects, strict=True) if not e.guarded]
    assert plain
    for effect, expected in plain:
        half = stats.t.ppf(0.975, df) * error
        assert effect.effect == pytest.approx(expected)
        assert effect.interval == pytest.approx((expected - half, expected + half))
        assert effect.p == pytest.approx(2 * stats.t.sf(abs(expected) / error, df))


def test_two_arms_give_the_paired_t_test(draw, table) -> None:
    y = draw(np.random.default_rng(1), 2, 5)
    effect = fit_model(table(y), noise="guard").effects["arm1"]
    assert effect.p == pytest.approx(stats.ttest_rel(y[1], y[0]).pvalue)
    assert not effect.guarded


def test_shift_of_a_seed_changes_nothing(draw, table) -> None:
    y = draw(np.random.default_rng(2), 5, 4, {2: 4.0})
    before, after = (
        fit_model(table(y), noise="guard"),
        fit_model(table(y + np.array([[10.0, -3.0, 0.0, 5.0]])), noise="guard"),
    )
    assert before.noisy == after.noisy
    assert after.levene_p == pytest.approx(before.levene_p)
    for name, effect in before.effects.items():
        assert after.effects[name].effect == pytest.approx(effect.effect)
        assert after.effects[name].interval == pytest.approx(effect.interval)
        assert after.effects[name].p == pytest.approx(effect.p)


def test_names_and_order_of_arms_do_not_matter(draw, table) -> None:
    y = draw(np.random.default_rng(3), 5, 4, {3: 4.0})
    plain = fit_model(table(y), noise="guard")
    names = ["baseline", "C(seed)[T.1]", '"quoted"', "a=1,b=2", "Intercept"]
    renamed = fit_model(dict(reversed(table(y, names).items())), noise="guard")
    for name, effect in zip(names[1:], plain.effects.values(), strict=True):
        other = renamed.effects[name]
        assert (other.effect, other.p) == (pytest.approx(effect.effect), pytest.approx(effect.p))
        assert other.guarded == effect.guarded


def test_guard_test_is_exact(draw, table) -> None:
    """Under equal noise, each arm is flagged at the level of the test, also with empty cells."""
    rng, flagged, arms = np.random.default_rng(5), 0, 4
    for _ in range(250):
        values = table(draw(rng, arms, 4))
        del values["arm1"][0], values["arm2"][3]
        flagged += len(fit_model(values, noise="guard").noisy)
    assert flagged / (250 * arms) == pytest.approx(GUARD_ALPHA, abs=0.03)


def test_noisy_baseline_guards_every_effect(draw, table) -> None:
    y = draw(np.random.default_rng(6), 6, 5, {0: 30.0})
    found = fit_model(table(y), noise="guard")
    assert found.noisy == {"baseline"}
    for i, effect in enumerate(found.effects.values(), 1):
        paired = stats.ttest_rel(y[i], y[0])
        assert effect.guarded
        assert effect.p is not None
        assert effect.p > unguarded_p(y)[i - 1]
        # The baseline's noise dominates, so the guarded estimate is close to the paired one.
        assert effect.p == pytest.approx(paired.pvalue, rel=0.1)
        assert effect.interval == pytest.approx(paired.confidence_interval(), rel=0.1)


def own_noise(y: np.ndarray, noisy: int) -> tuple[float, float]:
    """Return standard error and degrees of freedom of a difference with the noisy arm's own variance."""
    arms, seeds = y.shape
    rest = np.delete(y, noisy, 0)
    _, _, sd, rest_df = closed_form(rest)
    own = (y[noisy] - rest.mean(0)).var(ddof=1)
    others = sd**2 * (1 - 1 / (arms - 1))
    return np.sqrt((own + others) / seeds), (own + others) ** 2 / (own**2 / (seeds - 1) + others**2 / rest_df)


@pytest.mark.parametrize("noisy", [0, 2], ids=["baseline", "arm"])
def test_guarded_effect_uses_the_noise_of_the_noisy_arm(draw, table, noisy: int) -> None:
    y = draw(np.random.default_rng(9), 5, 6, {noisy: 5.0})
    found = fit_model(table(y), noise="guard")
    assert found.noisy == {list(table(y))[noisy]}
    guarded = [i for i in range(1, 5) if noisy in (0, i)]
    for i in guarded:
        _, own = found.effects[f"arm{i}"].estimates
        error, df = own_noise(y, noisy)
        assert (own.standard_error, own.df) == (pytest.approx(error), pytest.approx(df))
        assert own.value == pytest.approx((y[i] - y[0]).mean())


def test_two_noisy_arms_add_the_paired_t_test(draw, table) -> None:
    y = draw(np.random.default_rng(10), 12, 5, {0: 9.0, 3: 9.0})
    found = fit_model(table(y), noise="guard")
    assert {"baseline", "arm3"} <= found.noisy
    effect, paired = found.effects["arm3"], stats.ttest_rel(y[3], y[0])
    assert effect.p >= paired.pvalue
    low, high = paired.confidence_interval()
    assert effect.interval[0] <= low < high <= effect.interval[1]
    assert effect.estimates[-1].p == pytest.approx(paired.pvalue)


@settings(max_examples=25, deadline=None)
@given(st.integers(2, 6), st.integers(2, 5), st.integers(0, 2**32 - 1))
def test_any_table_matches_the_least_squares_fit_of_statsmodels(arms: int, seeds: int, seed: int) -> None:
    """Effects, standard errors and degrees of freedom match for any set of empty cells."""
    rng = np.random.default_rng(seed)
    y, there = rng.normal(size=(arms, seeds)) + 5 * rng.normal(size=seeds), rng.random((arms, seeds)) < 0.8
    values = {f"arm{i}": {s: float(y[i, s]) for s in range(seeds) if there[i, s]} for i in range(arms)}
    found = fit_model(values, "arm0", noise="guard")
    cells = [(i, s) for i in range(arms) for s in range(seeds) if there[i, s]]
    x = np.array([[*(float(i == a) for a in range(arms)), *(float(s == b) for b in range(seeds))] for i, s in cells])
    if not cells or len(cells) <= np.linalg.matrix_rank(x):
        assert all(effect.interval is None for effect in found.effects.values())
        return
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", SingularMatrixWarning)  # the columns of arms and of seeds each add up to 1
        reference = OLS(np.array([y[cell] for cell in cells]), x).fit()
    assert found.df == reference.df_resid
    for i in range(1, arms):
        contrast = np.zeros(arms + seeds)
        contrast[i], contrast[0] = 1.0, -1.0
        effect = found.effects[f"arm{i}"]
        if not np.allclose(contrast @ np.linalg.pinv(x) @ x, contrast):
            assert effect.effect is None
            continue
        test = reference.t_test(contrast)
        assert effect.effect == pytest.approx(test.effect.item(), abs=1e-9)
        if effect.estimates:
            assert effect.estimates[0].standard_error == pytest.approx(test.sd.item())


def test_contrast_is_the_sum_of_effects(draw, table) -> None:
    values = table(draw(np.random.default_rng(11), 5, 4))
    found = fit_model(values, noise="guard")
    both = estimate_contrast(values, {"arm1": 1.0, "arm2": 1.0, "baseline": -2.0}, noise="guard")
    assert both.effect == pytest.approx(found.effects["arm1"].effect + found.effects["arm2"].effect)
    assert both.estimates[0].standard_error == pytest.approx(found.residual_sd * np.sqrt(6 / 4))
    single = estimate_contrast(values, {"arm1": 1.0, "baseline": -1.0}, noise="guard")
    assert single == found.effects["arm1"]


@pytest.mark.slow
def test_five_hundred_arms_are_fitted_in_five_seconds(draw, table) -> None:
    values = table(draw(np.random.default_rng(12), 501, 5, {7: 30.0}))
    start = time.process_time()  # seconds of this process alone, whatever runs beside it
    found = fit_model(values, noise="guard")
    assert time.process_time() - start < 5
    assert found.df == 500 * 4
    assert "arm7" in found.noisy


def test_one_seed_gives_an_effect_without_interval() -> None:
    effect = fit_model({"baseline": {0: 1.0}, "a": {0: 1.5}}).effects["a"]
    assert effect.effect == pytest.approx(0.5)
    assert effect.interval is effect.p is None


@pytest.mark.parametrize("step", [0.0, 0.25])
def test_no_noise_gives_no_interval(step: float) -> None:
    found = fit_model({"baseline": {0: 1.1, 1: 2.3, 2: 3.7}, "a": {0: 1.1 + step, 1: 2.3 + step, 2: 3.7 + step}})
    effect = found.effects["a"]
    assert found.residual_sd == 0
    assert effect.effect == pytest.approx(step, abs=1e-12)
    assert effect.interval is effect.p is None


def test_one_noisy_arm_among_constant_ones_is_guarded() -> None:
    found = fit_model(
        {"baseline": {0: 1.0, 1: 1.0, 2: 1.0}, "a": {0: 2.0, 1: 2.0, 2: 2.0}, "b": {0: 1.0, 1: 3.0, 2: 2.5}}
    )
    assert found.noisy == {"b"}


def test_no_shared_seed_gives_no_effect() -> None:
    assert fit_model({"baseline": {0: 1.0}, "a": {1: 2.0}}).effects["a"].effect is None
    assert fit_model({"baseline": {}, "a": {0: 1.0, 1: 2.0}}).effects["a"].effect is None
    assert fit_model({"baseline": {}, "a": {}}).effects["a"].effect is None


def test_baseline_alone_has_no_effects() -> None:
    found = fit_model({"baseline": {0: 1.0, 1: 2.0}})
    assert found.effects == {}
    assert found.residual_sd is None

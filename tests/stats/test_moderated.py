"""Effects whose noise is weighed (the noise model `moderated`)."""

import math

import numpy as np
import pytest
from scipy import stats
from tests.suites import first_by_default

from taetpu.stats.linear_model import estimate_contrast, fit_model
from taetpu.stats.variances import expected_estimate, matched, posterior
from taetpu.stats.verdict import holm


def test_two_arms_are_compared_by_the_paired_t_test(draw, table) -> None:
    y = draw(np.random.default_rng(0), 2, 6)
    effect = fit_model(table(y)).effects["arm1"]
    test = stats.ttest_rel(y[1], y[0])
    assert (effect.p, effect.effect) == (pytest.approx(test.pvalue), pytest.approx((y[1] - y[0]).mean()))
    assert effect.interval == pytest.approx(tuple(test.confidence_interval()))


def test_effects_do_not_depend_on_names_order_seeds_or_units(draw, table) -> None:
    y = draw(np.random.default_rng(3), 5, 4, {3: 4.0})
    names = ["baseline", "C(seed)[T.1]", '"quoted"', "a=1,b=2", "Intercept"]
    plain = fit_model(table(y)).effects.values()
    others = fit_model(dict(reversed(table(1e-3 * (y + np.array([[10.0, -3.0, 0.0, 5.0]])), names).items()))).effects
    for name, effect in zip(names[1:], plain, strict=True):
        assert others[name].p == pytest.approx(effect.p, rel=1e-6)
        assert others[name].interval == pytest.approx(tuple(1e-3 * end for end in effect.interval), rel=1e-6)


@pytest.mark.slow
def test_a_small_change_of_a_value_changes_p_little(draw, table) -> None:
    """Also where an F-test of the arm's noise is at any level: no p jumps as one arm becomes noisier."""
    y, p = draw(np.random.default_rng(5), 6, 5), []
    centred = y[2] - y[2].mean()
    for factor in np.geomspace(0.5, 8, 400):
        y[2] = y[2].mean() + factor * centred
        p.append([effect.p for effect in fit_model(table(y)).effects.values()])
    assert np.abs(np.diff(np.log(p), axis=0)).max() < 0.1


def test_a_noisy_arm_does_not_hide_the_effect_of_another(draw, table) -> None:
    """An effect of three standard deviations keeps most of its evidence beside an arm of ten times the noise."""
    rng, lost = np.random.default_rng(7), []
    for _ in range(20):
        y = draw(rng, 9, 5)
        y[1] += 3
        noisy = y.copy()
        noisy[4] = y[4].mean() + 10 * (y[4] - y[4].mean())
        quiet, beside = (fit_model(table(values)).effects["arm1"] for values in (y, noisy))
        lost.append(math.log10(beside.p / quiet.p))
        assert beside.effect == pytest.approx(quiet.effect)
    assert np.median(lost) < 0.5


def test_the_own_noise_of_an_arm_far_apart_decides(draw, table) -> None:
    """With a hundred times the noise of the others, an effect has nearly the interval of the paired t-test."""
    y = draw(np.random.default_rng(9), 8, 6, {3: 100.0})
    fit = fit_model(table(y))
    paired = stats.ttest_rel(y[3], y[0]).confidence_interval()
    ours = fit.effects["arm3"].interval
    assert (ours[1] - ours[0]) / (paired.high - paired.low) == pytest.approx(1, abs=0.15)
    assert fit.noisy == {"arm3"}
    assert fit.apart["arm3"] > 0.999 > max(share for arm, share in fit.apart.items() if arm != "arm3")


@pytest.mark.parametrize("factor", [60.0, 1e3, 1e5, 1e8])
def test_noise_of_any_size_is_that_of_its_arm_alone(draw, table, factor: float) -> None:
    """Other arms are compared as if the arm had a hundred times their noise, and the arm by its own noise."""
    y = draw(np.random.default_rng(19), 6, 5)
    y[1] += 3
    rest, noise, fits = np.delete(y, 3, 0).mean(0), y[3] - y[3].mean(), []
    for times in (30.0, factor):
        y[3] = rest + times * noise
        fits.append(fit_model(table(y)))
    beside, far = fits
    assert far.effects["arm1"].p == pytest.approx(beside.effects["arm1"].p, rel=0.3)
    assert far.residual_sd == pytest.approx(beside.residual_sd, rel=0.1)
    error = far.effects["arm3"].estimates[0].standard_error
    assert error / beside.effects["arm3"].estimates[0].standard_error == pytest.approx(factor / 30, rel=0.05)
    assert far.noisy == {"arm3"}


@pytest.mark.parametrize("scale", [1e-100, 1e-12, 1e12, 1e100])
def test_the_unit_does_not_matter(draw, table, scale: float) -> None:
    y = draw(np.random.default_rng(21), 6, 4)
    ours, others = (fit_model(table(values)) for values in (y, scale * y))
    assert others.residual_sd == pytest.approx(scale * ours.residual_sd, rel=1e-9)
    for name, effect in ours.effects.items():
        assert others.effects[name].p == pytest.approx(effect.p, rel=1e-6)


@pytest.mark.parametrize(("arms", "seeds"), first_by_default([(3, 2), (40, 2), (3, 100), (200, 3), (200, 20)], 2))
def test_studies_of_any_size_are_estimated(draw, table, arms: int, seeds: int) -> None:
    """Also with empty cells, without a warning."""
    rng = np.random.default_rng(23)
    values = table(draw(rng, arms, seeds))
    for arm, seed in zip(rng.integers(1, arms, arms // 4), rng.integers(0, seeds, arms // 4), strict=True):
        values[f"arm{arm}"].pop(int(seed), None)
    fit = fit_model(values)
    known = [effect.p for effect in fit.effects.values() if effect.p is not None]
    assert len(known) > 0.9 * (arms - 1)
    assert all(0 < p <= 1 for p in known)
    assert 0.5 < fit.residual_sd < 1.5


def test_an_arm_without_noise_does_not_lend_its_certainty(draw, table) -> None:
    """An arm whose runs are equal up to the seed's effect is compared by the noise of the others."""
    y = draw(np.random.default_rng(25), 8, 5)
    y[1] = np.delete(y, 1, 0).mean(0)
    effect = fit_model(table(y)).effects["arm1"].estimates[0]
    assert effect.standard_error > 0.4


def test_effects_of_arms_far_apart_have_the_moments_of_contrasts() -> None:
    """For many studies at once and for one contrast, also if the baseline or an arm is far apart."""
    rss = np.array([[1.0, 2.0, 1e6, 3.0, 1.5], [1e7, 2.0, 1.0, 3.0, 1.5]]) * 3
    known = posterior(rss, np.full(rss.shape, 3.0), np.zeros(2))
    assert (known.factors > 1).sum() == 2
    means, variances = known.pairs(0, 1 / 4)
    for study in (0, 1):
        single = posterior(rss[[study]], np.full((1, 5), 3.0), np.zeros(1))
        for arm in range(1, 5):
            moments = single.log_moments(np.where(np.isin(np.arange(5), (0, arm)), 1 / 4, 0.0))
            assert moments == pytest.approx((means[study, arm], variances[study, arm]), rel=3e-3)


def test_equal_noise_is_nearly_pooled(draw, table) -> None:
    """Over studies, standard errors are those of pooled noise, with at least a third of its degrees of freedom."""
    rng, ratios, df = np.random.default_rng(11), [], []
    for _ in range(40):
        values = table(draw(rng, 8, 5))
        ours, pooled = (fit_model(values, noise=noise).effects["arm1"].estimates[0] for noise in ("moderated", "guard"))
        ratios.append(ours.standard_error / pooled.standard_error)
        df.append(ours.df)
    assert np.median(ratios) == pytest.approx(1, abs=0.05)
    assert np.median(df) > 28 / 3


def test_an_arm_with_one_run_and_empty_cells_are_estimated(draw, table) -> None:
    values = table(draw(np.random.default_rng(13), 5, 4))
    values["arm1"] = {2: values["arm1"][2]}
    del values["baseline"][0], values["arm3"][1]
    fit = fit_model(values)
    for effect in fit.effects.values():
        assert math.isfinite(effect.estimates[0].standard_error)
        assert 0 < effect.estimates[0].df <= fit_model(values, noise="guard").df


def test_contrasts_of_many_arms_use_the_same_noise(draw, table) -> None:
    """A contrast of two arms is their effect; one of many arms has the standard error of its weights."""
    values = table(draw(np.random.default_rng(15), 6, 5))
    fit = fit_model(values)
    assert estimate_contrast(values, {"arm1": 1.0, "baseline": -1.0}) == fit.effects["arm1"]
    weights = {"arm1": 1 / 3, "arm2": 1 / 3, "arm3": 1 / 3, "arm4": -0.5, "arm5": -0.5}
    one = estimate_contrast(values, weights).estimates[0]
    assert one.value == pytest.approx(
        sum(weight * np.mean(list(values[arm].values())) for arm, weight in weights.items())
    )
    assert one.standard_error == pytest.approx(fit.residual_sd * math.sqrt((1 / 3 + 1 / 2) / 5), rel=0.25)


def test_runs_that_share_nothing_are_compared_without_pairs() -> None:
    """In one block, two arms are compared as Welch's test does; numbering the runs otherwise changes nothing."""
    rng = np.random.default_rng(17)
    y, one = np.array([[1.0], [3.0]]) * rng.normal(size=(2, 12)), dict.fromkeys(range(12), 0)
    values = {name: dict(enumerate(map(float, row))) for name, row in zip(("baseline", "a"), y, strict=True)}
    effect = fit_model(values, block=one).effects["a"]
    mixed = {"baseline": values["baseline"], "a": dict(enumerate(map(float, rng.permutation(y[1]))))}
    assert fit_model(mixed, block=one).effects["a"].p == pytest.approx(effect.p)
    welch = stats.ttest_ind(y[1], y[0], equal_var=False)
    assert effect.estimates[0].standard_error == pytest.approx(welch._standard_error, rel=0.1)
    assert effect.p == pytest.approx(welch.pvalue, abs=0.05)


def test_log_moments_are_matched() -> None:
    """The matched law has the given moments, for few and for many degrees of freedom."""
    for df in (1.5, 4.0, 30.0, 400.0):
        logs = np.log(2.0 * df / stats.chi2.ppf((np.arange(20000) + 0.5) / 20000, df))
        squared, freedom = matched(logs.mean(), logs.var())
        assert (float(squared), float(freedom)) == (pytest.approx(2.0, rel=0.01), pytest.approx(df, rel=0.02))


def test_planned_studies_expect_nearly_pooled_noise() -> None:
    assert expected_estimate(2, 5) == (pytest.approx(math.sqrt(2 / 5)), 4.0)
    for arms, seeds in ((4, 3), (10, 5), (40, 8)):
        error, df = expected_estimate(arms, seeds)
        assert error == pytest.approx(math.sqrt(2 / seeds), rel=0.1)
        assert (arms - 1) * (seeds - 1) / 4 < df <= (arms - 1) * (seeds - 1)


def test_two_seeds_show_effects_of_ten_standard_deviations(draw, table) -> None:
    """Among seven arms, most such effects have a p below 0.05 after Holm's correction."""
    rng, shown = np.random.default_rng(19), 0
    for _ in range(40):
        y = draw(rng, 7, 2)
        y[1] += 10
        effects = fit_model(table(y)).effects
        shown += holm({arm: effect.p for arm, effect in effects.items()})["arm1"] < 0.05
    assert shown >= 28

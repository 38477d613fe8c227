"""The seed-blocked model against closed forms and against itself under changes that must not matter."""

import numpy as np
import pytest
from scipy import stats

from taetpu.stats.model import Fit, fit


def closed_form(y: np.ndarray) -> tuple[np.ndarray, float, float, int]:
    """Effects, standard error, residual sd and its degrees of freedom of a table with every cell filled."""
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
def test_balanced_is_the_closed_form(draw, table, arms: int, seeds: int) -> None:
    y = draw(np.random.default_rng(arms), arms, seeds)
    found = fit(table(y))
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


def test_two_arms_are_the_paired_t_test(draw, table) -> None:
    y = draw(np.random.default_rng(1), 2, 5)
    effect = fit(table(y)).effects["arm1"]
    assert effect.p == pytest.approx(stats.ttest_rel(y[1], y[0]).pvalue)
    assert not effect.guarded


def test_a_shift_of_a_seed_changes_nothing(draw, table) -> None:
    y = draw(np.random.default_rng(2), 5, 4, {2: 4.0})
    before, after = fit(table(y)), fit(table(y + np.array([[10.0, -3.0, 0.0, 5.0]])))
    assert before.noisy == after.noisy
    assert after.levene_p == pytest.approx(before.levene_p)
    for name, effect in before.effects.items():
        assert after.effects[name].effect == pytest.approx(effect.effect)
        assert after.effects[name].interval == pytest.approx(effect.interval)
        assert after.effects[name].p == pytest.approx(effect.p)


def test_names_and_order_of_arms_do_not_matter(draw, table) -> None:
    y = draw(np.random.default_rng(3), 5, 4, {3: 4.0})
    plain = fit(table(y))
    names = ["baseline", "C(seed)[T.1]", '"quoted"', "a=1,b=2", "Intercept"]
    renamed = fit(dict(reversed(table(y, names).items())))
    for name, effect in zip(names[1:], plain.effects.values(), strict=True):
        other = renamed.effects[name]
        assert (other.effect, other.p) == (pytest.approx(effect.effect), pytest.approx(effect.p))
        assert other.guarded == effect.guarded


@pytest.mark.parametrize("noisy", [0, 1], ids=["baseline", "arm"])
def test_guard_keeps_the_error_rate(draw, table, noisy: int) -> None:
    """No arm has an effect, one of nine is three times as noisy. How often is anything claimed of the noisy arm, or of
    any arm if it is the baseline, at 5 % corrected for eight comparisons?"""
    rng, plain, guarded = np.random.default_rng(4), [], []
    claims = slice(None) if noisy == 0 else slice(1)
    for _ in range(300):
        y = draw(rng, 9, 5, {noisy: 3.0})
        plain.append(unguarded_p(y)[claims].min() < 0.05 / 8)
        guarded.append(p_values(fit(table(y)))[claims].min() < 0.05 / 8)
    assert np.mean(plain) > 0.07
    assert np.mean(guarded) < 0.06


def test_guard_test_is_exact(draw, table) -> None:
    """With equal noise it flags each arm in a tenth of the studies, also with cells missing."""
    rng, flagged, arms = np.random.default_rng(5), 0, 4
    for _ in range(500):
        values = table(draw(rng, arms, 4))
        del values["arm1"][0], values["arm2"][3]
        flagged += len(fit(values).noisy)
    assert flagged / (500 * arms) == pytest.approx(0.1, abs=0.02)


def test_noisy_baseline_guards_every_effect(draw, table) -> None:
    y = draw(np.random.default_rng(6), 6, 5, {0: 30.0})
    found = fit(table(y))
    assert found.noisy == {"baseline"}
    for i, effect in enumerate(found.effects.values(), 1):
        paired = stats.ttest_rel(y[i], y[0])
        assert effect.guarded
        assert effect.p == pytest.approx(max(paired.pvalue, unguarded_p(y)[i - 1]))
        assert effect.interval == pytest.approx(paired.confidence_interval())


def test_missing_cells_are_the_least_squares_solution(draw, table) -> None:
    values = table(draw(np.random.default_rng(7), 3, 4))
    del values["arm1"][2], values["baseline"][0]
    found = fit(values)
    # By hand: normal equations over arms and seeds.
    cells = [(arm, seed, y) for arm, row in values.items() for seed, y in row.items()]
    x = np.array([[*(arm == a for a in values), *(seed == s for s in (1, 2, 3))] for arm, seed, _ in cells], float)
    solution = np.linalg.solve(x.T @ x, x.T @ np.array([y for *_, y in cells]))
    assert found.df == 10 - 6
    assert found.effects["arm1"].effect == pytest.approx(solution[1] - solution[0])


def test_one_seed_gives_an_effect_alone() -> None:
    effect = fit({"baseline": {0: 1.0}, "a": {0: 1.5}}).effects["a"]
    assert effect.effect == pytest.approx(0.5)
    assert effect.interval is effect.p is None


@pytest.mark.parametrize("step", [0.0, 0.25])
def test_no_noise_gives_no_certainty(step: float) -> None:
    found = fit({"baseline": {0: 1.1, 1: 2.3, 2: 3.7}, "a": {0: 1.1 + step, 1: 2.3 + step, 2: 3.7 + step}})
    effect = found.effects["a"]
    assert found.residual_sd == 0
    assert effect.effect == pytest.approx(step, abs=1e-12)
    assert effect.interval is effect.p is None


def test_one_noisy_arm_among_constant_ones_is_guarded() -> None:
    found = fit({"baseline": {0: 1.0, 1: 1.0, 2: 1.0}, "a": {0: 2.0, 1: 2.0, 2: 2.0}, "b": {0: 1.0, 1: 3.0, 2: 2.5}})
    assert found.noisy == {"b"}


def test_no_shared_seed_gives_no_effect() -> None:
    assert fit({"baseline": {0: 1.0}, "a": {1: 2.0}}).effects["a"].effect is None
    assert fit({"baseline": {}, "a": {0: 1.0, 1: 2.0}}).effects["a"].effect is None
    assert fit({"baseline": {}, "a": {}}).effects["a"].effect is None


def test_baseline_alone() -> None:
    found = fit({"baseline": {0: 1.0, 1: 2.0}})
    assert found.effects == {}
    assert found.residual_sd is None

"""Alternative tests match scipy and statsmodels; evaluation noise and efficiency match closed forms."""

import math
from itertools import product

import numpy as np
import pytest
from scipy import stats
from statsmodels.stats.weightstats import ttost_paired

from taetpu.core.errors import UserError
from taetpu.stats.analyse import analyse
from taetpu.stats.linear_model import fit_model
from taetpu.stats.secondary_analyses import RESAMPLES, alternative_analyses, first_crossing


def rows(seeds: int) -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(seeds)
    shared = rng.normal(size=seeds)
    return shared + 0.3 * rng.normal(size=seeds) + 0.3, shared + 0.3 * rng.normal(size=seeds)


def seeded(row: np.ndarray) -> dict[int, float]:
    return dict(enumerate(row.tolist()))


@pytest.mark.parametrize("seeds", [3, 5, 8])
def test_alternative_tests_match_scipy(seeds: int) -> None:
    arm, baseline = rows(seeds)
    found, test = alternative_analyses(seeded(arm), seeded(baseline)), stats.ttest_rel(arm, baseline)
    assert found["paired"]["p"] == pytest.approx(test.pvalue)
    assert found["paired"]["ci95"] == pytest.approx(list(test.confidence_interval()))
    assert found["correlation"] == pytest.approx(stats.pearsonr(arm, baseline).statistic)
    left = [np.delete(arm - baseline, i).mean() for i in range(seeds)]
    assert found["without_a_seed"] == pytest.approx([min(left), max(left)])
    assert (found["sign_flip_p"] is None) == (seeds < 6)


def test_sign_flip_test_counts_all_flips() -> None:
    arm, baseline = rows(6)
    flips = [abs(np.dot(signs, arm - baseline)) for signs in product((-1, 1), repeat=6)]
    expected = np.mean(np.array(flips) >= abs((arm - baseline).sum()) * (1 - 1e-9))
    assert alternative_analyses(seeded(arm), seeded(baseline))["sign_flip_p"] == pytest.approx(expected)


def test_alternative_tests_use_shared_seeds_only() -> None:
    arm, baseline = rows(5)
    more = {**seeded(arm), 7: 99.0}
    assert alternative_analyses(more, seeded(baseline)) == alternative_analyses(seeded(arm), seeded(baseline))


@pytest.mark.parametrize("arm", [{}, {0: 1.0}, {0: 1.5, 1: 2.5}])
def test_too_few_seeds_or_no_noise_give_no_alternative_tests(arm: dict[int, float]) -> None:
    found = alternative_analyses(arm, {0: 1.0, 1: 2.0})
    assert found == {"paired": None, "sign_flip_p": None, "correlation": None, "without_a_seed": None}


@pytest.mark.parametrize("bound", [0.1, 0.5, 2.0])
def test_equivalence_of_two_arms_matches_statsmodels(bound: float) -> None:
    arm, baseline = rows(6)
    effect = fit_model({"baseline": seeded(baseline), "a": seeded(arm)}).effects["a"]
    expected, *_ = ttost_paired(arm, baseline, -bound, bound)
    assert effect.p_inside(bound) == pytest.approx(expected)
    low, high = effect.interval_at(0.9)
    assert (expected < 0.05) == (-bound < low and high < bound)


def evaluated(folder, sums, weight) -> None:
    """Store the sums over blocks of every run. `sums` is by arm and seed, and `weight` may be by arm."""
    for run in folder.runs():
        weights = weight[run.arm] if isinstance(weight, dict) else weight
        run.write_evaluation({"val/nll": sums[run.arm, run.seed], "val/weight": weights})


def test_evaluation_noise_is_the_sd_of_a_mean_over_blocks(store_study) -> None:
    rng, blocks = np.random.default_rng(0), 40
    weight = np.full(blocks, 8.0)
    text = rng.gamma(3, 8, blocks)  # difficulty of each block, the same for all arms
    sums = {(arm, s): text + (arm == "a") * rng.normal(2, 3, blocks) for arm in ("baseline", "a") for s in range(3)}
    values = {arm: {s: sums[arm, s].sum() / weight.sum() for s in range(3)} for arm in ("baseline", "a")}
    folder = store_study(values)
    evaluated(folder, sums, weight)
    arm = analyse(folder)["arms"][1]
    found = arm["evaluation_noise"]
    difference = np.mean([(sums["a", s] - sums["baseline", s]) / 8 for s in range(3)], axis=0)
    assert difference.mean() == pytest.approx(arm["effect"])
    # With blocks of equal weight, the effect is a mean over blocks.
    assert found["sd"] == pytest.approx(difference.std() / np.sqrt(blocks), rel=4 / np.sqrt(2 * RESAMPLES))
    low, high = found["ci95"]
    assert low < arm["effect"] < high
    assert high - low == pytest.approx(2 * 1.96 * found["sd"], rel=0.1)
    assert found["blocks"] == blocks


def test_difficulty_of_the_text_is_no_evaluation_noise(store_study) -> None:
    text, weight = np.random.default_rng(1).gamma(3, 800, 30), np.ones(30)
    sums = {("baseline", s): text for s in range(2)} | {("a", s): text + 0.5 for s in range(2)}
    folder = store_study({"baseline": {0: 1.0, 1: 1.1}, "a": {0: 1.5, 1: 1.6}})
    evaluated(folder, sums, weight)
    assert analyse(folder)["arms"][1]["evaluation_noise"]["sd"] == pytest.approx(0, abs=1e-9)


def test_padding_is_not_a_block(store_study) -> None:
    rng, weight = np.random.default_rng(2), np.array([4.0] * 10 + [0.0] * 6)
    sums = {(arm, s): np.append(rng.random(10), np.zeros(6)) for arm in ("baseline", "a") for s in range(2)}
    folder = store_study({"baseline": {0: 1.0, 1: 1.1}, "a": {0: 1.5, 1: 1.6}})
    evaluated(folder, sums, weight)
    assert analyse(folder)["arms"][1]["evaluation_noise"]["blocks"] == 10


def test_no_stored_blocks_give_no_evaluation_noise(store_study) -> None:
    folder = store_study({"baseline": {0: 1.0, 1: 1.1}, "a": {0: 1.5, 1: 1.6}})
    assert analyse(folder)["arms"][1]["evaluation_noise"] is None


def test_unequal_evaluation_sets_are_refused(store_study) -> None:
    folder = store_study({"baseline": {0: 1.0, 1: 1.1}, "a": {0: 1.5, 1: 1.6}})
    sums = {(arm, s): np.ones(4) for arm in ("baseline", "a") for s in range(2)}
    evaluated(folder, sums, {"baseline": np.full(4, 8.0), "a": np.array([8.0, 8.0, 8.0, 7.0])})
    with pytest.raises(UserError) as error:
        analyse(folder)
    text = str(error.value)
    assert "on 31 positions of val" in text
    assert "on 32" in text
    assert "the invalid run" in text


def test_evaluation_sets_may_differ_between_the_rungs_of_a_ladder(store_study) -> None:
    """Arms are compared within a rung. A planned contrast over rungs is refused."""
    arms = ["baseline", "a", "baseline@b", "a@b"]
    values = {arm: {0: 1.0 + i, 1: 1.1 + i} for i, arm in enumerate(arms)}
    roles = {
        "a": {"ladder": {"rung": "own", "arm": "a"}},
        "baseline@b": {"against": "baseline@b", "ladder": {"rung": "b", "arm": "baseline"}},
        "a@b": {"against": "baseline@b", "ladder": {"rung": "b", "arm": "a"}},
    }
    design = {"ladder": {"rungs": ["own", "b"], "own": "own"}}
    weights = {arm: np.full(4, 8.0 if arm in arms[:2] else 6.0) for arm in arms}
    sums = {(arm, s): np.ones(4) for arm in arms for s in range(2)}
    folder = store_study(values, roles=roles, design=design)
    evaluated(folder, sums, weights)
    assert [arm["verdict"] is None for arm in analyse(folder)["arms"]] == [True, False, True, False]
    over = store_study(
        values, name="over", roles=roles, design=design, contrasts={"x": {"compare": ["a"], "to": ["a@b"]}}
    )
    evaluated(over, sums, weights)
    with pytest.raises(UserError, match="24 positions of val"):
        analyse(over)


@pytest.mark.parametrize(
    ("values", "target", "step"),
    [
        ([5.0, 4.0, 3.0], 4.5, 15.0),
        ([5.0, 4.0, 3.0], 4.0, 20.0),
        ([5.0, 4.0, 3.0], 5.5, 10.0),
        ([5.0, 4.0, 3.0], 2.9, math.inf),
        ([5.0, 3.0, 4.0], 3.5, 17.5),
        ([math.nan, 4.0, 3.0], 3.5, 25.0),
    ],
)
def test_first_crossing_is_interpolated(values: list[float], target: float, step: float) -> None:
    assert first_crossing(np.array([10.0, 20.0, 30.0]), np.array(values), target) == step


def logged(run, series) -> None:
    """Log metrics of a finished run as if they had been logged before its result was written."""
    result = run.result()
    run.store.delete(f"{run.key}/result.json")
    run.append(0, 10, series)
    run.finish({**result, "steps": 10})


def curves(folder, arm: str, speed: dict[int, float]) -> None:
    """Log a loss that starts at 2 and falls by `speed` per step."""
    for run in folder.runs():
        if run.arm == arm:
            steps = [2, 4, 6, 8, 10]
            logged(run, {"val/loss": (steps, [2 - speed[run.seed] * step for step in steps])})


def test_efficiency_is_a_geometric_mean_over_seeds(store_study) -> None:
    base = dict.fromkeys(range(3), 1.0)  # reached after 10 steps at a speed of 0.1
    speed = {0: 0.2, 1: 0.25, 2: 0.125}
    values = {"baseline": base, "a": {seed: 2 - 10 * speed[seed] for seed in range(3)}}
    folder = store_study(values, result=lambda arm, seed: {"flops": 3_000_000} if arm == "a" else {})
    curves(folder, "baseline", dict.fromkeys(range(3), 0.1))
    curves(folder, "a", speed)
    found = analyse(folder)["arms"][1]["efficiency"]
    ratios = np.array([0.1 / s for s in speed.values()])
    assert found["steps"]["ratio"] == pytest.approx(np.exp(np.log(ratios).mean()))
    low, high = np.exp(stats.t.interval(0.95, 2, np.log(ratios).mean(), stats.sem(np.log(ratios))))
    assert found["steps"]["ci95"] == pytest.approx([low, high])
    assert found["flops"]["ratio"] == pytest.approx(1.5 * found["steps"]["ratio"])
    assert (found["seeds"], found["reached"]) == (3, 3)


def test_seed_that_never_reaches_the_baseline_gives_no_ratio(store_study) -> None:
    folder = store_study({"baseline": {0: 1.0, 1: 1.0}, "a": {0: 1.5, 1: 1.0}})
    curves(folder, "a", {0: 0.05, 1: 0.1})
    found = analyse(folder)["arms"][1]["efficiency"]
    assert found == {"seeds": 2, "reached": 1, "steps": None, "flops": None}


def test_no_curve_gives_no_efficiency(store_study) -> None:
    assert analyse(store_study({"baseline": {0: 1.0}, "a": {0: 1.5}}))["arms"][1]["efficiency"] is None


def sampled(folder, arm: str, speed: float, shift: float) -> None:
    """Log a curve on the sample of the validation split, and one point on the whole split."""
    for run in folder.runs():
        if run.arm == arm:
            steps = [2, 4, 6, 8, 10]
            values = [2 + shift - speed * step for step in steps]
            logged(run, {"val_sample/loss": (steps, values), "val/loss": ([10], [2 - speed * 10])})


@pytest.mark.parametrize("shift", [-0.5, 0.5])
def test_efficiency_compares_curves_on_the_sample(store_study, shift: float) -> None:
    part = {"windows": 4, "of": 9}
    folder = store_study({"baseline": {0: 1.0}, "a": {0: 0.0}}, result=lambda arm, seed: {"val_sample": part})
    sampled(folder, "baseline", 0.1, shift)
    sampled(folder, "a", 0.2, shift)
    assert analyse(folder)["arms"][1]["efficiency"]["steps"]["ratio"] == pytest.approx(0.5)


def test_different_samples_are_not_compared(store_study) -> None:
    parts = {"baseline": {"windows": 4, "of": 9}, "a": {"windows": 5, "of": 9}}
    folder = store_study({"baseline": {0: 1.0}, "a": {0: 0.0}}, result=lambda arm, seed: {"val_sample": parts[arm]})
    for arm in parts:
        sampled(folder, arm, 0.1, 0.0)
    assert analyse(folder)["arms"][1]["efficiency"] is None

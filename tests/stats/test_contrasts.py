"""Planned contrasts: their estimates, their share in the correction, and claims about them."""

import numpy as np
import pytest
from scipy import stats
from tests.stats.conftest import made_study

from taetpu.core.errors import UserError
from taetpu.stats.analyse import compute_results
from taetpu.stats.claims import check_claim, parse_claim
from taetpu.stats.plan import Plan, read_plan

ARMS = ("baseline", "a", "b", "c")
PAIR = {"a-b": {"compare": ["a"], "to": ["b"]}}
SPREAD = {
    "steady": {
        "spread": "val/loss", "over": "train.optimizer.lr", "by": "model.mixer.qk_norm",
        "level": "rms", "compare": ["b", "c"], "to": ["baseline", "a"],
    }
}  # fmt: skip


@pytest.fixture
def results(tmp_path, draw):
    """Return a function that computes the results of a study with the given contrasts."""

    def made(contrasts, y=None, seeds=5, **plan):
        y = draw(np.random.default_rng(3), len(ARMS), seeds) if y is None else y
        values = {arm: dict(enumerate(map(float, row))) for arm, row in zip(ARMS, y, strict=True)}
        values = {arm: {s: None if np.isnan(v) else v for s, v in row.items()} for arm, row in values.items()}
        name = f"s{len([*tmp_path.iterdir()])}"
        return y, compute_results(made_study(tmp_path, values, name=name, contrasts=contrasts, **plan))

    return made


def test_a_comparison_with_the_baseline_is_the_effect_of_the_arm(results):
    _, found = results({"same": {"compare": ["a"], "to": ["baseline"]}})
    arm, one = found["arms"][1], found["contrasts"][0]
    for name in ("effect", "ci95", "ci90", "p", "effect_sd", "guarded", "verdict"):
        assert one[name] == pytest.approx(arm[name]) if name not in ("guarded", "verdict") else one[name] == arm[name]


def test_a_comparison_of_groups_is_the_difference_of_their_means(results):
    y, found = results({"groups": {"compare": ["a", "b"], "to": ["c"]}})
    one, (model,) = found["contrasts"][0], found["groups"]
    assert one["effect"] == pytest.approx(y[1:3].mean() - y[3].mean())
    width = stats.t.isf(0.025, model["df"]) * model["residual_sd"] * np.sqrt((0.5**2 * 2 + 1) / y.shape[1])
    assert np.diff(one["ci95"])[0] / 2 == pytest.approx(width)


def test_two_spreads_are_compared_as_pairs_of_seeds(results):
    y, found = results(SPREAD)
    one = found["contrasts"][0]
    first, second = (np.std(y[pair], axis=0, ddof=1) for pair in ([2, 3], [0, 1]))
    assert one["effect"] == pytest.approx((first - second).mean())
    assert one["p"] == pytest.approx(stats.ttest_rel(first, second).pvalue)
    assert one["means"] == pytest.approx([first.mean(), second.mean()])


def test_contrasts_share_the_correction_with_the_arms(results):
    y, alone = results({})
    assert "contrasts" not in alone
    _, found = results(PAIR | SPREAD, y)
    raw = [arm["p"] for arm in found["arms"][1:]] + [one["p"] for one in found["contrasts"]]
    corrected = [arm["p_holm"] for arm in found["arms"][1:]] + [one["p_holm"] for one in found["contrasts"]]
    order, largest = np.argsort(raw), 0.0
    for rank, i in enumerate(order):
        largest = max(largest, min(1.0, raw[i] * (len(raw) - rank)))
        assert corrected[i] == pytest.approx(largest)
    for before, after in zip(alone["arms"], found["arms"], strict=True):
        assert before["effect"] == after["effect"]


def test_a_side_whose_runs_diverged_is_not_better(results):
    y = np.random.default_rng(0).normal(size=(4, 5)) * 0.01
    y[1] -= 1.0
    y[1, 3:] = np.nan
    one = results(PAIR, y)[1]["contrasts"][0]
    assert one["effect"] < -0.9
    assert one["verdict"] == "inconclusive"
    assert "2 of 5 runs diverged, 0 of 5 of b" in one["evidence"]


def test_a_large_difference_between_arms_is_a_verdict(results):
    y = np.random.default_rng(0).normal(size=(4, 5)) * 0.01
    y[1] -= 1.0
    _, found = results(PAIR, y)
    one = found["contrasts"][0]
    assert one["verdict"] == "better"
    assert "lower than b's" in one["evidence"]
    claims = {
        "a-b is better": True,
        "a is better than b": True,
        "b is worse than a by at least 0.5": True,
        "b is better than a": False,
        "a is better than baseline by at least 0.5": True,
        "a is equivalent to b": False,
    }
    assert {claim: check_claim(parse_claim(claim, ()), found, ()).holds for claim in claims} == claims
    with pytest.raises(UserError, match=r"no planned .*'a' with 'c'") as caught:
        check_claim(parse_claim("a is better than c", ()), found, ())
    assert "{a-vs-c: {compare: a, to: c}}" in caught.value.remedy
    with pytest.raises(UserError, match="no arm 'd'"):
        check_claim(parse_claim("a is better than d", ()), found, ())


def test_contrasts_are_part_of_the_hash_of_a_plan():
    own = {"primary": "val/loss", "direction": "min", "arms": ARMS, "seeds": (0, 1), "looks": (2,)}
    plan = Plan(**own)
    assert "contrasts" not in plan.frozen()
    assert read_plan({"plan": plan.frozen()}, "") == plan
    asked = Plan(**own, contrasts=PAIR)
    assert read_plan({"plan": asked.frozen()}, "") == asked
    with pytest.raises(UserError, match="from the plan"):
        read_plan({"plan": {**asked.frozen(), "contrasts": SPREAD}}, "")

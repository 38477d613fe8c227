"""Evaluation noise by hand, and runs that were evaluated on unequal sets."""

import numpy as np
import pytest

from taetpu.core.errors import UserError
from taetpu.stats.analyse import analyse
from taetpu.stats.evaluation import RESAMPLES


def evaluated(folder, sums, weight) -> None:
    """Store the sums over blocks of every run; `sums` by arm and seed."""
    for run in folder.runs():
        weights = weight[run.arm] if isinstance(weight, dict) else weight
        run.write_evaluation({"val/nll": sums[run.arm, run.seed], "val/weight": weights})


def test_by_hand(store_study) -> None:
    rng, blocks = np.random.default_rng(0), 40
    weight = np.full(blocks, 8.0)
    text = rng.gamma(3, 8, blocks)  # how hard each block is, for all arms
    sums = {(arm, s): text + (arm == "a") * rng.normal(2, 3, blocks) for arm in ("baseline", "a") for s in range(3)}
    values = {arm: {s: sums[arm, s].sum() / weight.sum() for s in range(3)} for arm in ("baseline", "a")}
    folder = store_study(values)
    evaluated(folder, sums, weight)
    arm = analyse(folder)["arms"][1]
    found = arm["evaluation_noise"]
    difference = np.mean([(sums["a", s] - sums["baseline", s]) / 8 for s in range(3)], axis=0)
    assert difference.mean() == pytest.approx(arm["effect"])
    # Blocks of equal weight: the effect is a mean over blocks, and its bootstrap sd that of a mean.
    assert found["sd"] == pytest.approx(difference.std() / np.sqrt(blocks), rel=4 / np.sqrt(2 * RESAMPLES))
    low, high = found["ci95"]
    assert low < arm["effect"] < high
    assert high - low == pytest.approx(2 * 1.96 * found["sd"], rel=0.1)
    assert found["blocks"] == blocks


def test_how_hard_the_text_is_does_not_count(store_study) -> None:
    """All arms see the same text: only differences between arms are noise."""
    text, weight = np.random.default_rng(1).gamma(3, 800, 30), np.ones(30)
    sums = {("baseline", s): text for s in range(2)} | {("a", s): text + 0.5 for s in range(2)}
    folder = store_study({"baseline": {0: 1.0, 1: 1.1}, "a": {0: 1.5, 1: 1.6}})
    evaluated(folder, sums, weight)
    assert analyse(folder)["arms"][1]["evaluation_noise"]["sd"] == pytest.approx(0, abs=1e-9)


def test_padding_is_no_block(store_study) -> None:
    rng, weight = np.random.default_rng(2), np.array([4.0] * 10 + [0.0] * 6)
    sums = {(arm, s): np.append(rng.random(10), np.zeros(6)) for arm in ("baseline", "a") for s in range(2)}
    folder = store_study({"baseline": {0: 1.0, 1: 1.1}, "a": {0: 1.5, 1: 1.6}})
    evaluated(folder, sums, weight)
    assert analyse(folder)["arms"][1]["evaluation_noise"]["blocks"] == 10


def test_nothing_kept_nothing_said(store_study) -> None:
    folder = store_study({"baseline": {0: 1.0, 1: 1.1}, "a": {0: 1.5, 1: 1.6}})
    assert analyse(folder)["arms"][1]["evaluation_noise"] is None


def test_unequal_evaluation_sets_are_refused(store_study) -> None:
    folder = store_study({"baseline": {0: 1.0, 1: 1.1}, "a": {0: 1.5, 1: 1.6}})
    sums = {(arm, s): np.ones(4) for arm in ("baseline", "a") for s in range(2)}
    evaluated(folder, sums, {"baseline": np.full(4, 8.0), "a": np.array([8.0, 8.0, 8.0, 7.0])})
    with pytest.raises(UserError) as error:
        analyse(folder)
    text = str(error.value)
    assert "this run was evaluated on 31 positions of val, but " in text
    assert "on 32" in text
    assert "Delete the folder of the wrong run" in text

"""How soon an arm gets where the baseline ends."""

import math

import numpy as np
import pytest
from scipy import stats

from taetpu.stats.analyse import analyse
from taetpu.stats.efficiency import first_crossing


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
def test_crossing(values: list[float], target: float, step: float) -> None:
    assert first_crossing(np.array([10.0, 20.0, 30.0]), np.array(values), target) == step


def logged(run, series) -> None:
    """Log what a finished run has measured, as if it had been before its result was written."""
    result = run.result()
    run.store.delete(f"{run.key}/result.json")
    run.append(0, 10, series)
    run.finish({**result, "steps": 10})


def curves(folder, arm: str, speed: dict[int, float]) -> None:
    """The loss falls from 2 by `speed` a step."""
    for run in folder.runs():
        if run.arm == arm:
            steps = [2, 4, 6, 8, 10]
            logged(run, {"val/loss": (steps, [2 - speed[run.seed] * step for step in steps])})


def test_ratios_over_seeds(store_study) -> None:
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


def test_never_reached_is_no_ratio(store_study) -> None:
    folder = store_study({"baseline": {0: 1.0, 1: 1.0}, "a": {0: 1.5, 1: 1.0}})
    curves(folder, "a", {0: 0.05, 1: 0.1})
    found = analyse(folder)["arms"][1]["efficiency"]
    assert found == {"seeds": 2, "reached": 1, "steps": None, "flops": None}


def test_without_a_curve_there_is_nothing_to_say(store_study) -> None:
    assert analyse(store_study({"baseline": {0: 1.0}, "a": {0: 1.5}}))["arms"][1]["efficiency"] is None


def sampled(folder, arm: str, speed: float, shift: float) -> None:
    """A study's runs as they are evaluated now: a curve on the sample, one point on the whole split."""
    for run in folder.runs():
        if run.arm == arm:
            steps = [2, 4, 6, 8, 10]
            values = [2 + shift - speed * step for step in steps]
            logged(run, {"val_sample/loss": (steps, values), "val/loss": ([10], [2 - speed * 10])})


@pytest.mark.parametrize("shift", [-0.5, 0.0, 0.5])
def test_sample_is_compared_with_sample(store_study, shift: float) -> None:
    """How the sample's loss differs from that of the whole split moves no ratio."""
    part = {"windows": 4, "of": 9}
    folder = store_study({"baseline": {0: 1.0}, "a": {0: 0.0}}, result=lambda arm, seed: {"val_sample": part})
    sampled(folder, "baseline", 0.1, shift)
    sampled(folder, "a", 0.2, shift)
    assert analyse(folder)["arms"][1]["efficiency"]["steps"]["ratio"] == pytest.approx(0.5)


def test_other_samples_are_not_compared(store_study) -> None:
    parts = {"baseline": {"windows": 4, "of": 9}, "a": {"windows": 5, "of": 9}}
    folder = store_study({"baseline": {0: 1.0}, "a": {0: 0.0}}, result=lambda arm, seed: {"val_sample": parts[arm]})
    for arm in parts:
        sampled(folder, arm, 0.1, 0.0)
    assert analyse(folder)["arms"][1]["efficiency"] is None

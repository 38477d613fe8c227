"""Ladders: fate and trend of made-up effects over scales."""

import math

import numpy as np
import pytest
from scipy import stats

from taetpu.stats.ladder import (
    EXTRAPOLATION,
    Rung,
    analyse_ladder,
    classify_trend,
    size_measure,
    tokens_per_parameter,
    trend_measure,
)
from taetpu.stats.plan import Plan

PLAN = Plan("val/loss", "min", ("baseline", "a"), (0, 1, 2), (3,))
SCALES = (1e6, 4e6, 16e6)


def climb(effects, verdicts, noise: float = 0.005, seeds: int = 5) -> dict:
    rng = np.random.default_rng(0)
    rungs = [
        Rung(f"{scale:g}", int(scale), list(effect + noise * rng.normal(size=seeds)), effect, verdict)
        for scale, effect, verdict in zip(SCALES, effects, verdicts, strict=True)
    ]
    return analyse_ladder(rungs[::-1], PLAN)


W, B, E, U = "worse", "better", "equivalent", "inconclusive"


@pytest.mark.parametrize(
    ("effects", "verdicts", "expected"),
    [
        ((0.1, 0.1, 0.1), (W, W, W), "holds"),
        ((-0.1, -0.1, -0.1), (B, U, B), "holds"),
        ((0.1, 0.06, 0.03), (W, W, W), "shrinks"),
        ((0.03, 0.06, 0.1), (W, W, W), "grows"),
        ((-0.03, -0.06, -0.1), (U, B, B), "grows"),
        ((0.1, 0.05, 0.0), (W, W, U), "vanishes"),
        ((0.1, 0.03, 0.001), (W, W, E), "vanishes"),
        ((0.1, 0.0, -0.1), (W, U, B), "reverses"),
        ((0.0, 0.0, 0.0), (U, U, U), "unclear"),
        ((0.0, 0.0, 0.0), (E, E, E), "unclear"),
    ],
)
def test_fate_follows_from_the_verdicts_and_the_trend(effects, verdicts, expected: str) -> None:
    assert climb(effects, verdicts)["fate"] == expected


def test_inconclusive_effect_without_a_trend_has_not_vanished() -> None:
    found = climb((0.1, 0.1, 0.1), (W, W, U), noise=0.3)
    assert found["trend"]["p"] > 0.05
    assert found["fate"] == "unclear"


def test_trend_is_the_least_squares_line() -> None:
    rng = np.random.default_rng(1)
    rungs = [Rung(str(s), int(s), list(rng.normal(size=4)), 0.0, U) for s in SCALES]
    found = analyse_ladder(rungs, PLAN)
    x, y = np.repeat(np.log2(SCALES), 4), np.concatenate([rung.differences for rung in rungs])
    line = stats.linregress(x, y)
    assert found["trend"]["per_doubling"] == pytest.approx(line.slope)
    assert found["trend"]["p"] == pytest.approx(line.pvalue)
    half = stats.t.isf(0.025, 10) * line.stderr
    assert found["trend"]["ci95"] == pytest.approx([line.slope - half, line.slope + half])
    ahead = found["extrapolated"]
    assert ahead["params"] == EXTRAPOLATION * SCALES[-1]
    assert ahead["effect"] == pytest.approx(line.intercept + line.slope * math.log2(ahead["params"]))
    low, high = ahead["ci95"]
    assert low < ahead["effect"] < high
    assert found["p_differs"] == pytest.approx(
        stats.f_oneway(*(rung.differences for rung in rungs), equal_var=False).pvalue
    )


def test_extrapolation_has_a_wider_interval() -> None:
    found = climb((0.1, 0.1, 0.1), (W, W, W))
    assert found["extrapolated"]["ci95"][1] - found["extrapolated"]["ci95"][0] > 2 * 0.005 / math.sqrt(5)


def test_few_rungs_or_no_noise_give_no_trend() -> None:
    empty = {"fate": "unclear", "trend": None, "p_differs": None, "extrapolated": None}
    assert analyse_ladder([], PLAN) == empty
    assert analyse_ladder([Rung("one", 10, [0.1, 0.2, 0.1], 0.13, W)], PLAN) == empty
    same = [Rung(str(size), size, [0.5, 0.5], 0.5, U) for size in (10, 20)]
    assert analyse_ladder(same, PLAN)["trend"] is None
    lost = [Rung("small", 10, [0.1, 0.2], 0.15, W), Rung("large", 20, [], None, W)]
    assert analyse_ladder(lost, PLAN)["trend"] is None


def test_rung_without_noise_gives_no_test_of_difference() -> None:
    rungs = [Rung("small", 10, [0.1, 0.1], 0.1, W), Rung("large", 20, [0.2, 0.3], 0.25, W)]
    assert analyse_ladder(rungs, PLAN)["p_differs"] is None


def test_trend_over_flops_is_extrapolated_in_flops() -> None:
    rungs = [Rung(str(size), size, [0.1 * size, 0.1 * size + 0.01], 0.1 * size, W) for size in (1, 2, 4)]
    found = analyse_ladder(rungs, PLAN, "flops")
    assert found["fate"] == "grows"
    assert found["extrapolated"]["flops"] == 4 * EXTRAPOLATION


@pytest.mark.parametrize(
    ("verdicts", "fate"),
    [((W, W, W), "holds"), ((B, W, U), "reverses"), ((W, U, W), "unclear"), ((W,), "unclear"), ((E, E), "unclear")],
)
def test_effects_without_a_measure_of_size_have_no_trend(verdicts, fate) -> None:
    rungs = [Rung(str(i), 0.0, [0.1 * i, 0.1 * i + 0.01], 0.1, verdict) for i, verdict in enumerate(verdicts)]
    assert analyse_ladder(rungs, PLAN, None) == {
        "fate": fate, "trend": None, "p_differs": None, "extrapolated": None
    }  # fmt: skip


@pytest.mark.parametrize(
    ("params", "flops", "changes", "size", "trend"),
    [
        ((30, 10, 20), (1, 1, 1), {}, "params", "params"),
        ((10, 10, 20), (1, 2, 3), {"train.steps": 20, "train.optimizer.lr": 0.1}, "flops", "flops"),
        ((10, 10, 10), (1, 1, 3), {}, None, None),
        ((10, 10, 20), (1, 2, None), {}, None, None),
        ((10, 20, 30), (1, 2, 3), {"task.symbols": 1}, "params", None),
        ((10, 10, 10), (1, 2, 3), {"task": 1}, "flops", None),
        *(((10, 20, 30), (1, 2, 3), {"model.position": value, "model.dim": 8}, "params", None)
          for value in ("learned", {"kind": "learned"}, True, None)),
    ],
)  # fmt: skip
def test_rungs_are_ordered_by_parameters_else_by_flops(params, flops, changes, size, trend) -> None:
    """Rungs that differ in their data or in a value that is not a number have no trend."""
    columns = zip(params, flops, strict=True)
    bases = [{"params": p, "flops": f, "diff": changes} for p, f in columns]
    assert (size_measure(bases), trend_measure(bases)) == (size, trend)


def test_opposite_verdicts_reverse_without_a_trend() -> None:
    rungs = [Rung("small", 10, [0.1, 0.1], 0.1, W), Rung("large", 20, [0.1, 0.1], 0.1, B)]
    assert classify_trend(rungs, None, None) == "reverses"


def test_tokens_per_parameter_need_a_parameter_count() -> None:
    assert tokens_per_parameter({"tokens": 2000, "params": 100}) == 20
    assert tokens_per_parameter({"tokens": 2000}) is None

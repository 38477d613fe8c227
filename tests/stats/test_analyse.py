"""`analyse` computes `results.json` from stored runs."""

import json
from pathlib import Path

import numpy as np
import pytest

from taetpu.core.errors import UserError
from taetpu.stats.analyse import analyse
from taetpu.stats.arm_changes import format_changes
from taetpu.stats.power import PowerAnalysis


def by_name(results: dict) -> dict:
    return {arm["name"]: arm for arm in results["arms"]}


def test_results_follow_from_the_runs(draw, table, store_study) -> None:
    y = 3 + 0.01 * draw(np.random.default_rng(0), 4, 5)
    y[2] += 0.5
    results = analyse(store_study(table(y)))
    arms = by_name(results)
    assert (results["complete"], results["label"], results["seeds"]) == (True, None, [0, 1, 2, 3, 4])
    assert (results["noise_floor"]["sd"], results["noise_floor"]["seeds"]) == (pytest.approx(y[0].std(ddof=1)), 5)
    assert results["noise_floor"]["resolves"] == pytest.approx(
        PowerAnalysis(3).smallest_effect(results["model"]["residual_sd"], 5)
    )
    assert arms["baseline"]["verdict"] is arms["baseline"]["effect"] is None
    assert arms["arm2"]["verdict"] == "worse"
    assert arms["arm2"]["effect"] == pytest.approx((y[2] - y[0]).mean())
    assert arms["arm2"]["mean"] == pytest.approx(y[2].mean())
    assert arms["arm2"]["runs"][3] == {"seed": 3, "id": "00000003", "outcome": "finished", "value": y[2, 3]}
    assert arms["arm2"]["change"] == "model.position: rope -> none"
    assert (arms["arm1"]["params"], arms["arm1"]["flops"]) == (1000, 2_000_000)
    assert results["packs"] == [{"width": 2, "devices": 1, "runs": 5}, {"width": 1, "devices": 1, "runs": 15}]
    assert arms["arm1"]["metrics"] == {"train/loss": 1.0, "val/loss": pytest.approx(y[1].mean())}


def test_same_runs_give_the_same_bytes(draw, table, store_study) -> None:
    values = table(draw(np.random.default_rng(1), 5, 3))
    one, two = store_study(values, name="one"), store_study(dict(values), name="two")
    analyse(one)
    analyse(two)
    assert analyse(one) == one.read_results()
    first, second = (Path(folder.where, "results.json").read_text() for folder in (one, two))
    assert first == second.replace('"two"', '"one"')
    analyse(one)
    assert Path(one.where, "results.json").read_text() == first
    assert json.loads(first) == one.read_results()


def test_unfinished_run_makes_the_results_incomplete(draw, table, store_study) -> None:
    values = table(draw(np.random.default_rng(2), 3, 3))
    del values["arm1"][1]
    results = analyse(store_study(values))
    assert results["complete"] is False
    assert results["label"] == "screening"
    assert by_name(results)["arm1"]["runs"][1] == {"seed": 1, "id": None, "outcome": "unfinished", "value": None}


def test_the_detectable_effect_counts_a_noisy_baseline(draw, table, store_study) -> None:
    """With weighed noise: the noise of a difference is that of both arms, and of an arm alone it changes nothing."""
    y, resolved = draw(np.random.default_rng(11), 8, 5), []
    for number, scale in enumerate((1.0, 10.0)):
        for noisy in (0, 1):
            values = y.copy()
            values[noisy] = y.mean(0) + scale * (y[noisy] - y.mean(0))
            results = analyse(store_study(table(values), name=f"toy{number}{noisy}", noise="moderated"))
            resolved.append(results["noise_floor"]["resolves"])
    equal, _, baseline, arm = resolved
    assert arm == pytest.approx(equal, rel=0.3)
    assert baseline > 4 * equal


@pytest.mark.parametrize("value", [None, float("nan")])
def test_divergence_is_counted(draw, table, store_study, value) -> None:
    values = table(draw(np.random.default_rng(3), 3, 3))
    values["arm1"] = dict.fromkeys(range(3), value)
    values["arm2"][0] = value
    results = analyse(store_study(values))
    arms = by_name(results)
    assert results["complete"] is True
    assert results["model"]["completers_only"] is True
    assert (arms["arm1"]["diverged"], arms["arm1"]["mean"], arms["arm1"]["effect"]) == (3, None, None)
    assert arms["arm1"]["p"] == pytest.approx(0.03125)
    assert arms["arm2"]["diverged"] == 1
    assert "1 of 3 runs diverged" in arms["arm2"]["evidence"]


def test_one_seed_gives_no_p_value_or_verdict(store_study) -> None:
    results = analyse(store_study({"baseline": {0: 1.0}, "a": {0: 2.0}}))
    arm = by_name(results)["a"]
    assert results["label"] == "single seed"
    assert (arm["effect"], arm["ci95"], arm["p"], arm["p_holm"], arm["verdict"]) == (
        1.0,
        None,
        None,
        None,
        None,
    )


def test_unmeasured_metric_is_refused(store_study) -> None:
    folder = store_study({"baseline": {0: 1.0}}, primary="val/los")
    with pytest.raises(UserError) as error:
        analyse(folder)
    assert "no metric 'val/los' was measured" in str(error.value)
    assert "Did you mean 'val/loss'?" in str(error.value)
    assert "at measure.primary" in str(error.value)


def test_two_runs_of_one_arm_and_seed_are_refused(store_study) -> None:
    folder = store_study({"baseline": {0: 1.0}})
    other = folder.run("baseline", 0, "feedfacecafe")
    other.start({})
    other.finish({"outcome": "finished", "metrics": {"val/loss": 2.0}})
    with pytest.raises(UserError, match="arm 'baseline' and seed 0: 00000000 and feedface"):
        analyse(folder)


@pytest.mark.parametrize(
    ("path", "value", "text"),
    [
        ("model.position", {"kind": "none"}, "model.position: rope -> none"),
        ("model.dim", 1, "model.dim: 64 -> 1"),
        ("model.bias", True, "model.bias: false -> true"),
        ("model.layers.-1.ffn", None, "model.layers.-1.ffn: none"),
        ("model.position", {"kind": "rope", "base": 10}, "model.position: rope -> rope(base=10)"),
        ("model.dims", [1, 2], "model.dims: [1, 2]"),
        ("hooks", {"freeze": {"trained": ["*.a"]}}, "hooks: none -> (freeze=(trained=[*.a]))"),
    ],
)
def test_changes_are_formatted(path: str, value, text: str) -> None:
    base = {"model": {"position": {"kind": "rope", "base": 1e4}, "dim": 64, "bias": False}, "hooks": {}}
    assert format_changes({path: value}, base) == text


def test_fields_that_change_because_their_slot_is_replaced_follow_the_override() -> None:
    base = {"train": {"schedule": {"kind": "cosine", "warmup": 5}}, "model": {"ffn": {"kind": "swiglu", "mult": 8 / 3}}}
    overrides = {"train.schedule": "wsd", "model.layers.0:2.ffn": "relu"}
    resets = {"train.schedule.warmup": [5, 0], **{f"model.layers.{i}.ffn.mult": [8 / 3, 4.0] for i in (0, 1)}}
    assert format_changes(overrides, base, resets) == (
        "train.schedule: cosine -> wsd, warmup 5 -> 0; model.layers.0:2.ffn: relu; "
        "model.layers.0,1.ffn.mult 2.667 -> 4.0"
    )

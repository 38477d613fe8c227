"""Published tables of results by seed: judged, their means are the published ones."""

import statistics

import pytest
from tests.judging.conftest import DATA

import taetpu


def test_twenty_seeds_of_one_configuration_give_its_noise():
    """The table has no baseline. What its authors could claim is how large an effect 20 such runs would show."""
    metrics = ["val_bpb", "core_score"]
    judged = taetpu.judge(DATA / "nanochat-807.csv", seed="seed", metric=metrics, better=["min", "max"])
    for metric in metrics:
        results = judged.studies[metric].results
        (arm,) = results["arms"]
        values = [run["value"] for run in arm["runs"]]
        assert (len(values), results["seeds"]) == (20, list(range(1, 21)))
        assert arm["mean"] == pytest.approx(statistics.mean(values))
        assert arm["sd"] == pytest.approx(statistics.stdev(values))
        assert arm["verdict"] is None


def test_three_stages_of_three_runs():
    """Runs deviate by 0.0006, but the stages of a run share its deviation: their differences are certain."""
    judged = taetpu.judge(
        DATA / "parameter-golf-1906.csv", wide="arms", seed="seed", metric="bpb", better="min", baseline="pre-quant"
    )
    arms = {arm["name"]: arm for arm in judged.results["arms"]}
    for name, mean in {"pre-quant": 1.06523, "quantized": 1.07425, "post-TTT": 1.06136}.items():
        assert arms[name]["mean"] == pytest.approx(mean, abs=6e-6)
    assert arms["post-TTT"]["sd"] == pytest.approx(0.00059, abs=6e-6)  # as published
    assert {name: arm["verdict"] for name, arm in arms.items()} == {
        "pre-quant": None,
        "quantized": "worse",
        "post-TTT": "better",
    }
    assert arms["quantized"]["effect"] == pytest.approx(1.07425 - 1.06523, abs=1e-5)
    assert (judged.results["label"], judged.results["seeds"]) == ("screening", [0, 42, 1234])


def test_twenty_runs_at_four_steps():
    """Differences of a tenth of the noise between runs are certain, since each run is compared with itself."""
    judged = taetpu.judge(
        DATA / "modded-nanogpt-321.csv",
        wide="arms",
        seed="seed",
        metric="val_loss",
        better="min",
        baseline="step 2745",
        equivalence=0.0005,
    )
    base, *later = judged.results["arms"]
    published = [3.279254, 3.278856, 3.278449, 3.276930]
    assert [arm["mean"] for arm in (base, *later)] == pytest.approx(published, abs=1e-6)
    assert [arm["verdict"] for arm in later] == ["equivalent", "better", "better"]
    assert abs(later[0]["effect"]) < base["sd"] / 2
    assert later[0]["sensitivity"]["correlation"] > 0.99

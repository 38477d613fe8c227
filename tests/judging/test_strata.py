"""Effects over data sets: each has the same weight, is shown, and is named where an arm lacks it."""

import numpy as np
import pandas as pd
import pytest

import taetpu
from taetpu.report.judged import judged_notices, strata_section, strata_sentences
from taetpu.stats.blocked_anova import Blocked
from taetpu.stats.linear_model import fit_model
from taetpu.stats.verify import verify
from taetpu.store.addresses import find_study

ASKED = {"arm": "arm", "seed": "seed", "block": "data", "metric": "loss", "better": "min", "baseline": "base"}
SEEDS = {"small": 8, "large": 2}
EFFECTS = {"small": -1.0, "large": 0.5}


def unequal(noise: float = 0.01, **other: float) -> pd.DataFrame:
    """Return results on two data sets, of which one has four times as many seeds."""
    rng = np.random.default_rng(0)
    arms = {
        "base": dict.fromkeys(SEEDS, 0.0),
        "a": EFFECTS,
        **{arm: dict.fromkeys(SEEDS, e) for arm, e in other.items()},
    }
    rows = [
        (arm, data, seed, 5.0 * len(data) + effects[data] + rng.normal(0, noise))
        for arm, effects in arms.items()
        for data, seeds in SEEDS.items()
        for seed in range(seeds)
    ]
    return pd.DataFrame(rows, columns=["arm", "data", "seed", "loss"])


@pytest.mark.parametrize("unpaired", [False, True])
def test_each_data_set_has_the_same_weight_however_many_seeds_it_has(unpaired: bool):
    table = unequal(quiet=0.0)
    results = taetpu.judge(table, **ASKED, unpaired=unpaired).results
    means = table.groupby(["arm", "data"])["loss"].mean().unstack()
    effects = means.loc["a"] - means.loc["base"]
    arm = results["arms"][1]
    assert arm["effect"] == pytest.approx(effects.mean())  # and not -0.7, the mean over seeds
    assert arm["mean"] == pytest.approx(means.loc["a"].mean())
    shown = {results["judged"]["strata"][row["stratum"]]: (row["effect"], row["pairs"]) for row in arm["strata"]}
    assert shown == {data: (pytest.approx(effects[data]), SEEDS[data]) for data in SEEDS}


def test_data_sets_with_equal_numbers_of_seeds_change_nothing():
    table = unequal(quiet=0.0).query("seed < 2")
    numbers = {data: number for number, data in enumerate(SEEDS)}
    seeds = 2 * table["data"].map(numbers) + table["seed"]
    rows = table.assign(number=seeds).groupby("arm", sort=False)[["number", "loss"]]
    values = {str(arm): dict(group.itertuples(index=False)) for arm, group in rows}
    plain = fit_model(values, "base")
    weighted = fit_model(values, "base", stratum={seed: seed // 2 for seed in range(4)})
    for arm, effect in plain.effects.items():
        assert weighted.effects[arm].interval == pytest.approx(effect.interval)


def test_the_variance_of_a_weighted_effect_is_that_of_its_weights():
    """The data set of 2 seeds has half of the weight, so it gives most of the variance: 2 s^2 (1/8 + 1/2) / 4."""
    stratum = {seed: int(seed >= 8) for seed in range(10)}
    values = {arm: dict.fromkeys(range(10), 0.0) for arm in ("base", "a")}
    weights = Blocked.from_values(values, stratum=stratum).weights({"a": 1.0, "base": -1.0})
    assert weights is not None
    assert (weights**2).sum() == pytest.approx(2 * (1 / 8 + 1 / 2) / 4)
    squares = Blocked.from_values(values, stratum=stratum).seed_weights({"a": 1.0, "base": -1.0})
    assert sorted(squares) == pytest.approx([1 / 16] * 8 + [1 / 4] * 2)


@pytest.mark.slow
def test_intervals_of_weighted_effects_cover_them():
    rng, hits, studies = np.random.default_rng(1), 0, 300
    stratum = {seed: int(seed >= 8) for seed in range(10)}
    for _ in range(studies):
        shared = rng.normal(0, 1, 10)
        values = {arm: dict(enumerate((shared + rng.normal(0, 1, 10)).tolist())) for arm in ("base", "a", "b", "c")}
        interval = fit_model(values, "base", stratum=stratum).effects["a"].interval
        assert interval is not None
        hits += interval[0] <= 0 <= interval[1]
    assert hits / studies == pytest.approx(0.95, abs=0.035)


def test_reports_show_the_effects_by_data_set():
    results = taetpu.judge(unequal(), **ASKED).results
    (table,) = strata_section(results).tables
    assert [row[:2] + row[3:] for row in table.rows] == [["a", "small", "8"], ["a", "large", "2"]]
    assert [float(row[2]) for row in table.rows] == pytest.approx([-1.0, 0.5], abs=0.05)
    (sentence,) = strata_sentences(results)
    assert sentence.index("small") < sentence.index("large")
    assert strata_section(taetpu.judge(unequal().query("data == 'small'"), **ASKED | {"block": ()}).results).is_empty


def test_an_arm_that_lacks_a_data_set_is_named(tmp_path):
    table = unequal(partial=-0.5).query("arm != 'partial' or data == 'small'")
    results = taetpu.judge(table, **ASKED, out=tmp_path / "t").results
    arms = {arm["name"]: arm for arm in results["arms"]}
    assert any("partial (large)" in text for text in judged_notices(results))
    assert arms["partial"]["effect"] == pytest.approx(-0.5, abs=0.05)
    assert arms["a"]["effect"] == pytest.approx(-0.25, abs=0.05)
    assert not any("partial (" in text for text in judged_notices(taetpu.judge(unequal(partial=1.0), **ASKED).results))
    assert verify(find_study("t", tmp_path)) == []


def test_arms_without_a_common_data_set_are_not_compared():
    """Only a third arm, which both share a data set with, would link them, if its effect were the same on both."""
    table = unequal(link=0.0).query("arm == 'link' or (arm == 'base') == (data == 'small')")
    arms = {arm["name"]: arm for arm in taetpu.judge(table, **ASKED).results["arms"]}
    assert (arms["a"]["effect"], arms["a"]["ci95"]) == (None, None)
    assert arms["link"]["effect"] == pytest.approx(0.0, abs=0.05)
    (notice,) = [text for text in judged_notices(taetpu.judge(table, **ASKED).results) if text.endswith(": a.")]
    assert "data" in notice


def test_runs_have_the_names_of_data_sets_and_can_be_judged_again(tmp_path):
    judged = taetpu.judge(unequal(), **ASKED, out=tmp_path / "t")
    assert list(judged.runs.columns) == ["arm", "data", "seed", "id", "outcome", "loss"]
    assert set(judged.runs["data"]) == set(SEEDS)
    again = taetpu.judge(tmp_path / "t/report/runs.csv", **ASKED).results
    for ours, theirs in zip(again["arms"], judged.results["arms"], strict=True):
        assert {name: ours[name] for name in ("effect", "ci95", "p")} == {
            name: theirs[name] for name in ("effect", "ci95", "p")
        }
    ((_, data, seed, *_),) = taetpu.open_study("t/a/9", tmp_path).runs.itertuples(index=False)
    assert (data, seed) == ("large", "1")


def test_columns_of_runs_have_different_names(tmp_path):
    table = unequal().rename(columns={"data": "outcome", "arm": "method", "loss": "arm"})
    asked = ASKED | {"arm": "method", "block": "outcome", "metric": "arm"}
    columns = list(taetpu.judge(table, **asked, out=tmp_path / "t").runs.columns)
    assert len(set(columns)) == len(columns)
    again = taetpu.judge(tmp_path / "t/report/runs.csv", **asked | {"arm": columns[0]}).results
    assert again["arms"][1]["verdict"] == taetpu.open_study(tmp_path / "t").results["arms"][1]["verdict"]

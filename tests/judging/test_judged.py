"""`taetpu.judge`: the analysis of a table is that of a study with the same runs."""

import json
import math
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from tests.judging.conftest import made_up
from tests.small import TINY

import taetpu
from taetpu.core.errors import UserError
from taetpu.report.judged import block_noun, judged_limits, judged_notices, noise_band
from taetpu.report.opened_study import OpenedStudy
from taetpu.report.terminal_text import table_text
from taetpu.stats.verify import verify
from taetpu.store.addresses import find_study

SAME = ("effect", "ci95", "ci90", "ci_simultaneous", "p", "p_holm", "p_equivalent", "mean", "sd", "verdict", "evidence")


def arms_of(results) -> dict[str, dict]:
    return {arm["name"]: arm for arm in results["arms"]}


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> OpenedStudy:
    """A trained study with three arms on three seeds, one of which diverges."""
    folder = tmp_path_factory.mktemp("trained")
    arms = (
        "arms: {low: {train.optimizer.lr: 1e-4}, high: {train.optimizer.lr: 1e-2}, lost: {train.optimizer.lr: 1e9}}\n"
    )
    (folder / "s.yaml").write_text(f"{TINY}seeds: 3\nmeasure: {{equivalence: 0.5}}\n{arms}")
    taetpu.run(folder / "s.yaml", root=str(folder / "runs"))
    (name,) = (path.name for path in (folder / "runs").iterdir() if (path / "study.yaml").exists())
    return taetpu.open_study(folder / "runs" / name)


@pytest.mark.parametrize("form", ["runs.csv", "runs", "metrics"])
def test_runs_of_a_study_exported_and_judged_give_its_results(form: str, trained):
    """Also with an arm that diverges, whose runs are `nan` in runs.csv and in tables of runs."""
    columns = {"arm": "arm", "seed": "seed", "metric": "val/loss", "better": "min", "baseline": "baseline"}
    if form == "metrics":  # a row for each step: the curve of a run that diverged does not end with `nan`
        logged = trained.metrics
        wide = logged.pivot_table(index=["arm", "seed", "step"], columns="metric", values="value").reset_index()
        table, columns = wide[wide["arm"] != "lost"], columns | {"step": "step"}
    else:
        table = trained.runs if form == "runs" else f"{trained.folder.where}/report/runs.csv"
    judged = taetpu.judge(table, **columns, equivalence=0.5)
    ours, theirs = arms_of(judged.results), arms_of(trained.results)
    assert theirs["lost"]["diverged"] == 3
    if form == "metrics":
        assert ours.keys() == theirs.keys() - {"lost"}
        for name, arm in ours.items():
            assert [arm[field] for field in ("effect", "mean", "sd")] == [
                pytest.approx(theirs[name][field]) for field in ("effect", "mean", "sd")
            ]
        return
    assert list(ours) == list(theirs)
    for name, arm in theirs.items():
        for field in SAME:
            assert ours[name][field] == pytest.approx(arm[field], rel=1e-9), (name, field)
    for field in ("noise_floor", "model", "seeds", "alpha", "direction"):
        assert judged.results[field] == trained.results[field]


def test_verdicts_do_not_depend_on_the_order_of_rows(table, asked):
    first = arms_of(taetpu.judge(table, **asked).results)
    shuffled = table.sample(frac=1, random_state=1)
    again = arms_of(taetpu.judge(shuffled, **asked).results)
    assert {arm: first[arm]["verdict"] for arm in first} == {"base": None, "muon": "better", "lion": "inconclusive"}
    for arm, entry in first.items():
        assert again[arm]["runs"] == entry["runs"]
        for field in SAME:
            assert again[arm][field] == pytest.approx(entry[field])


@pytest.mark.parametrize("wide", ["arms", "seeds"])
def test_wide_tables_give_the_results_of_the_long_one(wide: str, table, asked):
    spread = table.pivot(index="seed", columns="method", values="loss")[["base", "muon", "lion"]].reset_index()
    columns = {"seed": "seed"}
    if wide == "seeds":
        spread = table.pivot(index="method", columns="seed", values="loss").loc[["base", "muon", "lion"]]
        spread = spread.rename(columns=lambda seed: f"seed_{seed}").reset_index()
        columns = {"arm": "method"}
    spread["note"] = "x"
    given: dict[str, Any] = {"metric": "loss", "better": "min", "baseline": "base", "ignore": "note", **columns}
    wide_results = taetpu.judge(spread, wide=wide, **given).results
    long_results = taetpu.judge(table, **asked).results
    assert wide_results["seeds"] == long_results["seeds"]
    for ours, theirs in zip(wide_results["arms"], long_results["arms"], strict=True):
        assert {field: ours[field] for field in SAME} == {field: theirs[field] for field in SAME}


def test_several_settings_name_an_arm_and_are_its_changes(table, asked):
    table = table.replace({"method": {"base": "adam", "muon": "muon", "lion": "adam"}})
    table["train.lr"] = [1e-3] * 10 + [1e-4] * 5
    judged = taetpu.judge(table, **asked | {"arm": ["method", "train.lr"], "baseline": "method=adam,lr=0.001"})
    arms = arms_of(judged.results)
    assert {name: arm["diff"] for name, arm in arms.items()} == {
        "method=adam,lr=0.001": {},
        "method=muon,lr=0.001": {"method": "muon"},
        "method=adam,lr=0.0001": {"train.lr": 1e-4},
    }
    assert arms["method=adam,lr=0.0001"]["change"] == "train.lr: 0.001 -> 0.0001"


def test_blocks_are_combinations_of_columns_and_seed(asked):
    """Datasets of very different difficulty: within blocks, effects are as certain as on a single dataset."""
    parts = [made_up(seeds=3).assign(loss=lambda t, shift=shift: t.loss + shift, data=f"d{shift}") for shift in (0, 50)]
    results = taetpu.judge(pd.concat(parts), **asked, block="data").results
    assert results["seeds"] == [0, 1, 2, 3, 4, 5]
    assert list(results["judged"]["labels"].values())[:2] == [["d0", "0"], ["d0", "1"]]
    assert arms_of(results)["muon"]["verdict"] == "better"
    without_seed = pd.concat(parts).query("seed == 0")
    assert len(taetpu.judge(without_seed, **asked | {"seed": ""}, block="data").results["seeds"]) == 2


def test_nan_is_a_diverged_run_and_an_empty_cell_a_missing_one(tmp_path: Path, asked):
    text = made_up().to_csv(index=False).splitlines()
    text[6] = "muon,0,inf"  # the first run of muon
    text[15] = "lion,4,"
    del text[14]  # lion's run of seed 3
    (tmp_path / "t.csv").write_text("\n".join(text))
    results = taetpu.judge(tmp_path / "t.csv", **asked).results
    assert results["judged"]["missing"] == {"lion": [3, 4]}
    assert (results["complete"], results["final"]) == (True, True)
    arms = arms_of(results)
    assert [run["outcome"] for run in arms["lion"]["runs"]] == ["finished"] * 3 + ["missing"] * 2
    assert (arms["muon"]["diverged"], arms["muon"]["verdict"]) == (1, "inconclusive")


def test_metrics_without_known_bounds_are_not_clipped(asked):
    """An accuracy may be in percent, although one of taetpu is between 0 and 1."""
    table = made_up({"base": 0.0, "muon": 40.0}, seeds=3, noise=5).rename(columns={"loss": "accuracy"})
    table["accuracy"] += 50
    (_, muon) = taetpu.judge(table, **asked | {"metric": "accuracy", "better": "max"}).results["arms"]
    assert muon["ci95"][1] > 40


def test_each_metric_is_a_family_and_a_study(table, asked, tmp_path: Path):
    table["accuracy"] = 1 / table["loss"]
    judged = taetpu.judge(
        table, **asked | {"metric": ["loss", "accuracy"], "better": ["min", "max"]}, out=tmp_path / "t"
    )
    for metric, direction in (("loss", "min"), ("accuracy", "max")):
        alone = taetpu.judge(table, **asked | {"metric": metric, "better": direction}).results
        stored = taetpu.open_study(tmp_path / f"t-{metric}").results
        assert (stored["primary"], stored["direction"]) == (metric, direction)
        assert [arm["p_holm"] for arm in stored["arms"]] == [arm["p_holm"] for arm in alone["arms"]]
    assert set(judged.arms["metric"]) == {"loss", "accuracy"}
    assert len(judged.runs) == 2 * len(table)
    with pytest.raises(UserError, match="accuracy, loss"):
        _ = judged.results
    assert judged.chart("loss").to_dict()


def test_a_log_of_steps_gives_curves_and_the_last_value(asked, tmp_path: Path):
    rows = [
        {"method": arm, "seed": seed, "step": step, "loss": 3 - step / 100 + 0.1 * (arm == "base") + seed / 100}
        for step in (30, 10, 20)
        for arm in ("base", "muon")
        for seed in range(3)
    ]
    rows.append({"method": "muon", "seed": 0, "step": 40, "loss": None})
    judged = taetpu.judge(pd.DataFrame(rows), **asked, step="step", out=tmp_path / "t")
    assert set(judged.runs["loss"].round(6)) == {round(2.7 + 0.1 * b + s / 100, 6) for b in (0, 1) for s in range(3)}
    series = find_study("t", tmp_path).runs()[0].metrics()["loss"]
    assert (series.step.tolist(), series.value.tolist()) == ([10, 20, 30], pytest.approx([3.0, 2.9, 2.8]))
    assert "data-metric" in (tmp_path / "t/report/index.html").read_text()


def test_one_seed_gives_no_verdict(table, asked):
    results = taetpu.judge(table.query("seed == 0"), **asked).results
    assert (results["label"], {arm["verdict"] for arm in results["arms"]}) == ("single seed", {None})
    results = taetpu.judge(table.query("seed == 0"), **asked | {"seed": ""}).results
    assert results["seeds"] == [0]


def test_a_table_without_arms_gives_the_noise_of_its_runs(asked):
    results = taetpu.judge(made_up({"any": 0.0}), seed="seed", metric="loss", better="min").results
    (arm,) = results["arms"]
    assert arm["sd"] == results["noise_floor"]["sd"]
    assert math.isfinite(arm["sd"])


def test_seeds_that_are_no_integers_are_blocks_with_names(table, asked):
    table["seed"] = [f"s{seed}" for seed in table["seed"]]
    results = taetpu.judge(table, **asked).results
    assert results["seeds"] == [0, 1, 2, 3, 4]
    assert results["judged"]["labels"]["4"] == ["s4"]
    table["seed"] = [-seed for seed in range(5)] * 3
    assert taetpu.judge(table, **asked).results["judged"]["labels"]["4"] == ["-4"]


def test_pandas_tables_of_all_kinds(table, asked):
    expected = taetpu.judge(table, **asked).results["arms"]
    indexed = table.set_index(["method", "seed"])
    typed = table.astype({"method": "category", "seed": "Int64", "loss": "Float64"})
    floats = table.astype({"seed": float})
    records = table.to_dict("records")
    for other in (indexed, typed, floats, records, table.to_dict("list")):
        assert taetpu.judge(other, **asked).results["arms"] == expected


@pytest.mark.slow
def test_it_displays_itself_in_notebooks(table, asked, tmp_path: Path):
    judged = taetpu.judge(table, **asked)
    assert "muon" in judged._repr_html_()
    assert repr(judged).startswith("Judged(")
    judged.chart().save(tmp_path / "forest.json")
    assert "muon" in json.dumps(json.loads((tmp_path / "forest.json").read_text()))
    assert list(judged.arms["name"]) == ["base", "muon", "lion"]
    assert not (Path.cwd() / "runs/table").exists()


def test_a_stored_study_agrees_with_its_runs(table, asked, tmp_path: Path):
    table.loc[3, "loss"] = np.nan
    taetpu.judge(table, **asked, out=tmp_path / "t")
    assert verify(find_study("t", tmp_path)) == []


def test_unpaired_runs_of_two_arms_are_compared_by_their_means(table, asked):
    """Without blocks and with two arms, the effect is the difference of means, and seeds do not matter."""
    two = table.query("method != 'lion'").iloc[:-1]
    results = taetpu.judge(two, **asked, unpaired=True).results
    (base, muon) = results["arms"]
    assert muon["effect"] == pytest.approx(muon["mean"] - base["mean"])
    assert [len(arm["runs"]) for arm in (base, muon)] == [5, 4]
    assert (results["judged"]["missing"], muon["sensitivity"]) == ({}, None)
    shuffled = two.assign(seed=[4, 3, 2, 1, 0, 0, 1, 2, 3])
    for other in (shuffled, two.drop(columns="seed")):
        more = asked if "seed" in other else asked | {"seed": ""}
        again = taetpu.judge(other, **more, unpaired=True).results["arms"][1]
        assert again["ci95"] == pytest.approx(muon["ci95"])


def test_arms_without_common_seeds_are_not_paired(table, asked):
    table.loc[table.method == "lion", "seed"] += 100
    results = taetpu.judge(table, **asked).results
    assert results["judged"]["disjoint"]
    assert results["judged"]["blocks"] == [0] * 5
    assert arms_of(results)["muon"]["verdict"] == "better"
    alone = taetpu.judge(table, **asked, unpaired=True).results
    assert arms_of(alone)["muon"]["ci95"] == arms_of(results)["muon"]["ci95"]
    assert "disjoint" not in alone["judged"]


def test_unpaired_runs_are_compared_within_blocks(asked, tmp_path: Path):
    parts = [made_up(seeds=3).assign(loss=lambda t, shift=shift: t.loss + shift, data=f"d{shift}") for shift in (0, 50)]
    whole = pd.concat([*parts, parts[1].query("method == 'muon'").iloc[:1].assign(seed=7)])
    judged = taetpu.judge(whole, **asked, block="data", unpaired=True, out=tmp_path / "t")
    results = judged.results
    assert results["judged"]["blocks"] == [0, 0, 0, 1, 1, 1, 1]
    muon = arms_of(results)["muon"]
    assert muon["verdict"] == "better"
    assert muon["ci95"][1] - muon["ci95"][0] < 0.1  # of the difference of the data sets, 50, nothing is left
    assert [len(arm["runs"]) for arm in results["arms"]] == [6, 7, 6]
    assert judged.chart().to_dict()
    assert verify(find_study("t", tmp_path)) == []


def test_an_unpaired_run_without_a_value_is_named(table, asked):
    table["loss"] = table["loss"].astype(object)
    table.loc[7, "loss"] = None
    results = taetpu.judge(table, **asked, unpaired=True).results
    assert results["judged"]["empty"] == {"muon": 1}
    assert len(arms_of(results)["muon"]["runs"]) == 4


def test_the_band_of_the_picture_is_noise_and_not_the_difference_of_blocks(asked, tmp_path: Path):
    parts = [made_up(seeds=3).assign(loss=lambda t, shift=shift: t.loss + shift, data=f"d{shift}") for shift in (0, 50)]
    results = taetpu.judge(pd.concat(parts), **asked, block="data").results
    sd, _ = noise_band(results)
    assert sd == results["model"]["residual_sd"] < 1 < results["noise_floor"]["sd"]
    results = taetpu.judge(parts[0], **asked).results
    assert noise_band(results)[0] == results["noise_floor"]["sd"]


def test_a_baseline_that_diverged_on_every_seed_leaves_the_others_without_effects():
    rows = [(arm, seed, math.nan if arm == "base" else number + seed / 10 + seed**2 / 100 * number)
            for number, arm in enumerate(("base", "a", "b", "c")) for seed in range(4)]  # fmt: skip
    table = pd.DataFrame(rows, columns=[0, 1, 2])  # columns that pandas numbered
    results = taetpu.judge(table, arm=0, seed=1, metric=2, better="min", baseline="base").results
    assert [arm["diverged"] for arm in results["arms"]] == [4, 0, 0, 0]
    assert {arm["effect"] for arm in results["arms"]} == {None}
    assert results["noise_floor"]["sd"] is None


def test_reports_say_what_effects_over_blocks_are_averages_of():
    rows = [(arm, data, seed, effect + seed / 10 + len(data)) for arm, effect in (("base", 0.0), ("a", 1.0))
            for data in ("mnist", "imagenet") for seed in range(3)]  # fmt: skip
    table = pd.DataFrame(rows, columns=["arm", "data", "seed", "loss"])
    asked = {"arm": "arm", "seed": "seed", "metric": "loss", "better": "min", "baseline": "base"}
    plain = judged_limits(taetpu.judge(table[table["data"] == "mnist"], **asked).results)
    limits = judged_limits(taetpu.judge(table, block="data", **asked).results)
    assert [any("values of data" in limit for limit in texts) for texts in (plain, limits)] == [False, True]


def test_arms_that_share_one_seed_of_many_are_compared_without_pairs():
    rng = np.random.default_rng(0)
    rows = [(arm, first + seed, effect + rng.normal(0, 0.1)) for arm, first, effect in (("base", 0, 1.0), ("a", 7, 1.5))
            for seed in range(8)]  # fmt: skip
    table = pd.DataFrame(rows, columns=["arm", "seed", "v"])
    asked = {"arm": "arm", "seed": "seed", "metric": "v", "better": "min", "baseline": "base"}
    one, apart = (taetpu.judge(rows, **asked).results for rows in (table, table.assign(seed=range(16))))
    assert one["arms"][1]["verdict"] == "worse"
    assert one["arms"][1]["p"] == pytest.approx(apart["arms"][1]["p"])


def test_runs_that_ended_at_different_steps_are_named():
    rows = [(arm, seed, step, effect + seed / 10 + 1 / step) for arm, effect in (("base", 0.0), ("x", 0.5))
            for seed in range(3) for step in (10, 20, 30)]  # fmt: skip
    table = pd.DataFrame(rows, columns=["arm", "seed", "step", "v"])
    asked = {"arm": "arm", "seed": "seed", "step": "step", "metric": "v", "better": "min", "baseline": "base"}
    short = table[(table["arm"] == "base") | (table["step"] < 30)]
    notices = ["\n".join(judged_notices(taetpu.judge(rows, **asked).results)) for rows in (table, short)]
    assert ["base 30, x 20" in text for text in notices] == [False, True]


def test_columns_are_ignored_in_wide_tables_only():
    table = pd.DataFrame({"arm": ["base", "a"] * 2, "seed": [0, 0, 1, 1], "v": [1.0, 2.0, 1.1, 2.3]})
    with pytest.raises(UserError, match="--wide arms") as error:
        taetpu.judge(table, arm="arm", seed="seed", metric="v", better="min", baseline="base", ignore="x")
    assert error.value.path == ("--ignore",)


@pytest.mark.parametrize("power", [-98, -15, -6, 7, 98])
def test_very_small_and_very_large_metrics_are_readable(power: int, table, asked, tmp_path: Path):
    """Reports have the same digits as those of a metric in another unit, and a power of ten."""
    table["loss"] *= 10.0**power
    judged = taetpu.judge(table, **asked, out=tmp_path / "t")
    lines = [line.split() for line in table_text(judged.results).splitlines() if line.startswith(("base  ", "muon "))]
    (base, muon) = lines
    assert float(base[1]) == pytest.approx(2.5 * 10.0**power, rel=0.02)
    assert float(muon[2]) == pytest.approx(-0.1 * 10.0**power, rel=0.2)
    assert {len(cell) < 14 for cell in (*base, *muon)} == {True}
    assert "0" * 9 not in (tmp_path / "t/report/report.md").read_text()


@pytest.mark.parametrize("seeds", [["s0", "s1", "s2", "s3", "s4"], [2**60 + seed for seed in range(5)]])
def test_seeds_that_are_text_or_large_are_called_seeds_by_their_names(seeds, table, asked, tmp_path: Path):
    table["seed"] = seeds * 3
    results = taetpu.judge(table.drop(index=14), **asked, out=tmp_path / "t").results
    assert block_noun(results) == "seed"
    assert any(f"lion {seeds[4]}" in text for text in judged_notices(results))
    for name in ("report.md", "index.html", "runs.csv"):
        text = (tmp_path / "t/report" / name).read_text()
        assert str(seeds[3]) in text or name == "report.md"
        assert " blocks" not in text.partition("<script")[0]


def test_a_single_configuration_has_no_words_on_arms(table, asked, tmp_path: Path):
    alone = table.query("method == 'base'")
    results = taetpu.judge(alone, **asked | {"arm": (), "baseline": ""}, out=tmp_path / "t").results
    text = table_text(results)
    markdown = (tmp_path / "t/report/report.md").read_text()
    page = (tmp_path / "t/report/index.html").read_text().rpartition("</style>")[2]
    for word in ("Holm's", "equivalent", "Inconclusive", "minus baseline", "Evidence", "frozen"):
        assert [word in output for output in (text, markdown, page.partition("<script")[0])] == [False] * 3, word
    assert results["arms"][0]["sd"] == pytest.approx(alone["loss"].std())
    assert "5 runs" in markdown

"""The folder of a judged table: judged again, it counts repeated looks; nothing else is overwritten or trained."""

import json
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
from tests.judging.conftest import made_up
from tests.small import TINY

import taetpu
from taetpu.cli.status_model import StudyProgress
from taetpu.core.errors import UserError
from taetpu.report.judged import judged_notices
from taetpu.spec.loading import load_study
from taetpu.stats.verify import verify
from taetpu.store.addresses import find_study
from taetpu.ui.feed import Feed


def contents(folder: Path) -> dict[str, bytes]:
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def judge_file(table: pd.DataFrame, folder: Path, asked, **more: Any) -> dict:
    table.to_csv(folder / "t.csv", index=False)
    return taetpu.judge(folder / "t.csv", **asked, **more, out=folder / "runs/t").results


def test_judging_the_same_table_again_changes_nothing(table, asked, tmp_path: Path):
    first = judge_file(table, tmp_path, asked)
    before = contents(tmp_path / "runs/t")
    (tmp_path / "runs/t/mine.txt").write_text("mine")
    assert judge_file(table, tmp_path, asked) == first
    after = contents(tmp_path / "runs/t")
    assert after.pop("mine.txt") == b"mine"
    assert {**after, "lock": b""} == {**before, "lock": b""}


def test_changed_rows_replace_their_runs(table, asked, tmp_path: Path):
    judge_file(table, tmp_path, asked)
    table.loc[7, "loss"] = 9.0
    table = table.drop(index=14)
    results = judge_file(table, tmp_path, asked)
    folder = find_study("t", tmp_path / "runs")
    assert len(folder.runs()) == len(table) == 14
    assert results["judged"]["missing"] == {"lion": [4]}
    assert verify(folder) == []
    assert 9.0 in {run["value"] for arm in results["arms"] for run in arm["runs"]}


@pytest.mark.slow
def test_repeated_looks_at_more_seeds_raise_the_error_rate(asked, tmp_path: Path):
    whole = made_up(seeds=12)
    rates = []
    for seeds in (4, 8, 8, 12):
        results = judge_file(whole.query(f"seed < {seeds}"), tmp_path, asked)
        rates.append(results["plan"]["error_rate"])
        assert results["final"]
    assert rates[0] == 0.05 < rates[1] == rates[2] < rates[3]
    assert results["plan"]["looks"] == [4]


def test_other_rules_are_counted_and_named(table, asked, tmp_path: Path):
    judge_file(table, tmp_path, asked)
    judge_file(table, tmp_path, asked, equivalence=0.05)
    results = judge_file(table, tmp_path, asked | {"baseline": "lion"}, equivalence=0.05)
    assert [(past["baseline"], past["equivalence"]) for past in results["judged"]["history"]] == [
        ("base", None),
        ("base", 0.05),
    ]
    assert results["plan"]["error_rate"] == 0.05


def test_options_that_choose_runs_are_rules_of_the_plan(table, asked, tmp_path: Path):
    """Each leaves a trace: the plan's hash covers it, and verdicts by the rules before are named."""
    table["data"] = "x"
    options = [{}, {"unpaired": True}, {"where": "seed<4"}, {"block": "data"}]
    plans = [judge_file(table, tmp_path, asked, **more)["plan"] for more in options]
    assert len({plan["sha256"] for plan in plans}) == len(options)
    results = judge_file(table, tmp_path, asked)
    assert [past["table"].keys() - {"arm", "seed"} for past in results["judged"]["history"]] == [
        set(),
        {"unpaired"},
        {"where"},
        {"block"},
    ]
    (notice,) = [text for text in judged_notices(results) if "block data" in text]
    assert all(option in notice for option in ("unpaired", "seed<4", "3 times"))
    assert "3 times" in (tmp_path / "runs/t/report/report.md").read_text()
    assert verify(find_study("t", tmp_path / "runs")) == []


def test_a_condition_that_leaves_fewer_seeds_gives_verdicts(table, asked, tmp_path: Path):
    judge_file(table, tmp_path, asked)
    results = judge_file(table, tmp_path, asked, where="seed<3")
    assert (results["final"], results["seeds"]) == (True, [0, 1, 2])
    assert results["arms"][1]["verdict"] == "better"


def test_looks_before_a_change_of_rules_count(asked, tmp_path: Path):
    whole = made_up(seeds=12)
    judge_file(whole.query("seed < 4"), tmp_path, asked)
    changed = judge_file(whole.query("seed < 8"), tmp_path, asked, equivalence=0.5)
    assert changed["plan"]["error_rate"] > 0.05
    again = judge_file(whole, tmp_path, asked, equivalence=0.5)
    assert again["plan"]["error_rate"] > changed["plan"]["error_rate"]
    assert len(again["judged"]["history"]) == 1


def test_values_that_were_edited_or_removed_after_verdicts_are_named(table, asked, tmp_path: Path):
    judge_file(table, tmp_path, asked)
    grown = pd.concat([table, made_up(seeds=8).query("seed >= 5")])
    assert "history" not in judge_file(grown, tmp_path, asked)["judged"]
    grown.iloc[6, 2] = 9.0  # a run of muon
    results = judge_file(grown.iloc[1:], tmp_path, asked)
    (past,) = results["judged"]["history"]
    assert (past["changed"], past["seeds"]) == ({"base": 1, "muon": 1}, 8)
    assert any("base 1, muon 1" in text for text in judged_notices(results))
    assert judge_file(grown.iloc[1:], tmp_path, asked) == results


@pytest.mark.parametrize("more", [{"unpaired": True}, {"block": "data"}, {"seed": "name"}])
def test_rows_in_another_order_change_no_value(more, table, asked, tmp_path: Path):
    table = table.assign(data="x", name=[f"s{seed}" for seed in table["seed"]])
    judge_file(table, tmp_path, asked | more)
    assert "history" not in judge_file(table.sample(frac=1, random_state=1), tmp_path, asked | more)["judged"]


def test_a_table_in_memory_that_grows_is_judged_into_its_folder(asked, tmp_path: Path):
    whole = made_up(seeds=8)
    taetpu.judge(whole.query("seed < 4"), **asked, out=tmp_path / "t")
    results = taetpu.judge(whole, **asked, out=tmp_path / "t").results
    assert results["plan"]["error_rate"] > 0.05
    with pytest.raises(UserError) as caught:
        taetpu.judge(whole.assign(loss=whole["loss"] + 1), **asked, out=tmp_path / "t")
    assert "--name" in str(caught.value.remedy)
    assert taetpu.open_study(tmp_path / "t").results == results


@pytest.mark.parametrize("content", ["file", "study", "other table"])
def test_other_content_is_never_overwritten(content: str, table, asked, tmp_path: Path):
    folder = tmp_path / "runs/t"
    if content == "file":
        folder.mkdir(parents=True)
        (folder / "notes.txt").write_text("precious")
    elif content == "study":
        (tmp_path / "s.yaml").write_text(TINY.replace("study: tiny", "study: t") + "seeds: 1\narms: {}\n")
        taetpu.run(tmp_path / "s.yaml", root=str(tmp_path / "runs"))
    else:
        (tmp_path / "other").mkdir()
        made_up(seeds=3).to_csv(tmp_path / "other/t.csv", index=False)
        taetpu.judge(tmp_path / "other/t.csv", **asked, out=folder)
    before = contents(folder)
    with pytest.raises(UserError, match=str(folder)):
        judge_file(table, tmp_path, asked)
    assert contents(folder) == before


def test_a_table_with_mistakes_changes_nothing(table, asked, tmp_path: Path):
    judge_file(table, tmp_path, asked)
    before = contents(tmp_path / "runs/t")
    with pytest.raises(UserError):
        judge_file(table.astype({"loss": object}).replace({"loss": {table.loss[3]: "abc"}}), tmp_path, asked)
    assert contents(tmp_path / "runs/t") == before


def test_training_in_the_folder_is_refused(table, asked, tmp_path: Path):
    judge_file(table, tmp_path, asked)
    before = contents(tmp_path / "runs/t")
    (tmp_path / "s.yaml").write_text(TINY.replace("study: tiny", "study: t") + "seeds: 1\narms: {}\n")
    with pytest.raises(UserError, match="taetpu judge"):
        taetpu.run(tmp_path / "s.yaml", root=str(tmp_path / "runs"))
    assert contents(tmp_path / "runs/t") == before


def test_damage_and_changed_values_are_noticed(table, asked, tmp_path: Path):
    judge_file(table, tmp_path, asked)
    folder = find_study("t", tmp_path / "runs")
    results = json.loads((tmp_path / "runs/t/results.json").read_text())
    results["arms"][1]["mean"] += 1
    (tmp_path / "runs/t/results.json").write_text(json.dumps(results))
    assert len(verify(folder)) == 1
    run = folder.runs()[0]
    place = Path(run.where) / "result.json"
    place.write_text(place.read_text().replace("2.", "3."))
    with pytest.raises(UserError, match=r"result\.json"):
        verify(folder)
    table.to_csv(tmp_path / "t.csv", index=False)
    judge_file(table, tmp_path, asked)  # makes the files again
    assert verify(folder) == []


@pytest.mark.parametrize(
    "names",
    [
        ["org/model", "org-model"],
        ["GELU", "gelu", "Gelu"],
        ["Straße", "STRASSE"],
        ["e\u0301", "\u00e9"],
        [".hidden", "..", "-", "none", "n/a"],
        ["x" * 300, "x" * 299 + "y"],
        ["\x1b[31mred", "<script>alert(1)</script>", "\\input{x}", "*a*_b_"],
        ["tab\tname", "line\u2028name", "\u202eright"],
        ["baseline", "latest", "a.b", "a=b,c", "a b", "100 %", "<b>", "$x_1$", "`x`", "|"],
        ["\U0001f600", "日本語", "ö" * 60],
    ],
)
def test_any_name_of_an_arm_has_a_folder(names: list[str], asked, tmp_path: Path):
    table = made_up(dict.fromkeys(names, 0.0), seeds=3)
    results = taetpu.judge(table, **asked | {"baseline": names[0]}, out=tmp_path / "t").results
    assert len(results["arms"]) == len(names)
    folders = [path.name.casefold() for path in (tmp_path / "t/runs").iterdir()]
    assert len(set(folders)) == len(names)
    assert len(find_study("t", tmp_path).runs()) == 3 * len(names)
    assert verify(find_study("t", tmp_path)) == []
    assert results["arms"][0]["against"] is None


def test_names_from_a_table_are_text_in_pages_and_on_terminals(asked, tmp_path: Path):
    names = ["base", "\x1b[31mred", "<script>alert(1)</script>"]
    taetpu.judge(made_up(dict.fromkeys(names, 0.0), seeds=3), **asked, out=tmp_path / "t")
    for file in (tmp_path / "t/report").iterdir():
        text = file.read_text()
        assert "\x1b" not in text
        assert "<script>alert" not in text or file.suffix != ".html"


@pytest.mark.parametrize("blocks", [[0], [0] * 4 + [2], [0] * 4 + ["1"], [0] * 4 + [True], 3, None])
def test_invalid_blocks_are_refused(blocks, table, asked, tmp_path: Path):
    taetpu.judge(table, **asked, unpaired=True, out=tmp_path / "t")
    folder = find_study("t", tmp_path)
    folder.write_study({**folder.read_study(), "blocks": blocks}, replace=True)
    with pytest.raises(UserError, match="'blocks'") as caught:
        taetpu.open_study(tmp_path / "t").results["arms"]
    assert str(folder.where) in str(caught.value)


@pytest.mark.parametrize("place", ["file.txt", "file.txt/t", "file.txt/a/t", "/", "/proc/t"])
def test_a_place_without_a_folder_is_refused_with_the_option(place: str, table, asked, tmp_path: Path):
    (tmp_path / "file.txt").write_text("mine")
    out = tmp_path / place
    with pytest.raises(UserError) as caught:
        taetpu.judge(table, **asked, out=out)
    assert caught.value.path == ("--out",)
    assert "--out" in str(caught.value.remedy)
    assert (tmp_path / "file.txt").read_text() == "mine"


def test_a_folder_may_be_named_relative_to_another(table, asked, tmp_path: Path):
    taetpu.judge(table, **asked, out=tmp_path / "a/../b")
    assert taetpu.open_study(tmp_path / "b").results["final"]
    assert not (tmp_path / "a").exists()


def test_the_study_file_of_a_table_is_not_trained(table, asked, tmp_path: Path):
    judge_file(table, tmp_path, asked)
    for command in (load_study, taetpu.run):
        with pytest.raises(UserError) as caught:
            command(tmp_path / "runs/t/study.yaml")
        assert len(caught.value.all_errors) == 1
        assert caught.value.path == ("judged",)
        assert "taetpu judge" in str(caught.value.remedy)


@pytest.mark.slow
def test_a_bucket_keeps_the_study_of_a_table(table, asked, gs_root: str, tmp_path: Path):
    table.to_csv(tmp_path / "t.csv", index=False)
    first = taetpu.judge(tmp_path / "t.csv", **asked, out=f"{gs_root}/t").results
    assert taetpu.judge(tmp_path / "t.csv", **asked, out=f"{gs_root}/t").results == first
    assert taetpu.open_study(f"{gs_root}/t").results == first
    assert verify(find_study("t", gs_root)) == []


def test_the_live_page_shows_the_verdicts_of_a_table(table, asked, tmp_path: Path):
    judge_file(table, tmp_path, asked)
    feed = Feed(find_study("t", tmp_path / "runs"))
    feed.poll()
    assert feed.errors == []
    assert feed.state()["effects"]["counts"]


def test_status_shows_the_verdicts_of_a_table(table, asked, tmp_path: Path):
    judge_file(table, tmp_path, asked)
    feed = Feed(find_study("t", tmp_path / "runs"))
    feed.poll()
    study = StudyProgress(feed)
    assert study.ended
    assert [row["standing"] for row in study.arms()] == ["baseline", "better", "inconclusive"]

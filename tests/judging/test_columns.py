"""Mistakes in tables are listed together, each with its row and column."""

from pathlib import Path

import pandas as pd
import pytest
from tests.judging.conftest import made_up

import taetpu
from taetpu.core.errors import UserError
from taetpu.judging.cells import parse_metric, parse_seed, parse_setting

HEADER = "method,seed,data,loss\n"
GOOD = "base,0,x,2.5\nbase,1,x,2.6\nmuon,0,x,2.4\nmuon,1,x,2.4\n"


def refused(folder: Path, text: str, asked, **more) -> UserError:
    (folder / "t.csv").write_text(text)
    with pytest.raises(UserError) as caught:
        taetpu.judge(folder / "t.csv", **asked | more)
    return caught.value


def test_all_mistakes_are_listed_by_row_and_column(tmp_path: Path, asked):
    rows = 'muon,2,x,abc\nmuon,3,x,"1,5"\n,4,x,2.4\nmuon,,x,2.4\nmuon,5,x,1e400\nbase,2,x,93 %\n'
    errors = refused(tmp_path, HEADER + GOOD + rows, asked).all_errors
    assert [str(error.file) for error in errors] == [
        "t.csv, row 6, column 'loss'",
        "t.csv, row 7, column 'loss'",
        "t.csv, row 8, column 'method'",
        "t.csv, row 9, column 'seed'",
        "t.csv, row 10, column 'loss'",
        "t.csv, row 11, column 'loss'",
    ]
    values = ("'abc'", "1.5", "", "", "1e400", "93 %")
    assert all(value in error.message for value, error in zip(values, errors, strict=True))
    assert "1.5" in str(errors[1].remedy)


def test_two_rows_of_one_run_are_refused_with_the_columns_that_differ(tmp_path: Path, asked):
    (error,) = refused(tmp_path, f"{HEADER}{GOOD}muon,1,y,2.5\n", asked).all_errors
    assert str(error.file) == "t.csv, row 6"
    assert "t.csv, row 5" in error.problem
    for part in ("--block", "data"):
        assert part in str(error.remedy)
    (error,) = refused(tmp_path, f"{HEADER}base,0,x,1\nbase,1,x,1\n", asked, seed="").all_errors
    assert "--seed" in str(error.remedy)
    log = "method,seed,data,loss,step\nbase,0,x,2,5\nbase,0,x,1,5\n"
    assert len(refused(tmp_path, log, asked, step="step").all_errors) == 1


def test_unknown_columns_and_arms_are_refused_with_the_nearest(tmp_path: Path, asked):
    errors = refused(tmp_path, HEADER + GOOD, asked, metric="los", arm="meth", block="daata").all_errors
    assert [error.path for error in errors] == [("--arm",), ("--block",), ("--metric",)]
    for error, name in zip(errors, ("'method'", "'data'", "'loss'"), strict=True):
        assert name in str(error.remedy)
    for baseline in ("bas", ""):
        error = refused(tmp_path, HEADER + GOOD, asked, baseline=baseline)
        assert error.path == ("--baseline",)
        assert "base, muon" in str(error.remedy)


@pytest.mark.parametrize(
    ("more", "option"),
    [
        ({"block": "seed"}, "--block"),
        ({"metric": "seed"}, "--metric"),
        ({"metric": ["loss", "loss"]}, "--metric"),
        ({"step": "loss"}, "--metric"),
        ({"better": "low"}, "--better"),
        ({"better": ["min", "max"]}, "--better"),
        ({"equivalence": 0.0}, "--equivalence"),
        ({"equivalence": [0.1, 0.1]}, "--equivalence"),
        ({"equivalence": float("nan")}, "--equivalence"),
        ({"alpha": 0.0}, "--alpha"),
        ({"metric": ()}, "--metric"),
        ({"wide": "rows"}, "--wide"),
        ({"wide": "arms"}, "--arm"),
        ({"wide": "seeds"}, "--seed"),
    ],
)
def test_contradicting_options_are_refused(more, option: str, tmp_path: Path, asked):
    assert refused(tmp_path, HEADER + GOOD, asked, **more).path == (option,)


def test_steps_are_integers(tmp_path: Path, asked):
    text = "method,seed,loss,step\nbase,0,2,1.5\nbase,1,1,-1\nbase,2,1,\nbase,3,1,x\nbase,4,1,1e3\n"
    errors = refused(tmp_path, text, asked, step="step").all_errors
    assert [str(error.file) for error in errors] == [f"t.csv, row {row}, column 'step'" for row in (2, 3, 4, 5)]


def test_a_wide_table_names_the_cell_of_a_mistake(tmp_path: Path, asked):
    more = {"wide": "arms", "arm": ()}
    errors = refused(tmp_path, "seed,base,muon,note\n0,1,2,x\n1,1,,x\n", asked, **more).all_errors
    assert [str(error.file) for error in errors] == [f"t.csv, row {row}, column 'note'" for row in (2, 3)]
    assert refused(tmp_path, "seed,base\n0,1\n", asked, **more, ignore="nots").all_errors
    assert refused(tmp_path, "seed,base\n0,1\n", asked, **more, ignore="base").all_errors
    assert refused(tmp_path, "seed,base\n0,1\n", asked, **more, metric=("a", "b")).path == ("--metric",)


def test_mistakes_in_pandas_tables_name_the_row_of_the_index(asked):
    table = made_up().astype({"loss": object})
    table.index = [f"r{i}" for i in range(len(table))]
    table.loc["r3", "loss"] = "abc"
    with pytest.raises(UserError, match="row r3, column 'loss'"):
        taetpu.judge(table, **asked)
    with pytest.raises(UserError, match="'a'"):
        taetpu.judge(pd.DataFrame([[1, 2]], columns=["a", "a"]), **asked)
    for nothing in (made_up().iloc[:0], [], 3):
        with pytest.raises(UserError):
            taetpu.judge(nothing, **asked)


@pytest.mark.parametrize(
    ("cell", "number"),
    [
        (" 1.5 ", 1.5),
        ("-1e-3", -1e-3),
        (".5", 0.5),
        ("NaN", None),
        ("-inf", None),
        ("Infinity", None),
        (float("inf"), None),
    ],
)
def test_cells_of_metrics(cell, number):
    parsed = parse_metric(cell, "here")
    assert parsed != parsed if number is None else parsed == number


@pytest.mark.parametrize(
    "cell", ["1_0", "0x1", "1 000", "−1", "١", "1,5", "1.5.", True, [1], "12%", "1e999", "-1e101", 1e200, "1e-101"]
)
def test_text_in_a_column_of_numbers_is_refused(cell):
    with pytest.raises(UserError, match="here"):
        parse_metric(cell, "here")


def test_cells_of_seeds_and_settings():
    assert [parse_seed(cell) for cell in (3, 3.0, "3", "3.0", "003", "a3", 2.5)] == [3, 3, 3, 3, 3, "a3", "2.5"]
    assert [parse_setting(cell) for cell in ("1", "1e-3", "1_0", "true", "", True)] == [
        1,
        1e-3,
        "1_0",
        "true",
        None,
        True,
    ]


def test_a_metric_without_any_value_is_refused(tmp_path: Path, asked):
    assert refused(tmp_path, "method,seed,loss\nbase,0,\nmuon,0,NA\n", asked).path == ("--metric",)


@pytest.mark.parametrize("more", [{"unpaired": True}, {"block": "data"}])
def test_a_wide_table_has_no_arm_named_seed(more, tmp_path: Path, asked):
    asked = {**asked, "wide": "arms", "arm": (), "seed": ""}
    table = "Seed,data,base,muon\n0,x,1,2\n1,y,2,3\n2,z,3,4\n"
    error = refused(tmp_path, table, asked, **more, **({"ignore": "data"} if "block" not in more else {}))
    assert all(option in str(error.remedy) for option in ("--seed Seed", "--ignore Seed"))
    ignored = [*(["data"] if "block" not in more else []), "Seed"]
    assert len(taetpu.judge(tmp_path / "t.csv", **asked, **more, ignore=ignored).results["arms"]) == 2


@pytest.mark.parametrize(
    ("baseline", "arm"),
    [
        ("optimizer=adam,lr=1e-3", "optimizer=adam,lr=0.001"),
        ("lr=.0010,optimizer=adam", "optimizer=adam,lr=0.001"),
        ("optimizer=adam,lr=3E-4", "optimizer=adam,lr=3e-4"),
    ],
)
def test_numbers_in_the_name_of_the_baseline_may_be_written_otherwise(baseline: str, arm: str, tmp_path: Path):
    rows = "".join(f"{o},{lr},{s},{s + len(lr)}\n" for o in ("adam", "sgd") for lr in ("0.001", "3e-4") for s in (0, 1))
    (tmp_path / "t.csv").write_text(f"optimizer,lr,seed,loss\n{rows}")
    asked = {"arm": ["optimizer", "lr"], "seed": "seed", "metric": "loss", "better": "min"}
    assert taetpu.judge(tmp_path / "t.csv", **asked, baseline=baseline).results["arms"][0]["name"] == arm
    with pytest.raises(UserError, match="2e-3"):
        taetpu.judge(tmp_path / "t.csv", **asked, baseline="optimizer=adam,lr=2e-3")

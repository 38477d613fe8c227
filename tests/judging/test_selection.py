"""Conditions on columns choose the runs that are judged."""

import pandas as pd
import pytest
from tests.judging.conftest import made_up

import taetpu
from taetpu.core.errors import UserError
from taetpu.judging.selection import select_records
from taetpu.programs.records import Record

RUNS = [
    {"experiment": "first", "lr": "0.1", "my loss<": 1, "tuned": True},
    {"experiment": "first", "lr": 0.3, "my loss<": 2, "tuned": False},
    {"experiment": "last = new", "lr": "1e-2", "my loss<": 3},
    {"lr": "low"},
]


@pytest.mark.parametrize(
    ("conditions", "chosen"),
    [
        ((), [0, 1, 2, 3]),
        (("experiment=first",), [0, 1]),
        (("experiment = last = new",), [2]),
        (("experiment!=first",), [2]),  # a run without the field satisfies no condition on it
        (("lr<=0.1",), [0, 2]),
        (("lr>0.1", "experiment=first"), [1]),
        (("lr=low",), [3]),
        (("my loss<>=2",), [1, 2]),
        (("tuned=true",), [0]),
    ],
)
def test_runs_that_satisfy_all_conditions_are_chosen(conditions, chosen):
    records = [Record(str(i), fields, {}) for i, fields in enumerate(RUNS)]
    assert [int(record.where) for record in select_records(records, conditions, "t.csv")] == chosen


@pytest.mark.parametrize(
    ("condition", "value", "remedy"),
    [
        ("experiments=first", "'experiments'", "'experiment'"),
        ("experiment=second", "'experiment=second'", "first, last = new"),
        ("lr<low", "'low'", "!="),
        ("first", "'first'", ""),
    ],
)
def test_a_condition_without_runs_is_refused(condition, value, remedy):
    records = [Record(str(i), fields, {}) for i, fields in enumerate(RUNS)]
    with pytest.raises(UserError) as caught:
        select_records(records, [condition], "t.csv")
    assert value in caught.value.problem
    assert remedy in (caught.value.remedy or "")
    assert caught.value.path == ("--where",)


def test_the_chosen_runs_are_judged_as_if_they_were_alone(asked):
    table = made_up()
    mixed = pd.concat([table.assign(data="x"), table.assign(data="y", loss=table["loss"] + 1)])
    judged = taetpu.judge(mixed, **asked, where="data=x")
    assert judged.arms.equals(taetpu.judge(table, **asked).arms)
    assert judged.results["judged"]["where"] == ["data=x"]
    with pytest.raises(UserError, match="also that of"):
        taetpu.judge(mixed, **asked)

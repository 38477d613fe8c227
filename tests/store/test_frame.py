import pytest

from taetpu.core.errors import UserError
from taetpu.store.backend import open_store
from taetpu.store.frame import COLUMNS, read_metrics
from taetpu.store.study import StudyFolder


@pytest.fixture
def folder(tmp_path):
    folder = StudyFolder(open_store(tmp_path), "one")
    folder.write_study({"study": "one"})
    return folder


def test_every_value_of_every_run_is_a_row(folder):
    for seed in (0, 1):
        run = folder.run("baseline", seed, "0123456789abcdef")
        run.start({})
        run.append(0, 10, {"val/loss": ([5, 10], [2.0 + seed, 1.0 + seed])})
    table = read_metrics(folder.where)
    assert list(table.columns) == list(COLUMNS)
    last = table[table.step == 10].set_index("seed").value
    assert dict(last) == {0: 1.0, 1: 2.0}
    assert set(table.arm) == {"baseline"}
    assert set(table.metric) == {"val/loss"}
    assert len(table) == 4


def test_study_without_runs_gives_an_empty_table(folder):
    assert read_metrics(folder.where).empty
    assert list(read_metrics(folder.where).columns) == list(COLUMNS)


def test_missing_study_is_refused(tmp_path):
    with pytest.raises(UserError, match="no study") as caught:
        read_metrics(tmp_path)
    assert str(tmp_path) in str(caught.value)

"""`measure.post_hoc` in study files."""

import pytest
from tests.small import TINY

from taetpu.core.errors import UserError
from taetpu.spec.loading import load_study
from taetpu.spec.post_hoc import PostHocConfig


@pytest.fixture
def load(tmp_path):
    """Return a function that loads a study with the given tables."""

    def write_and_load(tables):
        (tmp_path / "s.yaml").write_text(f"{TINY}measure:\n  post_hoc: {tables}\n")
        return load_study(tmp_path / "s.yaml")

    return write_and_load


def test_the_name_of_a_table_has_the_settings_that_differ_from_their_defaults(load):
    tables = (
        "[{knockout: heads}, {knockout: heads, how: zero, split: test, seed: 3}, {knockout: mixer.q, documents: 8}]"
    )
    found = load(tables).post_hoc
    assert list(found) == ["heads-mean", "heads-zero-split=test-seed=3", "mixer.q-mean-documents=8"]
    usual = {"knockout": "heads", "how": "mean", "split": "val", "documents": 64, "seed": 0}
    assert found["heads-mean"] == usual
    assert load("[{knockout: heads, how: mean, documents: 64}]").post_hoc == {"heads-mean": usual}


def test_tables_with_different_settings_have_different_names():
    tables = [PostHocConfig(knockout=what, how=how, split=split, documents=number, seed=seed)
              for what in ("heads", "ffns", "mixer.q") for how in ("zero", "noise") for split in ("val", "val@16")
              for number in (8, 64) for seed in (0, 64)]  # fmt: skip
    assert len({table.name for table in tables}) == len(tables)


@pytest.mark.parametrize(
    ("tables", "problem", "remedy", "place"),
    [
        ("[{knockout: heads, how: meen}]", "unknown replacement 'meen'", "Did you mean 'mean'?", "0.how"),
        ("[{knockout: heads, how: counterfactual}]", "sets have none", "zero, mean, resample", "0.how"),
        ("[{knockout: ffns}, {knockout: positions}]", "not to models", "heads", "1.knockout"),
        ("[{knockout: layers}]", "no mean activation", "Set how: zero", "0.how"),
        ("[{knockout: heads, how: resample, documents: 1}]", "documents is 1", "at least 2", "0.documents"),
        ("[{knockout: heads, documents: 0}]", "0", "at least 1", "0.documents"),
        ("[{knockout: heads, seed: -1}]", "-1", "at least 0", "0.seed"),
        ("[{knockout: heads, hwo: mean}]", "hwo", "how", "0.hwo"),
        ("[{how: mean}]", "knockout", "", "0"),
        ("[{knockout: heads}, {knockout: ffns}, {knockout: heads, how: mean}]", "same as table 0",
         "Remove one", "2"),
        ("heads", "heads", "list", ""),
    ],
)  # fmt: skip
def test_an_invalid_table_is_refused_with_its_place(load, tables, problem, remedy, place):
    with pytest.raises(UserError) as caught:
        load(tables)
    assert problem in caught.value.problem
    assert remedy in (caught.value.remedy or "")
    assert ".".join(map(str, caught.value.path)) == f"measure.post_hoc.{place}".rstrip(".")
    assert caught.value.line is not None

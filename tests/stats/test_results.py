"""The types of `results.json` and `study.yaml` name every stored key, and results of earlier versions are read."""

import json
from pathlib import Path

import pytest
from pydantic import TypeAdapter
from tests.study.test_earlier import STORED, copy_stored

from taetpu.core.errors import UserError
from taetpu.stats.analyse import compute_results
from taetpu.stats.load import read_study
from taetpu.stats.results import Results, read_results
from taetpu.store.frozen_study import FrozenStudy

RESULTS, STUDY = TypeAdapter(Results), TypeAdapter(FrozenStudy)
PLANNED = [file.name for file in sorted(STORED.iterdir()) if file.name != "schema1"]


@pytest.mark.parametrize("version", PLANNED)
def test_stored_and_computed_results_have_the_declared_keys(version: str, tmp_path: Path) -> None:
    folder = copy_stored(version, tmp_path, json.loads((STORED / version / "results.json").read_text())["study"])
    stored = read_results(folder)
    assert stored == folder.read_results()
    assert RESULTS.validate_python(stored, strict=True)["arms"]
    assert RESULTS.validate_python(json.loads(json.dumps(compute_results(folder))), strict=True)["groups"]
    assert STUDY.validate_python(read_study(folder), strict=True)["arms"]


def test_a_key_that_is_not_declared_is_found() -> None:
    stored = json.loads((STORED / "schema3" / "results.json").read_text())
    with pytest.raises(ValueError, match=r"arms\.0\.sneaky"):
        RESULTS.validate_python({**stored, "arms": [{**stored["arms"][0], "sneaky": 1}]}, strict=True)


def test_results_of_schema_1_are_refused_by_name(tmp_path: Path) -> None:
    folder = copy_stored("schema1", tmp_path, "schema1")
    with pytest.raises(UserError) as error:
        read_results(folder)
    assert error.value.file == folder.where
    assert "'against'" in error.value.problem
    assert "taetpu report" in str(error.value.remedy)

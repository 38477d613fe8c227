"""The comparison of texts with those stored beside the tests."""

import re
from pathlib import Path

import pytest
from tests.wording import mask, read_sections, write_sections


def test_what_differs_between_machines_is_masked(tmp_path):
    text = f"in {tmp_path}/runs: took 1.5s   \nand {tmp_path.parent}/other0: 3 min"
    assert mask(text, tmp_path.parent) == "in FOLDER/runs: took TIME\nand FOLDER: 3 min"


def test_sections_are_read_as_they_were_written(tmp_path):
    sections = {"test_b": "two\n\nparagraphs", "test_a[1-x]": "one line"}
    write_sections(tmp_path / "screens" / "test_x.txt", sections)
    assert read_sections(tmp_path / "screens" / "test_x.txt") == sections
    assert read_sections(tmp_path / "none.txt") == {}


def test_another_wording_fails(wording, monkeypatch):
    monkeypatch.delenv("UPDATE_SCREENS", raising=False)
    with pytest.raises(AssertionError):
        wording("a text that is not stored")


def test_a_wording_that_is_stored_passes(wording):
    wording("error: 5 does not divide 64\n  remedy: Use 1, 2, 4 or 8.")


def test_every_stored_text_belongs_to_a_test():
    stale = []
    for file in Path(__file__).parents[1].rglob("screens/test_*.txt"):
        tests = (file.parents[1] / f"{file.stem}.py").read_text(encoding="utf-8")
        names = (re.split(r"[\[ ]", section)[0] for section in read_sections(file))
        stale += [f"{file}: {name}" for name in names if f"def {name}(" not in tests]
    assert stale == []

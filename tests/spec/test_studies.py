"""The studies of this project load, and their runs have identities."""

import shutil
from pathlib import Path

import pytest

from taetpu.spec.loading import load_study

STUDIES = Path(__file__).parents[2] / "studies"
FILES = sorted(file for file in STUDIES.rglob("*.yaml") if ".claims" not in file.name)


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """A copy of the studies, with a file in place of the text that is not distributed."""
    copy = tmp_path_factory.mktemp("studies") / "studies"
    shutil.copytree(STUDIES, copy)
    lines = [f"Line {number} of a text that takes the place of plays.\n" for number in range(2000)]
    (copy / "tinyshakespeare.txt").write_text("".join(lines))
    return copy


@pytest.mark.parametrize("name", [str(file.relative_to(STUDIES)) for file in FILES])
def test_study_loads_and_its_runs_have_identities(folder, name) -> None:
    study = load_study(folder / name)
    runs = study.runs()
    assert len({run.id for run in runs}) == len(runs) == len(study.arms) * len(study.seeds)
    assert study.name.removeprefix("known-") == Path(name).stem

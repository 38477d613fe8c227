"""A study folder of schema 2, as an earlier version left it: it opens and reports, and no new run mixes with it."""

import json
import shutil
from pathlib import Path

import pytest
from tests.small import TINY

from taetpu.core.errors import UserError
from taetpu.core.identity import SCHEMA
from taetpu.report.build import build_report
from taetpu.spec.loading import load_study
from taetpu.stats.analyse import analyse
from taetpu.stats.load import read_config
from taetpu.stats.verify import verify
from taetpu.store.backend import open_store
from taetpu.store.index import list_studies
from taetpu.store.study import StudyFolder
from taetpu.study.preview import prepare_study
from taetpu.study.run import run

HERE = Path(__file__).with_name("earlier")
TEXT = TINY.replace("study: tiny", "study: earlier") + "seeds: 2\narms:\n  low-lr: {train.optimizer.lr: 1e-4}\n"


@pytest.fixture
def folder(tmp_path) -> StudyFolder:
    shutil.copytree(HERE, tmp_path / "root/earlier")
    (tmp_path / "study.yaml").write_text(TEXT)
    return StudyFolder(open_store(tmp_path / "root"), "earlier")


def files(root: Path) -> dict[Path, bytes]:
    return {file: file.read_bytes() for file in root.rglob("*") if file.is_file()}


def test_it_opens_and_reports_and_every_run_is_what_its_identity_says(folder, tmp_path) -> None:
    (entry,) = list_studies(tmp_path / "root")
    assert (entry.problem, entry.done, entry.total) == (None, 4, 4)
    before = folder.read_results()
    after = json.loads(json.dumps(analyse(folder)))
    assert [arm["runs"] for arm in after["arms"]] == [arm["runs"] for arm in before["arms"]]
    assert verify(folder) == []
    assert "low-lr" in Path(build_report(folder)["html"]).read_text()


def test_a_changed_run_of_it_is_found(folder, tmp_path) -> None:
    file = next((tmp_path / "root/earlier/runs/low-lr").glob("0-*/config.json"))
    record = json.loads(file.read_text())
    record["config"]["train"]["accumulate"] = 2
    file.write_text(json.dumps(record))
    (problem,) = verify(folder)
    assert "its config, seed or data do not match its identity" in problem


@pytest.mark.parametrize(
    "go",
    [
        lambda file, folder: run(file, root=str(file.parent / "root")),
        lambda file, folder: prepare_study(load_study(file), folder),
    ],
)
def test_a_study_of_another_schema_is_not_gone_on_with(go, folder, tmp_path) -> None:
    before = files(tmp_path / "root")
    with pytest.raises(UserError) as error:
        go(tmp_path / "study.yaml", folder)
    assert ("schema 2" in error.value.problem, f"schema {SCHEMA}" in error.value.problem) == (True, True)
    assert (error.value.path, error.value.line) == (("study",), 1)
    assert "or --root" in str(error.value.remedy)
    assert files(tmp_path / "root") == before


def test_one_of_a_later_version_asks_for_that_version(folder, tmp_path) -> None:
    folder.write_study({**folder.read_study(), "schema": SCHEMA + 1}, replace=True)
    with pytest.raises(UserError) as error:
        run(tmp_path / "study.yaml", root=str(tmp_path / "root"))
    assert str(error.value.remedy).startswith("Update taetpu")


def test_no_run_of_it_is_reused(folder, tmp_path) -> None:
    with pytest.raises(UserError) as error:
        run(tmp_path / "study.yaml", root=str(tmp_path / "new"), reuse=[str(tmp_path / "root")])
    assert "schema 2" in error.value.problem
    assert not (tmp_path / "new").exists()


def test_nor_where_a_study_of_this_schema_lies_beside_it(folder, tmp_path) -> None:
    """Not even under identities of this version."""
    study = load_study(tmp_path / "study.yaml")
    beside = StudyFolder(folder.store, "beside")
    beside.write_study({**folder.read_study(), "study": "beside", "schema": SCHEMA})
    for wanted in study.runs():
        old = next(run for run in folder.runs() if (run.arm, run.seed) == (wanted.arm, wanted.seed))
        folder.run(wanted.arm, wanted.seed, wanted.id).copy_from(old, {**read_config(old), "id": wanted.id})
    outcome = run(tmp_path / "study.yaml", root=str(tmp_path / "new"), reuse=[str(tmp_path / "root")])
    assert outcome.results["reused"]["runs"] == 0
    assert outcome.results["complete"]

"""A study folder of schema 2, which an earlier version wrote: it opens and reports, and no new run is added to it."""

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
from taetpu.study.pack_store import resolve_runs
from taetpu.study.preview import prepare_study
from taetpu.study.reuse import Reuse
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


def test_earlier_study_opens_reports_and_verifies(folder, tmp_path) -> None:
    (entry,) = list_studies(tmp_path / "root")
    assert (entry.problem, entry.done, entry.total) == (None, 4, 4)
    before = folder.read_results()
    after = json.loads(json.dumps(analyse(folder)))
    assert [arm["runs"] for arm in after["arms"]] == [arm["runs"] for arm in before["arms"]]
    assert verify(folder) == []
    assert "low-lr" in Path(build_report(folder)["html"]).read_text()


def test_changed_run_of_an_earlier_study_is_found(folder, tmp_path) -> None:
    file = next((tmp_path / "root/earlier/runs/low-lr").glob("0-*/config.json"))
    record = json.loads(file.read_text())
    record["config"]["train"]["accumulate"] = 2
    file.write_text(json.dumps(record))
    (problem,) = verify(folder)
    assert "the config, seed or data was changed after the run started" in problem


@pytest.mark.parametrize(
    "go",
    [
        lambda file, folder: run(file, root=str(file.parent / "root")),
        lambda file, folder: prepare_study(load_study(file), folder),
    ],
)
def test_study_of_another_schema_is_not_resumed(go, folder, tmp_path) -> None:
    before = files(tmp_path / "root")
    with pytest.raises(UserError) as error:
        go(tmp_path / "study.yaml", folder)
    assert ("schema 2" in error.value.problem, f"schema {SCHEMA}" in error.value.problem) == (True, True)
    assert (error.value.path, error.value.line) == (("study",), 1)
    assert "or --root" in str(error.value.remedy)
    assert files(tmp_path / "root") == before


def test_study_of_a_later_version_asks_for_an_update(folder, tmp_path) -> None:
    folder.write_study({**folder.read_study(), "schema": SCHEMA + 1}, replace=True)
    with pytest.raises(UserError) as error:
        run(tmp_path / "study.yaml", root=str(tmp_path / "root"))
    assert str(error.value.remedy).startswith("Update taetpu")


def test_no_run_of_an_earlier_study_is_reused(folder, tmp_path) -> None:
    with pytest.raises(UserError) as error:
        run(tmp_path / "study.yaml", root=str(tmp_path / "new"), reuse=[str(tmp_path / "root")])
    assert "schema 2" in error.value.problem
    assert not (tmp_path / "new").exists()


def test_no_run_of_it_is_reused_if_the_root_also_has_a_study_of_this_schema(folder, tmp_path) -> None:
    """This holds even if its runs have the IDs of this version."""
    study = load_study(tmp_path / "study.yaml")
    beside = StudyFolder(folder.store, "beside")
    beside.write_study({**folder.read_study(), "study": "beside", "schema": SCHEMA})
    for wanted in study.runs():
        old = next(run for run in folder.runs() if (run.arm, run.seed) == (wanted.arm, wanted.seed))
        folder.run(wanted.arm, wanted.seed, wanted.id).copy_from(old, {**read_config(old), "id": wanted.id})
    new = StudyFolder(open_store(tmp_path / "new"), study.name)
    assert Reuse(new, [str(tmp_path / "root")]).adopt(resolve_runs(study, new)) == []

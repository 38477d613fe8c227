"""Study folders that earlier versions wrote. They open, report and verify; those of the current schema are resumed.

`stored` holds the folders as these versions wrote them, without reports and times: of schema 1 (which had no plans),
of schema 2, of the first version of schema 3 (which did not record the schema with runs), of schema 3 before contrasts,
and of the first version of schema 4 (which changed the default init).
"""

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
from taetpu.study.run_file import run
from taetpu.ui.feed import Feed

STORED = Path(__file__).with_name("stored")
ARM = "arms:\n  low-lr: {train.optimizer.lr: 1e-4}\n"
TEXT = TINY.replace("study: tiny", "study: earlier") + f"seeds: 2\n{ARM}"
FOURTH = TINY.replace("study: tiny", "study: schema4") + "measure: {primary: val/loss, equivalence: 0.02}\n"


@pytest.fixture
def folder(tmp_path) -> StudyFolder:
    (tmp_path / "study.yaml").write_text(TEXT)
    return copy_stored("schema2", tmp_path, "earlier")


def copy_stored(version: str, tmp_path: Path, name: str) -> StudyFolder:
    """Copy a stored folder into the root `root` under its study's name."""
    shutil.copytree(STORED / version, tmp_path / "root" / name)
    return StudyFolder(open_store(tmp_path / "root"), name)


def files(root: Path) -> dict[Path, bytes]:
    return {file: file.read_bytes() for file in root.rglob("*") if file.is_file()}


@pytest.mark.parametrize(
    ("version", "name"),
    [("schema2", "earlier"), ("schema3-first", "schema3"), ("schema3", "schema3"), ("schema4", "schema4")],
)
def test_stored_study_opens_reports_and_verifies(version, name, tmp_path) -> None:
    """Its plan, hash and verdicts are those of the version that froze it."""
    folder = copy_stored(version, tmp_path, name)
    (entry,) = list_studies(tmp_path / "root")
    assert (entry.problem, entry.done, entry.total) == (None, 4, 4)
    before = folder.read_results() or {}
    after = json.loads(json.dumps(analyse(folder)))
    assert after["plan"]["sha256"] == before["plan"]["sha256"]
    assert after["plan"].keys() == before["plan"].keys()
    for field in ("runs", "verdict", "effect", "ci95", "p_holm", "p_equivalent"):
        assert [arm[field] for arm in after["arms"]] == [pytest.approx(arm[field]) for arm in before["arms"]]
    assert verify(folder) == []
    assert "low-lr" in Path(build_report(folder)["html"]).read_text()


@pytest.mark.slow
def test_stored_study_of_this_schema_is_resumed(tmp_path) -> None:
    """The runs have the IDs of this version, so the finished ones are kept and a deleted one is trained again."""
    folder = copy_stored("schema4", tmp_path, "schema4")
    (tmp_path / "study.yaml").write_text(FOURTH + f"seeds: 2\n{ARM}")
    shutil.rmtree(next((tmp_path / "root/schema4/runs/low-lr").glob("1-*")))
    before, plan = files(tmp_path / "root/schema4/runs"), folder.read_study()["plan"]
    run(tmp_path / "study.yaml", root=str(tmp_path / "root"))
    after = files(tmp_path / "root/schema4/runs")
    assert {file: after[file] for file in before} == before
    assert sum(file.name == "result.json" for file in after) == 4
    assert folder.read_study()["plan"] == plan
    assert verify(folder) == []


def test_study_without_a_plan_is_named_and_left_alone(tmp_path) -> None:
    """Studies of schema 1 had no plans: every command says so, and none changes the folder."""
    folder = copy_stored("schema1", tmp_path, "schema1")
    before = files(tmp_path / "root")
    feed = Feed(folder)
    feed.poll()
    assert feed.study["primary"] == "val/loss"
    assert "earlier version" in feed.problem
    for use in (analyse, verify):
        with pytest.raises(UserError, match="earlier version") as error:
            use(folder)
        assert error.value.path == ("plan",)
        assert "another name" in error.value.remedy
    (tmp_path / "study.yaml").write_text(TEXT.replace("study: earlier", "study: schema1"))
    with pytest.raises(UserError, match="schema 1"):
        run(tmp_path / "study.yaml", root=str(tmp_path / "root"))
    assert files(tmp_path / "root") == before


def test_changed_run_of_an_earlier_study_is_found(folder, tmp_path) -> None:
    file = next((tmp_path / "root/earlier/runs/low-lr").glob("0-*/config.json"))
    record = json.loads(file.read_text())
    record["config"]["train"]["accumulate"] = 2
    file.write_text(json.dumps(record))
    (problem,) = verify(folder)
    assert "data was changed" in problem


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

"""Folders that are empty, ambiguous, damaged or hostile are refused, with the file and the place."""

import contextlib
import os
import shutil
import sqlite3
import sys
from pathlib import Path
from random import Random

import pytest

from taetpu.core.errors import DataWarning, UserError
from taetpu.programs.folders import KINDS, read_folder, tree

STORED = Path(__file__).parent / "stored"
WANDB, LIGHTNING, TRAINER = "wandb-0.31.0-offline", "lightning-2.6.6", "transformers-5.23.0"
TENSORBOARD, MLFLOW, LM_EVAL = "tensorboardX-2.6.5", "mlflow-3.17.2", "lm-eval-0.4.13"
VERSION = "lightning_logs/version_0"
STATE = "wide-seed1/checkpoint-3/trainer_state.json"


def refused(folder, kind=None):
    """Return the error that reading a folder raises."""
    with pytest.raises(UserError) as caught:
        read_folder(folder, kind)
    assert caught.value.remedy
    return caught.value


def copy(name, target):
    shutil.copytree(STORED / name, target, dirs_exist_ok=True)
    return target


@pytest.fixture
def stored(tmp_path):
    """`stored(name)` is a copy of a stored folder."""
    return lambda name: copy(name, tmp_path / name)


@pytest.fixture
def fill(stored):
    """`fill(name, pattern, data)` is a copy with one file replaced, and that file."""

    def replace(name, pattern, data):
        folder = stored(name)
        file = min(folder.rglob(pattern))
        file.write_bytes(data if isinstance(data, bytes) else data.encode())
        return folder, file

    return replace


def test_a_folder_without_results_is_refused_with_all_layouts(tmp_path, wording):
    (tmp_path / "notes.txt").touch()
    error = refused(tmp_path)
    assert all(kind in (error.remedy or "") for kind in KINDS)
    wording(str(error))


def test_the_command_lists_all_kinds():
    from taetpu.cli.judge import judge

    [option] = judge.__annotations__["kind"].__metadata__
    assert all(kind in option.help for kind in KINDS)


def test_an_unknown_kind_is_refused(tmp_path):
    error = refused(tmp_path, "wandbb")
    assert "'wandbb'" in error.problem
    assert "'wandb'" in (error.remedy or "")


def test_a_kind_that_the_files_are_not_of_is_refused(stored):
    folder = stored(LIGHTNING)
    error = refused(folder, "mlflow")
    assert error.file == folder
    assert "mlruns" in (error.remedy or "")


def test_results_of_two_formats_are_refused_unless_one_is_chosen(tmp_path):
    for name in (LIGHTNING, TRAINER):
        copy(name, tmp_path / name)
    error = refused(tmp_path)
    assert "lightning, trainer" in error.problem
    assert len(read_folder(tmp_path, "lightning")) == len(read_folder(tmp_path, "trainer")) == 4


def test_paths_that_are_no_folder_are_refused(tmp_path):
    (tmp_path / "loop").symlink_to("loop")
    os.mkfifo(tmp_path / "pipe")
    for name in ("missing", "loop", "pipe"):
        assert refused(tmp_path / name).file == tmp_path / name


def test_links_to_folders_are_not_followed(stored):
    folder = stored(LIGHTNING)
    (folder / VERSION / "loop").symlink_to(folder, target_is_directory=True)
    (folder / "lightning_logs" / "latest").symlink_to("version_1", target_is_directory=True)
    assert len(read_folder(folder)) == 4


def test_a_folder_with_very_many_files_is_refused(stored, monkeypatch):
    monkeypatch.setattr(tree, "MAX_ENTRIES", 10)
    assert "10" in refused(stored(LIGHTNING)).problem


def test_a_folder_with_deleted_runs_only_is_refused(fill):
    folder, file = fill(MLFLOW, "mlruns/*/*/meta.yaml", "run_id: a\nlifecycle_stage: deleted\nstatus: 3\n")
    for other in folder.glob("mlruns/*/*/meta.yaml"):
        other.write_bytes(file.read_bytes())
    assert "mlflow" in refused(folder).problem


def test_a_very_deep_folder_is_refused(tmp_path):
    (tmp_path / Path(*"a" * 500)).mkdir(parents=True)
    assert "100" in refused(tmp_path).problem


def test_names_that_are_not_text_are_read(tmp_path):
    folder = os.fsencode(tmp_path) + b"/\xff-seed1"
    os.mkdir(folder)
    Path(os.fsdecode(folder), "metrics.csv").write_text("step,loss\n99999999999999999999,1.5\n")
    [record] = read_folder(tmp_path)
    assert record.fields == {"run": "?-seed1", "label": "?", "seed": 1}
    assert record.where.encode()
    assert record.metrics == {"loss": 1.5}
    assert record.curves == {}  # the step exceeds 64 bits


MUTATIONS = 30
BILLION = "a: &a [x, x, x, x, x, x, x, x, x, x]\n" + "".join(
    f"{name}: &{name} [{', '.join([f'*{previous}'] * 10)}]\n"
    for previous, name in zip("abcdefgh", "bcdefghi", strict=True)
)
FILES = {
    "csv-row": (LIGHTNING, "metrics.csv", "step,loss\n0,1.0\n1\n", 3, "1 cells"),
    "csv-text": (LIGHTNING, "metrics.csv", "step,loss\n0,1.0\n1,high\n", 3, "'high'"),
    "csv-comma": (LIGHTNING, "metrics.csv", 'step,loss\n0,"1,5"\n', 2, "'1,5'"),
    "csv-step": (LIGHTNING, "metrics.csv", "step,loss\n0.5,1.0\n", 2, "'0.5'"),
    "csv-twice": (LIGHTNING, "metrics.csv", "loss,loss\n1,2\n", 1, "distinct"),
    "csv-empty": (LIGHTNING, "metrics.csv", "", 1, "empty"),
    "csv-encoding": (LIGHTNING, "metrics.csv", "step,loss\n0,1.0\n".encode("utf-16"), None, "UTF-8"),
    "csv-quote": (LIGHTNING, "metrics.csv", 'step,loss\n0,"1.0\n', None, "CSV"),
    "yaml-code": (LIGHTNING, "hparams.yaml", "arm: !!python/object/apply:os.system [echo]\n", 1, "python/object"),
    "yaml-billion": (LIGHTNING, "hparams.yaml", BILLION, None, "10,000"),
    "yaml-itself": (LIGHTNING, "hparams.yaml", "a: &a {b: *a}\n", None, "10,000"),
    "yaml-deep": (LIGHTNING, "hparams.yaml", "a: " + "[" * 5000, None, ""),
    "yaml-date": (LIGHTNING, "hparams.yaml", "day: 2026-99-99\n", None, ""),
    "yaml-list": (LIGHTNING, "hparams.yaml", "- 1\n", None, "list"),
    "yaml-large": (LIGHTNING, "hparams.yaml", "a: 1\n" * 300_000, None, "1,048,576"),
    "yaml-bytes": (LIGHTNING, "hparams.yaml", b"a: \xff\n", None, "YAML"),
    "state-cut": (TRAINER, STATE, '{"log_history": [', 1, "JSON"),
    "state-list": (TRAINER, STATE, "[]", None, "list"),
    "state-history": (TRAINER, STATE, '{"log_history": {}, "global_step": 3}', None, "log_history"),
    "state-step": (TRAINER, STATE, '{"log_history": [{"loss": 1}], "global_step": 3}', None, "step"),
    "state-deep": (TRAINER, STATE, '{"log_history": ' + "[" * 100_000, 1, "JSON"),
    "wandb-start": (WANDB, "*.wandb", b"W&B", None, "W&B"),
    "wandb-empty": (WANDB, "*.wandb", b"", None, "empty"),
    "events-text": (TENSORBOARD, "*tfevents*", "no events, but text" * 10, None, "byte 0"),
    "metric-text": (MLFLOW, "loss", "1795762000127 low 10\n", 1, "'1795762000127 low 10'"),
    "metric-cut": (MLFLOW, "loss", "1795762000127 1.0 10\n1795762\n", 2, "'1795762'"),
    "param-bytes": (MLFLOW, "arm", b"\xff\xfe", None, "UTF-8"),
    "run-status": (MLFLOW, "mlruns/*/*/meta.yaml", "{run_id: a, status: 9}", None, "9"),
    "run-code": (MLFLOW, "mlruns/*/*/meta.yaml", "run_id: !!python/name:os.system\n", 1, "python/name"),
    "results-cut": (LM_EVAL, "results_*", '{"results": {"quiz"', 1, "JSON"),
    "results-list": (LM_EVAL, "results_*", '{"results": []}', None, "list"),
    "samples-cut": (LM_EVAL, "wide-seed1/samples_letters_*", '{"doc_id": 0, "metr', 1, "doc_id"),
    "results-group": (
        LM_EVAL,
        "results_*",
        '{"results": {"a": {"acc,none": 1}}, "group_subtasks": {"a": 5}}',
        None,
        "int",
    ),
    "samples-list": (LM_EVAL, "wide-seed1/samples_letters_*", "[1]\n", 1, "doc_id"),
}


@pytest.mark.filterwarnings("ignore::taetpu.core.errors.DataWarning")
@pytest.mark.parametrize("name", FILES)
def test_a_damaged_file_is_refused_with_its_place(fill, name):
    stored, pattern, data, line, value = FILES[name]
    if stored in (WANDB, TENSORBOARD):
        pytest.importorskip("wandb" if stored == WANDB else "tensorboard")
    folder, file = fill(stored, pattern, data)
    error = refused(folder)
    assert str(error.file) == str(file)
    assert error.line == line
    assert value in f"{error.problem} {error.path}"


@pytest.mark.parametrize(
    ("name", "pattern"),
    [(LIGHTNING, "metrics.csv"), (TRAINER, STATE), (MLFLOW, "loss"), (LM_EVAL, "results_*")],
)
def test_a_huge_file_is_refused_unread(fill, name, pattern):
    folder, file = fill(name, pattern, "{}")
    os.truncate(file, 2**40)  # a sparse file
    assert refused(folder).file == file


def test_a_pipe_in_place_of_a_file_is_refused(stored):
    folder = stored(LIGHTNING)
    file = folder / VERSION / "metrics.csv"
    file.unlink()
    os.mkfifo(file)
    assert refused(folder).file == file


@pytest.mark.parametrize(
    ("name", "pattern", "library"), [(WANDB, "*.wandb", "wandb"), (TENSORBOARD, "*.0", "tensorboard")]
)
def test_a_flipped_bit_is_refused_and_a_cut_end_is_said(stored, name, pattern, library):
    pytest.importorskip(library)
    folder = stored(name)
    file = min(folder.rglob(pattern))
    data = file.read_bytes()
    file.write_bytes(data[:100] + bytes([data[100] ^ 1]) + data[101:])
    error = refused(folder)
    assert error.file == file
    assert "byte" in error.problem
    file.write_bytes(data[:-1])
    with pytest.warns(DataWarning, match=str(file.parent)):
        assert len(read_folder(folder)) == 4


@pytest.mark.parametrize(
    ("name", "library"), [(WANDB, "wandb"), ("wandb-0.16.6-offline", "wandb"), (TENSORBOARD, "tensorboard")]
)
def test_a_missing_library_is_named_with_its_extra(stored, name, library, monkeypatch):
    for module in [library, *(module for module in sys.modules if module.startswith(f"{library}."))]:
        monkeypatch.setitem(sys.modules, module, None)
    error = refused(stored(name))
    assert library in error.problem
    assert "pip install 'taetpu[" in (error.remedy or "")


def test_several_logs_in_a_folder_of_wandb_are_refused(stored):
    folder = stored(WANDB)
    file = min(folder.rglob("*.wandb"))
    shutil.copy(file, file.with_name("run-other.wandb"))
    error = refused(folder)
    assert error.file == file.parent
    assert "run-other.wandb" in error.problem


DATABASES = {
    "bytes": (None, "database"),
    "other": ("CREATE TABLE other (a)", "'experiments'"),
    "column": ("ALTER TABLE metrics DROP step", "step"),
    "view": ("DROP TABLE tags; CREATE VIEW tags AS SELECT 1", "'tags'"),
    "text": ("UPDATE metrics SET value = 'low'", "'low'"),
}


@pytest.mark.parametrize("name", DATABASES)
def test_a_database_of_another_kind_is_refused(tmp_path, name):
    script, value = DATABASES[name]
    file = tmp_path / "mlflow.db"
    if script is None:
        file.write_bytes(b"no database" * 1000)
    else:
        with contextlib.closing(sqlite3.connect(file)) as database:
            if name != "other":
                schema = (STORED / "mlflow-3.17.2-sqlite" / "mlflow.sql").read_text()
                database.executescript(
                    schema.replace(
                        'metric_pk PRIMARY KEY ("key", timestamp, step,', 'metric_pk PRIMARY KEY ("key", timestamp,'
                    )
                )
            database.executescript(script)
    before = file.read_bytes()
    for path in (tmp_path, file):
        error = refused(path)
        assert error.file == file
        assert value in error.problem
    assert file.read_bytes() == before
    assert list(tmp_path.iterdir()) == [file]


def mutate(data, random):
    """Return a file's content with a part replaced, removed, repeated or added."""
    start = random.randrange(len(data) + 1)
    end = min(len(data), start + random.choice((0, 1, 1, 2, 8, 64)))
    new = random.choice(
        (b"", b"\xff", b"0", b"-1", b"{", b"]", b": ", b"\n", b'"', b"null", b"[[[", data[start:end] * 2)
    )
    return data[:start] + new + data[end:]


@pytest.mark.filterwarnings("ignore::taetpu.core.errors.DataWarning")
@pytest.mark.parametrize("name", [WANDB, "wandb-0.31.0-online", TENSORBOARD, LIGHTNING, TRAINER, MLFLOW, LM_EVAL])
def test_damaged_files_are_read_or_refused(stored, name):
    if name in (WANDB, TENSORBOARD):
        pytest.importorskip("wandb" if name == WANDB else "tensorboard")
    folder, random = stored(name), Random(0)
    files = sorted(path for path in folder.rglob("*") if path.is_file())
    for _ in range(MUTATIONS):
        file = random.choice(files)
        data = file.read_bytes()
        file.write_bytes(mutate(data, random))
        with contextlib.suppress(UserError):
            read_folder(folder)
        file.write_bytes(data)

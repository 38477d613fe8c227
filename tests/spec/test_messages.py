"""Messages of mistakes in study files contain the place, the values and the remedy."""

import re
from pathlib import Path
from typing import Any

import pytest
from ruamel.yaml import YAML
from tests.small import TINY

from taetpu.core.errors import UserError
from taetpu.spec.document import read_document
from taetpu.spec.loading import load_study

CASES = YAML(typ="safe", pure=True).load(Path(__file__).with_name("messages.yaml"))


def message(file: Path, sets: tuple[str, ...] = ()) -> str:
    with pytest.raises(UserError) as caught:
        load_study(file, sets).runs()
    return str(caught.value).replace(f"{file.parent}/", "")


def check_message(text: str, case: dict[str, Any]) -> None:
    assert re.findall(r"^  where:  (.*)$", text, re.MULTILINE) == [case["where"]]
    said = re.sub(r"^  where:.*\n", "", text, flags=re.MULTILINE)
    assert [name for name in case["names"] if name not in said] == [], text
    assert "\n  remedy: " in text


@pytest.mark.parametrize("case", CASES, ids=lambda case: " ".join(map(str, case.values()))[:60])
def test_mistakes_are_reported_with_place_values_and_remedy(
    case: dict[str, Any], folder: Path, study, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A dictionary with the content of the file has the same errors, without lines."""
    monkeypatch.chdir(folder)
    written, sets = case.get("file"), tuple(case.get("sets", ()))
    if written is not None:
        (folder / "s.yaml").write_bytes(written.encode("latin-1"))
        check_message(message(folder / "s.yaml"), case)
        return
    added = f"arms:\n  x: {case['arm']}\n" if "arm" in case else case.get("added", "")
    replaced = [(case["old"], case["new"])] if "old" in case else []
    with pytest.raises(UserError) as caught:
        study(added, sets, *replaced)
    check_message(str(caught.value).replace(f"{folder}/", ""), case)
    assert caught.value.line is not None or sets
    check_dictionary(folder / "s.yaml", sets, caught.value)


def check_dictionary(file: Path, sets: tuple[str, ...], expected: UserError) -> None:
    """Check that a dictionary with the content of a YAML file has the errors of the file, without file and line."""
    try:
        data = read_document(file).data
    except UserError:  # no dictionary has these mistakes
        return
    with pytest.raises(UserError) as caught:
        load_study(data, sets)
    errors = [[(one.problem, one.path, one.remedy) for one in error.all_errors] for error in (expected, caught.value)]
    assert sorted(errors[0], key=str) == sorted(errors[1], key=str)
    assert [(one.file, one.line) for one in caught.value.all_errors] == [(None, None)] * len(errors[1])


@pytest.mark.parametrize("key", ["1e3", "1.50", "true", "null"])
def test_a_key_that_is_no_text_is_quoted_as_it_was_written(folder: Path, key: str) -> None:
    (folder / "s.yaml").write_text(f"{TINY}arms:\n  {key}: {{model.ffn: relu}}\n")
    line = len(TINY.splitlines()) + 2
    assert message(folder / "s.yaml") == (
        f"arm name {key} is not text\n  where:  s.yaml:{line} at arms.{key}\n  remedy: Write '{key}' in quotes."
    )


def test_a_missing_file_suggests_stored_studies(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TAETPU_ROOT", str(folder / "root"))
    for name in ("mine", "yours"):
        (folder / "root" / name).mkdir(parents=True)
        (folder / "root" / name / "study.yaml").write_text("")
    assert "`taetpu status mine`" in message(folder / "mine")
    assert message(folder / "x.yaml").endswith("root: mine, yours.")


def test_a_missing_file_suggests_files_of_the_folder(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TAETPU_ROOT", str(folder / "root"))  # the studies of `make demo` are in ./runs
    start = "Run `taetpu new NAME` to write a study."
    assert message(folder / "s.yaml") == f"no such file\n  where:  s.yaml\n  remedy: {start}"
    (folder / "other.yaml").write_text("# mine\nstudy: other\n")
    assert message(folder / "x").endswith("remedy: Use one of: other.yaml.")
    assert message(folder / "othr").endswith("remedy: Did you mean 'other.yaml'? Use one of: other.yaml.")
    assert message(folder / "othr.yaml").endswith("remedy: Did you mean 'other.yaml'? Use one of: other.yaml.")


def test_a_folder_is_refused(folder: Path) -> None:
    text = message(folder)
    assert text.startswith("cannot read")
    assert ": Is a directory\n" in text


DATA = [
    (("text.txt", "texts.txt"), "", "no file or", "base.task.source", 3),
    (("seq_len: 8", "seq_len: 500"), "", "seq_len 500 is longer", "base.task.seq_len", 3),
    (("dim: 16", "dim: 16"), "arms:\n  x: {task.seq_len: 500}\n", "seq_len 500 is longer", "arms.x.task.seq_len", 7),
    (("steps: 10", "epochs: 1, schedule: {kind: cosine, warmup: 9}"),
     "", "warmup=9 is not shorter", "base.train.schedule.warmup", 5),
    (("kind: text, source: text.txt, seq_len: 8, split: order", "kind: copy, seq_len: 8, eval_size: 4"),
     "arms:\n  x: {train.steps: none, train.epochs: 2}\n", "epochs=2.0, but", "arms.x.train.epochs", 7),
]  # fmt: skip


@pytest.mark.parametrize(("replace", "added", "problem", "path", "line"), DATA)
def test_invalid_data_is_refused_before_training(replace, added, problem, path, line, study) -> None:
    loaded = study(added, (), replace)
    with pytest.raises(UserError) as caught:
        loaded.runs()
    error = caught.value
    assert error.problem.startswith(problem)
    assert (".".join(map(str, error.path)), error.line, Path(str(error.file)).name) == (path, line, "s.yaml")

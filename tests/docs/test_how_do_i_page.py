"""Every answer of docs/how-do-i.md: commands parse, parts of study files load, and the read-only answers run."""

import io
import re
import shlex
from contextlib import redirect_stdout
from pathlib import Path
from typing import Any

import pytest
import typer
from ruamel.yaml import YAML
from typer.core import TyperGroup

import taetpu
from taetpu.cli.main import LazyCommand, app
from taetpu.spec.loading import load_study
from taetpu.spec.programs.loading import load_program_study

PAGE = (Path(__file__).parents[2] / "docs/how-do-i.md").read_text()
BLOCKS = re.findall(r"^```(\w*)\n(.*?)^```$", PAGE, re.MULTILINE | re.DOTALL)
COMMANDS = [line for language, text in BLOCKS if not language for line in text.splitlines()]
PARTS = [text for language, text in BLOCKS if language == "yaml" and not re.match(r"# \S+\.yaml\n", text)]
STUDY = next(text for language, text in BLOCKS if text.startswith("# my-idea.yaml"))
CLAIMS = next(text for language, text in BLOCKS if text.startswith("# claims.yaml"))
SCRIPT = next(text for language, text in BLOCKS if text.startswith("# script.yaml"))
PYTHON = [text for language, text in BLOCKS if language == "python" and "ablate" not in text]
FUNCTION = next(text for language, text in BLOCKS if "ablate" in text)
SHORT = ["train.steps=4", "train.batch_size=4", "train.sample=none", "model.dim=16"]
READ = (
    "status my-idea",
    "report my-idea",
    "plot my-idea",
    "list",
    "lens",
    "model export",
    "data",
    "plan my-idea.yaml --diff",
)


@pytest.fixture
def here(tmp_path, monkeypatch):
    """The working folder, with the files that answers name."""
    (tmp_path / "corpus").mkdir()
    rows = [f"the cat {number} saw the dog, and the dog {number} saw the cat. " * 8 for number in range(100)]
    (tmp_path / "corpus/a.txt").write_text("\n\n".join(rows))
    (tmp_path / "rows.jsonl").write_text("".join(f'{{"body": "{row}"}}\n' for row in rows))
    (tmp_path / "my-idea.yaml").write_text(STUDY)
    (tmp_path / "claims.yaml").write_text(CLAIMS)
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("TAETPU_ROOT", raising=False)
    return tmp_path


def read(text: str) -> dict[str, Any]:
    return YAML(typ="safe").load(text)


def with_part(part: str) -> dict[str, Any]:
    """Return the page's study with a part of a study file: sections of the baseline and other keys are replaced."""
    study, changed = read(STUDY), read(part)
    return {**study, **changed, "base": {**study["base"], **changed.get("base", {})}}


def parse(line: str) -> str:
    """Parse a command line without running it, and return the name of its command."""
    command: Any = typer.main.get_command(app)
    context = command.make_context("taetpu", shlex.split(line)[1:])
    while isinstance(command, TyperGroup):
        rest = [*getattr(context, "_protected_args", ()), *context.args]
        name, command, rest = command.resolve_command(context, rest)
        command = command.load() if isinstance(command, LazyCommand) else command
        context = command.make_context(name, rest, parent=context)
    return context.command_path


def test_every_question_is_a_short_answer():
    answers = re.split(r"^### .*$", PAGE, flags=re.MULTILINE)[1:]
    assert 30 <= len(answers) <= 45
    assert max(len(answer.splitlines()) for answer in answers) < 25


@pytest.mark.parametrize("line", [line for line in COMMANDS if line.startswith("taetpu")])
def test_a_command_is_parsed(line):
    words = shlex.split(line)
    assert parse(line).split()[1] in words


def test_commands_of_other_programs_are_those_of_the_plugins_page():
    assert {line for line in COMMANDS if not line.startswith("taetpu")} == {"python -m taetpu.testing times.py"}


def test_a_wrong_option_would_be_noticed():
    with pytest.raises(typer.TyperException, match="--steps"):
        parse("taetpu run my-idea.yaml --steps 20")


@pytest.mark.parametrize("part", [part for part in PARTS if "start:" not in part])
def test_a_part_of_a_study_file_is_loaded(part, here):
    study = load_study(with_part(part))
    assert study.runs()
    if "arms" in read(part):
        assert len(study.arms) > 1


def test_the_study_of_a_script_is_loaded(here):
    (here / "train.py").write_text("")
    assert len(load_program_study(read(SCRIPT)).runs()) == 10


def test_a_function_is_compared(here):
    pytest.importorskip("cloudpickle")
    exec(FUNCTION.replace("seeds=5", "seeds=1"), {"__name__": "__main__"})
    assert (here / "runs/train/results.json").exists()


@pytest.mark.slow
def test_answers_about_a_trained_study_run(here):
    outcome = taetpu.run("my-idea.yaml", SHORT, root="runs")
    assert not outcome.failed
    for text in PYTHON:
        names: dict[str, Any] = {}
        exec(text, names)
        assert "outputs" in names or len(names["study"].runs) == 10
    ran = [line for line in COMMANDS if line.removeprefix("taetpu ").startswith(READ)]
    for line in ran:
        with redirect_stdout(io.StringIO()):
            app(shlex.split(line)[1:], standalone_mode=False)
    assert len(ran) >= 10
    assert all((here / name).exists() for name in ("loss.pdf", "maps.png", "heads.png", "exported"))
    start = next(part for part in PARTS if "start:" in part)
    assert load_study(with_part(start), ["model.dim=16"]).runs()

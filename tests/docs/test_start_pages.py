"""The studies and commands of docs/first-study.md work, and pages for contributors name what exists."""

import io
import re
import shlex
from contextlib import redirect_stdout
from pathlib import Path

import pytest
from tests.docs.test_how_do_i_page import parse

import taetpu
from taetpu.cli.main import app
from taetpu.core.identity import SCHEMA
from taetpu.spec.loading import load_study

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs/first-study.md").read_text()
STUDIES = dict(re.findall(r"^```yaml\n# (\S+)\n(.*?)^```$", PAGE, re.MULTILINE | re.DOTALL))
COMMANDS = re.findall(r"^(taetpu .*)$", PAGE, re.MULTILINE)
SHORT = ["train.steps=4", "train.batch_size=4", "task.eval_size=8", "train.sample=none"]


@pytest.fixture
def here(tmp_path, monkeypatch):
    for name, text in STUDIES.items():
        (tmp_path / name).write_text(text)
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("TAETPU_ROOT", raising=False)
    return tmp_path


@pytest.mark.parametrize("line", COMMANDS)
def test_a_command_is_parsed(line):
    assert parse(line).split()[1] == line.split()[1]


def test_the_studies_have_the_arms_that_the_page_names(here):
    arms = {name: {arm.name for arm in load_study(name).arms} for name in STUDIES}
    assert arms == {
        "copying.yaml": {"baseline", "no-position", "no-ffn"},
        "crossed.yaml": {"baseline", "position=none", "ffn=none", "position=none,ffn=none"},
    }


@pytest.mark.slow
def test_the_first_study_runs_and_its_baseline_is_opened(here):
    assert not taetpu.run("copying.yaml", SHORT, root="runs").failed
    for line in (line for line in COMMANDS if line.startswith("taetpu lens")):
        with redirect_stdout(io.StringIO()) as out:
            app(shlex.split(line)[1:], standalone_mode=False)
        assert out.getvalue()
    assert (here / "heads.png").stat().st_size > 1000


def test_the_page_for_contributors_names_targets_and_files_that_exist():
    page, make = (ROOT / "CONTRIBUTING.md").read_text(), (ROOT / "Makefile").read_text()
    targets = set(re.findall(r"^make (\w+)", page, re.MULTILINE))
    assert targets == {"test", "lint", "site"}
    assert all(f"\n{target}: install" in make for target in targets)
    files = re.findall(r"`((?:tests|docs|\.ci)/[\w./]+)`", page) + re.findall(r"\]\(([\w./]+)\)", page)
    assert all((ROOT / file).exists() for file in files)
    assert f"(now {SCHEMA})" in (ROOT / "docs/versions.md").read_text()


def test_the_threat_model_states_the_limits_of_study_files():
    from taetpu.spec.document import LONGEST_FILE, MAX_DEPTH, MAX_VALUES

    page = (ROOT / "SECURITY.md").read_text()
    assert f"{LONGEST_FILE:,} bytes, {MAX_VALUES:,} values, {MAX_DEPTH} levels" in page

"""The tutorials run in an empty folder: every file is written, and every command and block runs in the page's order."""

import io
import json
import re
import shlex
import subprocess
import sys
from contextlib import redirect_stdout
from pathlib import Path

import pytest
from tests.docs.test_how_do_i_page import parse

import taetpu
from taetpu.cli.main import app
from taetpu.contract.check import check_arms
from taetpu.spec.loading import load_study

ROOT = Path(__file__).parents[2]
PAGES = ("first-plugin", "first-data", "first-lens")
BLOCK = re.compile(r"^```(\w*)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
NAMED = re.compile(r"# (\S+\.(?:py|yaml))\n")
ARMS = {
    "sine.yaml": {"baseline", "sine", "fast-sine", "relu"},
    "dates.yaml": {"baseline", "no-position", "one-layer"},
    "induction.yaml": {"baseline"},
}
ENDS = {"first-plugin": "sine.png", "first-data": "", "first-lens": "knockout.png"}
"""The picture with which a page ends. The second one ends with a text."""


def text_of(page: str) -> str:
    return (ROOT / f"docs/{page}.md").read_text()


def steps_of(page: str) -> list[tuple[str, str]]:
    """Return files to write (name, text) and commands ("", line), in the page's order."""
    steps = list[tuple[str, str]]()
    for language, text in BLOCK.findall(text_of(page)):
        if named := NAMED.match(text):
            steps.append((named[1], text))
        else:
            assert not language, "a block without a file's name is a list of commands"
            steps += [("", line) for line in text.splitlines()]
    return steps


@pytest.fixture
def empty(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("TAETPU_ROOT", raising=False)
    return tmp_path


def run_step(line: str) -> str:
    """Run a command of a page, and return its output."""
    program, *words = shlex.split(line)
    if program == "python":
        return subprocess.run([sys.executable, *words], check=True, capture_output=True, text=True).stdout
    with redirect_stdout(io.StringIO()) as out:
        app(words, standalone_mode=False)
    return out.getvalue()


@pytest.mark.parametrize("page", PAGES)
def test_commands_are_parsed_and_lines_are_few(page):
    lines = [line for name, line in steps_of(page) if not name]
    taetpu = [line for line in lines if line.startswith("taetpu")]
    assert len(taetpu) >= 3
    assert all(parse(line).split()[1] == line.split()[1] for line in taetpu)
    assert {line.split()[0] for line in lines} <= {"taetpu", "python"}
    assert len(text_of(page).splitlines()) < 110


def test_studies_have_the_arms_that_the_pages_name(empty):
    for page in PAGES:
        for name, text in steps_of(page):
            if name:
                (empty / name).write_text(text)
    run_step("python dates.py")
    assert {name: {arm.name for arm in load_study(name).arms} for name in ARMS} == ARMS


@pytest.mark.slow
def test_the_plugin_keeps_the_contract(empty):
    for name, text in steps_of("first-plugin"):
        if name:
            (empty / name).write_text(text)
    check_arms(load_study("sine.yaml"))


@pytest.mark.nightly
@pytest.mark.parametrize("page", PAGES)
def test_a_tutorial_runs_from_its_first_to_its_last_line(page, empty):
    printed = {}
    for name, text in steps_of(page):
        if name:
            (empty / name).write_text(text)
        else:
            printed[text] = run_step(text)
    if ENDS[page]:
        assert (empty / ENDS[page]).stat().st_size > 1000
    SEE[page](printed)


def see_plugin(printed):
    assert "causality" in printed["python -m taetpu.testing sine.py"]
    results = json.loads(Path("runs/sine/results.json").read_text())
    assert {arm["name"] for arm in results["arms"]} == ARMS["sine.yaml"]


def see_data(printed):
    assert Path("dates.txt").read_text().startswith("1 January 2000 = 2000-01-01\n")
    (sample,) = [out for line, out in printed.items() if "lens sample" in line]
    assert re.search(r"4 July 2031 = \d{4}-07-04", sample), "the month and the day are known from the file's form"
    assert any("-07-04" in out or "7" in out for line, out in printed.items() if "perplexity" in line)


def see_heads(printed):
    """The page says that heads of layer 1 are induction heads, and that the loss rises without them."""
    model = taetpu.open_run("induction/baseline/0")
    layer, _, score = taetpu.head_scores(model).best("induction")
    assert (layer, score > 0.3) == (1, True)
    rows = json.loads(run_step("taetpu lens knockout induction/baseline/0 --split val --json"))["components"]
    assert max(row["effect"] for row in rows) > 0.5


SEE = {"first-plugin": see_plugin, "first-data": see_data, "first-lens": see_heads}

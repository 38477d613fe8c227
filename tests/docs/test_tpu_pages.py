"""The pages that teach TPUs: every block of Python runs, commands parse, and tables are those of `taetpu chips`."""

import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest
from tests.docs.test_how_do_i_page import parse
from tests.docs.tpu_tables import PAGES, TABLES, with_tables

from taetpu.core.jax_setup import prepare_jax

DOCS = Path(__file__).parents[2] / "docs"
TEXTS = {name: (DOCS / name).read_text() for name in (*PAGES, "numpy-jax-torch.md")}
BLOCKS = {name: re.findall(r"^```(\w*)\n(.*?)^```$", text, re.MULTILINE | re.DOTALL) for name, text in TEXTS.items()}
PYTHON = {name: [text for language, text in blocks if language == "python"] for name, blocks in BLOCKS.items()}
SHELL = [text for blocks in BLOCKS.values() for language, text in blocks if not language]
COMMANDS = [line.removeprefix("!") for text in SHELL for line in text.splitlines()]
SCRIPT = re.compile(r"# \w+\.py\n")


@pytest.fixture(autouse=True)
def here(tmp_path, monkeypatch):
    prepare_jax()
    monkeypatch.chdir(tmp_path)
    return tmp_path


def test_all_blocks_are_python_or_commands():
    assert {language for blocks in BLOCKS.values() for language, _ in blocks} == {"python", ""}
    assert [len(texts) for texts in PYTHON.values()] == [6, 1, 13]


@pytest.mark.parametrize("name", PYTHON)
def test_the_blocks_of_a_page_run_in_their_order(name):
    if "torch" in "".join(PYTHON[name]):
        pytest.importorskip("torch")
    names = {"__name__": "page"}
    for text in PYTHON[name]:
        if not SCRIPT.match(text):
            exec(text, names)


@pytest.mark.slow
def test_the_script_with_eight_devices_runs(here):
    (text,) = [text for texts in PYTHON.values() for text in texts if SCRIPT.match(text)]
    (here / "eight.py").write_text(text)
    subprocess.run([sys.executable, "eight.py"], check=True)


@pytest.mark.parametrize("line", COMMANDS)
def test_a_command_is_parsed(line):
    if line.startswith("pip install"):
        assert shlex.split(line)[-1] == "taetpu[tpu]"
    else:
        assert parse(line).split()[1] == line.split()[1]


@pytest.mark.parametrize("name", PAGES)
def test_tables_are_those_of_the_data(name):
    """If not, `python -m tests.docs.tpu_tables --write` writes them."""
    assert with_tables(TEXTS[name]) == TEXTS[name]


def test_every_table_is_on_a_page():
    assert {name for text in TEXTS.values() for name in re.findall(r"<!-- table: (\w+) -->", text)} == {*TABLES}


def test_the_picture_is_well_formed_and_loads_nothing():
    from xml.etree import ElementTree

    text = (DOCS / "img/systolic-array.svg").read_text()
    assert "img/systolic-array.svg" in TEXTS["tpu-basics.md"]
    assert ElementTree.fromstring(text).tag.endswith("svg")
    assert not re.search(r"(?:href|src|url)=?\W*https?:", text)

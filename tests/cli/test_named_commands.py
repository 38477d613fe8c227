"""Every `taetpu ...` in a message, docstring or docs page is a command with these options."""

import re
from pathlib import Path

import pytest
from tests.cli.commands import wrong

ROOT = Path(__file__).parents[2]
SOURCES = sorted((ROOT / "src").rglob("*.py"))
PAGES = sorted([ROOT / "README.md", ROOT / "CHANGELOG.md", *(ROOT / "docs").glob("*.md")])
SCRIPTS = sorted((ROOT / "examples").glob("*.sh"))
QUOTED = re.compile(r"`(taetpu(?: [^`\n]*)?)`")
EXAMPLE = re.compile(r"Example: (taetpu [^\n\"]*)")
SHOWN = re.compile(r'f?"(taetpu (?:doctor|image|bucket|tpu|dev|report)(?: [^"]*)?)"')
"""Return strings that consist of a command, such as `Check.command`. Placeholders count as words."""
BLOCK = re.compile(r"^```(?:bash)?\n(.*?)^```$", re.MULTILINE | re.DOTALL)
LINE = re.compile(r"^(?:\$ |!)?(taetpu .*)$", re.MULTILINE)


def problems(lines: list[str]) -> list[str]:
    return [f"{problem}: {line}" for line in lines if (problem := wrong(line))]


def test_checker_of_commands_finds_mistakes():
    assert wrong("taetpu tpu ups").endswith("command 'tpu ups'")
    assert wrong("taetpu tpu up --typ v6e-8") == "`taetpu tpu up` has no option --typ"
    assert wrong("taetpu --device 1 run a.yaml --set a.b=--c") == ""
    assert wrong("taetpu tpu run --detach python train.py --lr 1") == ""
    assert wrong("taetpu tpu run --lr 1 python train.py") == "`taetpu tpu run` has no option --lr"


def test_messages_and_docstrings():
    named = [line for path in SOURCES for one in (QUOTED, EXAMPLE, SHOWN) for line in one.findall(path.read_text())]
    assert len(named) > 100
    named = [re.sub(r"\{[^}]*\}", "X", line) for line in named]
    assert any(line.startswith("taetpu bucket create") for line in named), "doctor's are among them"
    assert problems(named) == []


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_pages(page):
    text = page.read_text()
    blocks = [block.replace("\\\n", " ") for block in BLOCK.findall(text)]
    named = [line for block in blocks for line in LINE.findall(block)] + QUOTED.findall(text)
    assert problems(named) == []


@pytest.mark.parametrize("script", SCRIPTS, ids=lambda script: script.name)
def test_scripts(script):
    named = re.findall(r"^run (.*)$", script.read_text(), re.MULTILINE)
    assert named
    assert problems([f"taetpu {line}" for line in named]) == []

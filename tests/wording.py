"""Texts that users read, compared with the texts stored beside the tests. UPDATE_SCREENS=1 writes them.

Tests assert values, places and remedies themselves. Where whole sentences matter, they pass the text to the fixture
`wording`, which compares it with its section of `screens/<test file>.txt`: a changed sentence is then accepted with one
command, and reviewed as a diff.
"""

import os
import re
from pathlib import Path

import pytest

HEADING = "=== "
DURATION = re.compile(r"(?:\d+(?:\.\d+)?(?:us|ms|s|min|h)\b-?)+")


def mask(text: str, temporary: Path) -> str:
    """Return a text without durations, folders of tests in `temporary` and spaces at the ends of lines."""
    text = re.sub(re.escape(str(temporary)) + r"/[^/\s:'\"`]+", "FOLDER", text)
    return "\n".join(DURATION.sub("TIME", line.rstrip()) for line in text.strip("\n").splitlines())


def read_sections(file: Path) -> dict[str, str]:
    """Return the stored texts of a test file by the names of their sections."""
    sections: dict[str, list[str]] = {}
    lines: list[str] = []
    for line in file.read_text(encoding="utf-8").splitlines() if file.exists() else ():
        if line.startswith(HEADING):
            lines = sections[line.removeprefix(HEADING)] = []
        else:
            lines.append(line)
    return {name: "\n".join(lines).strip("\n") for name, lines in sections.items()}


def write_sections(file: Path, sections: dict[str, str]) -> None:
    """Store texts as `read_sections` reads them, in the order of their names."""
    file.parent.mkdir(exist_ok=True)
    text = "".join(f"{HEADING}{name}\n{sections[name]}\n\n" for name in sorted(sections))
    file.write_text(text.rstrip("\n") + "\n", encoding="utf-8")


@pytest.fixture
def wording(request, tmp_path_factory):
    """`wording(text)` compares a text with its stored section; further calls in one test have sections of their own."""
    file = request.path.parent / "screens" / f"{request.path.stem}.txt"
    calls = 0

    def check(text: str) -> None:
        nonlocal calls
        calls += 1
        name = request.node.name.partition("@")[0] + (f" {calls}" if calls > 1 else "")
        shown = mask(text, tmp_path_factory.getbasetemp())
        assert shown.strip(), "there is no text"
        if os.environ.get("UPDATE_SCREENS"):
            write_sections(file, {**read_sections(file), name: shown})
        assert shown == read_sections(file).get(name), "UPDATE_SCREENS=1 accepts the new wording"

    return check

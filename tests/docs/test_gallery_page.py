"""The page of the gallery has the table of the index. UPDATE_SCREENS=1 writes it."""

import os
from collections.abc import Iterable
from pathlib import Path

from taetpu.study.gallery_index import NOT_RUN, Entry, read_gallery

PAGE = Path(__file__).parents[2] / "docs/gallery.md"
START, END = "<!-- table -->\n", "<!-- end of the table -->"
COLUMNS = ("command", "claim and source", "expected", "here")

IMAGES = PAGE.parent / "img/gallery"
MOST = 300_000
"""Maximum size of a picture, in bytes."""


def render_pictures(entries: Iterable[Entry]) -> str:
    """Return the pictures of the studies that were run, as far as they are stored."""
    files = {file.stem: file.name for file in IMAGES.iterdir()}
    shown = [entry for entry in entries if entry.name in files]
    return "".join(f"\n![{e.title}](img/gallery/{files[e.name]})\n\n*{e.title}.*\n" for e in shown)


def render_row(entry: Entry) -> str:
    """Return a row of the table."""
    source, seen = entry.source, entry.measured
    by = f"{source.by}, *{source.title}*" + (f", arXiv {source.arxiv}" if source.arxiv else "")
    values = "" if seen is None else f"{seen.values}. {seen.reason}".strip() if seen.reason else seen.values
    measured = ""
    if seen is not None:
        cpu = f", {seen.cpu_seconds} s of CPU time" if seen.cpu_seconds else ""
        measured = f": {values} ({seen.seconds} s{cpu}; {seen.date}, {seen.machine})"
    cells = [
        f"[`taetpu gallery run {entry.name}`](../src/taetpu/study/gallery/{entry.name}.yaml)",
        f"{entry.claim} {by} (read: {source.read})",
        entry.tolerance,
        f"**{entry.outcome}**{measured}",
    ]
    return f"| {' | '.join(cells)} |\n"


def test_page_has_the_table_of_the_index() -> None:
    text = PAGE.read_text(encoding="utf-8")
    head = f"\n| {' | '.join(COLUMNS)} |\n|{'---|' * len(COLUMNS)}\n"
    entries = read_gallery().values()
    table = head + "".join(map(render_row, entries)) + render_pictures(entries) + "\n"
    before, _, after = text.partition(START)
    if os.environ.get("UPDATE_SCREENS"):
        PAGE.write_text(before + START + table + END + after.partition(END)[2], encoding="utf-8")
        text = PAGE.read_text(encoding="utf-8")
    assert text.partition(START)[2].partition(END)[0] == table, "UPDATE_SCREENS=1 writes the table"


def test_studies_that_were_not_run_have_no_numbers() -> None:
    for entry in read_gallery().values():
        assert (entry.outcome == NOT_RUN) == (entry.measured is None)
        assert entry.measured is None or entry.measured.seconds > 0


def test_pictures_are_small_and_of_studies_that_were_run() -> None:
    files = [*IMAGES.iterdir()]
    assert {file.stem for file in files} == {name for name, entry in read_gallery().items() if entry.measured}
    assert max(file.stat().st_size for file in files) < MOST
